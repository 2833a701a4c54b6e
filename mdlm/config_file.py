"""One YAML or TOML file a run, `--section.key=value` on top, into a frozen dataclass. jsonargparse does the work."""

from __future__ import annotations

import argparse
import difflib
import json
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import yaml
from jsonargparse import ArgumentParser, Namespace

from mdlm.errors import UserError

C = TypeVar("C")


def parse_config(
    kind: type[C], argv: list[str], *, prog: str, flags: dict[str, str] | None = None
) -> tuple[C, Namespace]:
    """Reads `CONFIG [--section.key=value ...] [flags]` into a `kind`.

    Args:
        kind: a dataclass, whose nested dataclasses are the sections.
        prog: the command, for usage and messages.
        flags: extra boolean flags, name -> help; their values are in the returned namespace.

    `--print-config` prints the resolved config as YAML and exits. Errors name the key and the nearest valid one.
    """
    parser = ArgumentParser(prog=prog, exit_on_error=False, print_config=None, description=kind.__doc__)
    parser.add_argument("--config", action="config", help="the run's YAML or TOML file; may also stand first, bare")
    parser.add_class_arguments(kind, None)
    for name, text in {"print-config": "print the resolved config and exit", **(flags or {})}.items():
        parser.add_argument(f"--{name}", action="store_true", help=text)
    argv = list(argv)
    if argv and not argv[0].startswith("-"):
        argv[0] = f"--config={argv[0]}"
    for argument in argv:
        if argument.startswith("--config=") and not Path(argument.removeprefix("--config=")).is_file():
            raise UserError(f"{argument.removeprefix('--config=')}: no such config file; configs/ holds those shipped")
    try:
        parsed = parser.parse_args(argv)
        config = parser.instantiate(parsed)
    except (argparse.ArgumentError, TypeError, ValueError) as error:
        if isinstance(error.__cause__, UserError):
            raise error.__cause__ from error
        raise UserError(_explain(str(error), list(parser.get_defaults().keys()))) from error
    if parsed.print_config:
        only = Namespace({k: v for k, v in parsed.items() if k.split(".")[0] in kind.__dataclass_fields__})  # type: ignore[attr-defined]
        print(parser.dump(only, skip_validation=True), end="")
        sys.exit(0)
    return kind(**{name: config[name] for name in kind.__dataclass_fields__}), config  # type: ignore[attr-defined]


def _explain(message: str, known: list[str]) -> str:
    """jsonargparse's message in one line, with the nearest known key where a key was not."""
    message = re.sub(r"\s+", " ", message).strip()
    unknown = re.search(r"arguments: --([\w.\-]+)|option '([\w.\-]+)'|[Oo]ption '([\w.\-]+)'", message)
    if unknown:
        key = next(group for group in unknown.groups() if group)
        group = re.search(r"Group '([\w.]+)'", message)
        key = f"{group[1]}.{key}" if group else key
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.0)
        return f"unknown config key {key!r}; the nearest valid one is {near[0]!r} (--print-config shows all)"
    return message.replace("Parser key", "config key")


def write_config(config: Any, path: Path) -> None:
    """Writes a resolved config as YAML, readable by `parse_config`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(json.loads(json.dumps(asdict(config))), sort_keys=False))


def claim_folder(config: Any, folder: Path) -> None:
    """Takes an output folder for a config, which is written into it; a folder made with another config is refused."""
    path, wanted = folder / "config.yaml", folder / "config.yaml.new"
    write_config(config, wanted)
    if path.exists() and path.read_text() != wanted.read_text():
        wanted.unlink()
        raise UserError(f"{folder} was made with another config; choose another --output or delete it")
    wanted.replace(path)

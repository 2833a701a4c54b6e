"""One JSON file for every number that is printed: the result, and what made it."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from evals.machine import describe_machine
from mdlm.errors import UserError
from mdlm.provenance import checkout

FORMAT_VERSION = 1
LIBRARIES = ("torch", "numpy", "scipy", "tokenizers", "safetensors", "datasets", "accelerate", "lm_eval")


def make_record(kind: str, settings: dict[str, Any], result: Any) -> dict[str, Any]:
    """A result with everything that made it, as plain values.

    Args:
        kind: what sort of result, in one word; a reader finds records by it.
        settings: what the caller decided: config, seeds, decoder settings, dtype, compile mode, the rule by which
            tokens are counted.
        result: the numbers, each with its n and its interval.

    The record adds format version, date (UTC), commit, library versions and the machine.
    """
    commit, changed = checkout()
    return {
        "kind": kind,
        "format_version": FORMAT_VERSION,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "uncommitted_changes": changed,
        "versions": {name: found for name in LIBRARIES if (found := _version(name))},
        "machine": describe_machine(),
        "settings": settings,
        "result": result,
    }


def write_record(path: str | Path, kind: str, settings: dict[str, Any], result: Any) -> dict[str, Any]:
    """Writes `make_record(kind, settings, result)` to a file, whole or not at all, and returns it.

    Folders on the way are made; an older file of that name is replaced. A value that JSON does not know, NaN and
    infinity among them, is a `ValueError` or `TypeError`, and nothing is written.
    """
    record = make_record(kind, settings, result)
    save_record(path, record)
    return record


def save_record(path: str | Path, record: dict[str, Any]) -> None:
    """Writes a record that is made already, by the rules of `write_record`."""
    path = Path(path)
    if path.is_dir():
        raise UserError(f"{path} is a folder; give the name of a file to write")
    text = json.dumps(record, indent=1, allow_nan=False) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    try:
        with unfinished.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def read_record(path: str | Path) -> dict[str, Any]:
    """The record in a file; `UserError` where there is none, or one of another version."""
    path, mend = Path(path), "delete it and measure again"
    if not path.is_file():
        raise UserError(f"{path}: no such record")
    try:
        record = json.loads(path.read_text())
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON ({error}); {mend}") from error
    if not isinstance(record, dict) or not {"kind", "format_version", "settings", "result"} <= record.keys():
        raise UserError(f"{path} is not a record; {mend}")
    if record["format_version"] != FORMAT_VERSION:
        raise UserError(f"{path} has format_version {record['format_version']!r}, not {FORMAT_VERSION}; {mend}")
    return record


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None

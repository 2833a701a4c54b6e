"""Where the prompts of `python -m sample` come from: arguments, a file, or stdin."""

from __future__ import annotations

import codecs
import json
import sys
from pathlib import Path

from mdlm.errors import UserError


def read_prompts(given: list[str] | None, path: Path | None) -> list[str] | None:
    """The prompts given, else those of the file `path`, else stdin; none of them empty. None: ask the terminal.

    A `.jsonl` file has its prompts under "prompt", any other one a line; blank lines are none. Stdin is one prompt,
    unless it is a terminal. Raises `UserError` with file and line for text that is not UTF-8, broken JSON and
    an empty prompt.
    """
    if given:
        return [_not_empty(text, f"--prompt (number {n} of {len(given)})") for n, text in enumerate(given, start=1)]
    if path is not None:
        return _read_file(path)
    if sys.stdin is None:  # closed by who started us
        raise UserError("there is no prompt and no stdin; give --prompt TEXT, --prompts FILE or --unconditional")
    if sys.stdin.isatty():
        return None
    text = _utf8(sys.stdin.buffer.read(), "stdin")
    return [_not_empty(text.removesuffix("\n").removesuffix("\r"), "the prompt from stdin")]


def ask() -> str:
    """The next prompt from the terminal; empty where there is none."""
    print("prompt: ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip()


def _read_file(path: Path) -> list[str]:
    is_json = path.suffix.lower() == ".jsonl"
    text = _utf8(path.read_bytes().removeprefix(codecs.BOM_UTF8), str(path))
    prompts = []
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            line = line.removesuffix("\r")
            prompts.append(_json_prompt(line, f"{path}:{number}") if is_json else line)
    if not prompts:
        raise UserError(f"{path} holds no prompts; write one a line")
    return prompts


def _json_prompt(line: str, where: str) -> str:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(
            f"{where}: broken JSON at column {error.colno}: {error.msg}; mend or delete the line"
        ) from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: unreadable JSON: {error}; mend or delete it") from error
    if not isinstance(row, dict) or not isinstance(row.get("prompt"), str):
        raise UserError(f'{where}: a row must be an object with a text under "prompt"')
    return _not_empty(row["prompt"], where)


def _utf8(content: bytes, name: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"{name}:{line}: byte {error.start + 1} is not UTF-8; convert the text first") from error


def _not_empty(text: str, where: str) -> str:
    if not text.strip():
        raise UserError(f"{where} is empty; write a prompt, or decode without one by --unconditional")
    return text

"""Training text as it is read: JSON Lines, plain text, Parquet, Arrow, folders saved by `datasets`, Hub sets."""

from __future__ import annotations

import codecs
import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import rich.progress
from rich.console import Console

from mdlm.errors import UserError
from mdlm.provenance import sha256_of

PIECE_CHARACTERS = 1 << 16
"""A plain text file is read and tokenized in pieces of about this many characters."""

_BLOCK_BYTES = 1 << 20
_SAVED_BY_DATASETS = ("dataset_dict.json", "state.json")


@dataclass(frozen=True)
class Row:
    """Text to train on. `prompt` is None for running text; `last` is False for a piece whose text goes on."""

    prompt: str | None
    response: str
    last: bool = True


class Rejects:
    """What becomes of an unusable row of `source`: the first one stops the reading, or all are counted."""

    def __init__(
        self,
        source: str | Path,
        on_error: Literal["stop", "skip"],
        mend: str = 'mend it, or skip and count such rows with on_error "skip"',
    ) -> None:
        self.source, self.on_error, self.mend = source, on_error, mend
        self.count = 0
        self.first: str | None = None

    def add(self, row: int, error: UserError) -> None:
        if self.on_error == "stop":
            raise UserError(f"{self.source}:{row}: {error}; {self.mend}") from error
        self.count += 1
        self.first = self.first or f"{Path(self.source).name}:{row}: {error}"


@dataclass(frozen=True)
class Source:
    """One opened source. `rows` reads it from its beginning; `name` and `sha256` say which text it was."""

    name: str
    sha256: str
    rows: Callable[[Rejects], Iterator[Row]]


def open_source(source: str | Path, split: str | None = None) -> Source:
    """Finds the reader for `source`: a `.jsonl` file, a `.parquet` or `.arrow` file, a folder written by
    `Dataset.save_to_disk`, `hub:owner/name` or `hub:owner/name:config`, or any other file as one long plain text.

    `split` chooses one where a saved folder or Hub set has several. Raises `UserError` for what cannot be read.
    """
    if str(source).startswith("hub:"):
        return _hub(str(source), split)
    path = Path(source)
    if any((path / name).is_file() for name in _SAVED_BY_DATASETS):
        return _saved(path, split)
    check_file(path)
    if split is not None:
        raise UserError(f"{path} is one file and has no split {split!r}; leave split out")
    sha256 = sha256_of(path)
    suffix = path.suffix.lower()
    if suffix in (".parquet", ".arrow"):
        return Source(path.name, sha256, lambda rejects: _table(str(path), _streamed(suffix[1:], path), rejects))
    if suffix == ".jsonl":
        return Source(path.name, sha256, lambda rejects: (row for _, row in json_lines(path, rejects)))
    if suffix == ".json":
        raise UserError(
            f"{path}: write one JSON object a line into a .jsonl file, or rename it .txt if it is plain text"
        )
    return Source(path.name, sha256, lambda rejects: _plain_text(path))


def check_file(path: Path) -> None:
    """Raises `UserError` unless `path` is a file with something in it."""
    if not path.exists():
        raise UserError(f"there is no data file {path}; give a .jsonl, .txt, .parquet or .arrow file or hub:owner/name")
    if path.is_dir():
        raise UserError(f"{path} is a folder, and not one saved by datasets (save_to_disk); give a file in it")
    if path.stat().st_size == 0:
        raise UserError(f"{path} is empty; there is nothing to train on")


def json_lines(path: Path, rejects: Rejects) -> Iterator[tuple[bytes, Row]]:
    """The rows of a JSON Lines file, each with the line it came from; blank lines are no rows."""
    keys = None
    with _progress_open(path) as file:
        for number, line in enumerate(file, start=1):
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            line = line.strip()
            if not line:
                continue
            try:
                record = _parse_line(line)
                found = _text_keys(record)
                if keys not in (None, found):
                    raise UserError(f"a row of {_named(found)} in a file of {_named(keys)}; one file holds one kind")
                row = _row(record, found)
            except UserError as error:
                rejects.add(number, error)
                continue
            keys = found
            yield line, row


def _parse_line(line: bytes) -> Mapping[str, Any]:
    try:
        record = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UserError(
            f"byte {error.start + 1} of the line is not UTF-8 (is the file in another encoding?)"
        ) from error
    except json.JSONDecodeError as error:
        raise UserError(f"broken JSON at column {error.colno}: {error.msg}") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, brackets thousands deep
        raise UserError(f"unreadable JSON: {error}") from error
    if not isinstance(record, dict):
        raise UserError(f'a JSON {type(record).__name__} instead of an object like {{"prompt": ..., "response": ...}}')
    return record


def _text_keys(names: Collection[str]) -> tuple[str, ...]:
    """Which keys hold the text: prompt and response, or text."""
    for keys in (("prompt", "response"), ("text",)):
        if all(key in names for key in keys):
            return keys
    present = ", ".join(repr(name) for name in list(names)[:8]) or "nothing"
    raise UserError(f'"prompt" and "response", or "text", are needed; here is {present}')


def _named(keys: tuple[str, ...]) -> str:
    return " and ".join(f'"{key}"' for key in keys)


def _row(record: Mapping[str, Any], keys: tuple[str, ...]) -> Row:
    for key in keys:
        value = record[key]
        if not isinstance(value, str):
            raise UserError(f'"{key}" is {type(value).__name__}, not a string')
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise UserError(f'"{key}" holds the lone surrogate U+{ord(value[error.start]):04X}') from error
    if not record[keys[-1]]:
        raise UserError(f'"{keys[-1]}" is empty; there is nothing to learn')
    return Row(prompt=record["prompt"] if "prompt" in keys else None, response=record[keys[-1]])


def _plain_text(path: Path) -> Iterator[Row]:
    """The file as one text in pieces. A piece ends before white space, where byte-level BPE ends a token anyway."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    pending, lines, started = "", 1, False
    with _progress_open(path) as file:
        while True:
            block = file.read(_BLOCK_BYTES)
            try:
                pending += decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                line = lines + error.object[: error.start].count(b"\n")
                raise UserError(f"{path}:{line}: not UTF-8; convert the file to UTF-8") from error
            lines += block.count(b"\n")
            if not started and pending:
                pending, started = pending.removeprefix("\ufeff"), True
            while len(pending) > PIECE_CHARACTERS:
                parts = pending[:PIECE_CHARACTERS].rsplit(maxsplit=1)
                cut = len(parts[0]) if len(parts) == 2 else PIECE_CHARACTERS
                yield Row(None, pending[:cut], last=False)
                pending = pending[cut:]
            if not block:
                break
    yield Row(None, pending)


def _streamed(kind: str, path: Path) -> Any:
    import datasets

    with _readable(str(path)):
        return datasets.load_dataset(kind, data_files=str(path.resolve()), split="train", streaming=True)


def _saved(path: Path, split: str | None) -> Source:
    import datasets

    with _readable(str(path)):
        loaded = datasets.load_from_disk(str(path))
    return _loaded(path.name, loaded, split)


def _hub(source: str, split: str | None) -> Source:
    import datasets

    name, _, config = source.removeprefix("hub:").partition(":")
    if name.count("/") > 1 or not name:
        raise UserError(f"{source!r} is no Hub set; write hub:owner/name or hub:owner/name:config")
    with _readable(source):
        loaded = datasets.load_dataset(name, config or None, split=split)
    return _loaded(source, loaded, split)


def _loaded(name: str, loaded: Any, split: str | None) -> Source:
    """A set that `datasets` holds as Arrow files, whose bytes give the checksum."""
    if isinstance(loaded, dict):
        if split is None and len(loaded) == 1:
            split = next(iter(loaded))
        if split not in loaded:
            raise UserError(f"{name} has the splits {', '.join(map(str, loaded))}; choose one of them with split")
        loaded = loaded[split]
    elif split is not None and str(loaded.split) != split:
        raise UserError(f"{name} holds one split, {loaded.split}, and not {split!r}; leave split out")
    digest = hashlib.sha256()
    for file in loaded.cache_files:
        with open(file["filename"], "rb") as opened:
            digest.update(hashlib.file_digest(opened, "sha256").digest())
    return Source(name, digest.hexdigest(), lambda rejects: _table(name, loaded, rejects))


def _table(name: str, table: Any, rejects: Rejects) -> Iterator[Row]:
    with _readable(name):
        try:
            keys = _text_keys(table.column_names or ())
        except UserError as error:
            raise UserError(f"{name}: the columns {error}") from error
        for number, record in enumerate(_progress(table.select_columns(list(keys)), name), start=1):
            try:
                row = _row(record, keys)
            except UserError as error:
                rejects.add(number, error)
                continue
            yield row


@contextmanager
def _readable(name: str) -> Iterator[None]:
    """`datasets` and Arrow raise many types for one fact, that the data cannot be read: one line instead."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{name} cannot be read by datasets: {error}") from error


def _progress(table: Any, name: str) -> Iterable[Mapping[str, Any]]:
    console = Console(stderr=True)
    total = len(table) if hasattr(table, "__len__") else None
    return rich.progress.track(
        table, name, total=total, console=console, transient=True, disable=not console.is_terminal
    )


def _progress_open(path: Path) -> Any:
    console = Console(stderr=True)
    return rich.progress.open(
        path, "rb", description=path.name, console=console, transient=True, disable=not console.is_terminal
    )

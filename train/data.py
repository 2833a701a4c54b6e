"""Text in, token file out: one flat memory-mapped array of ids, one table of rows, one manifest.

A row is prompt tokens followed by response tokens. Every prompt begins with the begin token; running text has only
that as its prompt. The end token is not stored: `ends` says whether the response ends with the row.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mdlm.errors import UserError
from mdlm.provenance import sha256_of
from mdlm.tokenizer import Tokenizer
from train.dataset import MANIFEST, ROWS, TOKENS, VERSION, Manifest, TokenDataset, open_dataset
from train.sources import Rejects, Row, check_file, json_lines, open_source

__all__ = ["Manifest", "TokenDataset", "open_dataset", "prepare", "read_texts", "split_jsonl"]

_BATCH_CHARACTERS = 1 << 20


def prepare(
    source: str | Path,
    folder: str | Path,
    tokenizer: Tokenizer,
    *,
    prompt_length: int,
    response_length: int,
    too_long: Literal["drop", "cut"] = "drop",
    on_error: Literal["stop", "skip"] = "stop",
    split: str | None = None,
) -> Manifest:
    """Tokenizes `source` into `folder`, whole or not at all; a folder that already holds the same is left as it is.

    A prompt may have `prompt_length` tokens with its begin token, a response `response_length` with its end token.
    Longer prompt-response rows are dropped, or cut: the prompt keeps its last tokens, the response its first and does
    not end. Running text is cut into consecutive windows.
    `Manifest.summary` says in one line what became of the rows. Raises `UserError` for an unusable source and where no
    row is left.
    """
    if prompt_length < 1 or response_length < 2:
        raise UserError(
            f"prompt_length {prompt_length} and response_length {response_length} are too small: a prompt needs at "
            "least 1 token (begin), a response 2 (one and its end)"
        )
    folder = Path(folder)
    opened = open_source(source, split)
    options: dict[str, Any] = {
        "version": VERSION,
        "source": opened.name,
        "source_sha256": opened.sha256,
        "split": split,
        "tokenizer_sha256": tokenizer.fingerprint(),
        "vocab_size": tokenizer.vocab_size,
        "prompt_length": prompt_length,
        "response_length": response_length,
        "too_long": too_long,
        "on_error": on_error,
    }
    manifest = _existing(folder)
    if manifest is None or any(getattr(manifest, name) != value for name, value in options.items()):
        partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
        shutil.rmtree(partial, ignore_errors=True)  # left by a killed process that had our number
        partial.mkdir(parents=True)
        try:
            rejects = Rejects(source, on_error)
            writer = _Writer(partial, tokenizer, prompt_length, response_length, too_long)
            manifest = writer.write(opened.rows(rejects), rejects, options)
            _replace(folder, partial)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return manifest


def read_texts(
    source: str | Path, *, on_error: Literal["stop", "skip"] = "stop", split: str | None = None
) -> Iterator[str]:
    """Every prompt, response and text of `source` in order, e.g. to train a tokenizer on; plain text in pieces."""
    for row in open_source(source, split).rows(Rejects(source, on_error)):
        if row.prompt is not None:
            yield row.prompt
        yield row.response


def split_jsonl(
    source: str | Path,
    folder: str | Path,
    fractions: Sequence[float] = (0.8, 0.1, 0.1),
    names: Sequence[str] = ("train", "dev", "test"),
) -> dict[str, Path]:
    """Splits a JSON Lines file into `folder/NAME.jsonl` by the SHA-256 of each row's text; returns name -> path.

    A row's split depends on its text alone, so equal rows never stand on both sides of a split, and a file that grows
    keeps its old rows where they were. Raises `UserError` for a broken row and for a split that would be empty.
    """
    if len(fractions) != len(names) or min(fractions) <= 0 or not math.isclose(sum(fractions), 1):
        raise UserError(f"split fractions {tuple(fractions)} for {tuple(names)}: one positive number each, sum 1")
    source, folder = Path(source), Path(folder)
    check_file(source)
    borders = np.cumsum(fractions)[:-1]
    lines: list[list[bytes]] = [[] for _ in names]
    for line, row in json_lines(source, Rejects(source, "stop", mend="mend or delete the line")):
        digest = hashlib.sha256(json.dumps([row.prompt, row.response]).encode()).digest()
        position = int.from_bytes(digest[:8], "big") / 2**64
        lines[int(np.searchsorted(borders, position, side="right"))].append(line)
    for name, rows in zip(names, lines, strict=True):
        if not rows:
            raise UserError(f"the split {name!r} of {source} would be empty; give it a larger fraction or more rows")
    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: folder / f"{name}.jsonl" for name in names}
    for path, rows in zip(paths.values(), lines, strict=True):
        partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        partial.write_bytes(b"\n".join(rows) + b"\n")
        os.replace(partial, path)
    return paths


class _Writer:
    """Tokenizes rows batch by batch into an open folder and counts what becomes of them."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, prompt_length: int, response_length: int, too_long: str):
        self.folder, self.tokenizer = folder, tokenizer
        self.prompt_length, self.response_length, self.too_long = prompt_length, response_length, too_long
        self.dtype = np.dtype("uint16" if tokenizer.vocab_size <= 1 << 16 else "uint32")
        self.table: list[tuple[int, int, int]] = []
        self.dropped = self.cut = self.too_long_prompt = self.too_long_response = 0
        self.longest_prompt = self.longest_response = self.windows = self.bytes = 0
        self._text: list[int] = []  # tokens of running text that are not in a window yet
        self._text_windows = 0

    def write(self, rows: Iterable[Row], rejects: Rejects, options: dict[str, Any]) -> Manifest:
        digest = hashlib.sha256()
        with (self.folder / TOKENS).open("wb") as file:
            for batch in _batches(rows):
                ids = np.asarray(self._tokenize(batch), dtype=self.dtype).tobytes()
                digest.update(ids)
                file.write(ids)
        if not self.table:
            raise UserError(self._nothing_left(rejects))
        lengths = np.asarray(self.table, dtype=np.int64)
        ends = np.cumsum(lengths[:, 0] + lengths[:, 1])
        offsets = ends - lengths[:, 0] - lengths[:, 1]
        np.save(self.folder / ROWS, np.column_stack([offsets, lengths]))
        manifest = Manifest(
            **options,
            rows=len(lengths),
            rows_dropped=self.dropped,
            rows_cut=self.cut,
            rows_skipped=rejects.count,
            first_skipped=rejects.first,
            too_long_prompt=self.too_long_prompt,
            too_long_response=self.too_long_response,
            longest_prompt=self.longest_prompt,
            longest_response=self.longest_response,
            windows=self.windows,
            prompt_tokens=int(lengths[:, 0].sum()),
            response_tokens=int(lengths[:, 1].sum()),
            prompt_max=int(lengths[:, 0].max()),
            response_mean=float(lengths[:, 1].mean()),
            response_std=float(lengths[:, 1].std()),
            response_max=int(lengths[:, 1].max()),
            response_bytes=self.bytes,
            dtype=self.dtype.name,
            tokens_sha256=digest.hexdigest(),
            rows_sha256=sha256_of(self.folder / ROWS),
        )
        (self.folder / MANIFEST).write_text(json.dumps(dataclasses.asdict(manifest), indent=2) + "\n", encoding="utf-8")
        return manifest

    def _tokenize(self, batch: list[Row]) -> list[int]:
        prompts = iter(self.tokenizer.encode_batch([row.prompt for row in batch if row.prompt is not None]))
        responses = self.tokenizer.encode_batch([row.response for row in batch])
        ids: list[int] = []
        for row, response in zip(batch, responses, strict=True):
            size = len(row.response.encode("utf-8"))
            if row.prompt is None:
                self.bytes += size
                self._text += response
                ids += self._cut_windows(final=row.last)
            else:
                ids += self._pair(next(prompts), response, size)
        return ids

    def _pair(self, prompt: list[int], response: list[int], size: int) -> list[int]:
        """One prompt-response row, dropped or cut if it is too long. `size` is the response's UTF-8 bytes."""
        long_prompt = len(prompt) + 1 > self.prompt_length
        long_response = len(response) + 1 > self.response_length
        self.too_long_prompt += long_prompt
        self.too_long_response += long_response
        self.longest_prompt = max(self.longest_prompt, len(prompt) + 1)
        self.longest_response = max(self.longest_response, len(response))
        if long_prompt or long_response:
            if self.too_long == "drop":
                self.dropped += 1
                return []
            self.cut += 1
        if long_prompt:
            prompt = prompt[len(prompt) - (self.prompt_length - 1) :]
        if long_response:
            response = response[: self.response_length]
            size = len(self.tokenizer.decode(response).encode("utf-8"))
        self.bytes += size
        return self._row([self.tokenizer.begin_id, *prompt], response, ends=not long_response)

    def _cut_windows(self, final: bool) -> list[int]:
        """Full windows of the running text so far; with `final` also what is left, which needs room for its end."""
        ids, text, start = [], self._text, 0
        self.longest_prompt = max(self.longest_prompt, 1)
        while (left := len(text) - start) > (0 if final else self.response_length):
            ends = final and left < self.response_length
            taken = left if ends else min(self.response_length, left - 1)
            ids += self._row([self.tokenizer.begin_id], text[start : start + taken], ends)
            self.longest_response = max(self.longest_response, taken)
            start += taken
            self._text_windows += 1
        self._text = text[start:]
        if final:
            self.windows += self._text_windows if self._text_windows > 1 else 0
            self._text_windows = 0
        return ids

    def _row(self, prompt: list[int], response: list[int], ends: bool) -> list[int]:
        self.table.append((len(prompt), len(response), int(ends)))
        return prompt + response

    def _nothing_left(self, rejects: Rejects) -> str:
        if self.dropped:
            return (
                f"all {self.dropped} rows of {rejects.source} are too long: prompts have up to {self.longest_prompt} "
                f"tokens (prompt_length {self.prompt_length}), responses with their end up to "
                f"{self.longest_response + 1} (response_length {self.response_length}); raise these, or choose "
                'too_long "cut"'
            )
        if rejects.count:
            return f"none of the {rejects.count} rows of {rejects.source} is usable; the first: {rejects.first}"
        return f"{rejects.source} holds no rows; there is nothing to train on"


def _batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Rows in groups of about a million characters, so that memory stays bounded and all cores have work."""
    batch, characters = [], 0
    for row in rows:
        batch.append(row)
        characters += len(row.response) + len(row.prompt or "")
        if characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _existing(folder: Path) -> Manifest | None:
    """The manifest of what `folder` already holds, None where it is to be written or written again."""
    if not folder.exists():
        return None
    if not folder.is_dir():
        raise UserError(f"{folder} is a file; name a folder for the prepared data")
    foreign = sorted({path.name for path in folder.iterdir()} - {TOKENS, ROWS, MANIFEST})
    if foreign:
        raise UserError(f"{folder} holds other things ({foreign[0]}); name a new folder for the prepared data")
    try:
        return open_dataset(folder).manifest
    except UserError:
        return None  # damaged, or of another version: it is rebuilt


def _replace(folder: Path, partial: Path) -> None:
    """Puts `partial` in the place of `folder`."""
    if folder.exists():
        old = partial.with_suffix(".old")
        os.rename(folder, old)
        os.rename(partial, folder)
        shutil.rmtree(old)
    else:
        os.rename(partial, folder)

"""A prepared data set as it lies on disk: `tokens.bin` (flat ids), `rows.npy` (offsets and lengths), `manifest.json`.

`train.data` writes it, this module reads it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import get_type_hints

import numpy as np

from mdlm.errors import UserError
from mdlm.provenance import sha256_of

VERSION = 1
TOKENS, ROWS, MANIFEST = "tokens.bin", "rows.npy", "manifest.json"


@dataclass(frozen=True)
class Manifest:
    """What a token folder holds and what it was made from. Lengths are in tokens, the end token not counted."""

    version: int
    source: str
    source_sha256: str
    split: str | None
    tokenizer_sha256: str
    vocab_size: int
    prompt_length: int
    response_length: int
    too_long: str
    on_error: str
    rows: int
    rows_dropped: int
    rows_cut: int
    rows_skipped: int
    first_skipped: str | None
    too_long_prompt: int
    too_long_response: int
    longest_prompt: int
    """Of all rows read, dropped ones too, the begin token counted."""
    longest_response: int
    """Of all prompt-response rows read, dropped ones too, and of all windows of running text."""
    windows: int
    """Rows that are one of several windows of a longer text."""
    prompt_tokens: int
    response_tokens: int
    prompt_max: int
    response_mean: float
    response_std: float
    response_max: int
    response_bytes: int
    """UTF-8 bytes of the response text that the stored tokens stand for."""
    dtype: str
    """uint16 where the vocabulary allows it, else uint32."""
    tokens_sha256: str
    rows_sha256: str

    def fingerprint(self) -> str:
        """SHA-256 (hex) of the manifest, and through its checksums of the data."""
        return hashlib.sha256(json.dumps(dataclasses.asdict(self), sort_keys=True).encode()).hexdigest()

    def summary(self) -> str:
        """One line: what was kept, and everything that was not."""
        parts = [f"{self.source}: {self.rows} rows, {self.prompt_tokens} + {self.response_tokens} tokens"]
        if self.too_long_prompt or self.too_long_response:
            parts.append(
                f"too long: {self.too_long_prompt} prompts (longest {self.longest_prompt}, {self.prompt_length} fit), "
                f"{self.too_long_response} responses (longest {self.longest_response}, {self.response_length} fit with "
                f"the end token); {self.rows_dropped} rows dropped, {self.rows_cut} cut"
            )
        if self.rows_skipped:
            parts.append(f"{self.rows_skipped} unusable rows skipped, the first {self.first_skipped}")
        if self.windows:
            parts.append(f"{self.windows} rows are windows of longer texts")
        return "; ".join(parts)


class TokenDataset:
    """Rows of token ids, read from disk as they are asked for."""

    def __init__(self, manifest: Manifest, tokens: np.ndarray, table: np.ndarray) -> None:
        self.manifest, self._tokens = manifest, tokens
        self._offsets, self.prompt_tokens, self.response_tokens = table[:, 0], table[:, 1], table[:, 2]
        self.ends = table[:, 3].astype(bool)

    def __len__(self) -> int:
        return self.manifest.rows

    def row(self, index: int) -> tuple[np.ndarray, np.ndarray, bool]:
        """Prompt ids and response ids of one row (int64), and whether the response ends there."""
        start = int(self._offsets[index])
        middle = start + int(self.prompt_tokens[index])
        stop = middle + int(self.response_tokens[index])
        prompt, response = self._tokens[start:middle], self._tokens[middle:stop]
        return prompt.astype(np.int64), response.astype(np.int64), bool(self.ends[index])


def open_dataset(folder: str | Path, *, verify: bool = False) -> TokenDataset:
    """Opens what `prepare` wrote. Sizes and the row table are checked always, every token with `verify`.

    Raises `UserError` for a folder that is missing, incomplete, damaged, or of another version.
    """
    folder = Path(folder)
    mend = "delete the folder and prepare the data again"
    manifest = _read_manifest(folder)
    tokens_path, rows_path = folder / TOKENS, folder / ROWS
    for path in (tokens_path, rows_path):
        if not path.is_file():
            raise UserError(f"{path} is missing; {mend}")
    total = manifest.prompt_tokens + manifest.response_tokens
    size, expected = tokens_path.stat().st_size, total * np.dtype(manifest.dtype).itemsize
    if size != expected:
        raise UserError(f"{tokens_path} has {size} bytes instead of {expected}; {mend}")
    if sha256_of(rows_path) != manifest.rows_sha256:
        raise UserError(f"{rows_path} is damaged (its checksum is not the manifest's); {mend}")
    if verify and sha256_of(tokens_path) != manifest.tokens_sha256:
        raise UserError(f"{tokens_path} is damaged (its checksum is not the manifest's); {mend}")
    tokens = np.memmap(tokens_path, dtype=manifest.dtype, mode="r", shape=(total,))
    return TokenDataset(manifest, tokens, np.load(rows_path, mmap_mode="r", allow_pickle=False))


def _read_manifest(folder: Path) -> Manifest:
    path = folder / MANIFEST
    mend = "prepare the data again"
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{folder} holds no prepared data ({MANIFEST}: {error.strerror}); {mend}") from error
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}; delete the folder and {mend}") from error
    if not isinstance(fields, dict) or fields.get("version") != VERSION:
        raise UserError(f"{path} is of another version than {VERSION}; delete the folder and {mend}")
    wanted = {field.name for field in dataclasses.fields(Manifest)}
    if fields.keys() != wanted:
        names = ", ".join(sorted(fields.keys() ^ wanted))
        raise UserError(f"{path} lacks or has in excess: {names}; delete the folder and {mend}")
    for name, kind in get_type_hints(Manifest).items():
        if not isinstance(fields[name], kind) or (name == "dtype" and fields[name] not in ("uint16", "uint32")):
            raise UserError(f"{path} is damaged: {name} is {fields[name]!r}; delete the folder and {mend}")
    return Manifest(**fields)

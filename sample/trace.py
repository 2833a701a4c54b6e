"""An audit record of decodes, as JSON Lines: from each header, the lines behind it give the output token by token.

A run's file holds one section for each batch. Positions count from the response's first token, rows from the batch's
first row, passes from 1; a pass that only kept a cache up to date is in the ledger alone.

    {"kind": "trace", "version": 1, "decoder": …, "checkpoint": …, "settings": {…}, "mask_id": …, "end_id": …,
     "pieces": {token: text}, "bytes": {token: hex}, "textless": [tokens], "rows": [{"prompt": …, "response": …,
     "fixed": …, "open_gaps": …}]}
        `response`: the tokens before the first pass. `fixed`: positions of those that were given, all others are
        masked. `open_gaps`: [start, stop) of gaps that an end token closes. `pieces`: the text of every token that
        occurs; where one is only part of a character, `bytes` says which. `textless`: tokens that no text shows, like
        the end token; their piece is their name.
    {"kind": "pass", "pass": 3, "start": 8, "rows": [{"row": 0, "committed": [[position, token, piece, score], …],
     "revoked": [positions], "final": false, "end_mass": [[position, probability], …]}]}
        `start`: the window's first position. `rows`: those with work left. `score`: null where none is known.
        `revoked`: masks again, after the pass has committed. `final`: the window has its last token. `end_mass`: the
        end token's probability, where it does not round to 0.
    {"kind": "finish", "rows": [{"row": 0, "filled": [[position, token, piece], …], "ledger": {…}}]}
        `filled`: what was left when a row ended, filled without a pass.

Shapes: B rows, R positions of a response, G positions of a window.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from mdlm.errors import UserError
from mdlm.tokenizer import Tokenizer
from sample.generation import Generation, Pass
from sample.infill import Request

VERSION = 1
DIGITS = 4
"""Of scores and probabilities."""

Line = dict[str, Any]


class TraceWriter:
    """Collects the lines of a run's batches; `save` writes them.

    Args:
        about: what made the run, for the headers: `checkpoint`, and `settings`, the decoder's.
    """

    def __init__(self, tokenizer: Tokenizer, about: Mapping[str, Any]) -> None:
        self.tokenizer, self.about = tokenizer, dict(about)
        self.lines: list[Line] = []

    def batch(self, requests: Sequence[Request], generation: Generation) -> None:
        """Adds one decode: its rows as they were asked for, and what came of them.

        Raises `ValueError` for denoising that has not kept its passes (`DenoiseConfig.trace`).
        """
        calls = generation.ledger.calls
        denoising = calls["denoise"] + calls["refresh"]
        is_causal = calls["prefill"] > 0 and not denoising
        if denoising and not generation.trace:
            raise ValueError("there are no passes to write; decode with trace=True")
        section = _Section(self.tokenizer, requests)
        if is_causal:
            section.decoded(generation)
        else:
            section.denoised(generation.trace)
        finish = section.finish(generation)  # before the header, which names every token
        header = {
            "kind": "trace",
            "version": VERSION,
            "decoder": "autoregressive" if is_causal else "denoise",
            **self.about,
            "mask_id": self.tokenizer.mask_id,
            "end_id": self.tokenizer.end_id,
            **section.vocabulary(),
            "rows": section.rows(),
        }
        self.lines += [header, *section.passes, finish]

    def save(self, path: str | Path) -> None:
        """Writes all lines, whole or not at all. Raises `UserError` where `path` cannot be written."""
        write_whole(path, "".join(json.dumps(line, allow_nan=False) + "\n" for line in self.lines))


class _Section:
    """The lines of one decode. `now` is what a reader of the lines so far has, row for row."""

    def __init__(self, tokenizer: Tokenizer, requests: Sequence[Request]) -> None:
        self.tokenizer, self.requests, self.mask_id = tokenizer, requests, tokenizer.mask_id
        self.now = [list(request.response) for request in requests]
        self.passes: list[Line] = []
        self.latest: dict[int, Line] = {}
        """Each row's part in its last pass."""
        self.used = {token for request in requests for token in request.response}
        self._text = cache(lambda token: tokenizer.decode([token]))

    def denoised(self, trace: Sequence[Pass]) -> None:
        """The passes of `denoise`."""
        width, last = len(self.now[0]), None
        for made in trace:
            after_BR = made.tokens_BL[:, -width:].tolist()
            if last is not None and (made.index, made.start) == (last.index, last.start):
                self._revoked_by_clock(made, after_BR)
            else:
                start = made.start - (made.tokens_BL.shape[1] - width)
                self.passes.append({"kind": "pass", "pass": len(self.passes) + 1, "start": start, "rows": []})
                self._one_pass(made, after_BR)
            last = made

    def _one_pass(self, made: Pass, after_BR: list[list[int]]) -> None:
        start, width = self.passes[-1]["start"], made.committed_BG.shape[1]
        by_row = zip(
            made.rows.tolist(),
            made.committed_BG.tolist(),
            made.score_BG.tolist(),
            made.end_mass_BG.tolist(),
            made.final_B.tolist(),
            strict=True,
        )
        for row, committed_G, score_G, end_mass_G, final in by_row:
            now, after, committed = self.now[row], after_BR[row], []
            for place, token in enumerate(after):
                column = place - start
                # End tokens that fill an ended row up count when it finishes; behind the window stands what a
                # look-ahead committed, whose score is not reported.
                if now[place] == self.mask_id != token and (column >= width or (column >= 0 and committed_G[column])):
                    score = _rounded(score_G[column]) if column < width else None
                    committed.append(self._named(place, token, score))
            revoked = self._masked_again(row, after)
            if committed or revoked:  # a row with work left always commits
                masses = ([start + column, _rounded(mass)] for column, mass in enumerate(end_mass_G))
                self._put(row, committed, revoked, final, [pair for pair in masses if pair[1]])

    def _revoked_by_clock(self, made: Pass, after_BR: list[list[int]]) -> None:
        """Adds what is reported apart, behind a pass: to each row's own last pass, whichever its neighbours had."""
        for row in made.rows.tolist():
            if revoked := self._masked_again(row, after_BR[row]):
                self.latest[row]["revoked"] += revoked
                self.latest[row]["final"] = False
                for place in revoked:
                    self.now[row][place] = self.mask_id

    def _masked_again(self, row: int, after: list[int]) -> list[int]:
        pairs = enumerate(zip(self.now[row], after, strict=True))
        return [place for place, (now, token) in pairs if now != self.mask_id == token]

    def _put(self, row: int, committed: list[list], revoked: list[int], final: bool, end_mass: list[list]) -> None:
        """Adds a row's part to the last pass."""
        entry = {"row": row, "committed": committed, "revoked": revoked, "final": final, "end_mass": end_mass}
        self.passes[-1]["rows"].append(entry)
        self.latest[row] = entry
        for place, token, *_ in committed:
            self.now[row][place] = token
        for place in revoked:
            self.now[row][place] = self.mask_id

    def decoded(self, generation: Generation) -> None:
        """The passes of `decode`: each gave every row that was still in the batch its next token."""
        tokens_BR = generation.tokens_BL[:, generation.response_start :].tolist()
        decoded_B = (generation.ledger.kept + generation.ledger.thrown_away).tolist()
        for place in range(max(decoded_B)):
            self.passes.append({"kind": "pass", "pass": place + 1, "start": place, "rows": []})
            for row, (tokens, decoded) in enumerate(zip(tokens_BR, decoded_B, strict=True)):
                if place < decoded:
                    self._put(row, [self._named(place, tokens[place], None)], [], place == decoded - 1, [])

    def finish(self, generation: Generation) -> Line:
        """The last line: what no pass has committed, and each row's ledger."""
        rows = []
        tokens_BR = generation.tokens_BL[:, generation.response_start :].tolist()
        for row, (now, tokens, ledger) in enumerate(zip(self.now, tokens_BR, generation.ledger.rows(), strict=True)):
            left = [place for place, token in enumerate(now) if token == self.mask_id]
            if any(token != tokens[place] for place, token in enumerate(now) if token != self.mask_id):
                raise ValueError(f"row {row}: its passes do not lead to its output")
            filled = [self._named(place, tokens[place]) for place in left]
            rows.append({"row": row, "filled": filled, "ledger": ledger.to_dict()})
        return {"kind": "finish", "rows": rows}

    def rows(self) -> list[Line]:
        """Every row as it was before the first pass."""
        rows = []
        for request in self.requests:
            fixed = [place for place, token in enumerate(request.response) if token != self.mask_id]
            row = {"prompt": request.text, "response": list(request.response), "fixed": fixed}
            rows.append({**row, "open_gaps": [list(gap) for gap in request.open_gaps]})
        return rows

    def vocabulary(self) -> Line:
        """What the tokens that occur stand for."""
        used = sorted(self.used)
        parts = [token for token in used if "\N{REPLACEMENT CHARACTER}" in self._text(token)]
        fragments = {token: raw for token in parts if (raw := self.tokenizer.token_bytes(token))}
        return {
            "pieces": {str(token): self._piece(token) for token in used},
            "bytes": {str(token): raw.hex() for token, raw in fragments.items()},
            "textless": [token for token in used if not self._text(token)],
        }

    def _named(self, place: int, token: int, *more: float | None) -> list:
        self.used.add(token)
        return [place, token, self._piece(token), *more]

    def _piece(self, token: int) -> str:
        return self._text(token) or self.tokenizer.decode_pieces([token])[0]


def _rounded(value: float) -> float | None:
    return round(value, DIGITS) if math.isfinite(value) else None


def read_trace(path: str | Path) -> list[Line]:
    """The lines of a trace file. Raises `UserError` where it is none, or one of another version."""
    path = Path(path)
    try:
        lines = [json.loads(line) for line in path.read_bytes().split(b"\n") if line]
    except OSError as error:
        raise UserError(f"cannot read the trace {path}: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path} is no trace: {error}; `python -m sample --trace FILE` writes one") from error
    kinds = {line.get("kind") if isinstance(line, dict) else None for line in lines}
    if not lines or not kinds <= {"trace", "pass", "finish"} or lines[0]["kind"] != "trace":
        raise UserError(f"{path} is no trace; `python -m sample --trace FILE` writes one")
    versions = {line.get("version") for line in lines if line["kind"] == "trace"} - {VERSION}
    if versions:
        raise UserError(f"{path} has version {versions.pop()} of the trace format; {VERSION} can be read here")
    return lines


def replay(lines: Iterable[Mapping[str, Any]]) -> list[list[int]]:
    """The tokens of every row's response after these lines, all batches in their order.

    Whole sections give the output, end tokens and what stands behind them included; sections that are cut short give
    the canvas as it was. Raises `UserError` at a line that commits where no mask stands or revokes what is no
    committed token: then the file is not what a decode has written.
    """
    rows: list[list[int]] = []
    fixed: list[set[int]] = []
    first, mask_id = 0, -1
    for number, line in enumerate(lines, start=1):
        if line["kind"] == "trace":
            first, mask_id = len(rows), line["mask_id"]
            rows += [list(row["response"]) for row in line["rows"]]
            fixed += [set(row["fixed"]) for row in line["rows"]]
            continue
        for entry in line["rows"]:
            tokens, given = rows[first + entry["row"]], fixed[first + entry["row"]]
            for place, token, *_ in entry["committed"] if line["kind"] == "pass" else entry["filled"]:
                if not 0 <= place < len(tokens) or tokens[place] != mask_id:
                    raise UserError(f"trace, line {number}: row {entry['row']} has no mask at position {place}")
                tokens[place] = token
            for place in entry.get("revoked", []):
                if not 0 <= place < len(tokens) or tokens[place] == mask_id or place in given:
                    raise UserError(f"trace, line {number}: row {entry['row']} has nothing to revoke at {place}")
                tokens[place] = mask_id
    return rows


def check_target(path: str | Path) -> Path:
    """The file that writing to `path` makes or replaces, links resolved. Raises `UserError` where there can be none.

    Worth a call before a long run.
    """
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise UserError(f"{path} is a folder; name a file in it")
    if target.exists() and not target.is_file():
        raise UserError(f"{path} is no ordinary file; name one that can be written whole")
    if not target.parent.is_dir():
        raise UserError(f"{path}: there is no folder {target.parent}; make it, or name another file")
    return target


def write_whole(path: str | Path, text: str) -> None:
    """Writes a text file whole or not at all; an existing file is replaced. Raises `UserError` where that fails."""
    target = check_target(path)
    partial = target.with_name(f".{os.getpid()}.partial")
    try:
        partial.write_bytes(text.encode("utf-8"))
        os.replace(partial, target)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}; mend that or name another file") from error
    finally:
        partial.unlink(missing_ok=True)

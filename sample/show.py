"""A decode drawn in the terminal, pass by pass: masked, fresh and settled tokens."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import accumulate, groupby
from typing import Literal

from rich.cells import chop_cells
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text
from torch import Tensor

from mdlm.tokenizer import Tokenizer
from sample.generation import Pass
from sample.infill import Request

State = Literal["masked", "fresh", "settled", "fixed"]
Cell = tuple[State, int]
"""One response position: its state and its token."""

# Told apart without colours too: masks have a glyph of their own, and fresh tokens are reversed.
STYLES: dict[State, str] = {
    "masked": "bright_black",
    "fresh": "bold yellow reverse",
    "settled": "green",
    "fixed": "cyan",
}
MASK_GLYPH, END_GLYPH = "░", "∎"


def printable(text: str) -> str:
    """The text on one line: what is not printable is escaped, so that no control character reaches a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class Show:
    """Draws one batch: a live picture on a terminal, elsewhere one line for each pass and row.

    A context manager; `denoised` and `decoded` are the callbacks that the decoders take. `seconds_spent` is the time
    that drawing took, its waits included.
    """

    def __init__(
        self, requests: Sequence[Request], tokenizer: Tokenizer, console: Console, seconds_per_pass: float = 0.1
    ) -> None:
        self.requests, self.tokenizer, self.console = requests, tokenizer, console
        self.seconds_per_pass, self.seconds_spent = seconds_per_pass, 0.0
        self._passes = 0
        self._legend: list[State] = []
        self._decoded: list[list[int]] = [[] for _ in requests]
        self._open_rows = list(range(len(requests)))
        self._live: Live | None = None
        if console.is_terminal and not console.is_dumb_terminal:
            # Stdout stays the caller's own: answers may go to a file while this is drawn.
            self._live = Live(
                console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
            )

    def __enter__(self) -> Show:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def denoised(self, made: Pass) -> None:
        """Draws a pass of `denoise`; its `on_pass`."""
        began = time.perf_counter()
        response_start = made.tokens_BL.shape[1] - len(self.requests[0].response)
        first = made.start - response_start
        fresh: list[set[int]] = [set() for _ in self.requests]
        for row, committed in zip(made.rows.tolist(), made.committed_BG.tolist(), strict=True):
            fresh[row] = {first + column for column, is_new in enumerate(committed) if is_new}
        rows = []
        for request, tokens, new in zip(self.requests, made.tokens_BL[:, response_start:].tolist(), fresh, strict=True):
            wanted = zip(request.response, tokens, strict=True)
            rows.append([(self._state(*pair, index in new), pair[1]) for index, pair in enumerate(wanted)])
        self._draw(rows, began)

    def decoded(self, new_B1: Tensor) -> None:
        """Draws a pass of `decode`; its `on_token`."""
        began = time.perf_counter()
        new = new_B1[:, 0].tolist()
        if len(new) < len(self._open_rows):  # rows that have ended left the batch
            self._open_rows = [row for row in self._open_rows if self.tokenizer.end_id not in self._decoded[row]]
        for row, token in zip(self._open_rows, new, strict=True):
            self._decoded[row].append(token)
        rows: list[list[Cell]] = [[("settled", token) for token in tokens] for tokens in self._decoded]
        for row, token in zip(self._open_rows, new, strict=True):
            rows[row][-1] = ("fresh", token)
        self._draw(rows, began)

    def _state(self, given: int, token: int, is_new: bool) -> State:
        if given != self.tokenizer.mask_id:
            return "fixed"
        if token == self.tokenizer.mask_id:
            return "masked"
        return "fresh" if is_new else "settled"

    def _draw(self, rows: list[list[Cell]], began: float) -> None:
        if not self._passes:
            occurring = {state for row in rows for state, _ in row} | {"fresh", "settled"}
            self._legend = [state for state in STYLES if state in occurring]
        self._passes += 1
        if self._live:
            self._live.update(self._picture(rows), refresh=True)
            time.sleep(max(0.0, self.seconds_per_pass - (time.perf_counter() - began)))
        else:
            for number, row in enumerate(rows, start=1):
                name = f"pass {self._passes}" + (f", row {number}" if len(rows) > 1 else "")
                self.console.print(Text(f"{name}: ").append(self._text(row, "«", "»")), soft_wrap=True)
        self.seconds_spent += time.perf_counter() - began

    def _text(self, row: list[Cell], before_fresh: str = "", after_fresh: str = "") -> Text:
        text = Text()
        for state, run in groupby(row, key=lambda cell: cell[0]):
            glyphs = self._glyphs([token for _, token in run])
            text.append(before_fresh + glyphs + after_fresh if state == "fresh" else glyphs, STYLES[state])
        return text

    def _glyphs(self, tokens: list[int]) -> str:
        """Neighbours are decoded together, since a character may take several tokens."""
        tokenizer = self.tokenizer
        special = {tokenizer.mask_id: MASK_GLYPH, tokenizer.end_id: END_GLYPH}
        special |= {tokenizer.pad_id: tokenizer.specials["pad"], tokenizer.begin_id: tokenizer.specials["begin"]}
        text = ""
        for glyph, group in groupby(tokens, key=special.get):
            run = list(group)
            text += printable(tokenizer.decode(run)) if glyph is None else glyph * len(run)
        return text

    def _picture(self, rows: list[list[Cell]]) -> Group:
        """Each row under its prompt; where the terminal is too low, the lines around the row's fresh tokens."""
        width, height = self.console.width, self.console.height - 2
        shown = max(1, min(len(rows), height // 2))
        lines: list[Text] = []
        for request, row in zip(self.requests[:shown], rows, strict=False):
            prompt = Text(printable(request.text) or "(no prompt)", style="dim")
            prompt.truncate(width, overflow="ellipsis")
            lines += [prompt, *self._around_fresh(self._text(row), max(1, height // shown - 1), width)]
        return Group(*lines, self._status(rows, len(rows) - shown))

    def _around_fresh(self, text: Text, room: int, width: int) -> list[Text]:
        # Folded at the border, not between words: what is settled must not move when a gap beside it is filled.
        lines = list(text.divide(list(accumulate(map(len, chop_cells(text.plain, width))))[:-1]))
        fresh = [n for n, line in enumerate(lines) if any(span.style == STYLES["fresh"] for span in line.spans)]
        first = max(0, min((fresh[-1] if fresh else 0) - room // 2, len(lines) - room))
        return lines[first : first + room]

    def _status(self, rows: list[list[Cell]], hidden_rows: int) -> Text:
        states = [state for row in rows for state, _ in row]
        wanted = sum(request.response.count(self.tokenizer.mask_id) for request in self.requests)
        done = states.count("fresh") + states.count("settled")
        text = Text(f"pass {self._passes}, {done} of {wanted} tokens", style="dim")
        text.append(f", {hidden_rows} more rows" if hidden_rows else "")
        for state in self._legend:
            text.append("   ").append(f"{MASK_GLYPH} masked" if state == "masked" else state, STYLES[state])
        text.truncate(self.console.width, overflow="ellipsis")
        return text

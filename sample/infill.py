"""Rows to decode, from texts with gaps: a marker stands for tokens that are wanted, all other text is fixed.

`<|mask|>` is one token, `<|mask:8|>` eight, `<|mask:..8|>` up to eight: an end token in such a gap closes it, and what
stands behind that in the gap is dropped. Another word than `mask` may be chosen for texts that hold it literally.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mdlm.config import ModelConfig
from mdlm.errors import UserError
from mdlm.tokenizer import Tokenizer

MARKER_WORD = "mask"


@dataclass(frozen=True)
class Request:
    """One row to decode."""

    text: str
    """The prompt as it was given."""
    prompt: list[int]
    """Token ids, begin token first."""
    response: list[int]
    """Token ids, the mask token wherever one is wanted."""
    is_infill: bool = False
    """Whether fixed text stands in the response."""
    open_gaps: tuple[tuple[int, int], ...] = ()
    """Response columns [start, stop) of gaps that may hold fewer tokens."""


class Marker:
    """Finds `<|WORD|>` and `<|WORD:COUNT|>` in texts. Raises `UserError` for a word that cannot stand there."""

    def __init__(self, word: str = MARKER_WORD) -> None:
        if not word or re.search(r"[<>|:\s]", word):
            raise UserError(
                f"mask marker {word!r}: give the word between the bars alone, without <, >, |, : or spaces, like "
                "`blank` for <|blank|> and <|blank:8|>"
            )
        self.word = word
        self._pattern = re.compile(rf"<\|{re.escape(word)}(?::([^|]*))?\|>")

    def occurs_in(self, text: str) -> bool:
        """Whether the text has a gap."""
        return self._pattern.search(text) is not None

    def tokens(self, text: str, tokenizer: Tokenizer, limit: int) -> tuple[list[int], tuple[tuple[int, int], ...]]:
        """The text's token ids, mask tokens in its gaps, and where gaps of up to so many tokens stand.

        Each piece between gaps is tokenized by itself. Raises `UserError` for a count that is no number from 1 to
        `limit`.
        """
        tokens: list[int] = []
        open_gaps: list[tuple[int, int]] = []
        end = 0
        for found in self._pattern.finditer(text):
            tokens += tokenizer.encode(text[end : found.start()])
            count, start = self._count(found, limit), len(tokens)
            tokens += [tokenizer.mask_id] * count
            if found[1] and found[1].startswith(".."):
                open_gaps.append((start, start + count))
            end = found.end()
        return tokens + tokenizer.encode(text[end:]), tuple(open_gaps)

    def _count(self, found: re.Match[str], limit: int) -> int:
        count = "1" if found[1] is None else found[1].removeprefix("..")
        if not re.fullmatch(r"[0-9]{1,9}", count) or not 1 <= int(count) <= limit:
            raise UserError(
                f"{found[0]}: a gap has from 1 to {limit} tokens here; write <|{self.word}:8|> for eight, "
                f"<|{self.word}:..8|> for up to eight"
            )
        return int(count)


@dataclass(frozen=True)
class Layout:
    """Lays texts out as the model was trained: begin token and prompt, then the response's columns."""

    tokenizer: Tokenizer
    model: ModelConfig
    marker: Marker
    response_length: int | None = None
    """Response columns in training; None: unknown, a response may take all that fits."""
    supervised_end: str | None = None
    """Which end tokens training put behind an answer: `one`, to the end of the `block`, or of the `canvas`."""

    def requests(
        self, texts: Sequence[str], *, template: str | None = None, max_new_tokens: int | None = None
    ) -> list[Request]:
        """One row for each text; an empty text is a prompt of the begin token alone.

        A text with gaps is itself the response, without an end token. A `template` is the response of every row.

        Raises:
            UserError: a row does not fit into the model's `max_length`, a gap stands where none can be filled, or
                `max_new_tokens` comes with gaps, which say themselves how long they are.
        """
        autoregressive = self.model.objective == "autoregressive"
        with_gaps = [self.marker.occurs_in(text) for text in texts]
        marker = f"<|{self.marker.word}|>"
        if any(with_gaps) and autoregressive:
            raise UserError(
                f"prompt {with_gaps.index(True) + 1} has a gap {marker}, which an autoregressive model cannot fill; "
                "take a diffusion model, or --mask-marker WORD where the text means it literally"
            )
        if any(with_gaps) and template is not None:
            raise UserError(
                f"prompt {with_gaps.index(True) + 1} has a gap {marker} and so has --template; one of them can be "
                "filled, or --mask-marker WORD chooses another marker"
            )
        if template is not None and not self.marker.occurs_in(template):
            raise UserError(f"--template has no gap to fill; write {marker} or <|{self.marker.word}:8|> into it")
        if max_new_tokens is not None and (template is not None or all(with_gaps)):
            raise UserError("--max-new-tokens has no meaning here: the gaps say how many tokens there are")
        requests = []
        for number, (text, has_gaps) in enumerate(zip(texts, with_gaps, strict=True), start=1):
            name = f"prompt {number}" if len(texts) > 1 else "the prompt"
            if has_gaps:
                requests.append(self._infill(text, name))
            elif template is not None:
                requests.append(self._filled_template(text, template, name))
            else:
                requests.append(self._continuation(text, max_new_tokens, name))
        return requests

    def _continuation(self, text: str, max_new_tokens: int | None, name: str) -> Request:
        prompt, room = self._prompt(text, name)
        columns = max_new_tokens or min(room, self.response_length or room)
        if columns > room:
            raise UserError(
                f"--max-new-tokens {columns}: {name} has {len(prompt)} tokens and the model was made for "
                f"{self.model.max_length} in all; ask for at most {room}"
            )
        return self.continuation(text, prompt, columns)

    def continuation(self, text: str, prompt: list[int], columns: int) -> Request:
        """A row with an answer of so many columns behind a prompt's tokens, whole blocks of them where those fit."""
        if self.model.objective == "block_diffusion":
            columns = self._whole_blocks(columns, self.model.max_length - len(prompt))
        return Request(text, prompt, [self.tokenizer.mask_id] * columns)

    def _infill(self, text: str, name: str) -> Request:
        room = self.model.max_length - 1
        tokens, open_gaps = self.marker.tokens(text, self.tokenizer, room)
        self._check_room(len(tokens), room, f"{name} with its gaps")
        return Request(text, [self.tokenizer.begin_id], tokens, is_infill=True, open_gaps=open_gaps)

    def _filled_template(self, text: str, template: str, name: str) -> Request:
        """The template and its end tokens, as many as training put behind an answer."""
        prompt, room = self._prompt(text, name)
        tokens, open_gaps = self.marker.tokens(template, self.tokenizer, room)
        self._check_room(len(tokens) + 1, room, f"the template with its end token behind {name}")
        columns = len(tokens) + 1
        if self.supervised_end == "block":
            columns = self._whole_blocks(columns, room)
        elif self.supervised_end == "canvas":
            columns = max(columns, min(self.response_length or 0, room))
        tokens += [self.tokenizer.end_id] * (columns - len(tokens))
        return Request(text, prompt, tokens, is_infill=True, open_gaps=open_gaps)

    def _prompt(self, text: str, name: str) -> tuple[list[int], int]:
        """The prompt's tokens and the columns left for its response."""
        prompt = [self.tokenizer.begin_id, *self.tokenizer.encode(text)]
        self._check_room(len(prompt), self.model.max_length - 1, name)
        return prompt, self.model.max_length - len(prompt)

    def _check_room(self, tokens: int, room: int, name: str) -> None:
        if tokens > room:
            raise UserError(
                f"{name} has {tokens} tokens where {room} fit: the model was made for {self.model.max_length} in all; "
                "shorten it"
            )

    def _whole_blocks(self, columns: int, room: int) -> int:
        """The columns rounded up to whole blocks, where they fit."""
        rounded = -(-columns // self.model.block_length) * self.model.block_length
        return rounded if rounded <= room else columns


def answer(
    filled: Sequence[int],
    response: Sequence[int],
    *,
    mask_id: int,
    end_id: int,
    open_gaps: Sequence[tuple[int, int]] = (),
) -> list[int]:
    """The tokens of a filled response up to its end token, open gaps closed at theirs.

    An end token counts only in an open gap and behind the last fixed text: what else stands before that belongs to
    the answer, whatever the model has put into the gaps.
    """
    dropped: set[int] = set()
    for start, stop in open_gaps:
        ends = [index for index in range(start, stop) if filled[index] == end_id]
        dropped.update(range(ends[0], stop) if ends else ())
    fixed = [index for index, token in enumerate(response) if token not in (mask_id, end_id)]
    first = max([fixed[-1] + 1 if fixed else 0, *(stop for _, stop in open_gaps)])
    last = next((index for index in range(first, len(filled)) if filled[index] == end_id), len(filled))
    return [token for index, token in enumerate(filled[:last]) if index not in dropped]

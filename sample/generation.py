"""What a decoder returns, and how rows of different lengths are laid out for it.

Shapes: B rows, L positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mdlm.errors import UserError
from sample.approximate import Drift
from sample.ledger import Ledger


@dataclass(frozen=True)
class Pass:
    """One denoising pass, for a trace or a live display. Tensors are copies on the device."""

    index: int
    rows: Tensor
    """Which rows of the decode were in the batch, (B,)."""
    start: int
    """The window's first column."""
    tokens_BL: Tensor
    """The whole canvas after this pass."""
    committed_BG: Tensor
    """True where this pass committed a token, by column of the window."""
    revoked_BG: Tensor
    """True where it made a committed token a mask again."""
    score_BG: Tensor
    """Each candidate's score, float32."""
    end_mass_BG: Tensor
    """Probability of the end token at each position."""
    final_B: Tensor
    """True for rows whose window has no mask left since this pass."""
    margin_BG: Tensor | None = None
    """Likeliest token's probability less the second's; kept with `DenoiseConfig.trace`, like the next."""
    entropy_BG: Tensor | None = None
    """Nats."""


@dataclass
class Generation:
    """The output of a decoder.

    `tokens_BL` holds whole rows: padding, prompt, response. `answer(row)` is the response up to its end token.
    """

    tokens_BL: Tensor
    ledger: Ledger
    response_start: int
    end_id: int | None
    trace: list[Pass] = field(default_factory=list)
    drift: Drift | None = None
    """Of an approximate cache, where it was measured."""

    def answer(self, row: int) -> list[int]:
        """The response's tokens of one row, up to and without the first end token."""
        tokens = self.tokens_BL[row, self.response_start :].tolist()
        return tokens[: tokens.index(self.end_id)] if self.end_id in tokens else tokens

    def answers(self) -> list[list[int]]:
        """The answers of all rows."""
        return [self.answer(row) for row in range(len(self.tokens_BL))]


def pad_left(prompts: Sequence[Sequence[int]], pad_id: int, columns: int | None = None) -> tuple[Tensor, Tensor]:
    """Prompts as one tensor, each ending at the last column: tokens and validity, both (B, P).

    `columns` is P; default, the longest prompt. An empty prompt is refused: there is nothing to predict from.
    """
    if not prompts:
        raise UserError("there is no prompt to decode; give at least one")
    width = max(map(len, prompts)) if columns is None else columns
    tokens_BP = torch.full((len(prompts), width), pad_id, dtype=torch.int64)
    valid_BP = torch.zeros(len(prompts), width, dtype=torch.bool)
    for row, prompt in enumerate(prompts):
        if not 0 < len(prompt) <= width:
            raise UserError(f"prompt {row + 1} has {len(prompt)} tokens; it must have between 1 and {width}")
        tokens_BP[row, width - len(prompt) :] = torch.tensor(prompt)
        valid_BP[row, width - len(prompt) :] = True
    return tokens_BP, valid_BP


def canvas(
    prompts: Sequence[Sequence[int]], response_columns: int, *, pad_id: int, mask_id: int, columns: int | None = None
) -> tuple[Tensor, Tensor, int]:
    """Left-padded prompts followed by a masked response: canvas (B, L), validity (B, L), response start."""
    tokens_BP, valid_BP = pad_left(prompts, pad_id, columns)
    masks_BR = torch.full((len(prompts), response_columns), mask_id, dtype=torch.int64)
    canvas_BL = torch.cat([tokens_BP, masks_BR], dim=1)
    return canvas_BL, torch.cat([valid_BP, torch.ones_like(masks_BR, dtype=torch.bool)], dim=1), tokens_BP.shape[1]


def check_tokens(tokens: Tensor, vocab_size: int) -> None:
    """Refuses a token outside the vocabulary, by name."""
    if tokens.numel() and (int(tokens.min()) < 0 or int(tokens.max()) >= vocab_size):
        bad = tokens[(tokens < 0) | (tokens >= vocab_size)].flatten()[0]
        raise UserError(f"token {int(bad)} is outside the vocabulary of {vocab_size}; use the checkpoint's tokenizer")


def book_result(generation: Generation, decoded_BL: Tensor) -> None:
    """Fills in tokens kept and thrown away. `decoded_BL` marks the columns that the decoder filled, end token too."""
    start = generation.response_start
    response_BR, decoded_BR = generation.tokens_BL[:, start:], decoded_BL[:, start:]
    before_end_BR = torch.ones_like(decoded_BR)
    if generation.end_id is not None:
        before_end_BR = (response_BR == generation.end_id).long().cumsum(-1) == 0
    generation.ledger.kept += (decoded_BR & before_end_BR).sum(-1)
    generation.ledger.thrown_away += (decoded_BR & ~before_end_BR).sum(-1)

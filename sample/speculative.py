"""Lossless speculation: a drafter guesses the next tokens, one verify pass keeps those the model would have chosen.

A row's noise goes by seed, row and position, so the verify pass draws at every position the very token that plain
decoding would draw there; guesses are kept as long as they are that token. The output is therefore that of
`sample.decode` token by token, sampled or greedy: a coupling of drafter and model in place of the accept-reject rule of
Leviathan et al. (2211.17192), with the same acceptance for a drafter that proposes one token.

Shapes: B rows, P prompt columns, L columns of a row, W positions of a verify pass, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mdlm.errors import UserError
from mdlm.transformer import Transformer
from sample.autoregressive import AutoregressiveConfig, check_prompts
from sample.columns import Columns
from sample.drafters import Drafter
from sample.generation import Generation, book_result
from sample.ledger import Ledger


@dataclass(frozen=True)
class Speculation:
    """How much is guessed."""

    draft_length: int = 7
    """Most guesses a pass; it verifies one position more."""

    def __post_init__(self) -> None:
        if self.draft_length < 1:
            raise UserError(f"draft_length is {self.draft_length}; it must be at least 1")


@torch.no_grad()
def decode_speculatively(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    config: AutoregressiveConfig | None = None,
    *,
    drafter: Drafter,
    speculation: Speculation | None = None,
    rows_B: Tensor | None = None,
) -> Generation:
    """`sample.decode` with guesses: the same tokens in fewer passes of the model.

    Args:
        config: as for `decode`; `cache` is always on.
        drafter: one of `sample.drafters`, or anything that keeps their interface.
        rows_B: each row's number, which with `config.seed` decides its noise.
    """
    config, speculation = config or AutoregressiveConfig(), speculation or Speculation()
    tokens_BP, valid_BP = check_prompts(model, prompts, config)
    rows, start = tokens_BP.shape
    end_id, guesses, limit = model.config.end_token_id, speculation.draft_length, start + config.max_new_tokens
    # One column behind the last takes all guesses that go further: nobody sees or keeps it, and the buffers have one
    # shape, and so one compiled prefill, whatever the draft length.
    extra = torch.full((rows, config.max_new_tokens + 1), model.config.pad_token_id, device=model.device)
    tokens_BL = torch.cat([tokens_BP, extra], dim=1)
    valid_BL = torch.cat([valid_BP, torch.ones_like(extra, dtype=torch.bool)], dim=1)
    state, ledger = Columns(model, valid_BL, config, rows_B), Ledger(rows, model.device)
    tokens_BL[:, start], hidden_BD = state.prefill(tokens_BL, start, ledger, "prefill")
    newest_B = torch.full_like(state.rows_B, start)
    drafter.start(tokens_BL, valid_BL, start, rows_B, ledger)
    finished_BL, finished_B = tokens_BL.clone(), newest_B.clone()
    verified = 0
    while len(tokens_BL):
        done_B = newest_B >= limit - 1
        done_B = done_B | _has_end(tokens_BL, newest_B, start, end_id)
        if verified % (config.stop_check_every or (8 if model.device.type == "cuda" else 1)) == 0 and done_B.any():
            finished_BL[state.rows_B], finished_B[state.rows_B] = tokens_BL, newest_B
            keep = (~done_B).nonzero().flatten()
            state.keep_rows(keep)
            drafter.keep_rows(keep)
            tokens_BL, newest_B, done_B, hidden_BD = tokens_BL[keep], newest_B[keep], done_B[keep], hidden_BD[keep]
            if not len(keep):
                break
        drafts_BW = drafter.propose(tokens_BL, newest_B, guesses, ~done_B, hidden_BD)
        width = drafts_BW.shape[1] + 1
        columns_BW = (newest_B[:, None] + torch.arange(width, device=model.device)).clamp(max=limit)
        inputs_BW = torch.cat([tokens_BL.gather(1, newest_B[:, None]), drafts_BW], dim=1)
        drawn_BW, hidden_BWD = state.draw(inputs_BW, columns_BW)
        ledger.count("verify", state.rows_B, ~done_B, width, state.real_before(columns_BW[:, -1]))
        agreed_B = (drawn_BW[:, :-1] == drafts_BW).long().cumprod(-1).sum(-1)
        grown_B = torch.where(done_B, 0, agreed_B + 1)
        targets_BW = (columns_BW + 1).clamp(max=limit)
        kept_BW = torch.arange(width, device=model.device) < grown_B[:, None]
        tokens_BL.scatter_(1, targets_BW, torch.where(kept_BW, drawn_BW, tokens_BL.gather(1, targets_BW)))
        reached_B = (newest_B + grown_B).clamp(max=limit)
        ledger.thrown_away.index_add_(0, state.rows_B, torch.where(done_B, 0, width - (reached_B - newest_B)))
        newest_B = reached_B
        hidden_BD = hidden_BWD.take_along_dim((grown_B - 1).clamp(min=0)[:, None, None], 1)[:, 0]
        verified += 1
    return _finished(finished_BL, finished_B, ledger, start, limit, model.config.pad_token_id, end_id)


def _has_end(tokens_BL: Tensor, newest_B: Tensor, start: int, end_id: int) -> Tensor:
    column_R = torch.arange(start, tokens_BL.shape[1], device=tokens_BL.device)
    return ((tokens_BL[:, start:] == end_id) & (column_R <= newest_B[:, None])).any(-1)


def _finished(
    tokens_BL: Tensor, newest_B: Tensor, ledger: Ledger, start: int, limit: int, pad_id: int, end_id: int
) -> Generation:
    """The rows up to their end token or the limit, padding behind; what lies further was thrown away."""
    column_L = torch.arange(limit, device=tokens_BL.device)
    tokens_BL = tokens_BL[:, :limit]
    ends_BL = (tokens_BL == end_id) & (column_L >= start)
    last_B = torch.where(ends_BL, column_L, limit).amin(-1).minimum(newest_B).clamp(max=limit - 1)
    beyond_B = newest_B - last_B
    ledger.thrown_away += beyond_B
    inside_BL = column_L <= last_B[:, None]
    generation = Generation(torch.where(inside_BL, tokens_BL, pad_id), ledger, start, end_id)
    book_result(generation, inside_BL & (column_L >= start))
    return generation

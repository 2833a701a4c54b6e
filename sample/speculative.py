"""Lossless speculation: a drafter guesses the next tokens, one verify pass keeps those the model would have chosen.

A row's noise goes by seed, row and position, so the verify pass draws at every position the very token that plain
decoding would draw there; guesses are kept as long as they are that token. The output is therefore that of
`sample.decode` token by token, sampled or greedy: a coupling of drafter and model in place of the accept-reject rule of
Leviathan et al. (2211.17192), with the same acceptance for a drafter that proposes one token.

Shapes: B rows, P prompt columns, L columns of a row, W positions of a verify pass, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from mdlm.attention import KVCache, block_indices, logical_positions, visible
from mdlm.corruption import log_probabilities
from mdlm.errors import UserError
from mdlm.transformer import Transformer
from sample.autoregressive import AutoregressiveConfig, check_prompts, chunks, last_logits
from sample.compiled import maybe_compiled
from sample.generation import Generation, book_result
from sample.ledger import Ledger
from sample.noise import row_keys, uniform_at
from sample.policies import candidates


class Drafter(Protocol):
    """Guesses tokens. Its state, if any, belongs to one decode."""

    def start(
        self, tokens_BL: Tensor, valid_BL: Tensor, prompt_columns: int, rows_B: Tensor | None, ledger: Ledger
    ) -> None:
        """Begins a decode: the buffer that will hold the rows, and the account that its passes go into."""

    def propose(self, tokens_BL: Tensor, newest_B: Tensor, count: int, working_B: Tensor) -> Tensor:
        """`count` guesses (B, count) for the columns behind `newest_B`, the column of each row's newest token."""

    def keep_rows(self, keep: Tensor) -> None:
        """Drops all rows but those at the indices `keep`."""


class PromptLookup:
    """Continues the latest earlier place where the row's last tokens stand, the longest match first; costs no pass.

    For answers that copy from their prompt. Up to `longest` tokens are matched, at least one.
    """

    def __init__(self, longest: int = 3) -> None:
        if longest < 1:
            raise UserError(f"the longest match is {longest} tokens; it must be at least 1")
        self.longest = longest
        self.first_B = torch.zeros(0)

    def start(
        self, tokens_BL: Tensor, valid_BL: Tensor, prompt_columns: int, rows_B: Tensor | None, ledger: Ledger
    ) -> None:
        self.first_B = valid_BL.long().argmax(-1)

    def propose(self, tokens_BL: Tensor, newest_B: Tensor, count: int, working_B: Tensor) -> Tensor:
        columns_L = torch.arange(tokens_BL.shape[1], device=tokens_BL.device)
        # How many tokens up to column i agree with those up to the newest, (B, L), at most `longest`.
        agree_BL = torch.zeros_like(tokens_BL)
        still_BL = (columns_L < newest_B[:, None]) & (columns_L >= self.first_B[:, None])
        for back in range(self.longest):
            wanted_B1 = tokens_BL.gather(1, (newest_B - back).clamp(min=0)[:, None])
            inside_B1 = (newest_B - back >= self.first_B)[:, None]
            here_BL = tokens_BL.roll(back, 1)
            still_BL = still_BL & inside_B1 & (here_BL == wanted_B1) & (columns_L - back >= self.first_B[:, None])
            agree_BL = agree_BL + still_BL.long()
        # The longest match wins, of equals the latest.
        best_B = (agree_BL * tokens_BL.shape[1] + columns_L).masked_fill(agree_BL == 0, -1).argmax(-1)
        # A copy that runs into the newest token goes on with itself: text that repeats is guessed as repeating.
        behind_W = torch.arange(count, device=tokens_BL.device)
        period_B1 = (newest_B - best_B).clamp(min=1)[:, None]
        return tokens_BL.gather(1, best_B[:, None] + 1 + behind_W % period_B1)

    def keep_rows(self, keep: Tensor) -> None:
        self.first_B = self.first_B[keep]


class DraftModel:
    """A smaller autoregressive twin that decodes greedily, or with the row's own noise, one token a pass."""

    def __init__(self, model: Transformer, config: AutoregressiveConfig) -> None:
        if model.config.objective != "autoregressive":
            raise UserError(f"a {model.config.objective} model cannot draft token by token")
        self.model, self.config = model, config
        self.state: _Columns | None = None

    def start(
        self, tokens_BL: Tensor, valid_BL: Tensor, prompt_columns: int, rows_B: Tensor | None, ledger: Ledger
    ) -> None:
        self.ledger = ledger
        self.state = _Columns(self.model, valid_BL, self.config, rows_B)
        self.state.prefill(tokens_BL, prompt_columns, ledger, "draft")

    def propose(self, tokens_BL: Tensor, newest_B: Tensor, count: int, working_B: Tensor) -> Tensor:
        state = self.state
        assert state is not None
        tokens_BL, guesses = tokens_BL.clone(), []
        # After a full acceptance the cache lacks the last guess as well: two columns are written first.
        for step in range(count):
            first_B = newest_B + step - (1 if step == 0 else 0)
            columns_BW = first_B[:, None] + torch.arange(2 if step == 0 else 1, device=tokens_BL.device)
            columns_BW = columns_BW.clamp(min=0, max=tokens_BL.shape[1] - 1)
            inputs_BW = tokens_BL.gather(1, columns_BW)
            drawn_BW = state.draw(inputs_BW, columns_BW)
            self.ledger.count(
                "draft", state.rows_B, working_B, columns_BW.shape[1], state.real_before(columns_BW[:, -1])
            )
            guesses.append(drawn_BW[:, -1])
            column_B1 = (newest_B + step + 1).clamp(max=tokens_BL.shape[1] - 1)[:, None]
            tokens_BL = tokens_BL.scatter(1, column_B1, drawn_BW[:, -1:])
        return torch.stack(guesses, dim=1)

    def keep_rows(self, keep: Tensor) -> None:
        assert self.state is not None
        self.state.keep_rows(keep)


def drawn_tokens(
    model: Transformer,
    tokens_BW: Tensor,
    positions_BW: Tensor,
    columns_BW: Tensor,
    cache: KVCache,
    keys_B: Tensor,
    start: int | Tensor,
    temperature: float,
    top_p: float,
) -> Tensor:
    """The tokens (B, W) that plain decoding chooses behind each of some columns, which go into the cache.

    `start` is the column where responses begin, or each row's own, (B, 1).
    """
    mask_BWS = visible(columns_BW.int(), cache.blocks_BS)
    hidden_BWD = model.hidden(tokens_BW, positions_BW, mask_BWS, cache=cache, columns_L=columns_BW)
    log_probs_BWV = log_probabilities(model.head(hidden_BWD), model.config.mask_token_id)
    noise_BWV = None
    if temperature > 0:
        noise_BWV = uniform_at(keys_B, columns_BW + 1 - start, "token", log_probs_BWV.shape[-1])
    return candidates(log_probs_BWV, temperature, top_p, noise_BWV)


class _Columns:
    """A model's cache over rows whose columns advance each at its own pace."""

    def __init__(
        self, model: Transformer, valid_BL: Tensor, config: AutoregressiveConfig, rows_B: Tensor | None = None
    ):
        self.model, self.config, self.start = model, config, 0
        self.valid_BL, self.positions_BL = valid_BL, logical_positions(valid_BL)
        self.seen_BL = valid_BL.long().cumsum(-1)
        self.rows_B = torch.arange(len(valid_BL), device=valid_BL.device)
        self.keys_B = row_keys(config.seed, self.rows_B if rows_B is None else rows_B.to(valid_BL.device))
        self.cache = KVCache(model.config, *valid_BL.shape, dtype=model.dtype, device=model.device)
        # Causal: a column sees those before it, so stale keys behind a row's newest token are seen by none.
        self.blocks_BL = block_indices(model.config, valid_BL, 0)
        self._drawn = maybe_compiled(drawn_tokens, config.compile, model)
        self._last_logits = maybe_compiled(last_logits, config.compile, model)

    def prefill(self, tokens_BL: Tensor, end: int, ledger: Ledger, kind: str) -> Tensor:
        """Reads the prompts, books that as passes of a kind, and returns logits (B, 1, V) behind them."""
        self.start = end
        columns_L, read_B = torch.arange(end, device=tokens_BL.device), torch.zeros_like(self.rows_B)
        for start, stop, booked in chunks(end, self.config.prefill_chunk):
            seen_B, window = self.seen_BL[:, booked - 1], slice(start, stop)
            ledger.count(kind, self.rows_B, seen_B > read_B, seen_B - read_B, seen_B)
            of_window = (self.positions_BL[:, window], self.blocks_BL[:, window], columns_L[window])
            logits_B1V = self._last_logits(self.model, tokens_BL[:, window], *of_window, self.cache)
            read_B = seen_B
        self.cache.blocks_BS.copy_(self.blocks_BL)
        return logits_B1V

    def draw(self, tokens_BW: Tensor, columns_BW: Tensor) -> Tensor:
        """Tokens (B, W) behind each column, which is written into the cache."""
        positions_BW = self.positions_BL.gather(1, columns_BW)
        where = (self.cache, self.keys_B, self.start, self.config.temperature, self.config.top_p)
        return self._drawn(self.model, tokens_BW, positions_BW, columns_BW, *where)

    def real_before(self, column_B: Tensor) -> Tensor:
        """Real columns up to and with one, (B,)."""
        return self.seen_BL.gather(1, column_B[:, None])[:, 0]

    def keep_rows(self, keep: Tensor) -> None:
        self.cache.keep_rows(keep)
        for name in ("valid_BL", "positions_BL", "seen_BL", "rows_B", "keys_B", "blocks_BL"):
            setattr(self, name, getattr(self, name)[keep])


@dataclass(frozen=True)
class Speculation:
    """How much is guessed."""

    draft_length: int = 7
    """Guesses a pass; it verifies one position more."""

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
        drafter: `PromptLookup`, `DraftModel`, or anything that keeps their interface.
        rows_B: each row's number, which with `config.seed` decides its noise.
    """
    config, speculation = config or AutoregressiveConfig(), speculation or Speculation()
    tokens_BP, valid_BP = check_prompts(model, prompts, config)
    rows, start = tokens_BP.shape
    end_id, width, limit = model.config.end_token_id, speculation.draft_length + 1, start + config.max_new_tokens
    # Behind the last column there is room for guesses that nobody will keep.
    extra = torch.full((rows, config.max_new_tokens + width), model.config.pad_token_id, device=model.device)
    tokens_BL = torch.cat([tokens_BP, extra], dim=1)
    valid_BL = torch.cat([valid_BP, torch.ones_like(extra, dtype=torch.bool)], dim=1)
    state, ledger = _Columns(model, valid_BL, config, rows_B), Ledger(rows, model.device)
    logits_B1V = state.prefill(tokens_BL, start, ledger, "prefill")
    first_B1 = first_tokens(state, logits_B1V)
    tokens_BL[:, start] = first_B1[:, 0]
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
            tokens_BL, newest_B, done_B = tokens_BL[keep], newest_B[keep], done_B[keep]
            if not len(keep):
                break
        drafts_BW = drafter.propose(tokens_BL, newest_B, width - 1, ~done_B)
        columns_BW = newest_B[:, None] + torch.arange(width, device=model.device)
        columns_BW = columns_BW.clamp(max=tokens_BL.shape[1] - 1)
        inputs_BW = torch.cat([tokens_BL.gather(1, newest_B[:, None]), drafts_BW], dim=1)
        drawn_BW = state.draw(inputs_BW, columns_BW)
        ledger.count("verify", state.rows_B, ~done_B, width, state.real_before(columns_BW[:, -1]))
        agreed_B = (drawn_BW[:, :-1] == drafts_BW).long().cumprod(-1).sum(-1)
        grown_B = torch.where(done_B, 0, agreed_B + 1)
        targets_BW = (columns_BW + 1).clamp(max=tokens_BL.shape[1] - 1)
        kept_BW = torch.arange(width, device=model.device) < grown_B[:, None]
        tokens_BL.scatter_(1, targets_BW, torch.where(kept_BW, drawn_BW, tokens_BL.gather(1, targets_BW)))
        ledger.thrown_away.index_add_(0, state.rows_B, torch.where(done_B, 0, width - grown_B))
        newest_B = newest_B + grown_B
        verified += 1
    return _finished(finished_BL, finished_B, ledger, start, limit, model.config.pad_token_id, end_id)


def first_tokens(state: _Columns, logits_B1V: Tensor) -> Tensor:
    """The tokens behind the prompts, (B, 1)."""
    config, log_probs_B1V = state.config, log_probabilities(logits_B1V, state.model.config.mask_token_id)
    noise_B1V = None
    if config.temperature > 0:
        column_B1 = torch.zeros_like(state.rows_B)[:, None]
        noise_B1V = uniform_at(state.keys_B, column_B1, "token", log_probs_B1V.shape[-1])
    return candidates(log_probs_B1V, config.temperature, config.top_p, noise_B1V)


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

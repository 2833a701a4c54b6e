"""A model's cache over rows that advance each at its own pace: what verifies guesses, and what a draft model runs on.

Shapes: B rows, L columns of a row, W columns of a pass, D width, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mdlm.attention import KVCache, block_indices, logical_positions, visible
from mdlm.corruption import log_probabilities
from mdlm.transformer import Transformer
from sample.autoregressive import AutoregressiveConfig, chunks
from sample.compiled import maybe_compiled
from sample.ledger import Ledger
from sample.noise import row_keys, uniform_at
from sample.policies import candidates


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
) -> tuple[Tensor, Tensor]:
    """The tokens (B, W) that plain decoding chooses behind each of some columns, which go into the cache, and the
    hidden states (B, W, D) that they were drawn from.

    `start` is the column where responses begin, or each row's own, (B, 1).
    """
    mask_BWS = visible(columns_BW.int(), cache.blocks_BS)
    hidden_BWD = model.hidden(tokens_BW, positions_BW, mask_BWS, cache=cache, columns_L=columns_BW)
    log_probs_BWV = log_probabilities(model.head(hidden_BWD), model.config.mask_token_id)
    noise_BWV = None
    if temperature > 0:
        noise_BWV = uniform_at(keys_B, columns_BW + 1 - start, "token", log_probs_BWV.shape[-1])
    return candidates(log_probs_BWV, temperature, top_p, noise_BWV), hidden_BWD


def prompt_state(
    model: Transformer, tokens_BL: Tensor, positions_BL: Tensor, blocks_BL: Tensor, columns_L: Tensor, cache: KVCache
) -> tuple[Tensor, Tensor]:
    """A prefill: logits (B, 1, V) behind the last of some columns and the hidden states (B, D) they come from."""
    hidden_B1D = model.step(tokens_BL, positions_BL, blocks_BL, columns_L, cache)[:, -1:]
    return model.head(hidden_B1D), hidden_B1D[:, 0]


class Columns:
    """A model's cache over rows whose columns advance each at its own pace."""

    def __init__(
        self, model: Transformer, valid_BL: Tensor, config: AutoregressiveConfig, rows_B: Tensor | None = None
    ):
        self.model, self.config, self.start = model, config, 0
        # Guesses may go beyond the longest row that the model, or a draft model made for shorter ones, was made for.
        self.valid_BL = valid_BL
        self.positions_BL = logical_positions(valid_BL).clamp(max=model.config.max_length - 1)
        self.seen_BL = valid_BL.long().cumsum(-1)
        self.rows_B = torch.arange(len(valid_BL), device=valid_BL.device)
        self.keys_B = row_keys(config.seed, self.rows_B if rows_B is None else rows_B.to(valid_BL.device))
        self.cache = KVCache(model.config, *valid_BL.shape, dtype=model.dtype, device=model.device)
        # Causal: a column sees those before it, so stale keys behind a row's newest token are seen by none.
        self.blocks_BL = block_indices(model.config, valid_BL, 0)
        self._drawn = maybe_compiled(drawn_tokens, config.compile, model)
        self._prompt_state = maybe_compiled(prompt_state, config.compile, model)

    def prefill(self, tokens_BL: Tensor, end: int, ledger: Ledger, kind: str) -> tuple[Tensor, Tensor]:
        """Reads the prompts and books that as passes of a kind; the tokens (B,) behind them and the hidden states
        (B, D) those were drawn from."""
        self.start = end
        columns_L, read_B = torch.arange(end, device=tokens_BL.device), torch.zeros_like(self.rows_B)
        for start, stop, booked in chunks(end, self.config.prefill_chunk):
            seen_B, window = self.seen_BL[:, booked - 1], slice(start, stop)
            ledger.count(kind, self.rows_B, seen_B > read_B, seen_B - read_B, seen_B)
            of_window = (self.positions_BL[:, window], self.blocks_BL[:, window], columns_L[window])
            logits_B1V, hidden_BD = self._prompt_state(self.model, tokens_BL[:, window], *of_window, self.cache)
            read_B = seen_B
        self.cache.blocks_BS.copy_(self.blocks_BL)
        log_probs_B1V, noise_B1V = log_probabilities(logits_B1V, self.model.config.mask_token_id), None
        if self.config.temperature > 0:
            column_B1 = torch.zeros_like(self.rows_B)[:, None]
            noise_B1V = uniform_at(self.keys_B, column_B1, "token", log_probs_B1V.shape[-1])
        return candidates(log_probs_B1V, self.config.temperature, self.config.top_p, noise_B1V)[:, 0], hidden_BD

    def draw(self, tokens_BW: Tensor, columns_BW: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens (B, W) behind each column, which is written into the cache, and their hidden states (B, W, D)."""
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

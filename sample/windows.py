"""Where a denoiser's logits come from: the whole canvas every pass, or one block against an exact cache.

Both speak one interface: `prefill` the columns before the first window, `logits` of a window, `store` a finished
window, `keep_rows`. Shapes: B rows, L positions, G positions of a window, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mdlm.attention import KVCache, block_indices, logical_positions, visible
from mdlm.transformer import Transformer
from sample.ledger import Ledger


def whole_rows(model: Transformer, tokens_BL: Tensor, positions_BL: Tensor, mask_BLS: Tensor, start: int, stop: int):
    """Logits of columns [start, stop) from one pass over whole rows; the head runs on those columns alone."""
    return model.head(model.hidden(tokens_BL, positions_BL, mask_BLS)[:, start:stop])


def cached_columns(
    model: Transformer, tokens_BG: Tensor, positions_BG: Tensor, blocks_BG: Tensor, columns_G: Tensor, cache: KVCache
) -> Tensor:
    """Logits of some columns from one pass over them against the cache, which they are written into."""
    return model.head(model.step(tokens_BG, positions_BG, blocks_BG, columns_G, cache))


def store_columns(
    model: Transformer, tokens_BG: Tensor, positions_BG: Tensor, blocks_BG: Tensor, columns_G: Tensor, cache: KVCache
) -> None:
    """Writes some columns into the cache and computes nothing beyond it."""
    model.step(tokens_BG, positions_BG, blocks_BG, columns_G, cache)


_compiled: dict[Callable, Callable] = {}


def maybe_compiled(function: Callable, compiled: bool, **options: Any) -> Callable:
    """The function, or its compiled form, one for the whole process so that nothing compiles twice."""
    if not compiled:
        return function
    if function not in _compiled:
        _compiled[function] = torch.compile(function, dynamic=False, **options)
    return _compiled[function]


class WholeCanvas:
    """Every pass evaluates all positions: the bidirectional model's only exact way, and the reference for caches."""

    def __init__(
        self,
        denoiser: Callable[..., Tensor],
        valid_BL: Tensor,
        response_start: int,
        ledger: Ledger,
        *,
        block_length: int | None = None,
        compiled: bool = False,
    ) -> None:
        self.denoiser, self.ledger, self.valid_BL = denoiser, ledger, valid_BL
        self.rows_B = torch.arange(len(valid_BL), device=valid_BL.device)
        self._whole_rows = maybe_compiled(whole_rows, compiled)
        if isinstance(denoiser, Transformer):
            config = denoiser.config if block_length is None else denoiser.config.replace(block_length=block_length)
            self.positions_BL = logical_positions(valid_BL)
            blocks_BL = block_indices(config, valid_BL, response_start)
            self.mask_BLS = visible(blocks_BL, blocks_BL)

    def prefill(self, tokens_BL: Tensor, stop: int, own_stop_B: Tensor, working_B: Tensor) -> None:
        """Nothing to do: every pass sees the prompt anew."""

    def logits(self, tokens_BL: Tensor, start: int, stop: int, working_B: Tensor) -> Tensor:
        """Logits (B, G, V) of columns [start, stop), given the whole canvas."""
        length_B = self.valid_BL.sum(-1)
        self.ledger.count("denoise", self.rows_B, working_B, length_B, length_B)
        if not isinstance(self.denoiser, Transformer):
            return self.denoiser(tokens_BL)[:, start:stop]
        return self._whole_rows(self.denoiser, tokens_BL, self.positions_BL, self.mask_BLS, start, stop)

    def store(self, tokens_BL: Tensor, start: int, stop: int, working_B: Tensor) -> None:
        """Nothing to do."""

    def keep_rows(self, keep: Tensor) -> None:
        """Drops all rows but those at the indices `keep`."""
        self.rows_B, self.valid_BL = self.rows_B[keep], self.valid_BL[keep]
        if isinstance(self.denoiser, Transformer):
            self.positions_BL, self.mask_BLS = self.positions_BL[keep], self.mask_BLS[keep]


class CachedBlocks:
    """Block after block against an exact key/value cache. Needs a model that is causal over blocks.

    A block under denoising is written into its own columns of the cache at every pass and sees them and all earlier
    ones; storing it is one more such pass over the finished tokens.
    """

    def __init__(
        self,
        model: Transformer,
        valid_BL: Tensor,
        response_start: int,
        ledger: Ledger,
        *,
        block_length: int | None = None,
        compiled: bool = False,
    ) -> None:
        config = model.config if block_length is None else model.config.replace(block_length=block_length)
        self.model, self.ledger = model, ledger
        self.rows_B = torch.arange(len(valid_BL), device=valid_BL.device)
        self.positions_BL = logical_positions(valid_BL)
        self.blocks_BL = block_indices(config, valid_BL, response_start)
        self.seen_BL = valid_BL.long().cumsum(-1)
        self.columns_L = torch.arange(valid_BL.shape[1], device=valid_BL.device)
        self.cache = KVCache(config, *valid_BL.shape, dtype=model.dtype, device=model.device)
        self._logits = maybe_compiled(cached_columns, compiled)
        self._store = maybe_compiled(store_columns, compiled)

    def prefill(self, tokens_BL: Tensor, stop: int, own_stop_B: Tensor, working_B: Tensor) -> None:
        """Writes columns [0, stop) in one pass, without the head; a row is booked its columns before `own_stop_B`."""
        if stop:
            own_B = self.seen_BL.gather(1, (own_stop_B - 1).clamp(0, self.seen_BL.shape[1] - 1)[:, None])[:, 0]
            self.ledger.count("prefill", self.rows_B, working_B, own_B, own_B)
            self._call(self._store, tokens_BL, 0, stop)

    def logits(self, tokens_BL: Tensor, start: int, stop: int, working_B: Tensor) -> Tensor:
        """Logits (B, G, V) of columns [start, stop), given them and what is stored."""
        return self._run(self._logits, "denoise", tokens_BL, start, stop, working_B)

    def store(self, tokens_BL: Tensor, start: int, stop: int, working_B: Tensor) -> None:
        """Replaces the window's keys and values by those of its finished tokens: one pass."""
        self._run(self._store, "store", tokens_BL, start, stop, working_B)

    def _run(self, function: Callable, kind: str, tokens_BL: Tensor, start: int, stop: int, working_B: Tensor):
        # Rows padded on the left have fewer real columns than the pass is wide.
        before_B = self.seen_BL[:, start - 1] if start else torch.zeros_like(self.rows_B)
        seen_B = self.seen_BL[:, stop - 1]
        self.ledger.count(kind, self.rows_B, working_B, seen_B - before_B, seen_B)
        return self._call(function, tokens_BL, start, stop)

    def _call(self, function: Callable, tokens_BL: Tensor, start: int, stop: int):
        window = slice(start, stop)
        return function(
            self.model,
            tokens_BL[:, window],
            self.positions_BL[:, window],
            self.blocks_BL[:, window],
            self.columns_L[window],
            self.cache,
        )

    def keep_rows(self, keep: Tensor) -> None:
        """Drops all rows but those at the indices `keep`."""
        self.cache.keep_rows(keep)
        for name in ("rows_B", "positions_BL", "blocks_BL", "seen_BL"):
            setattr(self, name, getattr(self, name)[keep])

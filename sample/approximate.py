"""Approximate key/value caches for the bidirectional model, and how far they drift. Fast-dLLM (2505.22618).

A bidirectional model has no exact cache: every token that is committed changes the keys and values of all positions.
These reuse what they were at the start of a window.

Shapes: B rows, L positions, G positions of a window, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mdlm.attention import KVCache, block_indices, logical_positions
from mdlm.corruption import log_probabilities
from mdlm.transformer import Transformer
from sample.compiled import maybe_compiled
from sample.ledger import Ledger
from sample.windows import WholeCanvas, cached_columns


@dataclass
class Drift:
    """How far logits against an approximate cache are from those without, over masked positions of all passes."""

    positions: int = 0
    kl_sum: float = 0.0
    """Nats of KL(without cache ‖ with cache), summed."""
    changed: int = 0
    """Positions whose arg-max differs."""

    @property
    def kl(self) -> float:
        """Mean KL in nats."""
        return self.kl_sum / max(1, self.positions)

    @property
    def changed_share(self) -> float:
        """Share of positions whose likeliest token differs."""
        return self.changed / max(1, self.positions)

    def add(self, exact_BGV: Tensor, cached_BGV: Tensor, counted_BG: Tensor, mask_id: int) -> None:
        """Adds one pass; only counted positions enter."""
        exact, cached = (log_probabilities(x[counted_BG], mask_id) for x in (exact_BGV, cached_BGV))
        difference = torch.where(exact.isfinite(), exact - cached, 0.0)
        self.positions += len(exact)
        self.kl_sum += float((exact.exp() * difference).sum())
        self.changed += int((exact.argmax(-1) != cached.argmax(-1)).sum())


class CachedCanvas:
    """The bidirectional model's canvas against keys and values from the start of the window. Approximate.

    The first pass of a window evaluates the whole canvas and writes all of it into the cache; the following ones
    evaluate the columns from the window on (`prefix`), or the window alone (`dual`), and write those.
    """

    exact = False

    def __init__(
        self,
        model: Transformer,
        valid_BL: Tensor,
        response_start: int,
        ledger: Ledger,
        kind: Literal["prefix", "dual"],
        *,
        compiled: bool = False,
        measure_drift: bool = False,
    ) -> None:
        self.model, self.ledger, self.kind = model, ledger, kind
        self.rows_B = torch.arange(len(valid_BL), device=valid_BL.device)
        self.valid_BL = valid_BL
        self.positions_BL = logical_positions(valid_BL)
        self.blocks_BL = block_indices(model.config, valid_BL, response_start)
        self.columns_L = torch.arange(valid_BL.shape[1], device=valid_BL.device)
        self.cache = KVCache(model.config, *valid_BL.shape, dtype=model.dtype, device=model.device)
        self._refreshed = -1
        self._cached = maybe_compiled(cached_columns, compiled, model)
        self.drift = Drift() if measure_drift else None
        self._reference = WholeCanvas(model, valid_BL, response_start, ledger) if measure_drift else None

    def prefill(self, tokens_BL: Tensor, stop: int, own_stop_B: Tensor, working_B: Tensor) -> None:
        """Nothing to do: each window's first pass reads everything."""

    def logits(
        self, tokens_BL: Tensor, start: int, stop: int, working_B: Tensor, stop_B: Tensor | None = None
    ) -> Tensor:
        """Logits (B, G, V) of columns [start, stop)."""
        all_B, length = self.valid_BL.sum(-1), tokens_BL.shape[1]
        if start != self._refreshed:
            # A function of its columns: the pass that refreshes is also the window's first.
            self._refreshed = start
            self.ledger.count("refresh", self.rows_B, working_B, all_B, all_B)
            return self._call(tokens_BL, 0, length, start, stop)
        end = length if self.kind == "prefix" else stop
        own_B = self.valid_BL[:, start:end].sum(-1)
        self.ledger.count("denoise", self.rows_B, working_B, own_B, all_B)
        logits_BGV = self._call(tokens_BL, start, end, start, stop)
        if self.drift is not None and self._reference is not None:
            exact_BGV = self._reference.uncounted_logits(tokens_BL, start, stop)
            mask_id = self.model.config.mask_token_id
            counted_BG = (tokens_BL[:, start:stop] == mask_id) & working_B[:, None]
            self.drift.add(exact_BGV, logits_BGV, counted_BG, mask_id)
        return logits_BGV

    def _call(self, tokens_BL: Tensor, first: int, last: int, start: int, stop: int) -> Tensor:
        """Logits of columns [start, stop) from a pass over [first, last)."""
        window = slice(first, last)
        return self._cached(
            self.model,
            tokens_BL[:, window],
            self.positions_BL[:, window],
            self.blocks_BL[:, window],
            self.columns_L[window],
            self.cache,
            torch.arange(start - first, stop - first, device=tokens_BL.device),
        )

    def store(self, tokens_BL: Tensor, start: int, stop: int, working_B: Tensor) -> None:
        """Nothing to do: the next window refreshes."""

    def keep_rows(self, keep: Tensor) -> None:
        """Drops all rows but those at the indices `keep`."""
        self.cache.keep_rows(keep)
        for name in ("rows_B", "valid_BL", "positions_BL", "blocks_BL"):
            setattr(self, name, getattr(self, name)[keep])
        if self._reference is not None:
            self._reference.keep_rows(keep)

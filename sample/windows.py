"""Where a denoiser's logits come from: the whole canvas every pass, or one block against an exact cache.

All sources speak one interface: `prefill` the columns before the first window, `logits` of a window, `store` a
finished window, `keep_rows`. Shapes: B rows, L positions, G positions of a window, C columns of a pass, S of a cache, V
vocabulary.

Where committed tokens are verified, each window gets shadows: mask tokens at the window's positions that see what the
position may see, but not the token that stands there, and not each other. Their logits say how likely that token is
given all others (the draft-and-verify pass of WINO, 2507.18578). Logits are then (B, 2 G, V): window, shadows.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mdlm.attention import KVCache, block_indices, logical_positions, visible
from mdlm.transformer import Transformer
from sample.compiled import maybe_compiled
from sample.ledger import Ledger


def whole_rows(
    model: Transformer, tokens_BL: Tensor, positions_BL: Tensor, mask_BLS: Tensor, window_G: Tensor
) -> Tensor:
    """Logits of the window's columns from one pass over whole rows; the head runs on those columns alone."""
    return model.head(model.hidden(tokens_BL, positions_BL, mask_BLS)[:, window_G])


def whole_rows_verified(
    model: Transformer, tokens_BL: Tensor, positions_BL: Tensor, mask_BLS: Tensor, window_G: Tensor
) -> Tensor:
    """`whole_rows` with the window's shadows beside it."""
    length, width = tokens_BL.shape[1], len(window_G)
    masks_BG = torch.full_like(tokens_BL[:, window_G], model.config.mask_token_id)
    not_own_GL = torch.arange(length, device=window_G.device) != window_G[:, None]
    own = torch.eye(width, dtype=torch.bool, device=window_G.device).expand(len(tokens_BL), 1, -1, -1)
    real = torch.cat([mask_BLS, torch.zeros_like(mask_BLS[..., :1]).expand(-1, -1, -1, width)], dim=-1)
    shadow = torch.cat([mask_BLS[:, :, window_G] & not_own_GL, own], dim=-1)
    hidden = model.hidden(
        torch.cat([tokens_BL, masks_BG], dim=1),
        torch.cat([positions_BL, positions_BL[:, window_G]], dim=1),
        torch.cat([real, shadow], dim=-2),
    )
    return model.head(torch.cat([hidden[:, window_G], hidden[:, length:]], dim=1))


def cached_columns(
    model: Transformer,
    tokens_BC: Tensor,
    positions_BC: Tensor,
    blocks_BC: Tensor,
    columns_C: Tensor,
    cache: KVCache,
    window_G: Tensor,
) -> Tensor:
    """Logits of the window from one pass over some columns against the cache, which they are written into.

    `window_G` are places among those columns, as a tensor so that one compiled pass serves every window.
    """
    return model.head(model.step(tokens_BC, positions_BC, blocks_BC, columns_C, cache)[:, window_G])


def cached_columns_verified(
    model: Transformer,
    tokens_BC: Tensor,
    positions_BC: Tensor,
    blocks_BC: Tensor,
    columns_C: Tensor,
    cache: KVCache,
    window_G: Tensor,
) -> Tensor:
    """`cached_columns` with the window's shadows; they write to the cache's last columns, which nothing else sees."""
    cache.blocks_BS.index_copy_(1, columns_C, blocks_BC)
    width, device = len(window_G), window_G.device
    scratch_G = cache.columns - width + torch.arange(width, device=device)
    column_S = torch.arange(cache.columns, device=device)
    real = visible(blocks_BC, cache.blocks_BS)
    others = real[:, :, window_G] & (column_S != columns_C[window_G, None])
    shadow = others | (column_S == scratch_G[:, None])
    hidden = model.hidden(
        torch.cat([tokens_BC, torch.full_like(tokens_BC[:, window_G], model.config.mask_token_id)], dim=1),
        torch.cat([positions_BC, positions_BC[:, window_G]], dim=1),
        torch.cat([real, shadow], dim=-2),
        cache=cache,
        columns_L=torch.cat([columns_C, scratch_G]),
    )
    return model.head(torch.cat([hidden[:, window_G], hidden[:, -width:]], dim=1))


def store_columns(
    model: Transformer, tokens_BG: Tensor, positions_BG: Tensor, blocks_BG: Tensor, columns_G: Tensor, cache: KVCache
) -> None:
    """Writes some columns into the cache and computes nothing beyond it."""
    model.step(tokens_BG, positions_BG, blocks_BG, columns_G, cache)


class WholeCanvas:
    """Every pass evaluates all positions: the bidirectional model's only exact way, and the reference for caches.

    With `growing` it evaluates only the columns up to the window's end, as if the canvas ended there.
    """

    def __init__(
        self,
        denoiser: Callable[..., Tensor],
        valid_BL: Tensor,
        response_start: int,
        ledger: Ledger,
        *,
        block_length: int | None = None,
        compiled: bool = False,
        verified: bool = False,
        growing: bool = False,
    ) -> None:
        self.denoiser, self.ledger, self.valid_BL = denoiser, ledger, valid_BL
        self.verified, self.growing = verified, growing
        self.rows_B = torch.arange(len(valid_BL), device=valid_BL.device)
        self._rows = maybe_compiled(whole_rows_verified if verified else whole_rows, compiled, denoiser)
        if isinstance(denoiser, Transformer):
            config = denoiser.config if block_length is None else denoiser.config.replace(block_length=block_length)
            self.positions_BL = logical_positions(valid_BL)
            blocks_BL = block_indices(config, valid_BL, response_start)
            self.mask_BLS = visible(blocks_BL, blocks_BL)

    def prefill(self, tokens_BL: Tensor, stop: int, own_stop_B: Tensor, working_B: Tensor) -> None:
        """Nothing to do: every pass sees the prompt anew."""

    def logits(
        self, tokens_BL: Tensor, start: int, stop: int, working_B: Tensor, stop_B: Tensor | None = None
    ) -> Tensor:
        """Logits (B, G, V) of columns [start, stop), given the whole canvas. `stop_B`: see `CachedBlocks`."""
        length = stop if self.growing else tokens_BL.shape[1]
        length_B = self.valid_BL[:, :length].sum(-1)
        extra = stop - start if self.verified else 0
        self.ledger.count("denoise", self.rows_B, working_B, length_B + extra, length_B)
        return self.uncounted_logits(tokens_BL, start, stop)

    def uncounted_logits(self, tokens_BL: Tensor, start: int, stop: int) -> Tensor:
        """`logits` that no ledger knows of: a reference to compare with."""
        tokens_BL = tokens_BL[:, :stop] if self.growing else tokens_BL
        if not isinstance(self.denoiser, Transformer):
            # A function says of a visible position what it holds likely there: it is its own shadow.
            logits_BGV = self.denoiser(tokens_BL)[:, start:stop]
            return torch.cat([logits_BGV, logits_BGV], dim=1) if self.verified else logits_BGV
        length = tokens_BL.shape[1]
        mask_BLS = self.mask_BLS[..., :length, :length]
        window_G = torch.arange(start, stop, device=tokens_BL.device)
        return self._rows(self.denoiser, tokens_BL, self.positions_BL[:, :length], mask_BLS, window_G)

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
    ones; storing it is one more such pass over the finished tokens, or, `fused`, part of the next block's first pass:
    the finished block is evaluated beside the new one, which sees its fresh keys and values. One pass less for each
    block, and the same result.
    """

    exact = True

    def __init__(
        self,
        model: Transformer,
        valid_BL: Tensor,
        response_start: int,
        ledger: Ledger,
        *,
        block_length: int | None = None,
        compiled: bool = False,
        verified: bool = False,
        fused: bool = False,
    ) -> None:
        config = model.config if block_length is None else model.config.replace(block_length=block_length)
        self.model, self.ledger, self.verified, self.fused = model, ledger, verified, fused
        self.rows_B = torch.arange(len(valid_BL), device=valid_BL.device)
        self.positions_BL = logical_positions(valid_BL)
        self.blocks_BL = block_indices(config, valid_BL, response_start)
        self.seen_BL = valid_BL.long().cumsum(-1)
        self.columns_L = torch.arange(valid_BL.shape[1], device=valid_BL.device)
        columns = valid_BL.shape[1] + (config.block_length if verified else 0)
        self.cache = KVCache(config, len(valid_BL), columns, dtype=model.dtype, device=model.device)
        self.unstored: int | None = None
        """First column of the finished blocks that the next pass has to store."""
        self.owed_B = torch.zeros_like(self.rows_B)
        """Positions of them, for each row that needs them."""
        self._logits = maybe_compiled(cached_columns_verified if verified else cached_columns, compiled, model)
        self._store = maybe_compiled(store_columns, compiled, model)

    def prefill(self, tokens_BL: Tensor, stop: int, own_stop_B: Tensor, working_B: Tensor) -> None:
        """Writes columns [0, stop) in one pass, without the head; a row is booked its columns before `own_stop_B`."""
        if stop:
            own_B = self.seen_BL.gather(1, (own_stop_B - 1).clamp(0, self.seen_BL.shape[1] - 1)[:, None])[:, 0]
            self.ledger.count("prefill", self.rows_B, working_B, own_B, own_B)
            self._call(self._store, tokens_BL, 0, stop)

    def logits(
        self, tokens_BL: Tensor, start: int, stop: int, working_B: Tensor, stop_B: Tensor | None = None
    ) -> Tensor:
        """Logits (B, G, V) of columns [start, stop), given them and what is stored.

        `stop_B` is where each row's own columns end, where some take part in less of the pass; they are booked that.
        """
        seen_B = self.seen_BL[:, stop - 1]
        if stop_B is not None:
            seen_B = self.seen_BL.gather(1, (stop_B - 1)[:, None])[:, 0]
        own_B = seen_B - self._before(start) + (stop - start if self.verified else 0)
        self.ledger.count("denoise", self.rows_B, working_B, own_B + self.owed_B, seen_B)
        self.owed_B = torch.where(working_B, 0, self.owed_B)
        first, self.unstored = start if self.unstored is None else self.unstored, None
        window_G = torch.arange(start - first, stop - first, device=tokens_BL.device)
        return self._call(self._logits, tokens_BL, first, stop, window_G)

    def store(self, tokens_BL: Tensor, start: int, stop: int, working_B: Tensor) -> None:
        """Replaces the window's keys and values by those of its finished tokens: one pass, or part of the next."""
        own_B = self.seen_BL[:, stop - 1] - self._before(start)
        if self.fused:
            self.unstored = start if self.unstored is None else self.unstored
            self.owed_B = self.owed_B + torch.where(working_B, own_B, 0)
            return
        self.ledger.count("store", self.rows_B, working_B, own_B, self.seen_BL[:, stop - 1])
        self._call(self._store, tokens_BL, start, stop)

    def _before(self, start: int) -> Tensor:
        """Real columns before `start`: rows padded on the left have fewer."""
        return self.seen_BL[:, start - 1] if start else torch.zeros_like(self.rows_B)

    def _call(self, function: Callable, tokens_BL: Tensor, start: int, stop: int, *arguments: Tensor):
        window = slice(start, stop)
        return function(
            self.model,
            tokens_BL[:, window],
            self.positions_BL[:, window],
            self.blocks_BL[:, window],
            self.columns_L[window],
            self.cache,
            *arguments,
        )

    def keep_rows(self, keep: Tensor) -> None:
        """Drops all rows but those at the indices `keep`."""
        self.cache.keep_rows(keep)
        for name in ("rows_B", "positions_BL", "blocks_BL", "seen_BL", "owed_B"):
            setattr(self, name, getattr(self, name)[keep])

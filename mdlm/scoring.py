"""−log p of tokens in masked rows, from any denoiser: what every likelihood is a sum of.

Shapes: B rows, L columns, M canvases (copies of rows with masks in them), W wanted positions of canvases, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from mdlm.attention import block_indices, block_of, logical_positions, side_by_side, visible
from mdlm.corruption import without_mask_token
from mdlm.errors import UserError
from mdlm.transformer import Transformer

Denoiser = Callable[..., Tensor]
"""A `Transformer`, or a function from tokens (B, L) to logits (B, L, V)."""
_PASS_LOGITS = 1 << 24
"""Canvases go through the denoiser in groups of about so many logits."""


class Rows:
    """Clean rows, which of their columns are scored, and the blocks those fall into."""

    def __init__(
        self,
        denoiser: Denoiser,
        tokens_BL: Tensor,
        mask_id: int,
        block_length: int | None,
        scored_BL: Tensor | None,
        valid_BL: Tensor | None,
        response_start: int,
    ) -> None:
        if tokens_BL.ndim != 2 or (block_length is not None and block_length < 1):
            raise UserError("tokens have the shape (rows, columns), and a block at least one position")
        self.denoiser, self.mask_id, self.start = denoiser, mask_id, response_start
        self.model = denoiser if isinstance(denoiser, Transformer) else None
        self.tokens_BL = tokens_BL if self.model is None else tokens_BL.to(self.model.device)
        device, length = self.tokens_BL.device, tokens_BL.shape[1]
        every_BL = torch.ones_like(self.tokens_BL, dtype=torch.bool)
        self.valid_BL = every_BL if valid_BL is None else valid_BL.to(device)
        if scored_BL is None:
            scored_BL = self.valid_BL & (torch.arange(length, device=device) >= response_start)
        self.scored_BL = scored_BL.to(device)
        self._check()
        self.by_blocks = self.model is not None and self.model.config.objective == "block_diffusion"
        if self.model is not None and self.by_blocks:
            block_length = block_length or self.model.config.block_length
        self.block_length = block_length
        width = block_length or max(length - response_start, 1)
        columns_L = torch.arange(length, device=device) - response_start
        self.block_L = block_of(columns_L, width, -(-(length - response_start) // width))
        self.tokens_B = self.scored_BL.sum(-1).cpu()
        if self.model is not None:
            self.config = self.model.config.replace(block_length=width)

    def _check(self) -> None:
        if not self.scored_BL.any(-1).all():
            raise UserError("a row has no scored token; leave it out, or score some of it")
        if (self.tokens_BL[self.scored_BL] == self.mask_id).any():
            raise UserError(f"a scored token is the mask token {self.mask_id}; score clean text")
        if (self.scored_BL & ~self.valid_BL).any():
            raise UserError("padding cannot be scored; leave it out of what is scored")
        if self.scored_BL[:, : self.start].any():
            raise UserError(f"a token before response_start {self.start} is scored; blocks begin there, so lower it")
        if self.model is not None:
            vocabulary, most = self.model.config.vocab_size, self.model.config.max_length
            if self.mask_id != self.model.config.mask_token_id:
                raise UserError(
                    f"mask_id {self.mask_id} is not the model's mask token {self.model.config.mask_token_id}"
                )
            if int(self.tokens_BL.min()) < 0 or int(self.tokens_BL.max()) >= vocabulary:
                raise UserError(f"a token is outside the vocabulary of {vocabulary}; use the checkpoint's tokenizer")
            if self.tokens_BL.shape[1] > most:
                raise UserError(f"rows have {self.tokens_BL.shape[1]} columns, the model was made for {most}")

    @property
    def device(self) -> torch.device:
        return self.tokens_BL.device

    def name(self, bound: str) -> str:
        """The bound's name, with its block length where there are blocks."""
        return bound if self.block_length is None else f"{bound}:block_{self.block_length}"

    def blocks_behind(self, columns_N: Tensor, total: int) -> Tensor:
        """Blocks of the columns that would follow a row's scored ones if it had `total` of them."""
        if total < len(columns_N):
            raise UserError(f"noise for {total} tokens is too little: a row has {len(columns_N)} scored ones")
        behind_N = columns_N[-1] + 1 + torch.arange(total - len(columns_N)) - self.start
        return torch.zeros_like(behind_N) if self.block_length is None else behind_N // self.block_length

    def masked_nats(self, row_M: Tensor, masked_ML: Tensor) -> Tensor:
        """−log p of each masked token given its block's visible tokens and clean earlier blocks; 0 elsewhere, (M, L).

        A block model takes all blocks in one pass, as in training. Any other denoiser gets one canvas a block: earlier
        blocks clean, the scored tokens of later ones masked.
        """
        if self.by_blocks:
            return self._in_groups(self._beside_clean, row_M, masked_ML, masked_ML, copies=2)
        nats_ML = torch.zeros(masked_ML.shape, dtype=torch.float64, device=masked_ML.device)
        for block in range(int(self.block_L.max()) + 1):
            wanted_ML = masked_ML & (self.block_L == block)
            some_M = wanted_ML.any(-1).nonzero().flatten()
            if len(some_M):
                later_ML = self.scored_BL[row_M[some_M]] & (self.block_L > block)
                hidden_ML = wanted_ML[some_M] | later_ML
                nats_ML[some_M] += self.canvas_nats(row_M[some_M], hidden_ML, wanted_ML[some_M])
        return nats_ML

    def canvas_nats(self, row_M: Tensor, masked_ML: Tensor, wanted_ML: Tensor) -> Tensor:
        """−log p of the wanted tokens of rows in which `masked_ML` is masked; 0 elsewhere, (M, L) float64."""
        return self._in_groups(self._plain, row_M, masked_ML, wanted_ML)

    def next_token_nats(self, row_M: Tensor, wanted_ML: Tensor) -> Tensor:
        """−log p of the wanted tokens given all before them, for logits that predict the next column."""
        return self._in_groups(self._plain, row_M, torch.zeros_like(wanted_ML), wanted_ML, shift=1)

    def logits(self, canvas_ML: Tensor, row_M: Tensor) -> Tensor:
        """Logits of whole canvases, (M, L, V)."""
        if self.model is None:
            return self.denoiser(canvas_ML)
        return self.model.head(self._hidden(self.model, canvas_ML, row_M))

    def _hidden(self, model: Transformer, canvas_ML: Tensor, row_M: Tensor) -> Tensor:
        valid_ML = self.valid_BL[row_M]
        blocks_ML = block_indices(self.config, valid_ML, self.start)
        return model.hidden(canvas_ML, logical_positions(valid_ML), visible(blocks_ML, blocks_ML))

    def _plain(self, row_M: Tensor, canvas_ML: Tensor, wanted_ML: Tensor) -> Tensor:
        if self.model is None:
            return self.denoiser(canvas_ML)[wanted_ML]
        return self.model.head(self._hidden(self.model, canvas_ML, row_M)[wanted_ML])

    def _beside_clean(self, row_M: Tensor, canvas_ML: Tensor, wanted_ML: Tensor) -> Tensor:
        """Logits at the wanted positions from the pass that block diffusion trains with."""
        assert self.model is not None
        clean_ML, valid_ML, start = self.tokens_BL[row_M], self.valid_BL[row_M], self.start
        positions_ML = logical_positions(valid_ML)
        hidden = self.model.hidden(
            torch.cat([clean_ML, canvas_ML[:, start:]], dim=1),
            torch.cat([positions_ML, positions_ML[:, start:]], dim=1),
            side_by_side(block_indices(self.config, valid_ML, start), start),
        )
        return self.model.head(hidden[:, clean_ML.shape[1] :][wanted_ML[:, start:]])

    def _in_groups(
        self,
        logits_of: Callable[[Tensor, Tensor, Tensor], Tensor],
        row_M: Tensor,
        masked_ML: Tensor,
        wanted_ML: Tensor,
        *,
        copies: int = 1,
        shift: int = 0,
    ) -> Tensor:
        vocabulary = self.model.config.vocab_size if self.model is not None else 64
        size = max(1, _PASS_LOGITS // (masked_ML.shape[1] * copies * vocabulary))
        nats_ML = torch.zeros(masked_ML.shape, dtype=torch.float64, device=masked_ML.device)
        for group in torch.arange(len(row_M), device=row_M.device).split(size):
            clean_ML, wanted = self.tokens_BL[row_M[group]], wanted_ML[group]
            canvas_ML = torch.where(masked_ML[group], self.mask_id, clean_ML)
            logits_WV = logits_of(row_M[group], canvas_ML, wanted.roll(-shift, 1))
            logits_WV = logits_WV if logits_WV.dtype == torch.float64 else logits_WV.float()
            losses_W = F.cross_entropy(without_mask_token(logits_WV, self.mask_id), clean_ML[wanted], reduction="none")
            nats_ML[group] = nats_ML[group].masked_scatter(wanted, losses_W.double())
        return nats_ML

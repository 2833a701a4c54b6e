"""The plain loop that published masked-diffusion code decodes with, for the bench: what our decoder is faster than.

Shapes: B rows, L positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


@torch.no_grad()
def published_loop(
    logits_of: Callable[[Tensor], Tensor],
    canvas_BL: Tensor,
    *,
    mask_id: int,
    response_start: int,
    block_length: int,
    passes: int,
) -> Tensor:
    """Fills a canvas block by block, equal shares a pass, the likeliest first (LLaDA, 2502.09992, low-confidence
    remasking), as its reference code goes about it: every pass evaluates all positions, takes logits and a float64
    softmax of all of them, and chooses row by row.

    `logits_of` gives the logits (B, L, V) of a whole canvas. Returns the filled canvas.
    """
    tokens_BL = canvas_BL.clone()
    for start in range(response_start, tokens_BL.shape[1], block_length):
        stop = min(start + block_length, tokens_BL.shape[1])
        left = (tokens_BL[:, start:stop] == mask_id).sum(-1)
        for index in range(passes):
            logits_BLV = logits_of(tokens_BL)
            logits_BLV[..., mask_id] = -torch.inf
            best_BL = logits_BLV.argmax(-1)
            sure_BL = torch.softmax(logits_BLV.double(), dim=-1).gather(-1, best_BL[..., None])[..., 0]
            masked_BL = tokens_BL == mask_id
            sure_BL = sure_BL.masked_fill(~masked_BL, -torch.inf)
            sure_BL[:, stop:] = -torch.inf
            for row in range(len(tokens_BL)):
                share = int(left[row]) // passes + (index < int(left[row]) % passes)
                chosen = sure_BL[row].topk(share).indices
                tokens_BL[row, chosen] = best_BL[row, chosen]
    return tokens_BL

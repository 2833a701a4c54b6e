"""Products of one position at a time, as a compiler for CPUs should see them.

Decoding one token reads every weight for two operations each, so a step takes as long as the reading. torch's matrix
kernels read at under half of what a CPU's memory gives when there is one row: they pack the weights anew at every call.
Written as a product and a sum they become one loop that the compiler fuses with the norm before and the activation
behind, in float32. Only compiled steps without gradients take this path: eager code would write the product out.

Shapes: B rows, H heads, K KV heads, L positions, S key positions, N head width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LARGE = 2**20
"""Weights from which on four streams are read side by side; fewer leave memory idle, more compile for longer."""


def compiled_for_cpu(x: Tensor) -> bool:
    """Whether this is the tracing of a step without gradients for a CPU."""
    return torch.compiler.is_compiling() and not torch.is_grad_enabled() and x.device.type == "cpu"


def product(x: Tensor, weight: Tensor) -> Tensor:
    """`F.linear(x, weight)`, (..., out)."""
    if not compiled_for_cpu(x) or x.shape[:-1].numel() != 1:
        return F.linear(x, weight)
    x_D = x.flatten().to(torch.promote_types(x.dtype, torch.float32))
    # Several parts of the weight are summed in one loop: one stream alone does not keep the memory busy.
    parts = weight.chunk(4 if weight.numel() >= LARGE else 2)
    return torch.cat([(x_D * part).sum(-1) for part in parts]).to(x.dtype).view(*x.shape[:-1], -1)


class Linear(nn.Linear):
    """A linear layer without bias whose products are `product`."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return product(x, self.weight)


def attend_one(q_BHLN: Tensor, k_BKSN: Tensor, v_BKSN: Tensor, mask_BLS: Tensor | None) -> Tensor:
    """Attention (B, H, 1, N) of one query position, whose keys and values are read once and never copied."""
    rows, heads, _, width = q_BHLN.shape
    exact = torch.promote_types(q_BHLN.dtype, torch.float32)
    # (B, K, H / K, S) scores: the queries that share a key head stand side by side.
    q = q_BHLN.to(exact).view(rows, k_BKSN.shape[1], -1, 1, width)
    scores = (q * k_BKSN[:, :, None]).sum(-1) * width**-0.5
    if mask_BLS is not None:
        scores = scores.masked_fill(~mask_BLS, -torch.inf)
    values = (scores.softmax(-1)[..., None] * v_BKSN[:, :, None]).sum(-2)
    return values.to(q_BHLN.dtype).view(rows, heads, 1, width)

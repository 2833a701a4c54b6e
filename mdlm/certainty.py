"""How sure a prediction is, from the log-probabilities alone: what orders positions in decoding and in likelihoods.

Shapes: (..., V) log-probabilities in float32 or better, V vocabulary; (...) scores, larger is surer.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def top_probability(log_probs: Tensor) -> Tensor:
    """Probability of the likeliest token (LLaDA, 2502.09992)."""
    return log_probs.amax(-1).exp()


def margin(log_probs: Tensor) -> Tensor:
    """Probability of the likeliest token less that of the second (Kim et al., 2502.06768)."""
    top = log_probs.topk(2, dim=-1).values.exp()
    return top[..., 0] - top[..., 1]


def negative_entropy(log_probs: Tensor) -> Tensor:
    """Σ p log p in nats: 0 when certain, −log V when lost (Dream, 2508.15487)."""
    return torch.special.entr(log_probs.exp()).sum(-1).neg()


CERTAINTIES: dict[str, Callable[[Tensor], Tensor]] = {
    "confidence": top_probability,
    "margin": margin,
    "entropy": negative_entropy,
}

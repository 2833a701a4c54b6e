"""The choices of a denoising pass that need no state: candidates, their scores, and shares of a window.

Each is a small function. Shapes: B rows, G positions of a window, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mdlm.certainty import margin, negative_entropy


def keep_top_p(log_probs_BGV: Tensor, top_p: float) -> Tensor:
    """Log-probabilities outside the smallest set of mass ≥ top_p become −inf; the token that crosses it stays.

    Nucleus sampling (1904.09751). Not renormalised: what draws from it need not care.
    """
    sorted_BGV, order_BGV = log_probs_BGV.sort(dim=-1, descending=True)
    mass_before_BGV = sorted_BGV.exp().cumsum(-1) - sorted_BGV.exp()
    kept_BGV = torch.zeros_like(order_BGV, dtype=torch.bool).scatter(-1, order_BGV, mass_before_BGV < top_p)
    return log_probs_BGV.masked_fill(~kept_BGV, -torch.inf)


def candidates(log_probs_BGV: Tensor, temperature: float, top_p: float, noise_BGV: Tensor | None) -> Tensor:
    """One candidate token for each position, (B, G): the arg-max at temperature 0, otherwise a sample.

    Gumbel-max in float64: in float32 the noise's granularity silently lowers the temperature (2409.02908).
    `noise_BGV` is uniform in [0, 1), float64; only looked at above temperature 0.
    """
    if temperature == 0 or noise_BGV is None:
        return log_probs_BGV.argmax(-1)
    tempered_BGV = torch.log_softmax(log_probs_BGV.double() / temperature, dim=-1)
    if top_p < 1:
        tempered_BGV = keep_top_p(tempered_BGV, top_p)
    return (tempered_BGV - torch.log(-torch.log1p(-noise_BGV.clamp(min=2.0**-54)))).argmax(-1)


def confidence(log_probs_BGV: Tensor, candidate_BG: Tensor) -> Tensor:
    """The candidate's probability under the model, untempered (LLaDA, 2502.09992)."""
    return log_probs_BGV.gather(-1, candidate_BG[..., None])[..., 0].exp()


SCORES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "confidence": lambda log_probs_BGV, candidate_BG, noise_BG: confidence(log_probs_BGV, candidate_BG),
    "margin": lambda log_probs_BGV, candidate_BG, noise_BG: margin(log_probs_BGV),
    "entropy": lambda log_probs_BGV, candidate_BG, noise_BG: negative_entropy(log_probs_BGV),
    "random": lambda log_probs_BGV, candidate_BG, noise_BG: noise_BG,
}
"""What makes a candidate sure, from log-probabilities, candidates and uniform noise; larger is surer."""


def rank_among(score_BG: Tensor, among_BG: Tensor) -> Tensor:
    """Each position's rank by falling score among those marked, 0 the first; ties go to the left, the others last."""
    # Integers keep a score of −inf before the positions that do not take part.
    order_BG = score_BG.argsort(dim=-1, descending=True, stable=True)
    behind_BG = (~among_BG).gather(-1, order_BG).long().argsort(dim=-1, stable=True)
    return order_BG.gather(-1, behind_BG).argsort(dim=-1)


def quota(masked_at_start_B: Tensor, index: int, passes: int) -> Tensor:
    """Positions each row commits in pass `index` of `passes`, (B,): equal shares, the remainder one each to the first.

    Rows with fewer masks than passes are done early. From pass `passes` on it asks for all that is left, so that no
    mask survives the last pass.
    """
    if index >= passes - 1:
        return masked_at_start_B
    return masked_at_start_B // passes + (index < masked_at_start_B % passes).long()

"""The choices of a denoising pass: which token is the candidate, how sure we are of it, which candidates we commit.

Each is a small function and one line in a registry. Shapes: B rows, G positions of a window, V vocabulary.
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


def candidates(log_probs_BGV: Tensor, temperature: float, top_p: float, generator: torch.Generator | None) -> Tensor:
    """One candidate token for each position, (B, G): the arg-max at temperature 0, otherwise a sample.

    Gumbel-max in float64: in float32 the noise's granularity silently lowers the temperature (2409.02908).
    """
    if temperature == 0:
        return log_probs_BGV.argmax(-1)
    tempered_BGV = torch.log_softmax(log_probs_BGV.double() / temperature, dim=-1)
    if top_p < 1:
        tempered_BGV = keep_top_p(tempered_BGV, top_p)
    uniform_BGV = torch.rand(tempered_BGV.shape, dtype=torch.float64, device=tempered_BGV.device, generator=generator)
    return (tempered_BGV - torch.log(-torch.log1p(-uniform_BGV))).argmax(-1)


def confidence(log_probs_BGV: Tensor, candidate_BG: Tensor, generator: torch.Generator | None) -> Tensor:
    """The candidate's probability under the model, untempered (LLaDA, 2502.09992)."""
    return log_probs_BGV.gather(-1, candidate_BG[..., None])[..., 0].exp()


def random_score(log_probs_BGV: Tensor, candidate_BG: Tensor, generator: torch.Generator | None) -> Tensor:
    """Uniform draws: positions are committed in random order."""
    device = log_probs_BGV.device
    return torch.rand(candidate_BG.shape, device=device, generator=generator)


SCORES: dict[str, Callable[[Tensor, Tensor, torch.Generator | None], Tensor]] = {
    "confidence": confidence,
    "margin": lambda log_probs_BGV, *_: margin(log_probs_BGV),
    "entropy": lambda log_probs_BGV, *_: negative_entropy(log_probs_BGV),
    "random": random_score,
}


def rank_among(score_BG: Tensor, masked_BG: Tensor) -> Tensor:
    """Each masked position's rank by falling score, 0 the surest; ties go to the left, and the unmasked come last."""
    order_BG = score_BG.masked_fill(~masked_BG, -torch.inf).argsort(dim=-1, descending=True, stable=True)
    return order_BG.argsort(dim=-1)


def accept(score_BG: Tensor, masked_BG: Tensor, quota_B: Tensor, threshold: float | None) -> Tensor:
    """Which masked positions a pass commits, (B, G) bool: the `quota_B` surest, and all at or above the threshold.

    A quota of one with a threshold is Fast-dLLM's rule (2505.22618); a quota alone is LLaDA's. What is not committed
    stays masked: low-confidence remasking.
    """
    committed_BG = rank_among(score_BG, masked_BG) < quota_B[:, None]
    if threshold is not None:
        committed_BG = committed_BG | (score_BG >= threshold)
    return committed_BG & masked_BG


def quota(masked_at_start_B: Tensor, index: int, passes: int) -> Tensor:
    """Positions each row commits in pass `index` of `passes`, (B,): equal shares, the remainder one each to the first.

    Rows with fewer masks than passes are done early. From pass `passes` on it asks for all that is left, so that no
    mask survives the last pass.
    """
    if index >= passes - 1:
        return masked_at_start_B
    return masked_at_start_B // passes + (index < masked_at_start_B % passes).long()

"""Unmasking by the clock of a schedule: the ancestral sampler, and ReMDM's remasking on top of it.

Step k of N goes from time t = (N − k)/N to s = (N − k − 1)/N. Shapes: B rows, G positions of a window.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mdlm.corruption import get_schedule
from sample.config import DenoiseConfig
from sample.noise import uniform


def rates(config: DenoiseConfig, index: int, steps: int) -> tuple[float, float]:
    """Mask rates 1 − α before and after step `index` of `steps`; the last is 0 whatever the schedule."""
    schedule = get_schedule(config.schedule)
    times = torch.tensor([steps - index, steps - index - 1], dtype=torch.float64) / steps
    now, after = schedule.mask_rate(times).tolist()
    return now, after if index < steps - 1 else 0.0


def largest_sigma(now: float, after: float) -> float:
    """min(1, (1 − α_s)/α_t): more remasking than this and the marginal at s could not be kept. ReMDM, 2503.00307."""
    return 1.0 if now >= 1 else min(1.0, after / (1 - now))


def remasking(config: DenoiseConfig, now: float, after: float, psi_BG: Tensor, decoded_BG: Tensor) -> Tensor:
    """σ of committed positions, (B, G) or () float64: the chance that one is masked again in this step.

    `psi_BG` is each committed token's probability when it was committed; `decoded_BG` marks committed tokens. Where σ
    is shared out by low confidence it is 0 for masked positions, and the mean mask rate is no longer the schedule's.
    """
    most = largest_sigma(now, after)
    if config.revoke == "remdm_confidence":
        share_BG = torch.softmax((-psi_BG.double()).masked_fill(~decoded_BG, -torch.inf), dim=-1)
        return torch.where(decoded_BG, (config.eta * most * share_BG).clamp(max=most), 0.0)
    wanted = {"remdm_cap": config.eta, "remdm_rescale": config.eta * most}.get(config.revoke, 0.0)
    return torch.tensor(min(wanted, most), dtype=torch.float64, device=decoded_BG.device)


def tick(
    config: DenoiseConfig,
    index: int,
    steps: int,
    masked_BG: Tensor,
    decoded_BG: Tensor,
    psi_BG: Tensor,
    keys_B: Tensor,
    moment: Tensor,
) -> tuple[Tensor, Tensor]:
    """Which masked positions one step unmasks and which committed ones it masks again, both (B, G) bool.

    A masked position is unmasked with probability (α_s − (1 − σ) α_t)/(1 − α_t), a committed one masked with σ. Both
    are Bernoulli draws of their own: what a token becomes is drawn elsewhere, from the prediction alone.
    """
    now, after = rates(config, index, steps)
    sigma_BG = remasking(config, now, after, psi_BG, decoded_BG)
    chance_BG = ((1 - after) - (1 - torch.where(masked_BG, sigma_BG, 0.0)) * (1 - now)) / now
    shape = masked_BG.shape[1:]
    unmasked_BG = masked_BG & (uniform(keys_B, moment, "accept", shape) < chance_BG)
    if index == steps - 1:
        unmasked_BG = masked_BG
    revoked_BG = decoded_BG & ~masked_BG & (uniform(keys_B, moment, "revoke", shape) < sigma_BG)
    return unmasked_BG, revoked_BG

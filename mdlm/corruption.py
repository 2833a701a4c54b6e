"""The forward process: schedules, stratified timesteps, masking, and the softmax without the mask token.

Shapes: B rows, L positions, G block length, V vocabulary. Equations of MDLM (2406.07524) and BD3-LM (2503.09573).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mdlm.errors import UserError


class Schedule:
    """α(t), the chance that a token is still clean at time t: α(0) = 1, α(1) = 0, falling.

    A schedule states α and its derivative; everything else follows from those two.
    """

    name: str

    def alpha(self, t: Tensor) -> Tensor:
        """Chance of being clean at time t in [0, 1]."""
        raise NotImplementedError

    def alpha_prime(self, t: Tensor) -> Tensor:
        """dα/dt, negative."""
        raise NotImplementedError

    def mask_rate(self, t: Tensor) -> Tensor:
        """1 − α(t)."""
        return 1 - self.alpha(t)

    def loss_weight(self, t: Tensor) -> Tensor:
        """w(t) = −α′(t) / (1 − α(t)), the weight of the bound. MDLM eq. 10."""
        return -self.alpha_prime(t) / self.mask_rate(t)


@dataclass(frozen=True)
class Linear(Schedule):
    """α = 1 − t, so that w = 1/t."""

    name: str = "linear"

    def alpha(self, t: Tensor) -> Tensor:
        return 1 - t

    def alpha_prime(self, t: Tensor) -> Tensor:
        return -torch.ones_like(t)

    def mask_rate(self, t: Tensor) -> Tensor:
        return t  # exactly, not 1 − (1 − t), which loses half the digits of a small t


@dataclass(frozen=True)
class Cosine(Schedule):
    """α = 1 − cos(π(1 − t)/2), the cosine of MD4 (2406.04329), table 4."""

    name: str = "cosine"

    def alpha(self, t: Tensor) -> Tensor:
        return 1 - torch.cos(math.pi / 2 * (1 - t))

    def alpha_prime(self, t: Tensor) -> Tensor:
        return -math.pi / 2 * torch.sin(math.pi / 2 * (1 - t))

    def mask_rate(self, t: Tensor) -> Tensor:
        return torch.sin(math.pi / 2 * t)  # cos(π(1 − t)/2) without its cancellation near t = 0


@dataclass(frozen=True)
class Polynomial(Schedule):
    """α = 1 − t^power; power 2 is the quadratic schedule."""

    power: float = 2.0
    name: str = "polynomial"

    def alpha(self, t: Tensor) -> Tensor:
        return 1 - t**self.power

    def alpha_prime(self, t: Tensor) -> Tensor:
        return -self.power * t ** (self.power - 1)

    def mask_rate(self, t: Tensor) -> Tensor:
        return t**self.power


@dataclass(frozen=True)
class Clipped(Schedule):
    """A schedule whose mask rate is squeezed into [lowest, highest], for training only (as in BD3-LM, 2503.09573).

    It is not a forward process from clean to masked, so a loss under it bounds nothing and is never called a
    likelihood.
    """

    base: Schedule
    lowest: float = 0.0
    highest: float = 1.0

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.base.name}[{self.lowest:g},{self.highest:g}]"

    def alpha(self, t: Tensor) -> Tensor:
        return 1 - self.mask_rate(t)

    def alpha_prime(self, t: Tensor) -> Tensor:
        return (self.highest - self.lowest) * self.base.alpha_prime(t)

    def mask_rate(self, t: Tensor) -> Tensor:
        return self.lowest + (self.highest - self.lowest) * self.base.mask_rate(t)


SCHEDULES: dict[str, Schedule] = {
    "linear": Linear(),
    "cosine": Cosine(),
    "quadratic": Polynomial(2.0, name="quadratic"),
}


def get_schedule(schedule: str | Schedule) -> Schedule:
    """A schedule by name, or the object itself."""
    if isinstance(schedule, Schedule):
        return schedule
    if schedule not in SCHEDULES:
        raise UserError(f"schedule {schedule!r} is unknown; choose one of {', '.join(SCHEDULES)}")
    return SCHEDULES[schedule]


def stratified_times(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Timesteps in (0, 1], float64, of the given shape, stratified over all its entries.

    t_i = (u + π(i)/n) mod 1 with one offset u and a random permutation π: each entry alone is uniform, at n = 1 too,
    and together they cover the interval evenly, which takes most of the variance out of their mean (low-discrepancy
    sampling as in VDM, 2107.00630, with the permutation so that no entry keeps its stratum).
    """
    count = math.prod(shape)
    offset = torch.rand((), dtype=torch.float64, generator=generator)
    order = torch.randperm(count, generator=generator).double()
    times = (offset + order / count) % 1.0
    return (1.0 - times).reshape(shape)  # 1 − [0, 1) = (0, 1]: t = 0 has no weight, t = 1 is legitimate


def corrupt(
    tokens_BL: Tensor, mask_rate_BL: Tensor, noise_BL: Tensor, allowed_BL: Tensor, mask_id: int
) -> tuple[Tensor, Tensor]:
    """Masks each allowed position with its own probability. Draws x_t ~ q(x_t | x), MDLM section 3.

    Args:
        tokens_BL: clean tokens.
        mask_rate_BL: 1 − α(t), broadcastable to (B, L).
        noise_BL: uniform in [0, 1).
        allowed_BL: True where masking is allowed; a prompt's positions are not.
        mask_id: the mask token.

    Returns:
        The corrupted tokens and the bool mask of positions that were masked, both (B, L).
    """
    masked_BL = (noise_BL < mask_rate_BL) & allowed_BL
    return torch.where(masked_BL, mask_id, tokens_BL), masked_BL


def without_mask_token(logits: Tensor, mask_id: int) -> Tensor:
    """Logits (..., V) in which the mask token has probability exactly zero (MDLM's zero masking probabilities)."""
    return logits.index_fill(-1, torch.full((1,), mask_id, device=logits.device), -torch.inf)


def log_probabilities(logits: Tensor, mask_id: int) -> Tensor:
    """log p(x | x_t) over real tokens, (..., V), in float32 or better; the mask token's is −inf."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return torch.log_softmax(without_mask_token(logits, mask_id), dim=-1)

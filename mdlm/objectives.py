"""Three training losses over one trunk.

A batch is the same clean rows for all of them; they differ in what they corrupt, what each position sees, and what is
predicted. Shapes: B rows, L positions, R response columns, J blocks of a response, V vocabulary, D width, C supervised
positions a pass (a fixed bound, so that shapes never change), K noisy copies of a response (one, or two complements).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from mdlm.attention import block_indices, block_of, logical_positions, side_by_side, visible
from mdlm.config import ModelConfig
from mdlm.corruption import Clipped, Schedule, corrupt, get_schedule, without_mask_token
from mdlm.errors import UserError
from mdlm.transformer import Transformer


@dataclass(frozen=True)
class LossConfig:
    """The choices of a diffusion loss. `autoregressive` has none of them and ignores all."""

    weighting: Literal["plain", "bound"] = "plain"
    """`plain`: mean cross-entropy of the masked tokens; lower variance, learns faster. `bound`: the NELBO's weight
    −α′/(1−α), divided by all supervised tokens; the loss is then an unbiased estimate of the bound."""
    schedule: str = "linear"
    """Which α(t) the timesteps go through; `bound` is invariant to it, `plain` trains more where it spends time."""
    min_mask_rate: float = 0.05
    """Lowest masking rate in training; nearly clean rows teach little. Must be 0 for `bound` to be the bound."""
    max_mask_rate: float = 1.0
    """Highest masking rate in training."""
    complementary: bool = False
    """Corrupts every row twice, the second time just where the first left it clean: each token is predicted once a
    step, as in the autoregressive twin. Fewer steps, each dearer by a second noisy copy. Plain only; the loss does
    not compare with that of one copy, which weighs heavily masked rows more."""

    def __post_init__(self) -> None:
        if self.complementary and self.weighting == "bound":
            raise UserError(
                "loss.complementary cannot go with weighting: bound, whose weight belongs to the first copy's mask "
                "rate; set weighting: plain"
            )
        if not 0 <= self.min_mask_rate < self.max_mask_rate <= 1:
            raise UserError(
                f"mask rates [{self.min_mask_rate}, {self.max_mask_rate}] are unusable; "
                "give 0 <= min_mask_rate < max_mask_rate <= 1"
            )

    @property
    def copies(self) -> int:
        """Noisy copies of a row in one step."""
        return 2 if self.complementary else 1

    def training_schedule(self) -> Schedule:
        """The schedule that training goes through, clipped to the rates above."""
        schedule = get_schedule(self.schedule)
        if (self.min_mask_rate, self.max_mask_rate) == (0.0, 1.0):
            return schedule
        return Clipped(schedule, self.min_mask_rate, self.max_mask_rate)

    def mean_mask_rate(self) -> float:
        """The mask rate's mean over t, by the midpoint rule."""
        t = (torch.arange(1024, dtype=torch.float64) + 0.5) / 1024
        return float(self.training_schedule().mask_rate(t).mean())


@dataclass
class Batch:
    """Clean rows and the noise that will corrupt them: all randomness of a step, drawn beforehand.

    Columns: [padding | prompt | response | padding], every response starting at column `response_start`.
    """

    tokens_BL: Tensor
    valid_BL: Tensor
    """False at padding."""
    supervised_BR: Tensor
    """True at the response columns that are corrupted and predicted: the answer and its end tokens."""
    times_BJ: Tensor
    """Timesteps, one a block; a full canvas is one block."""
    noise_BR: Tensor
    """Uniform draws, one a response column."""

    @property
    def response_start(self) -> int:
        return self.tokens_BL.shape[1] - self.supervised_BR.shape[1]

    def to(self, device: torch.device | str) -> Batch:
        """The batch on another device, without waiting for the copy."""
        moved = {field.name: getattr(self, field.name).to(device, non_blocking=True) for field in fields(self)}
        return replace(self, **moved)


def blocks_in_response(config: ModelConfig, response_columns: int) -> int:
    """How many timesteps a row needs: one for each block."""
    return math.ceil(response_columns / config.block_length) if config.objective == "block_diffusion" else 1


def positions_a_row(objective: str, loss: LossConfig, prompt_columns: int, response_columns: int) -> int:
    """Positions the trunk evaluates for one row of a training step, padding included: what equal steps cost."""
    row = prompt_columns + response_columns
    if objective == "autoregressive":
        return row
    return loss.copies * row if objective == "masked_diffusion" else row + loss.copies * response_columns


class Scored(NamedTuple):
    """What a loss found in a batch."""

    total: Tensor
    """Weighted sum of −log p, in nats."""
    counted: Tensor
    """Positions it took in."""
    wanted: Tensor
    """Positions it should have taken in."""
    tenths: dict[str, Tensor]
    """By `position` in the response, and by `mask_rate`: −log p summed, and positions, in each tenth, (2, 10)."""


def _corrupt_response(config: ModelConfig, loss: LossConfig, batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The noisy copies of the response, what is masked in them, at which rate, and the loss weights, all (K, B, R)."""
    schedule = loss.training_schedule()
    columns = batch.supervised_BR.shape[1]
    times_BR = batch.times_BJ
    if config.objective == "block_diffusion":
        column_R = torch.arange(columns, device=times_BR.device)
        times_BR = times_BR[:, block_of(column_R, config.block_length, times_BR.shape[1])]
    clean_BR = batch.tokens_BL[:, batch.response_start :]
    rate_BR = schedule.mask_rate(times_BR).expand(clean_BR.shape)
    noisy_BR, masked_BR = corrupt(clean_BR, rate_BR, batch.noise_BR, batch.supervised_BR, config.mask_token_id)
    noisy_KBR, masked_KBR, rate_KBR = noisy_BR[None], masked_BR[None], rate_BR[None]
    if loss.complementary:
        others_BR = batch.supervised_BR & ~masked_BR
        masked_KBR = torch.stack([masked_BR, others_BR])
        noisy_KBR = torch.stack([noisy_BR, torch.where(others_BR, config.mask_token_id, clean_BR)])
        rate_KBR = torch.stack([rate_BR, 1 - rate_BR])
    weight_BR = schedule.loss_weight(times_BR) if loss.weighting == "bound" else torch.ones_like(times_BR)
    return noisy_KBR, masked_KBR, rate_KBR, weight_BR.expand(masked_KBR.shape)


def cross_entropy(
    model: Transformer,
    hidden_BRD: Tensor,
    targets_BR: Tensor,
    chosen_BR: Tensor,
    weight_BR: Tensor,
    capacity: int,
    tenths_BR: dict[str, Tensor],
) -> Scored:
    """Weighted sum of −log p over the chosen positions, and how many of them it took in.

    The head runs on `capacity` positions: the chosen ones first. More than that are left out (and so counted).
    """
    chosen = chosen_BR.flatten()
    index_C = torch.argsort(~chosen, stable=True)[:capacity]
    kept_C = chosen[index_C]
    logits_CV = model.head(hidden_BRD.flatten(0, 1)[index_C]).float()
    logits_CV = without_mask_token(logits_CV, model.config.mask_token_id)
    targets_C = torch.where(kept_C, targets_BR.flatten()[index_C], model.config.end_token_id)
    losses_C = F.cross_entropy(logits_CV, targets_C, reduction="none")
    weight_C = weight_BR.flatten()[index_C]
    # For the log: sum and number of the unweighted losses in each tenth. No matrix product: autocast would round it.
    columns_2C1 = torch.stack([torch.where(kept_C, losses_C.detach(), 0.0), kept_C.float()])[:, :, None]
    tenth = torch.arange(10, device=index_C.device)
    sums = {name: (columns_2C1 * (of_BR.flatten()[index_C, None] == tenth)).sum(1) for name, of_BR in tenths_BR.items()}
    return Scored(torch.where(kept_C, losses_C * weight_C, 0.0).sum(), kept_C.sum(), chosen.sum(), sums)


def _tenths(share: Tensor) -> Tensor:
    """Which tenth of [0, 1] each number lies in, 0 to 9."""
    return (share * 10).long().clamp(max=9)


def _position_tenths(batch: Batch) -> Tensor:
    """Each response column's tenth of the response, (B, R)."""
    columns = batch.supervised_BR.shape[1]
    return (torch.arange(columns, device=batch.tokens_BL.device) * 10 // columns).expand(batch.supervised_BR.shape)


def next_token_states(model: Transformer, batch: Batch) -> Tensor:
    """The hidden states (B, R, D) that each response column is predicted from: those of the columns before it."""
    blocks_BL = block_indices(model.config, batch.valid_BL, batch.response_start)
    hidden_BLD = model.hidden(batch.tokens_BL, logical_positions(batch.valid_BL), visible(blocks_BL, blocks_BL))
    # The state at column i predicts token i + 1: the last prompt column predicts the response's first token.
    return hidden_BLD[:, batch.response_start - 1 : -1]


def next_token_loss(model: Transformer, batch: Batch, loss: LossConfig, capacity: int) -> Scored:
    """Cross-entropy of each supervised token given all before it."""
    targets_BR, ones_BR = batch.tokens_BL[:, batch.response_start :], torch.ones_like(batch.noise_BR)
    hidden_BRD, tenths = next_token_states(model, batch), {"position": _position_tenths(batch)}
    return cross_entropy(model, hidden_BRD, targets_BR, batch.supervised_BR, ones_BR, capacity, tenths)


def masked_diffusion_loss(model: Transformer, batch: Batch, loss: LossConfig, capacity: int) -> Scored:
    """Cross-entropy of the masked tokens given all visible ones. MDLM (2406.07524) eq. 10; plain: as LLaDA trains."""
    start, rows = batch.response_start, "k b r -> (k b) r"
    noisy_KBR, masked_KBR, rate_KBR, weight_KBR = _corrupt_response(model.config, loss, batch)
    # From here on B counts the copies' rows.
    tokens_BL, valid_BL = batch.tokens_BL.repeat(loss.copies, 1), batch.valid_BL.repeat(loss.copies, 1)
    noisy_BL = torch.cat([tokens_BL[:, :start], rearrange(noisy_KBR, rows)], dim=1)
    blocks_BL = block_indices(model.config, valid_BL, start)
    hidden_BLD = model.hidden(noisy_BL, logical_positions(valid_BL), visible(blocks_BL, blocks_BL))
    masked_BR, weight_BR = rearrange(masked_KBR, rows), rearrange(weight_KBR, rows)
    tenths = {
        "position": _position_tenths(batch).repeat(loss.copies, 1),
        "mask_rate": _tenths(rearrange(rate_KBR, rows)),
    }
    return cross_entropy(model, hidden_BLD[:, start:], tokens_BL[:, start:], masked_BR, weight_BR, capacity, tenths)


def block_diffusion_loss(model: Transformer, batch: Batch, loss: LossConfig, capacity: int) -> Scored:
    """Cross-entropy of each block's masked tokens given clean earlier blocks. BD3-LM (2503.09573), in one pass."""
    start, columns = batch.response_start, "k b r -> b (k r)"
    noisy_KBR, masked_KBR, rate_KBR, weight_KBR = _corrupt_response(model.config, loss, batch)
    positions_BL = logical_positions(batch.valid_BL)
    hidden = model.hidden(
        torch.cat([batch.tokens_BL, rearrange(noisy_KBR, columns)], dim=1),
        torch.cat([positions_BL, positions_BL[:, start:].repeat(1, loss.copies)], dim=1),
        side_by_side(block_indices(model.config, batch.valid_BL, start), start, loss.copies),
    )
    # From here on R counts the copies' columns.
    hidden_BRD = hidden[:, batch.tokens_BL.shape[1] :]
    targets_BR = batch.tokens_BL[:, start:].repeat(1, loss.copies)
    masked_BR, weight_BR = rearrange(masked_KBR, columns), rearrange(weight_KBR, columns)
    tenths = {
        "position": _position_tenths(batch).repeat(1, loss.copies),
        "mask_rate": _tenths(rearrange(rate_KBR, columns)),
    }
    return cross_entropy(model, hidden_BRD, targets_BR, masked_BR, weight_BR, capacity, tenths)


LOSSES: dict[str, Callable[[Transformer, Batch, LossConfig, int], Scored]] = {
    "autoregressive": next_token_loss,
    "masked_diffusion": masked_diffusion_loss,
    "block_diffusion": block_diffusion_loss,
}


def training_loss(
    model: Transformer, batch: Batch, loss: LossConfig, capacity: int
) -> tuple[Tensor, dict[str, Tensor]]:
    """The mean loss of a batch in nats, ready for `backward`, and counts for the log.

    Divided by the positions that were predicted (`autoregressive`, `plain`), or by all supervised positions (`bound`):
    the `divisor` among the counts, at least 1.
    """
    scored = LOSSES[model.config.objective](model, batch, loss, capacity)
    by_tokens = model.config.objective != "autoregressive" and loss.weighting == "bound"
    divisor = batch.supervised_BR.sum() if by_tokens else scored.counted
    divisor = divisor.clamp(min=1)
    counts = {"predicted": scored.counted, "overflow": scored.wanted - scored.counted, "divisor": divisor}
    return scored.total / divisor, counts | {f"loss_by_{name}": x for name, x in scored.tenths.items()}

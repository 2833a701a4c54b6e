"""Is this step fit to be taken? Its loss and gradient must be finite, and the loss no spike over the recent ones.

The check is made on the device; only `describe_bad_steps` waits for it, when a window of steps is read anyway.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from train.config import TrainConfig


class SpikeLimit:
    """The loss above which a step is a spike, as a function of the losses before the last multiple of `log_every`.

    Median + `spike_mads` × (median absolute deviation, or 1 % of the median where that is more) over `spike_window`
    steps. An interruption reads the losses at other steps, but moves no limit.
    """

    def __init__(self, config: TrainConfig) -> None:
        self.mads, self.window, self.every = config.spike_mads, config.spike_window, config.log_every
        self.recent: list[float | None] = []
        """Losses of the last steps, None for one that is not finite: what a checkpoint keeps."""

    def add(self, losses: list[float]) -> None:
        """Takes in the losses of the steps up to now."""
        self.recent += [loss if math.isfinite(loss) else None for loss in losses]
        del self.recent[: -self.window - self.every]

    def at(self, step: int) -> float:
        """The limit for `step`, the next one; infinite while there are too few losses."""
        known = self.recent[: len(self.recent) - step % self.every][-self.window :]
        losses = [loss for loss in known if loss is not None]
        if self.mads is None or len(known) < self.window or not losses:
            return math.inf
        middle = median(losses)
        return middle + self.mads * max(median(abs(loss - middle) for loss in losses), 0.01 * middle)


class GradientNorms:
    """Gradient norms of the embedding, each layer, the last norm and the head."""

    def __init__(self, model: nn.Module) -> None:
        self.parts: dict[str, list[nn.Parameter]] = {}
        for name, parameter in model.named_parameters():
            part = ".".join(name.split(".")[: 2 if name.startswith("layers.") else 1])
            self.parts.setdefault(part, []).append(parameter)

    def __call__(self) -> Tensor:
        """One norm a part, on the device."""
        gradients = [[p.grad for p in part if p.grad is not None] for part in self.parts.values()]
        return torch.stack([nn.utils.get_total_norm(part) for part in gradients])


def describe_bad_steps(
    seen: dict[str, Tensor], first: int, limit: float, parts: list[str], rows: Callable[[int], np.ndarray], action: str
) -> list[dict[str, Any]]:
    """A record for `bad_steps.jsonl` of each bad step of a window. A number that is not finite is written as text.

    Args:
        seen: `good`, `loss`, `gradient_norm` (before clipping) and `norms` (by part) of the window's steps, stacked.
        first: the number of steps before the window; records count from 1, as the log does.
        parts: what each of `norms` is the norm of.
        rows: gives the rows of a step's batch, as numbered in the prepared training set.
        action: what the run does about it.
    """
    records = []
    for i in (~seen["good"]).nonzero().flatten().tolist():
        loss, norm = float(seen["loss"][i]), float(seen["gradient_norm"][i])
        finite = math.isfinite(loss) and math.isfinite(norm)
        norms = dict(zip(parts, map(_number, seen["norms"][i].tolist()), strict=True))
        record = {"step": first + i + 1, "reason": "spike" if finite else "not finite", "action": action}
        record |= {"loss": _number(loss), "limit": _number(limit), "gradient_norm": _number(norm)}
        records.append(record | {"gradient_norms": norms, "rows": rows(first + i).tolist()})
    return records


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)

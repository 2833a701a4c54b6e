"""Is this step fit to be taken? Its loss and gradient must be finite, and the loss no spike over the recent ones.

The check is made on the device; only `BadSteps` waits for it, when a window of steps is read anyway.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mdlm.errors import UserError
from train.config import TrainConfig


class SpikeLimit:
    """The loss above which a step is a spike, as a function of the losses before the last multiple of `log_every`.

    Median + `spike_mads` × (median absolute deviation; at least 1 % of the median, and of a nat: what little is left
    of a loss jumps without harm) over `spike_window` steps. An interruption reads the losses at other steps, but moves
    no limit.
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
        return middle + self.mads * max(median(abs(loss - middle) for loss in losses), 0.01 * max(middle, 1.0))


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


class BadSteps:
    """Writes bad steps into `bad_steps.jsonl` in the run's folder, and ends the run where that is called for."""

    FILE = "bad_steps.jsonl"
    MOST_SKIPPED = 10
    """So many in a row end a run that skips them."""

    def __init__(self, config: TrainConfig, parts: list[str], rows: Callable[[int], np.ndarray]) -> None:
        self.path, self.action, self.parts, self.rows = Path(config.output) / self.FILE, config.on_bad_step, parts, rows
        self.in_a_row = 0

    def check(self, seen: dict[str, Tensor], step: int, limit: float, *, write: bool) -> None:
        """Looks through a window of steps that ends with `step`. Raises `UserError` where the run must end.

        Args:
            seen: `good`, `loss`, `gradient_norm` (before clipping) and `norms` (by part of the model), stacked.
            limit: what the losses were held to.
            write: whether this is the process that writes.
        """
        before = step - len(seen["good"])
        for i, good in enumerate(seen["good"].tolist()):
            self.in_a_row = 0 if good else self.in_a_row + 1
            if good:
                continue
            record = self._describe(before + i, {key: value[i] for key, value in seen.items()}, limit)
            if write:
                with self.path.open("a") as file:
                    print(json.dumps(record), file=file)
            if self.action == "stop" or self.in_a_row >= self.MOST_SKIPPED:
                raise UserError(self._complaint(record))

    def _describe(self, index: int, seen: dict[str, Tensor], limit: float) -> dict[str, Any]:
        """Steps count from 1, as in the log; `rows` are numbered as in the prepared training set."""
        finite = bool(seen["loss"].isfinite() & seen["gradient_norm"].isfinite())
        return {
            "step": index + 1,
            "reason": "spike" if finite else "not finite",
            "action": self.action,
            "loss": _number(float(seen["loss"])),
            "limit": _number(limit),
            "gradient_norm": _number(float(seen["gradient_norm"])),
            "gradient_norms": dict(zip(self.parts, map(_number, seen["norms"].tolist()), strict=True)),
            "rows": self.rows(index).tolist(),
        }

    def _complaint(self, record: dict[str, Any]) -> str:
        what = "is a spike" if record["reason"] == "spike" else "or its gradient is not finite"
        advice = "or go on from the last checkpoint with --resume=auto --on_bad_step=skip"
        if self.action == "skip":
            advice = f"{self.MOST_SKIPPED} bad steps in a row are no accident"
        return (
            f"the loss of step {record['step']} ({record['loss']}) {what}, see {self.path}; "
            f"lower optimizer.lr and start again, {advice}"
        )


def _number(value: float) -> float | str:
    """JSON has no number that is not finite: it becomes text."""
    return value if math.isfinite(value) else str(value)

"""Times of calls made in turn, and what one may say about them."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from scipy.stats import binom

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class Timing:
    """Seconds of one side's calls, the warm-up left out."""

    seconds: tuple[float, ...]
    first_call: float
    """Seconds of the very first call, in which a compiled function compiles."""

    def to_dict(self) -> dict[str, Any]:
        """Median, p90, p99 and n of the seconds, for a record."""
        return {**distribution(self.seconds), "first_call": self.first_call}


def alternate(
    sides: Mapping[K, Callable[[], object]],
    *,
    rounds: int,
    warmup: int = 2,
    device: str = "cpu",
    advance: Callable[[], object] = lambda: None,
) -> dict[K, Timing]:
    """Times every side once a round, one after the other, so that the machine's drift hits all of them alike.

    `advance` is called after every call; `warmup` rounds come first and are left out.
    """
    seconds: dict[K, list[float]] = {name: [] for name in sides}
    for _ in range(warmup + rounds):
        for name, call in sides.items():
            seconds[name].append(seconds_of(call, device))
            advance()
    return {name: Timing(tuple(taken[warmup:]), first_call=taken[0]) for name, taken in seconds.items()}


def seconds_of(call: Callable[[], object], device: str = "cpu") -> float:
    """Seconds from the call to the end of all work it gave to the device."""
    synchronize(device)
    begin = time.perf_counter()
    call()
    synchronize(device)
    return time.perf_counter() - begin


def synchronize(device: str) -> None:
    """Waits for a GPU; on a CPU a call has ended when it returns."""
    if device == "cuda":
        torch.cuda.synchronize()


def distribution(values: Sequence[float]) -> dict[str, Any]:
    """Median with its 95 % interval, p90, p99, and how many values there are."""
    median, p90, p99 = (float(value) for value in np.percentile(values, [50, 90, 99]))
    return {"median": median, "interval": median_interval(values), "p90": p90, "p99": p99, "n": len(values)}


def paired_ratio(above: Sequence[float], below: Sequence[float]) -> dict[str, Any]:
    """The distribution of above/below over rounds: the two sides of one round met the same machine."""
    return distribution([a / b for a, b in zip(above, below, strict=True)])


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The order statistics that hold the median with 95 % or more, whatever the distribution; None below six values.

    Of n values, as many below the median are binomial(n, 1/2).
    """
    ordered = sorted(values)
    rank = int(binom.ppf(0.025, len(ordered), 0.5))
    return (ordered[rank - 1], ordered[-rank]) if rank else None

"""Intervals for the numbers we print. scipy does the work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import binomtest

DRAWS = 10_000
NON_INFERIOR = (0.95, 0.85)
"""Margins, as a share of the autoregressive twin's score, in falling order."""


def share_interval(flags: Sequence[bool]) -> tuple[float, float] | None:
    """The 95 % Wilson interval of a share; None for no rows."""
    if not flags:
        return None
    interval = binomtest(int(np.sum(flags)), len(flags)).proportion_ci(method="wilson")
    return float(interval.low), float(interval.high)


def ratio_interval(
    ours: Sequence[float], reference: Sequence[float], clusters: Sequence[str], seed: int = 0
) -> dict[str, Any]:
    """Mean of `ours` over mean of `reference` on the same rows, with a 95 % paired bootstrap interval.

    Whole clusters are drawn, since rows of one template succeed and fail together. The ratio and its interval are
    None where the reference's mean is 0.
    """
    names, of_row = np.unique(np.asarray(clusters), return_inverse=True)
    ours_C = np.bincount(of_row, weights=np.asarray(ours, dtype=float))
    reference_C = np.bincount(of_row, weights=np.asarray(reference, dtype=float))
    if reference_C.sum() == 0:
        return {"ratio": None, "interval": None, "clusters": len(names), "draws": 0, "verdict": "not shown"}
    random = np.random.default_rng(seed)
    drawn = random.multinomial(len(names), np.full(len(names), 1 / len(names)), size=DRAWS)
    above, below = drawn @ ours_C, drawn @ reference_C
    ratios = np.divide(above, below, out=np.full(DRAWS, np.inf), where=below > 0)
    low, high = (float(bound) for bound in np.percentile(ratios, [2.5, 97.5], method="nearest"))
    shown = [margin for margin in NON_INFERIOR if low >= margin]
    return {
        "ratio": float(ours_C.sum() / reference_C.sum()),
        "interval": (low, high),
        "clusters": len(names),
        "draws": DRAWS,
        "verdict": f"non-inferior at {shown[0]:g}" if shown else "not shown",
    }


def ratio_error(values: Sequence[float], sizes: Sequence[float]) -> float | None:
    """Standard error of Σ values / Σ sizes over rows as a sample, by linearization; None for fewer than two rows."""
    if len(values) < 2:
        return None
    values_R, sizes_R = np.asarray(values, dtype=float), np.asarray(sizes, dtype=float)
    residual_R = values_R - values_R.sum() / sizes_R.sum() * sizes_R
    rows = len(values_R)
    return float(np.sqrt(rows / (rows - 1) * (residual_R**2).sum()) / sizes_R.sum())


def ratio_difference(
    ours: Sequence[float], theirs: Sequence[float], sizes: Sequence[float]
) -> tuple[float, float | None]:
    """Σ ours / Σ sizes less Σ theirs / Σ sizes on the same rows, with the standard error of the paired rows."""
    paired = np.asarray(ours, dtype=float) - np.asarray(theirs, dtype=float)
    return float(paired.sum() / np.sum(sizes)), ratio_error(paired.tolist(), sizes)

"""Intervals for the numbers we print. scipy does the work."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from scipy.stats import binomtest

T = TypeVar("T", bound=Hashable)

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
    """`group_ratio` of one task and one trained seed."""
    return group_ratio({"": {0: ours}}, {"": {0: reference}}, {"": clusters}, seed)


def group_ratio(
    ours: Mapping[str, Mapping[int, Sequence[float]]],
    reference: Mapping[str, Mapping[int, Sequence[float]]],
    clusters: Mapping[str, Sequence[str]],
    seed: int = 0,
) -> dict[str, Any]:
    """The mean over tasks of our score over that of the reference's, with a 95 % paired bootstrap interval.

    Args:
        ours, reference: task -> training seed -> a score for each row; the same rows and seeds on both sides.
        clusters: task -> the cluster of each row.

    A draw takes training seeds first, both arms' of one seed together, then whole clusters of each task, since rows of
    one template succeed and fail together. With one seed the interval holds for that seed alone. The ratio is None
    where the reference scores nothing, the interval also where ours does: resampling rows that all failed would give
    one of no width.
    """
    random = np.random.default_rng(seed)
    seeds = sorted(next(iter(ours.values())))
    drawn_DS = random.multinomial(len(seeds), np.full(len(seeds), 1 / len(seeds)), size=DRAWS) / len(seeds)
    above_D, below_D, points, number = np.zeros(DRAWS), np.zeros(DRAWS), [], 0
    for task, of_rows in clusters.items():
        names, of_row = np.unique(np.asarray(of_rows), return_inverse=True)
        number += len(names)
        weights_DC = random.multinomial(len(names), np.full(len(names), 1 / len(names)), size=DRAWS)
        rows_D = weights_DC @ np.bincount(of_row)
        for side, total_D in ((ours, above_D), (reference, below_D)):
            sums_SC = np.stack([np.bincount(of_row, weights=np.asarray(side[task][s], dtype=float)) for s in seeds])
            total_D += (drawn_DS * (weights_DC @ sums_SC.T)).sum(-1) / rows_D / len(clusters)
            points.append(sums_SC.sum() / len(of_row) / len(seeds) / len(clusters))
    point, base = float(sum(points[::2])), float(sum(points[1::2]))
    result: dict[str, Any] = {"ours": point, "reference": base, "ratio": None, "interval": None, "verdict": "not shown"}
    result |= {"clusters": number, "seeds": len(seeds), "draws": DRAWS}
    if base == 0:
        return result
    result["ratio"] = point / base
    if point > 0:
        ratios_D = np.divide(above_D, below_D, out=np.full(DRAWS, np.inf), where=below_D > 0)
        low, high = (float(bound) for bound in np.percentile(ratios_D, [2.5, 97.5], method="nearest"))
        shown = [margin for margin in NON_INFERIOR if low >= margin]
        result["interval"] = (low, high)
        result["verdict"] = f"non-inferior at {shown[0]:g}" if shown else "not shown"
    return result


def mcnemar(ours: Sequence[float], reference: Sequence[float]) -> dict[str, Any]:
    """McNemar's exact test on paired flags: how many only one side got right, and the two-sided p-value."""
    only_ours = sum(bool(a) and not b for a, b in zip(ours, reference, strict=True))
    only_reference = sum(bool(b) and not a for a, b in zip(ours, reference, strict=True))
    differing = only_ours + only_reference
    p_value = float(binomtest(only_ours, differing, 0.5).pvalue) if differing else 1.0
    return {"only_ours": only_ours, "only_reference": only_reference, "p": p_value}


def holm(p_values: Mapping[T, float]) -> dict[T, float]:
    """p-values corrected for how many there are by Holm's step-down rule, in the order given."""
    adjusted: dict[T, float] = {}
    highest = 0.0
    for rank, (name, p_value) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_value))
        adjusted[name] = highest
    return {name: adjusted[name] for name in p_values}


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

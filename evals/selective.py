"""Selective prediction: how well a confidence is calibrated, and from which value on an output may go out unchecked.

Risk is the share of wrong outputs among the accepted ones, coverage the share that is accepted. A threshold is chosen
by fixed-sequence testing (Learn then Test, Angelopoulos et al., 2110.01052): from the strictest on, each is tested with
the binomial law of the errors among its accepted rows, and the first that fails ends the search. Where rows are drawn
independently from what will be served, the risk at the chosen threshold is then above the stated bound with
probability at most 1 − level, however the confidence was made.

Shapes: N outputs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest

from mdlm.errors import UserError

BINS = 15
"""Of equal width, as in Guo et al. (1706.04599)."""
STEPS = 20
"""Thresholds that are tested at most."""

Values = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Threshold:
    """What a rule has chosen. `value` is None where no threshold keeps the bound, and nothing may be accepted.

    accepted, wrong: calibration rows at or above it, and those of them that are wrong.
    upper: the one-sided upper limit of the risk on those (Clopper–Pearson), for this threshold taken alone.
    """

    value: float | None
    accepted: int
    wrong: int
    upper: float | None


def calibration_error(confidence: Values, right: Flags, bins: int = BINS) -> float:
    """Expected calibration error: Σ over bins of (rows in it ÷ rows) · |mean confidence − share right|."""
    which_N = np.minimum((confidence * bins).astype(int), bins - 1)
    gap = np.bincount(which_N, weights=confidence - right, minlength=bins)
    return float(np.abs(gap).sum() / len(confidence))


def perfect_calibration_error(confidence: Values, draws: int = 200, seed: int = 0) -> tuple[float, float]:
    """Mean and 95 % quantile of the error that these confidences would show if they were true: never 0 on few rows."""
    random = np.random.default_rng(seed)
    errors = [calibration_error(confidence, random.random(len(confidence)) < confidence) for _ in range(draws)]
    return float(np.mean(errors)), float(np.quantile(errors, 0.95))


def risk_coverage(confidence: Values, right: Flags) -> tuple[Values, Values]:
    """Coverage and risk at every threshold, from the strictest on; outputs of equal confidence go together."""
    order_N = np.argsort(-confidence, kind="stable")
    sorted_N, wrong_N = confidence[order_N], ~right[order_N]
    last_N = np.append(sorted_N[1:] != sorted_N[:-1], True)
    count_N = np.arange(1, len(confidence) + 1)
    return count_N[last_N] / len(confidence), wrong_N.cumsum()[last_N] / count_N[last_N]


def area_under_risk_coverage(confidence: Values, right: Flags) -> float:
    """Mean risk over all coverages (Geifman & El-Yaniv, 1705.08500); the share of wrong outputs for a useless order."""
    coverage, risk = risk_coverage(confidence, right)
    return float(np.sum(risk * np.diff(coverage, prepend=0.0)))


def fewest_accepted(error: float, level: float) -> int:
    """Accepted rows, none of them wrong, from which on a risk of at most `error` is shown."""
    return math.ceil(math.log(1 - level) / math.log(1 - error))


def candidate_thresholds(elsewhere: Values, rows: int, error: float, level: float) -> Values:
    """Thresholds to test on `rows` calibration rows, the strictest first; they must not depend on those rows.

    They are quantiles of the confidences of other rows. The first would accept twice the rows without which no test
    can succeed, the last accepts everything.
    """
    least = 2 * fewest_accepted(error, level) / rows
    if least > 1:
        return np.zeros(0)
    return np.append(np.quantile(elsewhere, 1 - np.linspace(least, 1, STEPS)[:-1]), 0.0)


def choose_threshold(candidates: Values, confidence: Values, right: Flags, error: float, level: float) -> Threshold:
    """The last threshold of the sequence for which, and for all before it, risk ≤ `error` is shown at `level`."""
    chosen = Threshold(None, 0, 0, None)
    for value in candidates:
        tested = _tested(float(value), confidence, right, level)
        if tested.upper is None or tested.upper > error:
            break
        chosen = tested
    return chosen


def naive_threshold(candidates: Values, confidence: Values, right: Flags, error: float, level: float) -> Threshold:
    """The threshold of most coverage whose share of errors on these very rows is at most `error`: keeps no promise."""
    chosen = Threshold(None, 0, 0, None)
    for value in candidates:
        tested = _tested(float(value), confidence, right, level)
        if tested.accepted and tested.wrong <= error * tested.accepted and tested.accepted >= chosen.accepted:
            chosen = tested
    return chosen


def _tested(value: float, confidence: Values, right: Flags, level: float) -> Threshold:
    kept_N = confidence >= value
    accepted, wrong = int(kept_N.sum()), int((kept_N & ~right).sum())
    if not accepted:
        return Threshold(value, 0, 0, None)
    interval = binomtest(wrong, accepted, alternative="less").proportion_ci(level, method="exact")
    return Threshold(value, accepted, wrong, float(interval.high))


def resampled(
    candidates: Values,
    confidence: Values,
    right: Flags,
    rows: int,
    error: float,
    level: float,
    resamples: int = 200,
    seed: int = 0,
) -> dict[str, dict[str, Any]]:
    """How often each rule keeps its bound, where the truth is known.

    The outputs given are taken as all there are; each resample draws `rows` of them with replacement, chooses a
    threshold on those, and asks for the risk at it among all. A rule that accepts nothing has kept the bound; how
    often it did is told apart.
    """
    random = np.random.default_rng(seed)
    rules = {"tested": choose_threshold, "naive": naive_threshold}
    kept: dict[str, list[bool]] = {name: [] for name in rules}
    coverage: dict[str, list[float]] = {name: [] for name in rules}
    for _ in range(resamples):
        drawn = random.integers(len(confidence), size=rows)
        for name, rule in rules.items():
            value = rule(candidates, confidence[drawn], right[drawn], error, level).value
            accepted_N = confidence >= (np.inf if value is None else value)
            coverage[name].append(float(accepted_N.mean()))
            kept[name].append(not accepted_N.any() or bool((~right[accepted_N]).mean() <= error))
    return {
        name: {
            "bound_kept": float(np.mean(kept[name])),
            "nothing_accepted": float(np.mean([share == 0 for share in coverage[name]])),
            "coverage": float(np.mean(coverage[name])),
            "resamples": resamples,
            "rows": rows,
        }
        for name in rules
    }


def check_bound(error: float, level: float) -> None:
    """Refuses a bound or a level that is no share."""
    for what, value in (("the error bound", error), ("the level", level)):
        if not 0 < value < 1:
            raise UserError(f"{what} is {value:g}; it must be above 0 and below 1")

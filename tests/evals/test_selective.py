"""Selective prediction against cases worked out by hand, and against a population whose risk is known."""

from __future__ import annotations

import numpy as np
import pytest

from evals.selective import (
    Threshold,
    area_under_risk_coverage,
    calibration_error,
    candidate_thresholds,
    check_bound,
    choose_threshold,
    fewest_accepted,
    naive_threshold,
    perfect_calibration_error,
    resampled,
    risk_coverage,
)
from mdlm.errors import UserError


def test_calibration_error_by_hand():
    # Two bins of two: 0.95 promised and half right, 0.15 promised and none right.
    confidence, right = np.array([0.9, 1.0, 0.1, 0.2]), np.array([True, False, False, False])
    assert calibration_error(confidence, right, bins=2) == pytest.approx(0.5 * 0.45 + 0.5 * 0.15)
    assert calibration_error(np.array([1.0, 1.0]), np.array([True, True])) == 0.0
    assert calibration_error(np.array([1.0, 0.0]), np.array([False, True])) == 1.0


def test_true_confidences_show_an_error_that_shrinks_with_the_rows():
    random = np.random.default_rng(3)
    means = []
    for rows in (100, 10_000):
        confidence = random.random(rows)
        mean, high = perfect_calibration_error(confidence)
        shown = calibration_error(confidence, random.random(rows) < confidence)
        assert 0 < mean < high and shown < 1.5 * high
        means.append(mean)
    assert means[1] < means[0] / 5
    # A confidence that says 0.2 too much is found out.
    wrong = np.clip(random.random(10_000), 0.2, 1.0)
    assert calibration_error(wrong, random.random(10_000) < wrong - 0.2) > 3 * perfect_calibration_error(wrong)[1]


def test_risk_coverage_by_hand():
    confidence = np.array([0.2, 0.9, 0.5, 0.5])
    right = np.array([False, True, True, False])
    coverage, risk = risk_coverage(confidence, right)
    assert coverage.tolist() == [0.25, 0.75, 1.0]  # equal confidences go together
    assert risk.tolist() == pytest.approx([0.0, 1 / 3, 0.5])
    assert area_under_risk_coverage(confidence, right) == pytest.approx(0.5 / 3 + 0.25 * 0.5)
    assert area_under_risk_coverage(np.full(4, 0.7), right) == pytest.approx(0.5)  # useless: the share that is wrong


def test_a_threshold_is_shown_by_the_binomial_law():
    assert fewest_accepted(0.05, 0.95) == 59  # 0.95^59 is the first power under 0.05
    enough = choose_threshold(np.array([0.5]), np.ones(59), np.ones(59, dtype=bool), 0.05, 0.95)
    assert enough == Threshold(0.5, 59, 0, pytest.approx(1 - 0.05 ** (1 / 59)))
    assert choose_threshold(np.array([0.5]), np.ones(58), np.ones(58, dtype=bool), 0.05, 0.95).value is None


def test_the_sequence_ends_at_its_first_failure():
    confidence = np.repeat([0.9, 0.8, 0.7], 100)
    right = np.ones(300, dtype=bool)
    right[100:120] = False  # a fifth of the middle group: the second threshold has 20 of 200 wrong, the third 20 of 300
    chosen = choose_threshold(np.array([0.85, 0.75, 0.65]), confidence, right, 0.1, 0.95)
    assert (chosen.value, chosen.accepted, chosen.wrong) == (0.85, 100, 0)
    assert choose_threshold(np.array([0.65]), confidence, right, 0.1, 0.95).value == 0.65  # alone it would pass
    naive = naive_threshold(np.array([0.85, 0.75, 0.65]), confidence, right, 0.1, 0.95)
    assert (naive.value, naive.wrong) == (0.65, 20)


def test_candidates_come_from_other_rows_and_need_enough_of_these():
    elsewhere = np.linspace(0, 1, 1001)
    candidates = candidate_thresholds(elsewhere, 236, 0.05, 0.95)
    assert candidates[0] == pytest.approx(0.5) and candidates[-1] == 0.0  # 118 of 236 rows, then everything
    assert (np.diff(candidates) < 0).all()
    assert len(candidate_thresholds(elsewhere, 117, 0.05, 0.95)) == 0
    nothing = choose_threshold(np.zeros(0), elsewhere, elsewhere > 0.5, 0.05, 0.95)
    assert nothing == Threshold(None, 0, 0, None)


@pytest.mark.parametrize("honest", [True, False], ids=["calibrated", "overconfident"])
def test_the_bound_is_kept_on_resamples_and_the_naive_rule_breaks_it(honest):
    """The promise needs no good confidence; a bad one only costs coverage."""
    random = np.random.default_rng(11)
    chance = random.beta(4, 0.6, 4000)
    right = random.random(4000) < chance
    confidence = chance if honest else np.sqrt(np.clip(chance + random.normal(0, 0.05, 4000), 0, 1))
    candidates = candidate_thresholds(confidence[:500], 600, 0.08, 0.95)
    found = resampled(candidates, confidence[500:], right[500:], 600, 0.08, 0.95)
    assert found["tested"]["resamples"] == 200
    assert found["tested"]["bound_kept"] >= 0.93
    assert found["tested"]["nothing_accepted"] < 0.2 and found["tested"]["coverage"] > 0.3
    assert found["naive"]["bound_kept"] < 0.8
    assert found["naive"]["coverage"] > found["tested"]["coverage"]


@pytest.mark.parametrize(("error", "level"), [(0.0, 0.95), (1.0, 0.95), (0.05, 1.0), (-0.1, 0.95), (float("nan"), 0.9)])
def test_a_bound_that_is_no_share_is_refused(error, level):
    with pytest.raises(UserError, match="above 0 and below 1"):
        check_bound(error, level)

"""Intervals against known cases."""

from __future__ import annotations

import numpy as np
import pytest

from evals.statistics import ratio_interval, share_interval


def test_the_wilson_interval_of_eight_in_ten_is_the_textbook_one():
    assert share_interval([True] * 8 + [False] * 2) == pytest.approx((0.4902, 0.9433), abs=1e-4)


def test_no_rows_have_no_interval():
    assert share_interval([]) is None


def test_a_system_compared_with_itself_has_ratio_one_and_no_spread():
    flags = [1, 0, 1, 1]
    found = ratio_interval(flags, flags, ["a", "b", "c", "d"])
    assert found["ratio"] == 1.0
    assert found["interval"] == (1.0, 1.0)
    assert found["verdict"] == "non-inferior at 0.95"


def test_a_reference_that_never_succeeds_has_no_ratio():
    found = ratio_interval([1, 1], [0, 0], ["a", "b"])
    assert found["ratio"] is None
    assert found["verdict"] == "not shown"


def test_rows_of_one_cluster_count_as_one_observation():
    random = np.random.default_rng(1)
    ours, reference = random.random(200) < 0.5, np.ones(200)
    single = ratio_interval(ours, reference, [str(n) for n in range(200)])["interval"]
    in_one = ratio_interval(np.repeat(ours[:20], 10), reference, np.repeat(np.arange(20).astype(str), 10))["interval"]
    assert in_one[1] - in_one[0] > 2 * (single[1] - single[0])


def test_the_interval_covers_the_true_ratio_as_often_as_it_says():
    """100 simulated comparisons of 60 paired rows, true ratio 0.8 / 0.9; binomial z < 3.5 around 95 %. Seed 0."""
    random, covered = np.random.default_rng(0), 0
    for draw in range(100):
        luck = random.random(60)
        found = ratio_interval(luck < 0.8, luck < 0.9, [str(n) for n in range(60)], seed=draw)
        low, high = found["interval"]
        covered += low <= 0.8 / 0.9 <= high
    assert covered / 100 > 0.95 - 3.5 * (0.95 * 0.05 / 100) ** 0.5

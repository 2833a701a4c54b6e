"""Intervals against known cases."""

from __future__ import annotations

import numpy as np
import pytest

from evals.statistics import group_ratio, holm, mcnemar, ratio_interval, share_interval


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


def test_mcnemar_by_hand():
    """One row only ours got right, nine only the reference: twice P(at most 1 of 10 fair coins) = 2 · 11 / 1,024."""
    ours = [1] * 1 + [0] * 9 + [1] * 5 + [0] * 5
    reference = [0] * 1 + [1] * 9 + [1] * 5 + [0] * 5
    found = mcnemar(ours, reference)
    assert (found["only_ours"], found["only_reference"]) == (1, 9)
    assert found["p"] == pytest.approx(22 / 1024)
    assert mcnemar(reference, ours)["p"] == pytest.approx(22 / 1024)
    assert mcnemar(ours, ours) == {"only_ours": 0, "only_reference": 0, "p": 1.0}


def test_holm_by_hand():
    """Three p-values: the smallest times 3, the next times 2, the largest as it is, none below a smaller one's."""
    assert holm({"a": 0.04, "b": 0.01, "c": 0.03}) == pytest.approx({"a": 0.06, "b": 0.03, "c": 0.06})
    assert holm({"a": 0.9, "b": 0.8}) == {"a": 1.0, "b": 1.0}
    assert holm({}) == {}


def test_a_group_is_the_mean_over_its_tasks_by_hand():
    """Shares 0.5 and 1 against 1 and 0.5: the mean over tasks is 0.75 on both sides, whatever the tasks' sizes."""
    ours = {"short": {0: [1, 0]}, "long": {0: [1, 1, 1, 1]}}
    twin = {"short": {0: [1, 1]}, "long": {0: [1, 0, 1, 0]}}
    found = group_ratio(ours, twin, {"short": ["a", "b"], "long": ["c", "d", "e", "f"]})
    assert (found["ours"], found["reference"], found["ratio"]) == pytest.approx((0.75, 0.75, 1.0))
    assert found["seeds"] == 1 and found["clusters"] == 6


@pytest.mark.parametrize(("ours", "twin"), [([0, 0, 0], [1, 1, 0]), ([1, 1, 0], [0, 0, 0]), ([0, 0, 0], [0, 0, 0])])
def test_where_a_side_scores_nothing_no_interval_is_claimed(ours, twin):
    found = ratio_interval(ours, twin, ["a", "b", "c"])
    assert found["interval"] is None and found["verdict"] == "not shown"
    assert found["ratio"] == (0.0 if any(twin) else None)


def test_a_twin_that_is_always_right_gives_the_interval_of_our_share():
    flags = [1] * 180 + [0] * 20
    found = ratio_interval(flags, [1] * 200, [str(n) for n in range(200)])
    assert found["ratio"] == pytest.approx(0.9)
    low, high = found["interval"]
    assert 0.85 < low < 0.87 and 0.93 < high < 0.95
    assert found["verdict"] == "non-inferior at 0.85"


@pytest.mark.slow
def test_the_interval_over_seeds_is_wider_than_one_seeds():
    """Three seeds whose models differ: seeds are drawn first, so that their spread shows."""
    random = np.random.default_rng(0)
    clusters = {"task": [str(n) for n in range(200)]}
    twin = {seed: (random.random(200) < 0.9).astype(int) for seed in range(3)}
    ours = {seed: (random.random(200) < share).astype(int) for seed, share in enumerate((0.5, 0.7, 0.9))}
    together = group_ratio({"task": ours}, {"task": twin}, clusters)["interval"]
    alone = group_ratio({"task": {1: ours[1]}}, {"task": {1: twin[1]}}, clusters)["interval"]
    assert together[1] - together[0] > 1.5 * (alone[1] - alone[0])


@pytest.mark.slow
def test_the_paired_interval_covers_the_true_ratio():
    """400 simulated comparisons of 150 rows whose flags share luck; true ratio 0.8 / 0.9. At least 93 % are covered
    (seed 1; a binomial of 400 at 0.95 lies above 0.93 with probability 0.96)."""
    random = np.random.default_rng(1)
    covered = 0
    for draw in range(400):
        luck = random.random(150)
        low, high = ratio_interval(luck < 0.8, luck < 0.9, [str(n) for n in range(150)], seed=draw)["interval"]
        covered += low <= 0.8 / 0.9 <= high
    assert covered >= 0.93 * 400

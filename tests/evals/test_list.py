"""`list`: its operations, and what independent commitment costs a perfect model on `shuffle`."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from random import Random

import pytest

from evals.tasks import get_task
from evals.tasks.listing import permutation_probability

LIST = get_task("list")


def rows(count=50, split="train", **knobs):
    return list(LIST.generate(split, count, 0, LIST.read_knobs(knobs)))


@pytest.mark.parametrize(("operation", "apply"), [("copy", list), ("reverse", lambda x: x[::-1]), ("sort", sorted)])
def test_the_answer_is_the_operation_on_the_items(operation, apply):
    for row in rows(operation=operation, length="6"):
        items = row.prompt.removeprefix(f"{operation}: ").split()
        assert row.response.split() == apply(items) and len(set(items)) == 6


def test_mixed_asks_for_each_operation():
    assert {row.prompt.partition(":")[0] for row in rows()} == {"copy", "reverse", "sort", "shuffle"}


def test_every_permutation_is_a_right_shuffle_and_nothing_else_is():
    (row,) = rows(1, operation="shuffle", length="4")
    items = row.prompt.removeprefix("shuffle: ").split()
    right = [answer for answer in itertools.product(items, repeat=4) if LIST.score(" ".join(answer), row).exact]
    assert right == list(itertools.permutations(items))
    assert LIST.score(" ".join([*items[:3], items[0]]), row).leaf_values_right == 0.75
    assert not LIST.score(" ".join([*items, items[0]]), row).exact


def test_shuffles_are_taught_uniformly():
    """6 orders of 3 items in 6,000 rows, seed 0: χ² with 5 degrees of freedom under 20.5 (p > 0.001)."""
    counts = Counter()
    for row in rows(6000, operation="shuffle", length="3"):
        items = row.prompt.removeprefix("shuffle: ").split()
        counts[tuple(items.index(item) for item in row.response.split())] += 1
    assert len(counts) == 6
    assert sum((count - 1000) ** 2 / 1000 for count in counts.values()) < 20.5


def test_no_set_of_items_stands_in_two_splits():
    sets = [{frozenset(row.response.split()) for row in rows(500, split, length="2")} for split in LIST.splits]
    assert all(sets) and not sets[0] & sets[1] and not sets[0] & sets[2] and not sets[1] & sets[2]


@pytest.mark.parametrize("items", range(1, 7))
def test_all_at_once_a_shuffle_is_right_as_often_as_enumeration_says(items):
    right = sum(len(set(answer)) == items for answer in itertools.product(range(items), repeat=items))
    assert permutation_probability(items) == pytest.approx(right / items**items)
    assert permutation_probability(items) == pytest.approx(math.factorial(items) / items**items)


@pytest.mark.parametrize(("items", "group"), [(4, 2), (5, 2), (5, 3), (6, 4)])
def test_in_groups_a_shuffle_is_right_as_often_as_enumeration_says(items, group):
    """Every way to fill the places in groups, each place from what the groups before it have left."""

    def right(left):
        size, kept = min(group, len(left)), 0.0
        if not size:
            return 1.0
        for drawn in itertools.product(left, repeat=size):
            if len(set(drawn)) == size:
                kept += right([item for item in left if item not in drawn]) / len(left) ** size
        return kept

    assert permutation_probability(items, group) == pytest.approx(right(list(range(items))))


def test_one_a_pass_costs_nothing_and_twice_as_many_a_pass_cost_more():
    chances = [permutation_probability(8, group) for group in (1, 2, 4, 8)]
    assert chances[0] == pytest.approx(1)
    assert chances[-1] == permutation_probability(8) == pytest.approx(0.0024, abs=1e-4)
    assert chances == sorted(chances, reverse=True)


def test_of_two_passes_a_large_first_one_is_better():
    """5 + 3 beats 4 + 4: draws collide less where many items are left."""
    assert permutation_probability(8, 5) > permutation_probability(8, 4)


def test_a_perfect_model_that_commits_three_a_pass_scores_what_is_predicted():
    """20,000 answers of 8 items, seed 0, judged by the checker: within 4 standard errors."""
    (row,) = rows(1, operation="shuffle", length="8")
    random, exact, draws = Random(0), 0, 20_000
    for _ in range(draws):
        left, answer = row.prompt.removeprefix("shuffle: ").split(), []
        while len(answer) < 8:
            drawn = [random.choice(left) for _ in range(min(3, 8 - len(answer)))]
            answer += drawn
            left = [item for item in left if item not in drawn] or left
        exact += LIST.score(" ".join(answer), row).exact
    chance = permutation_probability(8, 3)
    assert abs(exact / draws - chance) < 4 * math.sqrt(chance * (1 - chance) / draws)

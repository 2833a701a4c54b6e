"""Timing: sides in turn, the warm-up left out, and intervals that hold what they promise."""

from __future__ import annotations

import math
import time

import pytest

from evals.machine import DTYPES, describe_machine, measure_floor
from evals.timing import alternate, distribution, median_interval, paired_ratio


def test_sides_take_turns_and_the_warmup_is_left_out():
    order, advanced = [], []
    sides = {"a": lambda: order.append("a"), "b": lambda: order.append("b")}
    timings = alternate(sides, rounds=3, warmup=2, advance=lambda: advanced.append(1))
    assert "".join(order) == "ab" * 5
    assert len(advanced) == 10
    assert {name: len(timing.seconds) for name, timing in timings.items()} == {"a": 3, "b": 3}


def test_the_first_call_is_kept_apart():
    pauses = iter([0.05, 0.0, 0.0, 0.0])
    timing = alternate({"compiling": lambda: time.sleep(next(pauses))}, rounds=3, warmup=1)["compiling"]
    assert timing.first_call >= 0.05
    assert timing.to_dict()["n"] == 3


def test_a_distribution_is_ordered():
    made = distribution([5.0, 1.0, 2.0, 4.0, 3.0, 100.0, 0.0])
    assert made["median"] == 3.0
    assert made["interval"][0] <= made["median"] <= made["p90"] <= made["p99"] <= 100.0
    assert made["n"] == 7


def test_a_ratio_is_taken_round_by_round():
    # The machine slows down tenfold midway; each round's two sides meet the same machine.
    assert paired_ratio([2.0, 2.0, 20.0, 20.0], [1.0, 1.0, 10.0, 10.0])["median"] == 2.0


@pytest.mark.parametrize("n", range(1, 60))
def test_the_medians_interval_is_the_narrowest_that_covers_95_percent(n):
    # Exact, by counting: the chance that at least `rank` and at most n − rank of n values fall below the median.
    def coverage(rank):
        return 1 - 2 * sum(math.comb(n, below) for below in range(rank)) / 2**n

    interval = median_interval(range(1, n + 1))
    if n < 6:
        assert interval is None
        assert coverage(1) < 0.95
    else:
        rank, last = interval
        assert last == n + 1 - rank
        assert coverage(rank) >= 0.95 > coverage(rank + 1)


def test_the_floor_counts_bytes_read_and_written_and_two_flops_a_product():
    floor = measure_floor(DTYPES["fp32"], repeats=3, copy_bytes=1 << 16, matrix_size=32)
    seconds = floor["seconds"]
    assert floor["copy_bytes_per_second"] * seconds["copy"]["median"] == pytest.approx(2 * 65536)
    assert floor["flops_per_second"] * seconds["product"]["median"] == pytest.approx(2 * 32**3)
    assert seconds["copy"]["n"] == seconds["product"]["n"] == 3


def test_the_machine_is_described_in_plain_values():
    machine = describe_machine()
    assert {"cpu", "cores", "threads", "gpu", "torch", "python", "platform"} <= machine.keys()
    assert all(value is None or isinstance(value, (str, int, list)) for value in machine.values())

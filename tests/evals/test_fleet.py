"""The fleet's simulation against closed forms, and the closed forms against hand-worked cases."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
from scipy import stats

from evals import queues
from evals.fleet import Service, Target, bursts, latency_at, nodes_for_queue, nodes_needed, poisson, simulate
from mdlm.errors import UserError

COUNT, SEEDS = 20_000, range(10)


def half_width(values) -> float:
    """Of the 99.9 % t-interval of their mean."""
    return stats.t.ppf(0.9995, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values))


def test_one_server_waits_as_often_as_it_is_busy():
    assert queues.erlang_c(1, 0.75) == pytest.approx(0.75)
    assert queues.mmc_mean_wait(1, 0.75, 1.0) == pytest.approx(3.0)  # ρ/(1 − ρ)


def test_two_servers_at_three_quarters():
    # Load 1.5 on two: C = (1.5²/2 · 4) / (1 + 1.5 + 4.5) = 9/14.
    assert queues.erlang_c(2, 1.5) == pytest.approx(9 / 14)
    assert queues.mmc_mean_wait(2, 1.5, 1.0) == pytest.approx(9 / 7)
    assert queues.mmc_wait_quantile(2, 1.5, 1.0, 0.9) == pytest.approx(math.log(90 / 14) / 0.5)
    assert queues.mmc_wait_quantile(2, 1.5, 1.0, 0.3) == 0.0


def test_a_steady_service_halves_the_wait():
    assert queues.md1_mean_wait(0.75, 1.0) == pytest.approx(1.5)


def test_a_load_over_its_servers_is_refused():
    with pytest.raises(UserError, match="grows without end"):
        queues.erlang_c(2, 2.0)


@pytest.mark.parametrize(("servers", "rate"), [(1, 0.6), (3, 2.1)])
def test_the_simulation_is_mmc_for_single_requests_of_exponential_length(servers, rate):
    waits, tails = [], []
    for seed in SEEDS:
        draw = np.random.default_rng([seed, 9])
        work = partial(draw.exponential, 1.0)
        latencies, busy = simulate(poisson(rate, COUNT, seed), servers, 1, lambda _: 1.0, work=work)
        waits.append(latencies.mean() - 1.0)
        tails.append(busy)
    half = half_width(waits)
    assert abs(np.mean(waits) - queues.mmc_mean_wait(servers, rate, 1.0)) < half
    assert half < 0.25 * queues.mmc_mean_wait(servers, rate, 1.0)  # else the line above says nothing
    assert np.mean(tails) == pytest.approx(rate / servers, rel=0.03)


def test_the_simulation_is_md1_for_single_requests_of_equal_length():
    waits = [simulate(poisson(0.7, COUNT, seed), 1, 1, lambda _: 1.0)[0].mean() - 1.0 for seed in SEEDS]
    half = half_width(waits)
    assert abs(np.mean(waits) - queues.md1_mean_wait(0.7, 1.0)) < half < 0.25 * queues.md1_mean_wait(0.7, 1.0)


@pytest.mark.parametrize("drawn", [True, False])
def test_rows_that_share_a_node_are_processor_sharing(drawn):
    """Where n rows go n times as slowly, the mean latency is s/(1 − ρ), whatever the distribution of the work."""
    means = []
    for seed in SEEDS:
        work = partial(np.random.default_rng([seed, 9]).exponential, 1.0) if drawn else lambda: 1.0
        means.append(simulate(poisson(0.5, COUNT, seed), 1, 10**6, lambda rows: 1.0 * rows, work=work)[0].mean())
    half = half_width(means)
    assert abs(np.mean(means) - 2.0) < half < 0.25


def test_a_batch_that_nobody_may_join_is_what_waits_when_a_node_is_free():
    """Four requests at once and one later: the first alone, the other three together, the last behind them."""
    service = {1: 1.0, 3: 1.5}.__getitem__
    latencies, busy = simulate([0.0, 0.1, 0.2, 0.3, 5.0], 1, 3, service, joins=False)
    assert latencies.tolist() == pytest.approx([1.0, 2.4, 2.3, 2.2, 1.0])
    assert busy == pytest.approx(3.5 / 6.0)


def test_a_request_joins_rows_under_way_and_slows_them():
    """Alone 1 s, beside another 2 s: half of the first is done at 0.5, the rest takes twice as long."""
    latencies, _ = simulate([0.0, 0.5], 1, 2, {1: 1.0, 2: 2.0}.__getitem__)
    assert latencies.tolist() == pytest.approx([1.5, 1.5])


def test_a_request_goes_to_the_emptiest_node():
    latencies, _ = simulate([0.0, 0.5], 2, 2, {1: 1.0, 2: 2.0}.__getitem__)
    assert latencies.tolist() == pytest.approx([1.0, 1.0])


def test_bursts_keep_the_mean_rate_and_bunch():
    times = bursts(5.0, 10.0, 60.0, 6.0, 50_000, seed=0)
    assert np.all(np.diff(times) >= 0) and len(times) == 50_000
    assert len(times) / times[-1] == pytest.approx(5.0, rel=0.1)
    steady, bunched = (np.bincount(stream.astype(int)) for stream in (poisson(5.0, 50_000, 0), times))
    assert steady.var() / steady.mean() == pytest.approx(1.0, rel=0.1) and bunched.var() / bunched.mean() > 3


def test_as_many_nodes_as_meet_the_target_and_one_fewer_does_not():
    arrivals = [poisson(20.0, 4000, seed) for seed in range(3)]
    service, target = Service({1: 0.4, 4: 0.8}), Target(0.95, 1.0)
    found = nodes_needed(arrivals, service, target, most=64)
    assert found.interval[1] <= 1.0 and found.batch == 4
    _, (_, upper), _ = latency_at(arrivals, found.nodes - 1, found.batch, service, 0.95, joins=True)
    assert upper > 1.0


def test_a_queue_overnight():
    # Best at 8 rows: 4 a second; 57,600 requests in two hours at half use need 57,600 / (4 · 7,200 · 0.5) nodes.
    assert nodes_for_queue(57_600, 7_200, Service({1: 1.0, 8: 2.0}), 0.5) == pytest.approx(4.0)


def test_service_between_two_sizes_is_on_their_line_and_ends_with_the_last():
    service = Service({1: 1.0, 5: 2.0})
    assert service(3) == pytest.approx(1.5)
    assert service.largest_within(1.6) == 3 and service.largest_within(9.0) == 5 and service.largest_within(0.5) == 0


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: Service({}), "unusable"),
        (lambda: Service({1: -1.0}), "unusable"),
        (lambda: Service({2: 1.0}), "give batch 1"),
        (lambda: Target(1.5, 1.0), "share is 1.5"),
        (lambda: Target(0.9, 0.0), "seconds is 0"),
        (lambda: nodes_needed([poisson(1.0, 100, 0)], Service({1: 2.0}), Target(0.9, 1.0), 8), "no number of nodes"),
        (
            lambda: nodes_needed([poisson(100.0, 3000, 0)], Service({1: 0.9}), Target(0.9, 1.0), 8),
            "8 nodes do not meet",
        ),
    ],
)
def test_what_cannot_be_served_is_named(call, named):
    with pytest.raises(UserError, match=named):
        call()

"""Cost identities against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals import economics
from mdlm.errors import UserError

money = st.floats(0.01, 1e4)
rate = st.floats(1e-3, 1e7)
share = st.floats(0.01, 1.0)


def test_a_node_at_half_use():
    # 18 an hour, 1,000 tokens a second, busy half of the time: 1.8 million tokens an hour, 10 a million.
    assert economics.cost_per_unit(18.0, 1000.0, 0.5) * economics.MILLION == pytest.approx(10.0)


def test_an_api_by_the_million():
    # 2,000 in at 0.25 and 400 out at 0.75 a million.
    assert economics.api_cost(0.25, 0.75, 2000, 400) == pytest.approx(0.0008)


def test_a_fifth_goes_to_the_fallback():
    assert economics.with_fallback(1.0, 0.2, 4.0, 0.1) == pytest.approx(1.9)
    assert economics.break_even_rejected(1.0, 4.0, 0.2) == pytest.approx(0.7)
    assert economics.break_even_rejected(5.0, 4.0) < 0


def test_nothing_accepted_costs_without_end():
    assert economics.per_accepted(3.0, 0.75) == pytest.approx(4.0)
    assert economics.per_accepted(3.0, 0.0) == math.inf


@given(money, rate, money)
def test_at_the_break_even_utilisation_a_unit_costs_its_price(node, units, price):
    at = economics.break_even_utilisation(node, units, price)
    if at <= 1:
        assert economics.cost_per_unit(node, units, at) == pytest.approx(price)
    else:
        assert economics.cost_per_unit(node, units, 1.0) > price


@given(money, money, money)
def test_at_the_break_even_share_both_ways_cost_the_same(own, fallback, check):
    at = economics.break_even_rejected(own, fallback, check)
    if at >= 0:
        assert economics.with_fallback(own, at, fallback, check) == pytest.approx(fallback)


@given(money, rate, share)
def test_cost_falls_with_utilisation(node, units, busy):
    assert economics.cost_per_unit(node, units, busy) >= economics.cost_per_unit(node, units, 1.0)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: economics.cost_per_unit(-1.0, 1.0, 0.5), "cost per hour is -1"),
        (lambda: economics.cost_per_unit(1.0, 0.0, 0.5), "throughput is 0"),
        (lambda: economics.cost_per_unit(1.0, 1.0, 0.0), "utilisation is 0"),
        (lambda: economics.cost_per_unit(1.0, 1.0, 1.2), "utilisation is 1.2"),
        (lambda: economics.cost_per_unit(1.0, math.nan, 1.0), "throughput is nan"),
        (lambda: economics.api_cost(-0.1, 0.0, 1, 1), "input price is -0.1"),
        (lambda: economics.with_fallback(1.0, 1.5, 1.0), "rejected share is 1.5"),
    ],
)
def test_unusable_input_is_named(call, named):
    with pytest.raises(UserError, match=named):
        call()

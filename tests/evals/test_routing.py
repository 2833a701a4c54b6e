"""Routing against cases that can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evals.prices import ApiPrice
from evals.routing import Market, Place, Work, offer, route, sensitivities
from mdlm.errors import UserError

MARKET = Market(node_per_hour=3.6, nodes=4, utilisation=0.5)  # 0.001 a second, 0.002 a busy one
TWIN = Place("twin", {"structured": 0.95, "reasoning": 0.9}, "stated", rates={1: 100.0, 8: 600.0, 32: 1600.0})
DIFFUSION = Place("diffusion", {"structured": 0.9, "reasoning": 0.4}, "stated", {1: 400.0, 8: 800.0}, refines=True)
API = Place("api", {"structured": 0.97, "reasoning": 0.97}, "stated", price=ApiPrice(1.0, 10.0, "2026", "x"),
            api_latency=2.0)  # fmt: skip
PLACES = [TWIN, DIFFUSION, API]
QUEUE = Work("queue", "structured", True, tokens_in=1000, tokens_out=100, rate=3600, quality_floor=0.85)
DESK = Work("desk", "structured", False, 1000, 100, rate=360, quality_floor=0.85, latency_budget=0.5)


def test_what_can_wait_goes_where_a_node_does_most():
    (decision,) = route([QUEUE], PLACES, MARKET)
    # 1,600 tokens a second at 32 rows: 1/16 s a document, 0.002 / 16.
    assert decision.chosen.place == "twin" and decision.chosen.batch == 32
    assert decision.chosen.cost == pytest.approx(0.000125)
    assert decision.chosen.nodes == pytest.approx(1 / 16 / 0.5)


def test_what_cannot_wait_goes_where_one_row_is_fast_enough():
    (decision,) = route([DESK], PLACES, MARKET)
    assert decision.chosen.place == "diffusion" and decision.chosen.latency == pytest.approx(0.25)
    reasons = {found.place: found.reasons for found in decision.offers}
    assert reasons["twin"] == ("1 s over 0.5 s",) and reasons["api"] == ("2 s over 0.5 s",)


def test_a_batch_is_only_as_full_as_arrivals_make_it():
    """One request in ten seconds is decoded alone, however large the budget; forty a second fill eight rows."""
    slow = replace(DESK, latency_budget=2.0)
    assert offer(slow, DIFFUSION, MARKET).batch == 1
    assert offer(replace(slow, rate=40 * 3600), DIFFUSION, MARKET).batch == 8


def test_too_low_a_quality_is_a_reason():
    thinking = replace(QUEUE, name="thinking", group="reasoning")
    (decision,) = route([thinking], PLACES, MARKET)
    assert decision.chosen.place == "twin"
    assert "quality 0.400 under 0.85" in {found.place: found.reasons for found in decision.offers}["diffusion"]


def test_prefill_is_paid_where_it_is_not_in_the_rates():
    found = offer(DESK, replace(DIFFUSION, prefill_rate=10_000.0), MARKET)
    assert found.latency == pytest.approx(0.1 + 0.25)
    assert found.cost == pytest.approx(0.35 * 0.002)


def test_what_has_no_room_goes_to_the_next_place_that_costs_least_more():
    many = replace(QUEUE, rate=4 * 3600 * 16 * 0.5 + 3600)  # a little over four nodes at the twin's best batch
    small = replace(QUEUE, name="small", rate=3600)
    decisions = {found.work.name: found for found in route([many, small], PLACES, MARKET)}
    assert decisions["queue"].moved == "twin" or decisions["small"].moved == "twin"
    assert sum(found.chosen.nodes for found in decisions.values()) <= MARKET.nodes


def test_a_rate_that_nothing_can_serve_is_refused():
    with pytest.raises(UserError, match="nodes and there are 4"):
        route([replace(DESK, rate=1e6)], PLACES[:2], MARKET)


def test_nothing_admissible_is_no_choice():
    (decision,) = route([replace(DESK, quality_floor=0.99)], PLACES, MARKET)
    assert decision.chosen is None and all(found.reasons for found in decision.offers)


def test_the_pass_count_that_turns_the_choice():
    """Diffusion's 800 tokens a second at eight rows against an API of 0.002 a document: the queue without the twin."""
    work = replace(QUEUE, tokens_in=0)  # the API asks 0.001, diffusion 0.002 / 8 = 0.00025: four times the passes
    found = sensitivities(work, [DIFFUSION, API], MARKET)
    assert found["pass count"]["factor"] == pytest.approx(4.0, rel=1e-6) and found["pass count"]["then"] == "api"
    assert found["node price"]["factor"] == pytest.approx(4.0, rel=1e-6)
    assert found["utilisation"]["factor"] == pytest.approx(0.25, rel=1e-6)


def test_a_choice_that_nothing_turns_says_so():
    assert sensitivities(QUEUE, [TWIN], MARKET) == {"node price": None, "utilisation": None, "pass count": None}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"rate": -1}, "rate is -1"),
        ({"rate": 0}, "rate is 0"),
        ({"tokens_out": 0}, "tokens_out is 0"),
        ({"quality_floor": 1.5}, "quality_floor is 1.5"),
        ({"batchable": False}, "latency_budget must be given"),
        ({"tokens_in": "many"}, "tokens_in is 'many'"),
    ],
)
def test_unusable_work_is_named(change, complaint):
    with pytest.raises(UserError, match=complaint):
        replace(QUEUE, **change)

"""Where each kind of work should run: the cheapest place whose quality and latency it can live with.

An own place has rates by batch size. Work that can wait is decoded at its fastest batch; work with a latency budget at
the fastest batch that fits the budget and that its own arrivals fill (Little's law: rows in service = rate × latency).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from evals import economics
from evals.prices import ApiPrice
from mdlm.errors import UserError

FARTHEST = 10.0
"""Sensitivities look at factors from 1/10 to 10."""
STEPS = 120
"""Factors tried in each direction before the one that turns the choice is bisected."""


@dataclass(frozen=True)
class Work:
    """One kind of request. Latency in seconds, rate in requests an hour, money in the currency of the prices."""

    name: str
    group: str
    """What of a place's quality counts for it."""
    batchable: bool
    tokens_in: float
    tokens_out: float
    rate: float
    quality_floor: float
    latency_budget: float | None = None
    value_per_token: float | None = None

    def __post_init__(self) -> None:
        for name in ("tokens_in", "tokens_out", "rate", "quality_floor", "latency_budget", "value_per_token"):
            value = getattr(self, name)
            if value is None and name in ("latency_budget", "value_per_token"):
                continue
            number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
            if not number or value < 0 or (value == 0 and name in ("tokens_out", "rate", "latency_budget")):
                raise UserError(
                    f"{name} is {value!r}; it must be a number {'above' if value == 0 else 'of at least'} 0"
                )
        if self.quality_floor > 1:
            raise UserError(f"quality_floor is {self.quality_floor:g}; it is a share, at most 1")
        if not self.batchable and self.latency_budget is None:
            raise UserError("latency_budget must be given for work that is not batchable")

    @property
    def per_second(self) -> float:
        return self.rate / economics.SECONDS_PER_HOUR


@dataclass(frozen=True)
class Place:
    """Where work can run. `rates`: tokens/s of a whole node by batch size, for an own one; `price` for an API."""

    name: str
    quality: dict[str, float]
    source: str
    rates: dict[int, float] = field(default_factory=dict)
    prefill_rate: float | None = None
    """Prompt tokens/s; None where `rates` have the prefill in them."""
    price: ApiPrice | None = None
    api_latency: float = 0.0
    """Seconds an answer of the API takes."""
    refines: bool = False
    """Whether its rates go down as passes go up: diffusion."""


@dataclass(frozen=True)
class Market:
    """What own nodes cost and how many there are."""

    node_per_hour: float
    nodes: float
    utilisation: float


@dataclass(frozen=True)
class Offer:
    """One kind of work at one place, or the reasons why not."""

    place: str
    cost: float = math.inf
    """Of a document."""
    latency: float = math.inf
    batch: int = 1
    nodes: float = 0.0
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Decision:
    work: Work
    chosen: Offer | None
    offers: list[Offer]
    moved: str = ""
    """The own place that would be cheaper, had it nodes left."""


def offer(work: Work, place: Place, market: Market) -> Offer:
    """What a place would ask for a kind of work, with the reasons against it."""
    reasons = []
    quality = place.quality.get(work.group)
    if quality is None:
        reasons.append(f"no quality is known for {work.group}")
    elif quality < work.quality_floor:
        reasons.append(f"quality {quality:.3f} under {work.quality_floor:g}")
    if place.price is not None:
        found = Offer(place.name, place.price.request(work.tokens_in, work.tokens_out), place.api_latency)
    else:
        found = _own_offer(work, place, market)
    if work.latency_budget is not None and found.latency > work.latency_budget:
        reasons.append(f"{found.latency:.3g} s over {work.latency_budget:g} s")
    return replace(found, reasons=tuple(reasons))


def _own_offer(work: Work, place: Place, market: Market) -> Offer:
    candidates = []
    for batch, rate in sorted(place.rates.items()):
        prefill = work.tokens_in / place.prefill_rate if place.prefill_rate else 0.0
        latency = prefill + work.tokens_out * batch / rate
        node_seconds = prefill + work.tokens_out / rate
        cost = economics.cost_per_unit(market.node_per_hour, 1 / node_seconds, market.utilisation)
        nodes = work.per_second * node_seconds / market.utilisation
        candidates.append(Offer(place.name, cost, latency, batch, nodes))
    if work.latency_budget is not None:
        fits = [
            c
            for c in candidates
            if c.latency <= work.latency_budget and (work.batchable or c.batch <= max(1, work.per_second * c.latency))
        ]
        candidates = fits or candidates[:1]
    return min(candidates, key=lambda candidate: candidate.cost)


def route(works: list[Work], places: list[Place], market: Market) -> list[Decision]:
    """The cheapest admissible place of each kind of work, within the nodes there are.

    Where own nodes do not suffice, the work whose second choice costs least more for each node it frees leaves first.
    `UserError` where nothing can serve a rate.
    """
    offers = {work.name: [offer(work, place, market) for place in places] for work in works}
    chosen: dict[str, Offer | None] = {work.name: _cheapest(offers[work.name], math.inf) for work in works}
    moved: dict[str, str] = {}
    rates = {work.name: work.rate for work in works}
    while (needed := sum(found.nodes for found in chosen.values() if found)) > market.nodes:
        moves = []
        for name, found in chosen.items():
            other = _cheapest(offers[name], found.nodes * (1 - 1e-9)) if found and found.nodes else None
            if found and other:
                premium = (other.cost - found.cost) * rates[name] / (found.nodes - other.nodes)
                moves.append((premium, name, found, other))
        if not moves:
            raise UserError(
                f"the work asks for {needed:.3g} nodes and there are {market.nodes:g}; no other place may take it: "
                "lower a rate, add nodes, or name an API"
            )
        _, name, left, other = min(moves, key=lambda move: move[:2])
        chosen[name], moved[name] = other, moved.get(name, left.place)
    return [Decision(work, chosen[work.name], offers[work.name], moved.get(work.name, "")) for work in works]


def _cheapest(offers: list[Offer], below_nodes: float) -> Offer | None:
    admissible = [found for found in offers if not found.reasons and found.nodes < below_nodes]
    return min(admissible, key=lambda found: found.cost, default=None)


def sensitivities(work: Work, places: list[Place], market: Market) -> dict[str, dict[str, Any] | None]:
    """For each input the factor nearest to 1 that changes where a kind of work runs, and to where; None up to x10.

    Each kind of work alone, on as many nodes as it takes.
    """
    changes = {
        "node price": lambda f: (places, replace(market, node_per_hour=market.node_per_hour * f)),
        "utilisation": lambda f: (places, replace(market, utilisation=min(1.0, market.utilisation * f))),
        "pass count": lambda f: (
            [replace(p, rates={b: r / f for b, r in p.rates.items()}) if p.refines else p for p in places], market,
        ),
    }  # fmt: skip

    def where(change: Any, factor: float) -> str | None:
        of_places, of_market = change(factor)
        best = _cheapest([offer(work, place, of_market) for place in of_places], math.inf)
        return best.place if best else None

    found: dict[str, dict[str, Any] | None] = {}
    for name, change in changes.items():
        now, turns = where(change, 1.0), []
        for direction in (1, -1):
            factors = [FARTHEST ** (direction * step / STEPS) for step in range(STEPS + 1)]
            turn = next((i for i in range(1, len(factors)) if where(change, factors[i]) != now), None)
            if turn is not None:
                inner, outer = factors[turn - 1], factors[turn]
                for _ in range(30):
                    middle = math.sqrt(inner * outer)
                    inner, outer = (middle, outer) if where(change, middle) == now else (inner, middle)
                turns.append((abs(math.log(outer)), outer, where(change, outer)))
        nearest = min(turns, default=None)
        found[name] = nearest and {"factor": nearest[1], "then": nearest[2]}
    return found

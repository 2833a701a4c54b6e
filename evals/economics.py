"""What an answer costs: pure arithmetic on rates, prices and shares, without a price of its own.

    cost of a useful token = node cost per hour ÷ (useful tokens per second × 3600 × utilisation)
    cost of an accepted document, with a fallback: c = c_own + p · c_fallback + c_check, p the share that is rejected

Money is in the currency of the prices that go in, time in seconds unless a name says otherwise.
"""

from __future__ import annotations

import math

from mdlm.errors import UserError

SECONDS_PER_HOUR = 3600.0
MILLION = 1e6


def cost_per_unit(node_per_hour: float, units_per_second: float, utilisation: float) -> float:
    """Effective cost of one token, or of one document, on a node that is busy a share of the time.

    Args:
        node_per_hour: what the node costs an hour, busy or idle.
        units_per_second: what it does while it is busy.
        utilisation: the busy share, in (0, 1].
    """
    _at_least_zero("the node's cost per hour", node_per_hour)
    _above_zero("the throughput", units_per_second)
    _share("utilisation", utilisation, zero=False)
    return node_per_hour / (units_per_second * SECONDS_PER_HOUR * utilisation)


def api_cost(per_million_in: float, per_million_out: float, tokens_in: float, tokens_out: float) -> float:
    """What an API asks for one request."""
    values = {"input price": per_million_in, "output price": per_million_out}
    for what, value in (values | {"tokens in": tokens_in, "tokens out": tokens_out}).items():
        _at_least_zero(what, value)
    return (per_million_in * tokens_in + per_million_out * tokens_out) / MILLION


def break_even_utilisation(node_per_hour: float, units_per_second: float, price: float) -> float:
    """The utilisation from which on an own node is cheaper than `price` a unit; above 1 it never is."""
    _at_least_zero("the node's cost per hour", node_per_hour)
    _above_zero("the throughput", units_per_second)
    _above_zero("the price", price)
    return node_per_hour / (units_per_second * SECONDS_PER_HOUR * price)


def with_fallback(own: float, rejected: float, fallback: float, check: float = 0.0) -> float:
    """Cost, or seconds, of a document whose first answer is rejected with probability `rejected`."""
    _share("the rejected share", rejected, zero=True)
    for what, value in {"the own cost": own, "the fallback's cost": fallback, "the check's cost": check}.items():
        _at_least_zero(what, value)
    return own + rejected * fallback + check


def break_even_rejected(own: float, fallback: float, check: float = 0.0) -> float:
    """The rejected share at which trying first costs as much as going to the fallback at once.

    Negative where the first try and its check cost more than the fallback itself: then it never pays.
    """
    _above_zero("the fallback's cost", fallback)
    for what, value in {"the own cost": own, "the check's cost": check}.items():
        _at_least_zero(what, value)
    return 1.0 - (own + check) / fallback


def per_accepted(cost: float, accepted: float) -> float:
    """Cost of each document that is accepted, where every document costs `cost`; infinite where none is."""
    _at_least_zero("the cost", cost)
    _share("the accepted share", accepted, zero=True)
    return cost / accepted if accepted else math.inf


def _number(what: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise UserError(f"{what} is {value!r}; it must be a number")


def _at_least_zero(what: str, value: float) -> None:
    _number(what, value)
    if value < 0:
        raise UserError(f"{what} is {value:g}; it cannot be below 0")


def _above_zero(what: str, value: float) -> None:
    _number(what, value)
    if value <= 0:
        raise UserError(f"{what} is {value:g}; it must be above 0")


def _share(what: str, value: float, *, zero: bool) -> None:
    _number(what, value)
    if not 0 <= value <= 1 or (value == 0 and not zero):
        raise UserError(f"{what} is {value:g}; it must be {'at least' if zero else 'above'} 0 and at most 1")

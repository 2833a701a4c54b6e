"""Closed forms of queues, against which the simulation of a fleet is checked (Kleinrock, Queueing Systems I, 1975).

Rates are per second; a queue is stable when its offered load, arrivals times mean service time, is below its servers.
"""

from __future__ import annotations

import math

from mdlm.errors import UserError


def erlang_c(servers: int, load: float) -> float:
    """Probability that an arrival waits in M/M/c, with `load` = arrival rate × mean service time."""
    _stable(servers, load)
    if load == 0:
        return 0.0
    # Erlang B by its recursion, which no factorial overflows.
    blocked = 1.0
    for number in range(1, servers + 1):
        blocked = load * blocked / (number + load * blocked)
    return blocked / (1 - load / servers * (1 - blocked))


def mmc_mean_wait(servers: int, rate: float, service: float) -> float:
    """Mean seconds in the queue of M/M/c, service left out."""
    load = rate * service
    return erlang_c(servers, load) * service / (servers - load)


def mmc_wait_quantile(servers: int, rate: float, service: float, share: float) -> float:
    """Seconds within which a share of the arrivals of M/M/c is taken up."""
    waiting = erlang_c(servers, rate * service)
    if waiting <= 1 - share:
        return 0.0
    return math.log(waiting / (1 - share)) * service / (servers - rate * service)


def md1_mean_wait(rate: float, service: float) -> float:
    """Mean seconds in the queue of M/D/1 (Pollaczek–Khinchine), service left out."""
    _stable(1, rate * service)
    return rate * service**2 / (2 * (1 - rate * service))


def _stable(servers: int, load: float) -> None:
    if not 0 <= load < servers:
        raise UserError(f"a load of {load:.3g} on {servers} servers: the queue grows without end; add servers")

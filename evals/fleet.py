"""How many nodes a stream of requests needs: a simulation of batching nodes behind one queue, by simpy.

A request goes to the emptiest node, joins the rows under way there up to a largest number of them, and is served at the
pace of as many rows (continuous batching); or nodes take whole batches, each of which ends before the next.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import simpy
from scipy import stats

from mdlm.errors import UserError

WARMUP = 0.1
"""Share of the requests, the first ones, that is simulated but not counted."""


@dataclass(frozen=True)
class Service:
    """Seconds that a request takes beside so many rows: linear between the sizes given, and none beyond the largest."""

    seconds: dict[int, float]

    def __post_init__(self) -> None:
        if not self.seconds or any(size < 1 or not 0 < value < math.inf for size, value in self.seconds.items()):
            raise UserError(f"service times {self.seconds} are unusable; give seconds above 0 by batch size from 1 on")
        if min(self.seconds) > 1:
            raise UserError(f"service times begin at batch {min(self.seconds)}; a request may come alone, give batch 1")

    def __call__(self, size: int) -> float:
        sizes = sorted(self.seconds)
        return float(np.interp(size, sizes, [self.seconds[known] for known in sizes]))

    @property
    def best(self) -> int:
        """The batch size that serves most requests a second."""
        return max(self.seconds, key=lambda size: size / self.seconds[size])

    def largest_within(self, seconds: float) -> int:
        """The largest batch that is served within so many seconds; 0 where a single request is not."""
        return max((size for size in range(1, max(self.seconds) + 1) if self(size) <= seconds), default=0)


@dataclass(frozen=True)
class Target:
    """A share of the requests must be answered within so many seconds."""

    share: float
    seconds: float

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise UserError(f"share is {self.share:g}; it must be between 0 and 1, as 0.95")
        if not 0 < self.seconds < math.inf:
            raise UserError(f"seconds is {self.seconds:g}; it must be above 0")


@dataclass(frozen=True)
class Needed:
    """Nodes, and the latency at the target's share with them: mean over seeds and 95 % interval, in seconds."""

    nodes: int
    batch: int
    latency: float
    interval: tuple[float, float]
    busy: float
    """Share of the time that nodes are busy."""


def poisson(rate: float, count: int, seed: int) -> np.ndarray:
    """Arrival times of a Poisson process, (count,) seconds."""
    return np.cumsum(np.random.default_rng([seed, 1]).exponential(1 / rate, count))


def bursts(rate: float, factor: float, quiet: float, busy: float, count: int, seed: int) -> np.ndarray:
    """Arrival times of a Poisson process that switches between two rates, (count,) seconds.

    Phases last `quiet` and `busy` seconds on average (exponential); in a burst requests come `factor` times as often as
    in quiet, and `rate` is the mean over both.
    """
    draw = np.random.default_rng([seed, 2])
    base = rate * (quiet + busy) / (quiet + factor * busy)
    times: list[np.ndarray] = []
    found, now, bursting = 0, 0.0, False
    while found < count:
        length = draw.exponential(busy if bursting else quiet)
        number = draw.poisson(length * base * (factor if bursting else 1.0))
        times.append(now + np.sort(draw.uniform(0, length, number)))
        found, now, bursting = found + number, now + length, not bursting
    return np.concatenate(times)[:count]


def simulate(
    arrivals: Sequence[float] | np.ndarray,
    nodes: int,
    batch: int,
    service: Callable[[int], float],
    *,
    joins: bool = True,
    work: Callable[[], float] = lambda: 1.0,
) -> tuple[np.ndarray, float]:
    """Latency of each counted request in seconds, and the share of the time that nodes are busy.

    Args:
        arrivals: sorted times in seconds.
        batch: the most rows of a node.
        service: seconds that a request of one unit of work takes beside so many rows, itself counted.
        joins: whether a request may join rows that are under way (continuous batching), or waits for their end.
        work: the work of the next request.
    """
    world = simpy.Environment()
    waiting: deque[int] = deque()
    fleet = [_Node(world, waiting, batch, service, joins, work) for _ in range(nodes)]

    def source() -> Generator[simpy.Event, Any, None]:
        for index, time in enumerate(arrivals):
            yield world.timeout(max(0.0, time - world.now))
            waiting.append(index)
            # The emptiest node that may take it; where there is none, it waits.
            min(fleet, key=lambda node: (not node.open, len(node.rows))).call()

    world.process(source())
    world.run()
    ends = np.zeros(len(arrivals))
    for node in fleet:
        for index, time in node.ended:
            ends[index] = time
    latencies = (ends - np.asarray(arrivals))[int(WARMUP * len(arrivals)) :]
    return latencies, sum(node.busy for node in fleet) / (nodes * world.now)


class _Node:
    """One node: its rows with what work is left of each, all of which go on at the pace of as many rows."""

    def __init__(
        self,
        world: simpy.Environment,
        waiting: deque[int],
        batch: int,
        service: Callable[[int], float],
        joins: bool,
        work: Callable[[], float],
    ) -> None:
        self.world, self.waiting, self.batch, self.service = world, waiting, batch, service
        self.joins, self.work = joins, work
        self.rows: dict[int, float] = {}
        self.ended: list[tuple[int, float]] = []
        self.busy = 0.0
        self._called = world.event()
        world.process(self._run())

    @property
    def open(self) -> bool:
        """Whether it may take a request now."""
        return not self.rows or (self.joins and len(self.rows) < self.batch)

    def call(self) -> None:
        """Something waits."""
        if not self._called.triggered:
            self._called.succeed()

    def _run(self) -> Generator[simpy.Event, Any, None]:
        size = 0  # rows that set the pace: of a batch that nobody may join, those it began with
        while True:
            if self.open:
                while self.waiting and len(self.rows) < self.batch:
                    self.rows[self.waiting.popleft()] = self.work()
                size = len(self.rows)
            self._called = self.world.event()
            if not self.rows:
                yield self._called
                continue
            pace, since, least = self.service(size), self.world.now, max(0.0, min(self.rows.values()))
            end = self.world.timeout(least * pace)
            yield end | self._called if self.joins else end
            self.busy += self.world.now - since
            # What was waited for is done, whatever the clock's rounding makes of it; else the node might wait for ever.
            done = least if end.processed else (self.world.now - since) / pace
            self.rows = {index: left - done for index, left in self.rows.items()}
            for index in [index for index, left in self.rows.items() if left <= 0]:
                del self.rows[index]
                self.ended.append((index, self.world.now))


def latency_at(
    arrivals: Sequence[np.ndarray], nodes: int, batch: int, service: Service, share: float, joins: bool
) -> tuple[float, tuple[float, float], float]:
    """The latency of a share of the requests: mean over streams, its 95 % t-interval; and how busy nodes are."""
    found = [simulate(stream, nodes, batch, service, joins=joins) for stream in arrivals]
    values = np.array([np.quantile(latencies, share) for latencies, _ in found])
    mean, busy = float(values.mean()), float(np.mean([part for _, part in found]))
    if len(values) < 2:
        return mean, (mean, mean), busy
    half = float(stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values)))
    return mean, (mean - half, mean + half), busy


def nodes_needed(
    arrivals: Sequence[np.ndarray], service: Service, target: Target, most: int, *, joins: bool = True
) -> Needed:
    """The fewest nodes whose latency meets the target with the interval's upper end.

    At least as many as the mean load keeps busy: fewer would look sufficient only until a queue has grown. More nodes
    are taken never to be slower; found by doubling, then bisection. `UserError` where `most` do not suffice, or where a
    request alone takes longer than the target.
    """
    batch = service.largest_within(target.seconds)
    if not batch:
        raise UserError(
            f"a request alone takes {service(1):.3g} s, the target is {target.seconds:g} s: no number of nodes meets it"
        )
    cache: dict[int, Needed] = {}

    def meets(nodes: int) -> bool:
        latency, interval, busy = latency_at(arrivals, nodes, batch, service, target.share, joins)
        cache[nodes] = Needed(nodes, batch, latency, interval, busy)
        return interval[1] <= target.seconds

    rate = float(np.mean([len(stream) / stream[-1] for stream in arrivals]))
    low = math.floor(rate * min(service(size) / size for size in range(1, batch + 1)))
    high = low + 1
    while not meets(min(high, most)):
        if high >= most:
            raise UserError(
                f"{most} nodes do not meet {target.seconds:g} s for {target.share:.0%} of the requests; "
                "raise max_nodes, or lower the rate"
            )
        low, high = high, 2 * high
    high = min(high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if meets(middle) else (middle, high)
    return cache[high]


def nodes_for_queue(requests: float, window: float, service: Service, utilisation: float) -> float:
    """Nodes, a fraction counted, that work off `requests` in a window of seconds at the best batch size."""
    return requests * service(service.best) / service.best / (window * utilisation)

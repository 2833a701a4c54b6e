"""`python -m evals fleet CONFIG`: the nodes each paradigm needs for a stream of requests, and as its split changes.

A share of the requests can wait and is worked off in a window at the best batch size; the others have a latency target,
and the nodes they need are found by simulation. The figure runs the share from 0 to 1.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import matplotlib
import numpy as np
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from evals.fleet import Needed, Service, Target, bursts, nodes_for_queue, nodes_needed, poisson
from evals.records import make_record, read_record, save_record
from mdlm.command import unknown
from mdlm.config_file import parse_config
from mdlm.errors import UserError

matplotlib.use("Agg")
from matplotlib import pyplot

HOUR = 3600.0


@dataclass(frozen=True)
class Arrivals:
    """How requests come. `bursts` switches between quiet and busy phases of exponential length."""

    kind: Literal["poisson", "bursts", "log"] = "poisson"
    per_hour: float = 3600.0
    """Mean over the time there are any; of a log, what its gaps are scaled to, 0 for as they are."""
    burst_factor: float = 10.0
    quiet_seconds: float = 600.0
    burst_seconds: float = 60.0
    file: str = ""
    """Of a log: one time a line, in seconds or as an ISO date."""

    def __post_init__(self) -> None:
        for name in ("burst_factor", "quiet_seconds", "burst_seconds"):
            if not 0 < getattr(self, name) < math.inf:
                raise UserError(f"arrivals.{name} is {getattr(self, name):g}; it must be above 0")
        if not (0 < self.per_hour < math.inf or (self.kind == "log" and self.per_hour == 0)):
            raise UserError(f"arrivals.per_hour is {self.per_hour:g}; it must be above 0")


@dataclass(frozen=True)
class Paradigm:
    """Seconds of a request on one node by the rows beside it, stated or from a throughput record."""

    seconds: dict[int, float] = field(default_factory=dict)
    throughput: str = ""
    """A record of `python -m evals throughput`; documents are its prompts."""
    way: str = ""
    """Which of the record's ways."""
    source: str = ""
    """Where stated seconds come from."""
    joins: bool = True
    """Whether a request may join rows under way; else a batch ends before the next begins."""

    def service(self) -> Service:
        if bool(self.seconds) == bool(self.throughput):
            raise UserError("give either seconds by batch size or a throughput record")
        if self.seconds:
            if not self.source:
                raise UserError("stated seconds need their source")
            return Service({int(size): float(value) for size, value in self.seconds.items()})
        record = read_record(self.throughput)
        known = list(dict.fromkeys(cell["way"] for cell in record["result"]["cells"]))
        if self.way not in known:
            raise unknown("way", self.way, known)
        prompts = record["settings"]["prompts"]
        of_way = [cell for cell in record["result"]["cells"] if cell["way"] == self.way]
        return Service({cell["batch"]: cell["seconds"]["median"] * cell["batch"] / prompts for cell in of_way})


@dataclass(frozen=True)
class FleetConfig:
    """The nodes that each paradigm needs, by simulation."""

    arrivals: Arrivals
    paradigms: dict[str, Paradigm]
    """The first is what the others' saving is taken to."""
    target_share: float = 0.95
    target_seconds: float = 1.0
    batchable: float = 0.5
    """Share of the requests that can wait."""
    window_hours: float = 8.0
    """In which a day's requests that can wait are worked off."""
    utilisation: float = 0.9
    """Share of the window that nodes are busy with them."""
    requests: int = 5000
    """Simulated in each stream."""
    seeds: int = 3
    max_nodes: int = 1024
    steps: int = 10
    """Into which the figure divides the split."""
    output: str = "runs/fleet"

    def __post_init__(self) -> None:
        for name, low, high in (("batchable", 0, 1), ("utilisation", 0, 1)):
            if not low <= getattr(self, name) <= high or (name == "utilisation" and not self.utilisation):
                raise UserError(f"{name} is {getattr(self, name):g}; it is a share, from 0 to 1")
        for name in ("window_hours", "requests", "seeds", "max_nodes", "steps"):
            if not 0 < getattr(self, name) < math.inf:
                raise UserError(f"{name} is {getattr(self, name):g}; it must be above 0")
        if not self.paradigms:
            raise UserError("paradigms is empty; name at least one")
        Target(self.target_share, self.target_seconds)


def main(argv: list[str]) -> int:
    flags = {"json": "end with one JSON line on stdout"}
    config, options = parse_config(FleetConfig, argv, prog="python -m evals fleet", flags=flags)
    services = {}
    for name, paradigm in config.paradigms.items():
        try:
            services[name] = paradigm.service()
        except UserError as error:
            raise UserError(f"paradigm {name}: {error}") from None
    streams = _streams(config)
    shares = sorted({config.batchable, *(step / config.steps for step in range(config.steps + 1))})
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeRemainingColumn())
    rows = []
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("splits", total=len(shares) * len(services))
        for share in shares:
            row: dict[str, Any] = {"batchable": share}
            for name, service in services.items():
                row[name] = _of_split(share, service, config.paradigms[name].joins, streams, config)
                progress.advance(task)
            rows.append(row)
    first = next(iter(services))
    for row in rows:
        row["saved"] = {name: 1 - row[name]["total"] / row[first]["total"] for name in services if name != first}
    settings = asdict(config) | {"service_seconds": {name: service.seconds for name, service in services.items()}}
    record = make_record("fleet", settings, {"splits": rows})
    folder = Path(config.output)
    save_record(folder / "fleet.json", record)
    draw(record, folder / "fleet.png")
    if options.json:
        print(json.dumps(record, allow_nan=False))
    else:
        print_result(record, Console(width=None if sys.stdout.isatty() else 120))
    return 0


def _streams(config: FleetConfig) -> list[np.ndarray]:
    """Arrival times of all requests at the whole rate, one stream a seed; of a log the one there is."""
    arrivals, rate = config.arrivals, config.arrivals.per_hour / HOUR
    if arrivals.kind == "log":
        return [read_log(Path(arrivals.file), arrivals.per_hour)]
    if arrivals.kind == "poisson":
        return [poisson(rate, config.requests, seed) for seed in range(config.seeds)]
    phases = (arrivals.burst_factor, arrivals.quiet_seconds, arrivals.burst_seconds)
    return [bursts(rate, *phases, config.requests, seed) for seed in range(config.seeds)]


def read_log(path: Path, per_hour: float) -> np.ndarray:
    """Arrival times of a log from 0 on, its gaps scaled to a mean rate (0: as they are)."""
    try:
        lines = [line.strip() for line in path.read_text().splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    times = []
    for number, line in enumerate(lines, 1):
        try:
            times.append(float(line))
        except ValueError:
            try:
                times.append(datetime.fromisoformat(line).timestamp())
            except ValueError:
                raise UserError(f"{path}, line {number}: {line[:40]!r} is neither seconds nor an ISO date") from None
    found = np.sort(np.array(times))
    if len(found) < 2 or found[-1] == found[0] or not np.isfinite(found).all():
        raise UserError(f"{path} must hold at least two different times")
    found -= found[0]
    return found * ((len(found) - 1) / found[-1] * HOUR / per_hour) if per_hour else found


def _of_split(
    share: float, service: Service, joins: bool, streams: list[np.ndarray], config: FleetConfig
) -> dict[str, Any]:
    """Nodes for both kinds. A split thins every stream: each request is one that can wait with probability `share`."""
    target = Target(config.target_share, config.target_seconds)
    thinned = [
        stream[np.random.default_rng([seed, 3]).uniform(size=len(stream)) >= share]
        for seed, stream in enumerate(streams)
    ]
    found: Needed | None = None
    if all(len(stream) for stream in thinned):
        found = nodes_needed(thinned, service, target, config.max_nodes, joins=joins)
    rates = [len(stream) / stream[-1] for stream in streams]
    waiting = share * float(np.mean(rates)) * 24 * HOUR
    queue = nodes_for_queue(waiting, config.window_hours * HOUR, service, config.utilisation)
    return {
        "latency_bound": found and asdict(found),
        "queue": queue,
        "queue_batch": service.best,
        "total": (found.nodes if found else 0) + queue,
    }


def print_result(record: dict[str, Any], console: Console) -> None:
    settings, rows = record["settings"], record["result"]["splits"]
    names = list(settings["paradigms"])
    table = Table(box=box.SIMPLE_HEAD, title_justify="left", title=(
        f"nodes; {settings['target_share']:.0%} of what cannot wait within {settings['target_seconds']:g} s"
    ))  # fmt: skip
    table.add_column("can wait", justify="right")
    for name in names:
        for column in (f"{name}: now", "latency, s", "busy", "queue", "in all"):
            table.add_column(column, justify="right")
    for name in names[1:]:
        table.add_column(f"{name} saves", justify="right")
    for row in rows:
        cells = []
        for name in names:
            now = row[name]["latency_bound"]
            cells += ["—"] * 3 if not now else [f"{now['nodes']}", f"{now['latency']:.2f}", f"{now['busy']:.0%}"]
            cells += [f"{row[name]['queue']:.1f}", f"{row[name]['total']:.1f}"]
        mark = "*" if row["batchable"] == settings["batchable"] else ""
        table.add_row(f"{row['batchable']:.0%}{mark}", *cells, *(f"{row['saved'][name]:.0%}" for name in names[1:]))
    console.print(table)
    console.print("* the given split; latency at the target's share, mean of the streams", highlight=False)


def draw(record: dict[str, Any], path: Path) -> None:
    """Nodes of each paradigm, and what the others save over the first, as the split runs from 0 to 1."""
    settings, rows = record["settings"], record["result"]["splits"]
    names, shares = list(settings["paradigms"]), [row["batchable"] for row in rows]
    figure, (above, below) = pyplot.subplots(2, 1, figsize=(8, 7), sharex=True, layout="constrained")
    for number, name in enumerate(names):
        above.plot(shares, [row[name]["total"] for row in rows], marker="o", ms=4, color=f"C{number}", label=name)
        if number:
            saved = [100 * row["saved"][name] for row in rows]
            below.plot(shares, saved, marker="o", ms=4, color=f"C{number}", label=f"{name} over {names[0]}")
    for axis in (above, below):
        axis.axvline(settings["batchable"], color="gray", ls=":", lw=1)
        axis.grid(alpha=0.25)
        axis.legend(frameon=False)
    above.set(ylabel="nodes", ylim=(0, None))
    below.axhline(0, color="gray", lw=1)
    below.set(ylabel="nodes saved, %", xlabel="share of the requests that can wait")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)

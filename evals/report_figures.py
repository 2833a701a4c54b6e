"""The report's figures: quality against passes with model gap and parallel gap, and against training."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import matplotlib

from evals.report_data import TWIN, Records, Row

matplotlib.use("Agg")
from matplotlib import pyplot, ticker
from matplotlib.axes import Axes

COLORS = {"autoregressive": "#444444", "masked_diffusion": "#d1495b", "block_diffusion": "#00798c"}
ONE_TOKEN = 1.3
"""Up to so many tokens a pass a setting stands for one token a pass, where only the model gap shows."""


def draw(records: Records, folder: Path) -> list[Path]:
    """Writes the figures into a folder; returns their paths."""
    return [_overview(records, folder / "quality_passes.png"), _by_task(records, folder / "tasks.png")]


def _overview(records: Records, path: Path) -> Path:
    """Exact match on dev, mean over tasks and seeds, against tokens per forward, and against training steps."""
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    _passes(left, records, records.tasks)
    for arm in records.arms:
        for seed in records.seeds:
            curve = records.curve(arm, seed, records.tasks)
            alpha = 1.0 if seed == records.seeds[0] else 0.45
            right.plot(*zip(*curve, strict=True), color=COLORS[arm], marker="o", ms=4, alpha=alpha)
    left.set_title("Quality against passes; a star marks the frozen setting", fontsize=10)
    left.legend(loc="lower left", frameon=False)
    right.set(xlabel="training steps", ylabel="answers exact, dev", xlim=(0, None), ylim=(-0.03, 1.03))
    right.set_title("Quality against training, frozen setting", fontsize=10)
    right.grid(alpha=0.25)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
    return path


def _by_task(records: Records, path: Path) -> Path:
    """The left half of the overview, task by task."""
    columns = min(3, len(records.tasks))
    rows = -(-len(records.tasks) // columns)
    size = (4 * columns, 3.2 * rows)
    figure, grid = pyplot.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    for axes, task in zip(grid.flat, records.tasks, strict=False):
        _passes(axes, records, [task])
        axes.set_title(task, fontsize=10)
    for axes in list(grid.flat)[len(records.tasks) :]:
        axes.set_visible(False)
    grid.flat[0].legend(loc="lower left", frameon=False, fontsize=8)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path


def _passes(axes: Axes, records: Records, tasks: list[str]) -> None:
    best = _one_token(records, tasks)
    for arm in records.arms:
        points = _settings(records, arm, tasks)
        x, y = [point["tokens_per_forward"] for point in points], [point["exact"] for point in points]
        axes.plot(x, y, color=COLORS[arm], marker="o", ms=4, lw=1, label=arm.replace("_", " "))
        for point in points:
            for exact in point["of_seeds"]:
                axes.plot(point["tokens_per_forward"], exact, ".", color=COLORS[arm], ms=3, alpha=0.5)
            if point["frozen"]:
                axes.plot(point["tokens_per_forward"], point["exact"], "*", ms=13, color=COLORS[arm])
        if arm != TWIN and arm in best and TWIN in best and len(tasks) == len(records.tasks):
            _mark_gaps(axes, points, best[TWIN], best[arm], COLORS[arm])
    axes.set(xscale="log", xlabel="tokens per forward pass (all passes counted)", ylabel="answers exact, dev")
    axes.xaxis.set_major_locator(ticker.FixedLocator([2.0**power for power in range(-2, 8)]))
    axes.xaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    axes.xaxis.set_minor_locator(ticker.NullLocator())
    axes.set_ylim(-0.03, 1.03)
    axes.grid(alpha=0.25)


def _mark_gaps(axes: Axes, points: list[Row], twin: Row, slowest: Row, color: str) -> None:
    """Between the twin and the slowest setting lies the model gap, from there to the frozen one the parallel gap."""
    frozen = next((point for point in points if point["frozen"]), None)
    if frozen is None:
        return
    x, middle = slowest["tokens_per_forward"], (twin["exact"] + slowest["exact"]) / 2
    arrow = {"arrowstyle": "<->", "color": color, "lw": 0.8}
    axes.annotate("", (x, slowest["exact"]), (x, twin["exact"]), arrowprops=arrow)
    axes.annotate(f" model gap {twin['exact'] - slowest['exact']:.2f}", (x, middle), fontsize=7, color=color)
    text, at = f"parallel gap {slowest['exact'] - frozen['exact']:.2f}", (frozen["tokens_per_forward"], frozen["exact"])
    axes.annotate(text, at, (0, 9), textcoords="offset points", fontsize=7, color=color, ha="center")


def _settings(records: Records, arm: str, tasks: list[str]) -> list[Row]:
    """Every setting of an arm on dev, means over tasks and seeds, fewest tokens a pass first."""
    by_name: dict[str, list[list[Row]]] = {}
    frozen = {result["setting"] for task in tasks for result in records.results(arm, task, "test-frozen").values()}
    for seed in records.seeds:
        of_task = [{result["setting"]: result for result in records.sweep(arm, seed, task)} for task in tasks]
        for name in of_task[0] if of_task else ():
            if all(name in found for found in of_task):
                by_name.setdefault(name, []).append([found[name] for found in of_task])
    points = []
    for name, of_seeds in by_name.items():
        exact = [fmean(result["exact"] for result in results) for results in of_seeds]
        results = [result for one in of_seeds for result in one]
        tokens = sum(r["kept"] for r in results) / sum(r["total_passes"] for r in results)
        points.append(
            {"exact": fmean(exact), "of_seeds": exact, "tokens_per_forward": tokens, "frozen": name in frozen}
        )
    return sorted(points, key=lambda point: point["tokens_per_forward"])


def _one_token(records: Records, tasks: list[str]) -> dict[str, Row]:
    """Each arm's slowest setting, where it keeps about one token a pass."""
    found = {arm: _settings(records, arm, tasks) for arm in records.arms}
    return {arm: points[0] for arm, points in found.items() if points and points[0]["tokens_per_forward"] < ONE_TOKEN}

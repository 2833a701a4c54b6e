"""What `python -m evals fallback` prints and draws, from its record alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from evals.selective import BINS, risk_coverage

matplotlib.use("Agg")
from matplotlib import pyplot, ticker
from matplotlib.axes import Axes

Row = dict[str, Any]
SPLITS = ("#00798c", "#d1495b", "#edae49")


def print_result(record: Row, console: Console) -> None:
    settings, result = record["settings"], record["result"]
    _print_splits(settings, result, console)
    for line in (threshold_line(settings, result), resamples_line(settings, result)):
        console.print(line, highlight=False, soft_wrap=True)
    table = Table(box=box.SIMPLE_HEAD, title="rejected rows of test fall back", title_justify="left")
    table.add_column("basis")
    table.add_column("to")
    per_1000 = ("own try", "with fallback", "fallback at once")
    for column in (*[f"{name}, per 1,000" for name in per_1000], "pays below", "seconds: mean", "rejected", "at once"):
        table.add_column(column, justify="right")
    for row in result["costs"]:
        seconds = row.get("seconds")
        times = [f"{seconds[name]:.3f}" for name in ("mean", "rejected", "at_once")] if seconds else ["—"] * 3
        costs = [f"{1000 * row[name]:.3g}" for name in ("own", "per_document", "at_once")]
        table.add_row(row["basis"], row["to"], *costs, _pays(row["break_even_rejected"]), *times)
    console.print(table)
    node, share = settings["node"], result["costs"][0]["rejected"]
    console.print(
        f"{share:.1%} of test rejected; node at {node['per_hour']:g} an hour, busy {settings['utilisation']:.0%}, "
        f"{settings['check_per_document']:g} a check. {node['source']} ({node['read']})"
        + "".join(f"; {name}: {price['source']} ({price['read']})" for name, price in settings["apis"].items()),
        highlight=False, soft_wrap=True,
    )  # fmt: skip


def _print_splits(settings: Row, result: Row, console: Console) -> None:
    title = f"{settings['arm'].replace('_', ' ')}, {settings['setting']}, on {settings['task']}"
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    columns = ("n", "exact", "calibration error", "if perfect", "mean risk", "accepted", "wrong of these, 95 %",
               "exact, rest by twin", "twin alone")  # fmt: skip
    table.add_column("split")
    for column in columns:
        table.add_column(column, justify="right")
    for name, split in result["splits"].items():
        risk = "—" if split["risk"] is None else _share(split["risk"], split["risk_interval"])
        values = (split["exact"], split["calibration_error"], split["calibration_error_if_perfect"]["mean"])
        shares = [f"{value:.3f}" for value in (*values, split["area_under_risk_coverage"])]
        both = _share(split["with_twin_exact"], split["with_twin_interval"])
        accepted, twin = f"{split['accepted']:.1%}", f"{split['twin_exact']:.3f}"
        table.add_row(name.replace("_", " "), str(split["n"]), *shares, accepted, risk, both, twin)
    console.print(table)


def threshold_line(settings: Row, result: Row) -> str:
    """What was chosen on the calibration rows, in words."""
    threshold, rows, needed = result["threshold"], result["rows_tested_on"], result["fewest_rows"]
    if not result["candidates"]:
        return (
            f"{rows} rows cannot show an error of at most {settings['error']:.1%} at {settings['level']:.0%}: "
            f"{needed} are needed; nothing is accepted. Give more with --calibrate."
        )
    if threshold["value"] is None:
        return (
            f"No threshold keeps the error at {settings['error']:.1%} with {settings['level']:.0%} confidence on "
            f"{rows} calibration rows: nothing is accepted."
        )
    return (
        f"Accepted from a confidence of {threshold['value']:.3f} on: {threshold['wrong']} of {threshold['accepted']} "
        f"accepted calibration rows wrong, so at most {threshold['upper']:.1%} at {settings['level']:.0%} (one-sided)."
    )


def resamples_line(settings: Row, result: Row) -> str:
    """How often the two rules keep the bound on resamples, in words."""
    tested, naive = result["resampled"]["tested"], result["resampled"]["naive"]
    return (
        f"On {tested['resamples']} resamples of {tested['rows']} rows the error stays within {settings['error']:.1%} "
        f"in {tested['bound_kept']:.1%} ({tested['nothing_accepted']:.1%} accept nothing, {tested['coverage']:.1%} of "
        f"rows accepted on average); choosing by the calibration rows' own errors keeps it in "
        f"{naive['bound_kept']:.1%} ({naive['coverage']:.1%} accepted)."
    )


def _share(value: float, interval: tuple[float, float]) -> str:
    return f"{value:.3f} [{interval[0]:.3f}, {interval[1]:.3f}]"


def _pays(share: float) -> str:
    return f"{share:.1%}" if share > 0 else "never"


def draw(record: Row, path: Path) -> None:
    """Left: how often an output of a confidence is right. Right: risk against coverage, with the threshold."""
    splits, error = record["result"]["splits"], record["settings"]["error"]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
    for color, (name, split) in zip(SPLITS, splits.items(), strict=False):
        confidence, correct = np.array(split["rows_confidence"]), np.array(split["rows_right"], dtype=bool)
        label = f"{name.replace('_', ' ')}, n = {split['n']}"
        _reliability(left, confidence, correct, color, label)
        coverage, risk = risk_coverage(confidence, correct)
        right.plot(coverage, risk, color=color, label=label)
        right.axhline(1 - split["exact"], color=color, lw=0.8, ls=":")
        if split["risk"] is not None:
            right.plot(split["accepted"], split["risk"], "*", color=color, ms=13, mec="white")
    left.plot([0, 1], [0, 1], color="gray", lw=0.8)
    left.set(xlabel="confidence", ylabel="share exact", xlim=(0, 1), ylim=(-0.02, 1.02))
    left.set_title("Calibration; a dot's area is its share of the rows", fontsize=10)
    right.axhline(error, color="black", lw=0.8, ls="--")
    right.annotate(f"stated bound {error:.0%}", (0.01, error), va="bottom", fontsize=8)
    right.set(
        xlabel="coverage: share of outputs accepted", ylabel="risk: share of those that are wrong", xlim=(0, 1.01)
    )
    right.set_ylim(bottom=0)
    right.set_title("Risk against coverage; a star marks the threshold, dots a useless order", fontsize=10)
    for axis in (left, right):
        axis.grid(alpha=0.25)
        axis.legend(frameon=False, fontsize=8, loc="upper left" if axis is left else "best")
    right.xaxis.set_major_formatter(ticker.PercentFormatter(1.0))
    right.yaxis.set_major_formatter(ticker.PercentFormatter(1.0))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _reliability(axis: Axes, confidence: np.ndarray, correct: np.ndarray, color: str, label: str) -> None:
    which = np.minimum((confidence * BINS).astype(int), BINS - 1)
    for number in range(BINS):
        inside = which == number
        if inside.any():
            size = 12 + 400 * inside.mean()
            axis.scatter(confidence[inside].mean(), correct[inside].mean(), s=size, color=color, alpha=0.6, lw=0)
    axis.scatter([], [], color=color, label=label)

"""`python -m train plot RUN... --out FILE.png`: loss, learning rate and gradient norm of runs, on top of each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mdlm.command import CommandParser
from mdlm.errors import UserError
from train.log import LOG

PANELS = {"loss": "loss, nats a token", "learning_rate": "learning rate", "gradient_norm": "gradient norm"}


def read_log(run: str | Path) -> list[dict[str, Any]]:
    """A run's log records by step. Where a resumed run logged a step again, the later record counts.

    Takes a run's folder or a log file. Raises `UserError` where there is no record.
    """
    path = Path(run) / LOG if Path(run).is_dir() else Path(run)
    if not path.is_file():
        raise UserError(f"{path}: no such log; give a run's folder, which holds {LOG}, or the file itself")
    records = {}
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        try:
            record = json.loads(line)
            records[int(record["step"])] = record
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path}:{number} is no record of a training log; mend or delete the line") from error
    if not records:
        raise UserError(f"{path} holds no record yet; the first comes after log_every steps")
    return [records[step] for step in sorted(records)]


def series(records: list[dict[str, Any]], name: str) -> tuple[list[int], list[float]]:
    """The steps at which a number was logged, and the number there."""
    found = [(record["step"], record[name]) for record in records if record.get(name) is not None]
    return [step for step, _ in found], [value for _, value in found]


def plot(argv: list[str]) -> int:
    """Draws the figure; `--json` ends with one line that says where it is."""
    parser = CommandParser(prog="python -m train plot", description=__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run's folder, or a log file")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="the figure: .png, .svg or .pdf")
    parser.add_argument("--json", action="store_true", help="end with one JSON line on stdout")
    options = parser.parse_args(argv)
    logs = {run: read_log(run) for run in options.runs}
    draw(logs, options.out)
    print(json.dumps({"figure": str(options.out)}) if options.json else f"figure: {options.out}")
    return 0


def draw(logs: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """One colour a run; its validation loss as points. Raises `UserError` without matplotlib or for another format."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError("plot needs matplotlib; pip install 'mdlm-reference[evals]'") from error
    figure = Figure(figsize=(8, 9), layout="constrained")
    panels = figure.subplots(len(PANELS), 1, sharex=True, height_ratios=[2, 1, 1])
    for index, (run, records) in enumerate(logs.items()):
        for axis, name in zip(panels, PANELS, strict=True):
            axis.plot(*series(records, name), color=f"C{index}", linewidth=1, label=run)
        panels[0].plot(*series(records, "validation_loss"), "o", color=f"C{index}", markersize=4)
    for axis, label in zip(panels, PANELS.values(), strict=True):
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
    panels[0].set_title("training loss (lines), validation loss (points)")
    panels[0].legend()
    panels[-1].set_xlabel("step")
    panels[-1].set_yscale("log")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        figure.savefig(path, dpi=120)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from error

"""`python -m evals estimators`: what the ways to draw a NELBO's samples cost in standard error, on one model and file.

Every way sees the same rows and as many canvases; it is repeated under other seeds, and the spread of its repeats is
its error. That does not rest on any estimator's own opinion of its error, which is shown beside it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy.stats import f as f_distribution

from evals.likelihood import row_layout, scored_rows
from evals.machine import DTYPES
from evals.records import make_record, save_record
from mdlm.checkpoint import load_checkpoint, resolve_checkpoint
from mdlm.command import CommandParser
from mdlm.cpu import keep_large_buffers
from mdlm.errors import UserError
from mdlm.likelihood import nelbo
from train.batches import BatchSource
from train.data import open_dataset, prepare


@dataclass(frozen=True)
class Way:
    """One way to draw samples."""

    schedule: str | None
    independent: bool

    @property
    def name(self) -> str:
        """In words."""
        drawn = "counts" if self.schedule is None else f"times, {self.schedule}"
        return f"{'independent' if self.independent else 'stratified'} {drawn}"


WAYS = [Way(schedule, independent) for schedule in ("linear", "cosine", None) for independent in (True, False)]
"""The first, independent times under the linear schedule, is what the others are compared with."""


def main(argv: list[str]) -> int:
    options = _parse(argv)
    keep_large_buffers()
    folder = resolve_checkpoint(options.checkpoint)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, tokenizer = load_checkpoint(folder, dtype=DTYPES[options.dtype], device=device)
    lengths, end = row_layout(folder, model)
    with tempfile.TemporaryDirectory() as temporary:
        manifest = prepare(options.data, Path(temporary) / "data", tokenizer, **lengths)
        dataset = open_dataset(Path(temporary) / "data")
        source = BatchSource(dataset, model.config, batch_size=1, seed=0, supervised_end=end)
        tokens_BL, rows = scored_rows(model, source, list(range(min(options.rows, len(dataset)))))
    made: dict[Way, list[tuple[float, float]]] = {}
    work = [(way, seed) for way in WAYS for seed in range(options.repeats)]
    for way, seed in track(work, "repeats", console=Console(stderr=True), transient=True):
        estimate = nelbo(model, tokens_BL, schedule=way.schedule, num_samples=options.samples, seed=seed,
                         independent=way.independent, **rows)  # fmt: skip
        made.setdefault(way, []).append((estimate.nats_per_token, estimate.standard_error))
    settings = {"checkpoint": str(folder), "data": manifest.summary(), "rows": len(tokens_BL), "dtype": options.dtype,
                "samples": options.samples, "repeats": options.repeats, "bound": estimate.bound}  # fmt: skip
    record = make_record("estimators", settings, [asdict(way) | summarise(made, way) for way in made])
    if options.out:
        save_record(options.out, record)
    if options.json:
        print(json.dumps(record, allow_nan=False))
    else:
        print_result(record, Console(width=None if sys.stdout.isatty() else 140))
    return 0


def summarise(made: dict[Way, list[tuple[float, float]]], way: Way) -> dict[str, Any]:
    """Mean and spread of a way's repeats, and its error against independent times, with a 95 % interval.

    The interval is that of a ratio of two standard deviations of normal samples (F distribution).
    """
    values, stated = torch.tensor(made[way], dtype=torch.float64).T
    reference = torch.tensor(made[WAYS[0]], dtype=torch.float64)[:, 0]
    ratio, freedom = float(reference.std() / values.std()), len(values) - 1
    low, high = (float(f_distribution.ppf(q, freedom, freedom)) ** 0.5 for q in (0.025, 0.975))
    return {
        "name": way.name,
        "nats_per_token": float(values.mean()),
        "standard_error": float(values.std()),
        "stated_standard_error": float(stated.square().mean().sqrt()),
        "smaller_than_independent_times": ratio,
        "interval": None if way == WAYS[0] else (ratio / high, ratio / low),
    }


def print_result(record: dict[str, Any], console: Console) -> None:
    """The ways as a table."""
    settings = record["settings"]
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("samples are", "nats/token", "standard error", "as stated", "smaller than independent times by"):
        table.add_column(column, justify="left" if column == "samples are" else "right")
    for way in record["result"]:
        interval = way["interval"]
        smaller = f"{way['smaller_than_independent_times']:.2f}×"
        table.add_row(way["name"], *(f"{way[k]:.5f}" for k in ("nats_per_token", "standard_error",
                      "stated_standard_error")), smaller + (f" [{interval[0]:.2f}, {interval[1]:.2f}]" if interval
                      else ""))  # fmt: skip
    console.print(table)
    console.print(f"{settings['bound']}, {settings['rows']} rows, {settings['samples']} canvases a row, "
                  f"{settings['repeats']} repeats of each way; {settings['data']}", highlight=False)  # fmt: skip


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = CommandParser("python -m evals estimators", description="Compares ways to draw a NELBO's samples.")
    parser.add_argument("--checkpoint", required=True, type=Path, help="of a diffusion model")
    parser.add_argument("--data", required=True, type=Path, help="what training reads")
    parser.add_argument("--rows", type=int, default=16, help="the first rows of it (16)")
    parser.add_argument("--samples", type=int, default=128, help="canvases for each row (128)")
    parser.add_argument("--repeats", type=int, default=30, help="of each way, under other seeds (30)")
    parser.add_argument("--dtype", choices=list(DTYPES), default="fp32", help="of the weights")
    parser.add_argument("--out", type=Path, help="write the record to this file")
    parser.add_argument("--json", action="store_true", help="print the record as one JSON line")
    options = parser.parse_args(argv)
    for name, least in (("rows", 1), ("samples", 1), ("repeats", 2)):
        if getattr(options, name) < least:
            raise UserError(f"--{name} {getattr(options, name)}: it must be at least {least}")
    return options

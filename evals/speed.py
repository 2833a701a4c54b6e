"""`python -m evals speed`: a training step, a cached pass and the decoders, timed against each other on this machine.

All sides of a comparison run in this process, in turn, so that what counts are ratios; eager stands beside compiled
everywhere, and the machine's floor is measured in the same run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from evals.machine import DTYPES
from evals.records import make_record, save_record
from evals.speed_parts import (
    ASKED_SHAPES,
    SHAPES,
    Session,
    measure_decode,
    measure_pass,
    measure_training,
    model_config,
)
from evals.speed_twin import measure_twin, twin_table
from mdlm.command import CommandParser
from mdlm.config import OBJECTIVES
from mdlm.cpu import keep_large_buffers
from mdlm.errors import UserError

PARTS: dict[str, Callable[[str, Session], dict[str, Any]]] = {
    "pass": measure_pass,
    "decode": measure_decode,
    "twin": measure_twin,
    "training": measure_training,
}
LEAST_REPEATS = 5
"""Fewer are for orientation only."""


def main(argv: list[str]) -> int:
    options = _parse(argv)
    keep_large_buffers()
    torch.set_num_threads(options.threads)
    shapes = {part: options.shape or ASKED_SHAPES[part] for part in PARTS if part in (options.part or PARTS)}
    record = make_record("speed", _settings(options, shapes), _measure(options, shapes))
    if options.out:
        save_record(options.out, record)
    if options.json:
        print(json.dumps(record, allow_nan=False))
    else:
        print_record(record, Console(width=None if sys.stdout.isatty() else 120))
    return 0


def _parse(argv: list[str]) -> argparse.Namespace:
    cuda = torch.cuda.is_available()
    defaults = "; ".join(f"{' '.join(shapes)} for {part}" for part, shapes in ASKED_SHAPES.items())
    parser = CommandParser("python -m evals speed", description="Times training, a cached pass and the decoders.")
    parser.add_argument("--part", nargs="+", choices=list(PARTS), help="only these parts")
    parser.add_argument("--shape", nargs="+", choices=list(SHAPES), help=f"of the model; default: {defaults}")
    parser.add_argument("--dtype", choices=list(DTYPES), default="bf16", help="of weights, and of autocast in training")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if cuda else "cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of the CPU")
    parser.add_argument("--repeats", type=int, default=9, help=f"of each measurement, {LEAST_REPEATS} or more")
    parser.add_argument("--batch-size", type=int, default=32, help="rows of a training step")
    parser.add_argument("--seed", type=int, default=0, help="of weights and tokens")
    parser.add_argument("--objective", nargs="+", choices=OBJECTIVES, default=OBJECTIVES, help="those to train")
    parser.add_argument("--eager", action="store_true", help="leave the compiled sides out")
    parser.add_argument("--out", type=Path, help="write the record to this file")
    parser.add_argument("--json", action="store_true", help="print the record as one JSON line")
    options = parser.parse_args(argv)
    for name in ("threads", "repeats", "batch_size"):
        if getattr(options, name) < 1:
            raise UserError(f"--{name.replace('_', '-')} {getattr(options, name)}: it must be at least 1")
    if options.out and options.out.is_dir():
        raise UserError(f"--out {options.out}: this is a folder; give the name of a file to write")
    if options.device == "cuda" and not cuda:
        raise UserError("--device cuda: torch finds no GPU here; leave it out to measure the CPU")
    return options


def _settings(options: argparse.Namespace, shapes: dict[str, Sequence[str]]) -> dict[str, Any]:
    return {
        "shapes": shapes,
        "config": {shape: model_config(shape).to_dict() for of_part in shapes.values() for shape in of_part},
        "dtype": options.dtype,
        "device": options.device,
        "threads": options.threads,
        "compile": None if options.eager else {"dynamic": False, "mode": "default"},
        "repeats": options.repeats,
        "batch_size": options.batch_size,
        "seed": options.seed,
        "objectives": options.objective,
        "token_rule": "training: all tokens of the rows; decoding: the answer up to and without its end token",
    }


def _measure(options: argparse.Namespace, shapes: dict[str, Sequence[str]]) -> dict[str, Any]:
    """Part -> shape -> what was measured."""
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.completed} timed calls"))
    modes = ("eager",) if options.eager else ("eager", "compiled")
    result: dict[str, dict[str, Any]] = {part: {} for part in shapes}
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as progress:
        for part, shape in [(part, shape) for part, of_part in shapes.items() for shape in of_part]:
            task = progress.add_task(f"{part}, {shape}", total=None)
            session = Session(
                dtype=options.dtype,
                device=options.device,
                repeats=options.repeats,
                batch_size=options.batch_size,
                modes=modes,
                seed=options.seed,
                objectives=options.objective,
                advance=partial(progress.advance, task),
            )
            result[part][shape] = PARTS[part](shape, session)
            progress.update(task, total=progress.tasks[task].completed)
    return result


def print_record(record: dict[str, Any], console: Console) -> None:
    """Draws a record's tables: targets first, then what stands behind them."""
    settings, result, machine = record["settings"], record["result"], record["machine"]
    console.print(
        f"{machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads, {machine['gpu'] or 'no GPU'}; "
        f"torch {machine['torch']}, {settings['dtype']}, {settings['repeats']} repeats"
    )
    if settings["repeats"] < LEAST_REPEATS:
        console.print(f"[yellow]fewer than {LEAST_REPEATS} repeats: for orientation only[/yellow]")
    measured = [(part, shape, one) for part, of_part in result.items() for shape, one in of_part.items()]
    if checks := [entry for _, _, one in measured for entry in one["checks"]]:
        console.print(_checks_table(checks))
    tables = {"pass": _pass_table, "decode": _decode_table, "twin": twin_table, "training": _training_table}
    for part, shape, one in measured:
        console.print(tables[part](one, shape))


def _checks_table(checks: list[dict[str, Any]]) -> Table:
    table = _table("asked and measured", "what", "asked", "median", "95 % interval", "p90", "verdict")
    verdicts = {True: "[green]met[/green]", False: "[red]missed[/red]"}
    for entry in checks:
        measured = entry["measured"]
        interval = "[{:.2f}, {:.2f}]".format(*measured["interval"]) if measured["interval"] else "needs 6 repeats"
        table.add_row(
            entry["what"],
            f"{entry['relation']} {entry['asked']:g}",
            f"{measured['median']:.3f}",
            interval.replace("[", r"\["),
            f"{measured['p90']:.3f}",
            verdicts.get(entry["met"], f"asked of {', '.join(entry['of_shapes'])}"),
        )
    return table


def _pass_table(result: dict[str, Any], shape: str) -> Table:
    floor = result["floor"]
    copy, rate = floor["copy_bytes_per_second"] / 1e9, floor["flops_per_second"] / 1e9
    title = f"one cached pass, {shape}; this machine copies {copy:.1f} GB/s and multiplies {rate:,.0f} GFLOP/s"
    table = _table(title, "mode", "positions", "ms", "p90", "p99", ": 1 position", "weights GB/s", ": floor")
    for mode, curve in result["modes"].items():
        for width, entry in curve.items():
            table.add_row(
                mode,
                width,
                *(f"{1e3 * entry['seconds'][name]:.2f}" for name in ("median", "p90", "p99")),
                f"{entry['against_one_position']['median']:.2f}",
                f"{entry['weight_bytes_per_second'] / 1e9:.1f}",
                f"{entry['times_floor']:.1f}",
            )
    return table


def _decode_table(result: dict[str, Any], shape: str) -> Table:
    title = f"one stream, {shape}"
    columns = ("passes", "tokens a pass", "ms", "p90", "tokens/s", "outside trunk: loop", "whole")
    table = _table(title, "mode", "arm", *columns)
    for mode, of_mode in result["modes"].items():
        for arm, entry in of_mode["arms"].items():
            ledger, seconds, split = entry["ledger"], entry["seconds"], entry["split"]
            table.add_row(
                mode,
                arm,
                str(ledger["total_passes"]),
                f"{ledger['tokens_per_forward']:.2f}",
                *(f"{1e3 * seconds[name]:,.0f}" for name in ("median", "p90")),
                f"{entry['useful_tokens_per_second']:,.0f}",
                *(f"{100 * split[name]['median']:.1f} %" for name in ("loop_share", "whole_share")),
            )
        loop = of_mode["published_loop"]
        table.add_row(
            mode, "published loop", *[""] * 2, *(f"{1e3 * loop['seconds'][n]:,.0f}" for n in ("median", "p90"))
        )
        table.add_row(mode, "block diffusion : autoregressive", *[""] * 4, f"{of_mode['speed_ratio']['median']:.2f}")
        faster = f"{loop['ours_is_faster_by']['median']:.2f}"
        table.add_row(mode, "block diffusion : published loop", *[""] * 4, faster)
    return table


def _training_table(result: dict[str, Any], shape: str) -> Table:
    title = f"one training step of {result['tokens_a_step']:,} tokens, {shape}"
    table = _table(title, "objective", "mode", "ms", "p90", "tokens/s", ": eager", "first call, s")
    for objective, measured in result["objectives"].items():
        for mode, entry in measured["modes"].items():
            seconds, speedup = entry["seconds"], measured["speedup"] if mode == "compiled" else None
            table.add_row(
                objective,
                mode,
                *(f"{1e3 * seconds[name]:,.0f}" for name in ("median", "p90")),
                f"{entry['tokens_per_second']:,.0f}",
                f"{speedup['median']:.2f}" if speedup else "",
                f"{seconds['first_call']:.1f}",
            )
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    texts = ("what", "mode", "arm", "objective", "asked", "verdict")
    for column in columns:
        table.add_column(column, justify="left" if column in texts else "right")
    return table

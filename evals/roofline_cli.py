"""`python -m evals roofline`: what the passes cost on a machine by their shapes, and where diffusion's lead ends.

Predictions are for a machine by its data sheet or for this one by ceilings measured in the same run; with `--measure`
this machine's passes and decoders stand beside them.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from evals.ceilings import measured_machine, named_machine
from evals.machine import DTYPES, measure_floor
from evals.records import make_record, save_record
from evals.roofline import RATIOS, Precision, Workload, at_ratios
from evals.roofline_figures import draw
from evals.roofline_measure import measure_ratios, measure_sweep
from evals.roofline_report import WITHIN, compare, compare_answers, predict
from evals.roofline_tables import print_result
from evals.speed_parts import ANSWER, BLOCK, PASSES, PROMPT, SHAPES, Session
from mdlm.command import CommandParser
from mdlm.config import ModelConfig
from mdlm.cpu import keep_large_buffers
from mdlm.errors import UserError

BATCHES = (1, 2, 4, 8, 16, 32, 64)
LARGE: dict[str, dict[str, Any]] = {
    "8b": {"vocab_size": 151_936, "dim": 4096, "layers": 36, "heads": 32, "kv_heads": 8, "head_dim": 128,
           "hidden_dim": 12_288, "tie_embeddings": False},
}  # fmt: skip
"""Shapes that are only predicted; this one is Qwen3-8B's (2505.09388)."""
PARTS = ["passes", "answers"]
"""What `--measure` times: single passes by batch size, and whole answers, prefill included, by ratio."""


def main(argv: list[str]) -> int:
    options = _parse(argv)
    keep_large_buffers()
    torch.set_num_threads(options.threads)
    works = {shape: _workload(shape, options) for shape in options.shape}
    splits = {shape: at_ratios(work, options.total) for shape, work in works.items()}
    machine = None if options.machine == "this" else named_machine(options.machine)
    if machine:
        machine.flops(options.dtype)
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn())
    result = {}
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        for shape, work in works.items():
            floor = {} if machine else _floor(work, options)
            against = machine or measured_machine(floor, options.dtype)
            inputs = {"dtype": options.dtype, "tokens": options.tokens_per_forward, "batches": options.batch}
            result[shape] = {"floor": floor, **predict(work, splits[shape], against, **inputs)}
            if options.measure:
                sides = {"passes": 2 * len(options.batch), "answers": 3 * len(splits[shape])}
                calls = (2 + options.repeats) * sum(sides[part] for part in set(options.part))
                task = progress.add_task(f"{' and '.join(options.part)}, {shape}", total=calls)
                session = _session(options, partial(progress.advance, task))
                if "passes" in options.part:
                    sweep = measure_sweep(work, options.batch, options.tokens_per_forward, session)
                    compare(result[shape], work, sweep, options.dtype)
                if "answers" in options.part:
                    first = options.batch[0]
                    answers = measure_ratios(splits[shape], first, options.tokens_per_forward, session)
                    compare_answers(result[shape], answers, first)
    record = make_record("roofline", _settings(options, works), result)
    if options.out:
        save_record(options.out / "roofline.json", record)
        draw(record, options.out)
    if options.json:
        print(json.dumps(record, allow_nan=False))
    else:
        print_result(record, Console(width=None if sys.stdout.isatty() else 120))
    return 0


def _workload(shape: str, options: argparse.Namespace) -> Workload:
    itemsize = DTYPES[options.dtype].itemsize
    precision = Precision(itemsize if options.weight_bytes is None else options.weight_bytes, itemsize)
    length = max(options.prompt + options.answer, options.total)
    config = ModelConfig("block_diffusion", **{**SHAPES, **LARGE}[shape], max_length=length, block_length=options.block)
    return Workload(config, options.prompt, options.answer, options.block, precision, options.paged)


def _floor(work: Workload, options: argparse.Namespace) -> dict[str, Any]:
    """This machine's ceilings, the copy of as many bytes as a step reads: weights that fit a cache come at its pace."""
    size = max(1 << 20, int(work.step(1).total_bytes) // 8 * 8)
    return measure_floor(DTYPES[options.dtype], device=options.device, repeats=options.repeats, copy_bytes=size)


def _session(options: argparse.Namespace, advance: Any) -> Session:
    mode = "eager" if options.eager else "compiled"
    return Session(dtype=options.dtype, device=options.device, repeats=options.repeats, batch_size=1, modes=(mode,),
                   seed=options.seed, advance=advance)  # fmt: skip


def _settings(options: argparse.Namespace, works: dict[str, Workload]) -> dict[str, Any]:
    names = ("machine", "batch", "prompt", "answer", "block", "total", "tokens_per_forward", "dtype", "weight_bytes",
             "device", "threads", "repeats", "seed", "measure", "part", "paged")  # fmt: skip
    return {
        **{name: getattr(options, name) for name in names},
        "compiled": options.measure and not options.eager,
        "config": {shape: work.config.to_dict() for shape, work in works.items()},
        "ratios": RATIOS,
        "within": WITHIN,
        "token_rule": "tokens_per_forward a row for every denoising pass; answers are of full length",
    }


def _parse(argv: list[str]) -> argparse.Namespace:
    cuda = torch.cuda.is_available()
    parser = CommandParser("python -m evals roofline", description="FLOPs, bytes and predicted seconds of the passes.")
    parser.add_argument("--machine", default="this", help="one of configs/machines.yaml, or `this` (default): measured")
    parser.add_argument("--shape", nargs="+", choices=[*SHAPES, *LARGE], default=["30m"], help="of the model (30m)")
    parser.add_argument("--batch", nargs="+", type=int, default=list(BATCHES), help="rows decoded together")
    parser.add_argument("--prompt", type=int, default=PROMPT, help=f"its tokens ({PROMPT})")
    parser.add_argument("--answer", type=int, default=ANSWER, help=f"its tokens ({ANSWER})")
    parser.add_argument("--block", type=int, default=BLOCK, help=f"positions of a block ({BLOCK})")
    parser.add_argument("--total", type=int, help="columns that the ratios of prompt to answer divide (17 blocks)")
    parser.add_argument("--tokens-per-forward", type=float, default=BLOCK / PASSES, help="of a row; from a record")
    parser.add_argument("--dtype", choices=list(DTYPES), default="bf16", help="of the arithmetic")
    parser.add_argument("--weight-bytes", type=float, help="bytes a weight, where not those of --dtype")
    parser.add_argument(
        "--paged", action="store_true", help="the cache is read as far as a pass sees, not whole as ours"
    )
    parser.add_argument("--measure", action="store_true", help="time the same on this machine")
    parser.add_argument("--part", nargs="+", choices=PARTS, default=PARTS, help="of what is timed, only these")
    parser.add_argument("--eager", action="store_true", help="do not compile what is timed")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if cuda else "cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of the CPU")
    parser.add_argument("--repeats", type=int, default=9, help="timed rounds (9)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and tokens")
    parser.add_argument("--out", type=Path, help="a folder for record and figures")
    parser.add_argument("--json", action="store_true", help="print the record as one JSON line")
    options = parser.parse_args(argv)
    options.batch = sorted(set(options.batch))
    for name in ("batch", "prompt", "answer", "block", "threads", "repeats"):
        given = getattr(options, name)
        if min(given if isinstance(given, list) else [given]) < 1:
            raise UserError(f"--{name} {given}: it must be at least 1")
    options.total = 17 * options.block if options.total is None else options.total
    if not 0 < options.tokens_per_forward <= options.block:
        tokens = f"--tokens-per-forward {options.tokens_per_forward:g}"
        raise UserError(f"{tokens}: it must be above 0 and at most --block {options.block}")
    elsewhere = options.machine != "this" or options.weight_bytes is not None or options.paged
    if options.measure and (elsewhere or set(options.shape) & set(LARGE)):
        what = f"--machine, --weight-bytes, --paged, and the shape {', '.join(LARGE)}"
        raise UserError(f"--measure times this machine as it decodes: leave out {what}")
    if options.device == "cuda" and not cuda:
        raise UserError("--device cuda: torch finds no GPU here; leave it out to measure the CPU")
    return options

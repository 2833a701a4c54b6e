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

from evals.ceilings import Machine, measured_machine, named_machine
from evals.machine import DTYPES, measure_floor
from evals.records import make_record, save_record
from evals.roofline import (
    RATIOS,
    Precision,
    Workload,
    at_ratios,
    closed_crossover,
    decode_seconds,
    predicted_crossover,
    speedup,
    stops_paying,
)
from evals.roofline_figures import draw
from evals.roofline_measure import BLOCK_PASS, STEP, measure_ratios, measure_sweep
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
WITHIN = 0.25
"""How far the measured crossover may be from the predicted one."""
MOST_COMPILED = 256
"""Shapes one function may be compiled for; past torch's own limit of 8 the later ones would be eager."""


def main(argv: list[str]) -> int:
    options = _parse(argv)
    keep_large_buffers()
    torch.set_num_threads(options.threads)
    works = {shape: _workload(shape, options) for shape in options.shape}
    splits = {shape: at_ratios(work.config, options.total, work.block, work.precision) for shape, work in works.items()}
    machine = None if options.machine == "this" else named_machine(options.machine)
    if machine:
        machine.flops(options.dtype)
    limits: dict[str, Any] = {"recompile_limit": MOST_COMPILED, "accumulated_recompile_limit": 8 * MOST_COMPILED}
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn())
    result = {}
    with (
        torch._dynamo.config.patch(**limits, fail_on_recompile_limit_hit=True),
        Progress(*columns, console=Console(stderr=True), transient=True) as progress,
    ):
        for shape, work in works.items():
            result[shape] = _predict(work, splits[shape], machine, options)
            if options.measure:
                sides = {"passes": 2 * len(options.batch), "answers": 3 * len(splits[shape])}
                calls = (2 + options.repeats) * sum(sides[part] for part in set(options.part))
                task = progress.add_task(f"{' and '.join(options.part)}, {shape}", total=calls)
                session = _session(options, partial(progress.advance, task))
                if "passes" in options.part:
                    _measure_passes(result[shape], work, session)
                if "answers" in options.part:
                    _measure_answers(result[shape], splits[shape], session)
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
    precision = Precision(options.weight_bytes or itemsize, itemsize)
    length = max(options.prompt + options.answer, options.total)
    config = ModelConfig("block_diffusion", **{**SHAPES, **LARGE}[shape], max_length=length, block_length=options.block)
    return Workload(config, options.prompt, options.answer, options.block, precision)


def _session(options: argparse.Namespace, advance: Any) -> Session:
    mode = "eager" if options.eager else "compiled"
    return Session(dtype=options.dtype, device=options.device, repeats=options.repeats, batch_size=1, modes=(mode,),
                   seed=options.seed, advance=advance)  # fmt: skip


def _predict(
    work: Workload, splits: dict[float, Workload], machine: Machine | None, options: argparse.Namespace
) -> dict[str, Any]:
    """Everything that follows from shapes and ceilings."""
    dtype, tokens, batches, floor = options.dtype, options.tokens_per_forward, options.batch, None
    if machine is None:
        # As many bytes as a step reads: weights that fit a cache come at its pace, not at the memory's.
        size = max(1 << 20, int(work.step(1).total_bytes) // 8 * 8)
        floor = measure_floor(DTYPES[dtype], device=options.device, repeats=options.repeats, copy_bytes=size)
        machine = measured_machine(floor, dtype)
    passes = [
        {
            "pass": kind,
            "batch": batch,
            "flops": made.total_flops,
            "bytes": made.total_bytes,
            "terms": {"flops": dict(made.flops), "bytes": dict(made.bytes)},
            "intensity": made.intensity,
            "bound_by": made.bound_by(machine, dtype),
            "predicted_seconds": made.seconds(machine, dtype),
        }
        for batch in batches
        for kind, made in work.passes(batch).items()
    ]
    closed = closed_crossover(tokens / work.block, machine.ridge(dtype), work.precision.weights)
    ratios = [_at_ratio(ratio, split, batches, tokens, machine, dtype) for ratio, split in splits.items()]
    return {
        "machine": {
            "name": machine.name,
            "bandwidth": machine.bandwidth,
            "flops_per_second": machine.flops(dtype),
            "source": machine.source,
            "dtype": dtype,
        },
        "floor": floor,
        "tokens_per_forward": tokens,
        "passes": passes,
        "speedup": [{"batch": size, "predicted": speedup(work, size, tokens, machine, dtype)} for size in batches],
        "crossover": {
            "predicted": predicted_crossover(work, tokens, machine, dtype),
            "closed_form": {"batch": closed, "why": "weights alone"},
        },
        "ratios": ratios,
        "stops_paying": {
            str(size): {
                arm: stops_paying({entry["ratio"]: entry["predicted"][str(size)][arm] for entry in ratios})
                for arm in ("block_diffusion", "masked_diffusion")
            }
            for size in batches
        },
    }


def _at_ratio(
    ratio: float, work: Workload, batches: list[int], tokens: float, machine: Machine, dtype: str
) -> dict[str, Any]:
    """Predicted end-to-end speed-ups of one split of the columns, by batch size and arm."""
    predicted = {}
    for batch in batches:
        seconds = decode_seconds(work, batch, tokens, lambda made: made.seconds(machine, dtype))
        twin = seconds.pop("autoregressive")
        predicted[str(batch)] = {arm: twin / taken for arm, taken in seconds.items()}
    return {"ratio": ratio, "prompt": work.prompt, "answer": work.answer, "predicted": predicted}


def _measure_passes(result: dict[str, Any], work: Workload, session: Session) -> None:
    """Puts what this machine takes for the passes beside its predictions, and the measured crossover beside b*."""
    tokens, dtype = result["tokens_per_forward"], session.dtype
    batches = [entry["batch"] for entry in result["speedup"]]
    sweep = measure_sweep(work, batches, tokens, session)
    for entry in result["passes"]:
        if entry["pass"] in sweep["seconds"]:
            entry["measured_seconds"] = sweep["seconds"][entry["pass"]][str(entry["batch"])]
            entry["error"] = entry["predicted_seconds"] / entry["measured_seconds"]["median"] - 1
    for entry in result["speedup"]:
        entry["measured"] = sweep["speedup"][str(entry["batch"])]
        entry["error"] = entry["predicted"] / entry["measured"]["median"] - 1
    found = result["crossover"]
    found["measured"] = sweep["crossover"]
    # The ceilings that the passes themselves reached: how much of an error comes from ceilings out of their reach.
    step, block = work.step(batches[0]), work.block_pass(batches[-1])
    pace = step.total_bytes / sweep["seconds"][STEP][str(batches[0])]["median"]
    rate = block.total_flops / sweep["seconds"][BLOCK_PASS][str(batches[-1])]["median"]
    source = f"{STEP} of batch {batches[0]}, {BLOCK_PASS} of batch {batches[-1]}"
    attained = Machine("attained", pace, {dtype: rate}, source)
    found["attained"] = predicted_crossover(work, tokens, attained, dtype)
    ceilings = result["machine"]
    result["attained"] = {
        "source": source,
        "share_of_bandwidth": pace / ceilings["bandwidth"],
        "share_of_peak": rate / ceilings["flops_per_second"],
    }
    for kind in ("predicted", "attained", "closed_form"):
        if found[kind]["batch"] and found["measured"]["batch"]:
            found[kind]["error"] = found[kind]["batch"] / found["measured"]["batch"] - 1
            found[kind]["within"] = abs(found[kind]["error"]) <= WITHIN


def _measure_answers(result: dict[str, Any], splits: dict[float, Workload], session: Session) -> None:
    """Puts the decoders' end-to-end speed-ups beside the predicted ones, at the smallest batch size."""
    batch = result["speedup"][0]["batch"]
    measured = measure_ratios(splits, batch, result["tokens_per_forward"], session)
    for entry in result["ratios"]:
        entry["measured"] = {"batch": batch, **measured[f"{entry['ratio']:g}"]}
    result["stops_paying_measured"] = {
        arm: stops_paying({entry["ratio"]: entry["measured"]["speedup"][arm]["median"] for entry in result["ratios"]})
        for arm in ("block_diffusion", "masked_diffusion")
    }


def _settings(options: argparse.Namespace, works: dict[str, Workload]) -> dict[str, Any]:
    names = ("machine", "batch", "prompt", "answer", "block", "total", "tokens_per_forward", "dtype", "weight_bytes",
             "device", "threads", "repeats", "seed", "measure", "part")  # fmt: skip
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
    options.total = options.total or 17 * options.block
    if not 0 < options.tokens_per_forward <= options.block:
        tokens = f"--tokens-per-forward {options.tokens_per_forward:g}"
        raise UserError(f"{tokens}: it must be above 0 and at most --block {options.block}")
    if options.measure and (options.machine != "this" or options.weight_bytes or set(options.shape) & set(LARGE)):
        raise UserError(f"--measure times this machine: leave out --machine, --weight-bytes, and {', '.join(LARGE)}")
    if options.device == "cuda" and not cuda:
        raise UserError("--device cuda: torch finds no GPU here; leave it out to measure the CPU")
    return options

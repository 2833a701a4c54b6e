"""`python -m evals throughput RUN`: tokens/s against the batch size, the offline side of a comparison.

One queue of prompts is decoded by every arm at every batch size: the twin with slots that are refilled as rows end, the
twin in static batches, the diffusion arms in batches with their frozen setting. All in this process, in turn.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, get_args

import matplotlib
import torch
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from evals.batching import STATIC, TWIN, Contender, measure, ways
from evals.ceilings import measured_machine
from evals.machine import DTYPES, measure_floor
from evals.records import make_record, save_record
from evals.report_figures import COLORS
from evals.roofline import closed_crossover
from evals.speed_parts import ANSWER, BLOCK, PASSES, PROMPT, SHAPES, Session, model_config
from evals.systems import GREEDY, Setting, frozen_arm
from mdlm.command import CommandParser
from mdlm.config import Objective
from mdlm.cpu import keep_large_buffers
from mdlm.errors import UserError
from sample import DenoiseConfig

matplotlib.use("Agg")
from matplotlib import pyplot

SIZES = (1, 2, 4, 8, 16, 32, 64)


def main(argv: list[str]) -> int:
    options = _parse(argv)
    keep_large_buffers()
    torch.set_num_threads(options.threads)
    contenders, prompts, quality = _of_run(options) if options.run else _of_shape(options)
    sizes = sorted(set(options.batch_size))
    if len(prompts) < sizes[-1]:
        raise UserError(f"{len(prompts)} prompts do not fill a batch of {sizes[-1]}; lower --batch-size, raise --rows")
    calls = len(sizes) * len(ways(contenders, options.compile)) * (1 + options.repeats)
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(f"decodes of {len(prompts)} prompts", total=calls)
        result = measure(contenders, prompts, sizes, repeats=options.repeats, compiled=options.compile,
                         device=options.device, advance=partial(progress.advance, task))  # fmt: skip
    _predict(result, contenders, options.device)
    record = make_record("throughput", _settings(options, contenders, prompts, quality), result)
    if options.out:
        save_record(options.out / "throughput.json", record)
        draw(record, options.out / "throughput.png")
    if options.json:
        print(json.dumps(record, allow_nan=False))
    else:
        print_result(record, Console(width=None if sys.stdout.isatty() else 120))
    return 0


def _of_run(options: argparse.Namespace) -> tuple[dict[str, Contender], list[list[int]], dict[str, Any]]:
    """The arms of a comparison with their frozen settings, prompts of a split, and how good the answers were."""
    contenders, quality, prompts = {}, {}, list[list[int]]()
    for name in COLORS:
        if name != "autoregressive" and not (options.run / f"{name}-seed{options.seed}").is_dir():
            continue
        arm, setting, of_tasks = frozen_arm(
            options.run, name, options.seed, dtype=DTYPES[options.dtype], device=options.device
        )
        contenders[name] = Contender(arm.model, setting, arm.prompt_columns, arm.response_columns)
        quality[name] = {score: fmean(result[score] for result in of_tasks) for score in ("exact", "leaf_values_right")}
        if not prompts:
            with (options.run / "data" / f"{options.split}.jsonl").open() as lines:
                rows = [json.loads(line)["prompt"] for line, _ in zip(lines, range(options.rows), strict=False)]
            prompts = [prompt for prompt in arm.encode(rows) if len(prompt) <= arm.prompt_columns]
    return contenders, prompts, quality


def _of_shape(options: argparse.Namespace) -> tuple[dict[str, Contender], list[list[int]], dict[str, Any]]:
    """Random weights of a named shape, random prompts; no answer ends before its last column."""
    session = Session(dtype=options.dtype, device=options.device, repeats=options.repeats, batch_size=1, modes=(),
                      seed=options.seed)  # fmt: skip
    per_pass = BLOCK // PASSES
    settings = {
        "autoregressive": GREEDY,
        "masked_diffusion": Setting(f"{per_pass} tokens a pass", DenoiseConfig(max_denoising_steps=ANSWER // per_pass)),
        "block_diffusion": Setting(f"{per_pass} tokens a pass", DenoiseConfig(max_denoising_steps=PASSES)),
    }
    models = {objective: session.model(model_config(options.shape, objective)) for objective in get_args(Objective)}
    lengths = torch.randint(PROMPT // 4, PROMPT + 1, (options.rows,), generator=torch.Generator().manual_seed(0))
    tokens = session.draw(models["autoregressive"].config, options.rows, PROMPT).tolist()
    prompts = [row[:length] for row, length in zip(tokens, lengths.tolist(), strict=True)]
    return {name: Contender(models[name], settings[name], PROMPT, ANSWER) for name in COLORS}, prompts, {}


def _predict(result: dict[str, Any], contenders: dict[str, Contender], device: str) -> None:
    """Puts the roofline's crossovers beside the measured ones."""
    dtype = contenders["autoregressive"].model.dtype
    result["floor"] = measure_floor(dtype, device=device)
    (name,) = (name for name, found in DTYPES.items() if found == dtype)
    ridge = measured_machine(result["floor"], name).ridge(name)
    for way, summary in result["against_queue"].items():
        rates = [cell["tokens_per_loop_position"] for cell in result["cells"] if cell["way"] == way]
        if way != STATIC and rates[0]:
            summary["predicted_batch"] = closed_crossover(rates[0], ridge, dtype.itemsize)


def _settings(
    options: argparse.Namespace, contenders: dict[str, Contender], prompts: list[list[int]], quality: dict[str, Any]
) -> dict[str, Any]:
    decoders = {
        name: {"setting": found.setting.name, "decoder": found.setting.denoise and asdict(found.setting.denoise)}
        for name, found in contenders.items()
    }
    return {
        "run": str(options.run or ""),
        "shape": options.shape or "",
        "config": {name: found.model.config.to_dict() for name, found in contenders.items()},
        "decoders": decoders,
        "quality_on_test": quality,
        "split": options.split if options.run else "",
        "prompts": len(prompts),
        "prompt_tokens": sum(map(len, prompts)),
        "dtype": options.dtype,
        "device": options.device,
        "threads": options.threads,
        "compiled": options.compile,
        "repeats": options.repeats,
        "seed": options.seed,
        "token_rule": "useful tokens: the answer up to and without its end token",
    }


def print_result(record: dict[str, Any], console: Console) -> None:
    """One row a batch size: tokens/s of every way, and the others' ratios to the twin's queue."""
    settings, result = record["settings"], record["result"]
    names = list(dict.fromkeys(cell["way"] for cell in result["cells"]))
    rates = {(cell["way"], cell["batch"]): cell for cell in result["cells"]}
    ratios = {(entry["way"], entry["batch"]): entry["to_queue"]["median"] for entry in result["ratios"]}
    table = Table(box=box.SIMPLE_HEAD, title="useful tokens/s; in brackets × the twin's queue", title_justify="left")
    table.add_column("batch", justify="right")
    for way in names:
        table.add_column(_title(way), justify="right")
    for column in ("idle: queue", "static"):
        table.add_column(column, justify="right")
    for size in sorted({cell["batch"] for cell in result["cells"]}):
        shown = [f"{rates[way, size]['tokens_per_second']:,.0f}" for way in names]
        shown = [
            text + (f" ({ratios[way, size]:.2f})" if way != TWIN else "")
            for text, way in zip(shown, names, strict=True)
        ]
        table.add_row(str(size), *shown, *(f"{rates[way, size]['idle_share']:.1%}" for way in (TWIN, STATIC)))
    console.print(table)
    for way, summary in result["against_queue"].items():
        cross, best = summary["crossover"], summary["best_to_best"]["median"]
        line = f"{_title(way)}: best batch against the queue's best, {result['best_batch'][way]} and "
        line += f"{result['best_batch'][TWIN]}: {best:.2f}"
        if way != STATIC:
            line += f"; equal at batch {cross['batch']:.1f}, " if cross["batch"] else "; crossover: "
            line += cross["why"]
        if "predicted_batch" in summary:
            line += f"; a roofline says {summary['predicted_batch']:.1f}"
        console.print(line, highlight=False, soft_wrap=True)
    if differ := max(cell["differs_from_first_batch_size"] for cell in result["cells"]):
        console.print(f"Up to {differ:.1%} of a way's texts differ between batch sizes (rounding).", highlight=False)
    quality = "; ".join(
        f"{_title(arm)} exact {found['exact']:.3f}" for arm, found in settings["quality_on_test"].items()
    )
    mode = "compiled" if settings["compiled"] else "eager"
    console.print(
        f"{settings['prompts']} prompts of {settings['run'] or 'shape ' + settings['shape']}, {settings['dtype']}, "
        f"{mode}, medians of {settings['repeats']}. {quality and 'On test: ' + quality + '.'}",
        highlight=False, soft_wrap=True,
    )  # fmt: skip


def draw(record: dict[str, Any], path: Path) -> None:
    """Tokens/s against batch size, one line a way, and where the diffusion arms stop being ahead."""
    result = record["result"]
    figure, axis = pyplot.subplots(figsize=(8, 5), layout="constrained")
    for way in dict.fromkeys(cell["way"] for cell in result["cells"]):
        cells = [cell for cell in result["cells"] if cell["way"] == way]
        color = COLORS[way.partition(",")[0]]
        sizes, rates = zip(*((cell["batch"], cell["tokens_per_second"]) for cell in cells), strict=True)
        axis.plot(sizes, rates, "--" if way == STATIC else "-", color=color, marker="o", ms=4, label=_title(way))
        crossing = result["against_queue"].get(way, {}).get("crossover", {}).get("batch")
        if crossing and way != STATIC:
            axis.axvline(crossing, color=color, ls=":", lw=1, label=f"equal at batch {crossing:.1f}")
    ticks = sorted({cell["batch"] for cell in result["cells"]})
    axis.set(xscale="log", yscale="log", xlabel="rows decoded together", ylabel="useful tokens/s")
    axis.set_xticks(ticks, map(str, ticks))
    axis.minorticks_off()
    axis.yaxis.set_major_locator(matplotlib.ticker.LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter(matplotlib.ticker.StrMethodFormatter("{x:,.0f}"))
    axis.grid(alpha=0.25)
    axis.legend(frameon=False, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _title(name: str) -> str:
    return name.replace("_", " ")


def _parse(argv: list[str]) -> argparse.Namespace:
    cuda = torch.cuda.is_available()
    parser = CommandParser("python -m evals throughput", description="Tokens/s of the arms against the batch size.")
    parser.add_argument("run", type=Path, nargs="?", help="the output folder of `python -m evals gap`")
    parser.add_argument("--shape", choices=list(SHAPES), help="instead of a run: random weights of this shape")
    parser.add_argument("--split", default="test", help="which of the run's splits (test)")
    parser.add_argument("--rows", type=int, default=192, help="prompts in the queue, the split's first (192)")
    parser.add_argument("--batch-size", nargs="+", type=int, default=list(SIZES), help="rows decoded together")
    parser.add_argument("--seed", type=int, default=0, help="of the trained arms, or of random weights")
    parser.add_argument("--dtype", choices=list(DTYPES), default="bf16", help="of the weights")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if cuda else "cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of the CPU")
    parser.add_argument("--compile", action="store_true", help="compile the passes")
    parser.add_argument("--repeats", type=int, default=5, help="timed rounds (5)")
    parser.add_argument("--out", type=Path, help="a folder for record and figure")
    parser.add_argument("--json", action="store_true", help="print the record as one JSON line")
    options = parser.parse_args(argv)
    if (options.run is None) == (options.shape is None):
        raise UserError("give either the output folder of `evals gap` or --shape")
    for name in ("rows", "repeats", "threads", "batch_size"):
        given = getattr(options, name)
        if min(given if isinstance(given, list) else [given]) < 1:
            raise UserError(f"--{name.replace('_', '-')} {given}: it must be at least 1")
    if options.run and not (options.run / "data" / f"{options.split}.jsonl").is_file():
        raise UserError(f"{options.run} has no data/{options.split}.jsonl; give the output folder of `evals gap`")
    if options.device == "cuda" and not cuda:
        raise UserError("--device cuda: torch finds no GPU here; leave it out to measure the CPU")
    return options

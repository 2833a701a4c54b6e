"""`python -m evals presets RUN`: every published sampler on the trained arms of a comparison: quality, passes, waste.

Block diffusion is decoded with its exact cache and without one, which must give the same tokens; masked diffusion on
the whole canvas and in windows of the trained block length, where approximate caches are possible too.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib
import torch
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from evals.machine import DTYPES
from evals.metrics import score_document, summarize
from evals.records import make_record, save_record
from evals.report_figures import COLORS
from evals.statistics import share_interval
from evals.systems import GREEDY, Arm, Setting
from mdlm.checkpoint import resolve_checkpoint
from mdlm.command import CommandParser
from mdlm.cpu import keep_large_buffers
from mdlm.errors import UserError
from sample.presets import PRESETS, preset

matplotlib.use("Agg")
from matplotlib import pyplot

MARKERS = {"whole canvas": "o", "blocks": "s", "blocks, cached": "^", "one token a pass": "*"}


def main(argv: list[str]) -> int:
    options = _parse(argv)
    keep_large_buffers()
    folders = {arm: found for arm in COLORS if (found := options.run / f"{arm}-seed{options.seed}").is_dir()}
    if set(folders) != set(COLORS):
        raise UserError(f"{options.run} does not hold the three arms of seed {options.seed}; run `python -m evals gap`")
    path = options.run / "data" / f"{options.split}.jsonl"
    with path.open() as lines:
        rows = [json.loads(line) for line, _ in zip(lines, range(options.rows), strict=False)]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    cells, agreement = [], {}
    for arm_name, folder in folders.items():
        arm = Arm(resolve_checkpoint(folder), dtype=DTYPES[options.dtype], device=device)
        work = list(_settings(arm, options.seed))
        for window, name, setting in track(work, arm_name, console=Console(stderr=True), transient=True):
            result, texts = _measure(arm, setting, rows, options.batch_size)
            cells.append({"arm": arm_name, "preset": name, "window": window, **result})
            if arm_name == "block_diffusion":
                assert setting.denoise is not None
                plain = Setting(name, preset(name, seed=options.seed, cache="none"))
                without, other = _measure(arm, plain, rows, options.batch_size)
                same = sum(ours == theirs for ours, theirs in zip(texts, other, strict=True)) / len(texts)
                agreement[name] = {"same_texts": same, "passes_without_cache": without["total_passes"]}
    settings = {name: getattr(options, name) for name in ("split", "dtype", "seed")}
    settings |= {"run": str(options.run), "rows": len(rows)}
    settings["presets"] = {name: asdict(chosen) for name, chosen in PRESETS.items()}
    record = make_record("presets", settings, {"cells": cells, "cache_against_none": agreement})
    if options.out:
        save_record(options.out / "presets.json", record)
        draw(record, options.out / "presets.png")
    if options.json:
        print(json.dumps(record, allow_nan=False))
    else:
        print_result(record, Console(width=None if sys.stdout.isatty() else 150))
    return 0


def _settings(arm: Arm, seed: int):
    """What an arm is decoded with: (window, preset, setting)."""
    if arm.objective == "autoregressive":
        yield "one token a pass", "greedy", GREEDY
        return
    if arm.objective == "block_diffusion":
        for name in PRESETS:
            yield "blocks, cached", name, Setting(name, preset(name, seed=seed))
        return
    for name in PRESETS:
        yield "whole canvas", name, Setting(name, preset(name, seed=seed))
    block = arm.model.config.block_length
    for name in ("llada", "fast-dllm", "entropy-bound", "klass", "wino"):
        yield "blocks", name, Setting(name, preset(name, seed=seed, block_length=block))
    for kind in ("prefix", "dual"):
        config = preset("fast-dllm", seed=seed, block_length=block, cache=kind, measure_drift=True)
        yield f"blocks, {kind} cache", "fast-dllm", Setting(f"fast-dllm {kind}", config)


def _measure(arm: Arm, setting: Setting, rows: list[dict[str, str]], size: int) -> tuple[dict[str, Any], list[str]]:
    drifts = []
    prompts = arm.encode([row["prompt"] for row in rows])
    texts, ledgers = [], []
    for first in range(0, len(rows), size):
        made = arm.generate(prompts[first : first + size], setting)
        texts += [arm.tokenizer.decode(tokens) for tokens in made.answers()]
        ledgers += made.ledger.rows()
        if made.drift:
            drifts.append(made.drift)
    scores = [score_document(text, row["response"]) for text, row in zip(texts, rows, strict=True)]
    exact = [score.exact for score in scores]
    positions = sum(drift.positions for drift in drifts)
    return {
        **summarize(scores),
        "exact_interval": share_interval(exact),
        "total_passes": fmean(ledger.total_passes for ledger in ledgers),
        "positions": fmean(sum(ledger.positions.values()) for ledger in ledgers),
        "kept": fmean(ledger.kept for ledger in ledgers),
        "thrown_away": fmean(ledger.thrown_away for ledger in ledgers),
        "tokens_per_forward": sum(x.kept for x in ledgers) / sum(x.total_passes for x in ledgers),
        "decoder": asdict(setting.denoise) if setting.denoise else None,
        "drift": {
            "kl": sum(drift.kl_sum for drift in drifts) / positions,
            "changed_share": sum(drift.changed for drift in drifts) / positions,
        }
        if positions
        else None,
    }, texts


def print_result(record: dict[str, Any], console: Console) -> None:
    """All cells as a table, and whether the exact cache was one."""
    table = Table(box=box.SIMPLE_HEAD)
    names = ("arm", "preset", "window", "exact", "leaf", "passes", "tok/pass", "positions", "kept", "thrown")
    for column in (*names, "drift: KL, changed"):
        table.add_column(column, justify="left" if column in names[:3] else "right", no_wrap=True)
    for cell in record["result"]["cells"]:
        drift = cell["drift"]
        table.add_row(
            cell["arm"], cell["preset"], cell["window"], f"{cell['exact']:.3f}", f"{cell['leaf_values_right']:.3f}",
            *(f"{cell[name]:.1f}" for name in ("total_passes",)), f"{cell['tokens_per_forward']:.2f}",
            *(f"{cell[name]:,.0f}" for name in ("positions", "kept", "thrown_away")),
            f"{drift['kl']:.4f}, {drift['changed_share']:.1%}" if drift else "—",
        )  # fmt: skip
    console.print(table)
    for name, found in record["result"]["cache_against_none"].items():
        if found["same_texts"] < 1:
            console.print(f"{name}: without the cache {1 - found['same_texts']:.1%} of the texts differ (rounding)")
    console.print(
        "thrown: tokens decoded and not kept: revoked, the end token, and all behind it. Weights in "
        f"{record['settings']['dtype']}, {record['settings']['rows']} rows of {record['settings']['split']}.",
        highlight=False,
    )


def draw(record: dict[str, Any], path: Path) -> None:
    """Leaf values and exact match against tokens per forward, one point a preset."""
    figure, axes = pyplot.subplots(1, 2, figsize=(12, 5), layout="constrained", sharex=True)
    for axis, metric, label in ((axes[0], "leaf_values_right", "leaf values right"), (axes[1], "exact", "exact")):
        for cell in record["result"]["cells"]:
            x, y, kind = cell["tokens_per_forward"], cell[metric], cell["window"]
            marker = MARKERS.get(kind, "v")
            axis.plot(x, y, marker, color=COLORS[cell["arm"]], ms=11 if marker == "*" else 6, alpha=0.85)
            note = cell["preset"] + (f" ({kind.split(', ')[1]})" if kind.endswith("x cache") or "dual" in kind else "")
            axis.annotate(note, (x, y), fontsize=7, xytext=(4, 3), textcoords="offset points")
        axis.set(xscale="log", xlabel="tokens per forward pass (all passes counted)", ylabel=label, ylim=(-0.03, 1.05))
        axis.xaxis.set_major_formatter(matplotlib.ticker.FormatStrFormatter("%g"))
        axis.xaxis.set_minor_formatter(matplotlib.ticker.FormatStrFormatter("%g"))
        axis.grid(alpha=0.25)
    for arm, color in COLORS.items():
        axes[0].plot([], [], "o", color=color, label=arm.replace("_", " "))
    for kind, marker in MARKERS.items():
        axes[0].plot([], [], marker, color="white", markeredgecolor="black", label=kind)
    axes[1].legend(*axes[0].get_legend_handles_labels(), frameon=False, fontsize=8, loc=(0.35, 0.13))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = CommandParser("python -m evals presets", description="Published samplers on the arms of a comparison.")
    parser.add_argument("run", type=Path, help="the output folder of `python -m evals gap`")
    parser.add_argument("--split", default="test", help="which of its splits (test)")
    parser.add_argument("--rows", type=int, default=100, help="the first rows of it (100)")
    parser.add_argument("--batch-size", type=int, default=50, help="rows at once")
    parser.add_argument("--seed", type=int, default=0, help="of the trained arms, and of what is drawn")
    parser.add_argument("--dtype", choices=list(DTYPES), default="fp32", help="of the weights")
    parser.add_argument("--out", type=Path, help="a folder for record and figure")
    parser.add_argument("--json", action="store_true", help="print the record as one JSON line")
    options = parser.parse_args(argv)
    for name in ("rows", "batch_size"):
        if getattr(options, name) < 1:
            raise UserError(f"--{name.replace('_', '-')} {getattr(options, name)}: it must be at least 1")
    if not (options.run / "data" / f"{options.split}.jsonl").is_file():
        raise UserError(f"{options.run} has no data/{options.split}.jsonl; give the output folder of `evals gap`")
    return options

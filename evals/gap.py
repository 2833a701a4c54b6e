"""`python -m evals gap CONFIG`: train the twins on the same data, decode both, compare, report.

Every station leaves its files in the output folder, and one that finds them there goes on behind them: an interrupted
comparison resumes, and a deleted record is computed again, alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import torch
from rich.console import Console
from rich.progress import Progress

from evals.metrics import score_document, summarize
from evals.records import read_record, write_record
from evals.report import write_report
from evals.statistics import share_interval
from evals.systems import Arm, Output, Setting, sweep
from evals.tasks import get_task
from evals.tasks_cli import write_rows
from evals.training import default_workers, train_all
from mdlm.checkpoint import checkpoints_in
from mdlm.config import Objective
from mdlm.config_file import claim_folder, parse_config
from mdlm.cpu import keep_large_buffers
from mdlm.errors import UserError
from mdlm.tokenizer import Tokenizer
from train.config import TrainConfig
from train.data import read_texts, split_jsonl

ALLOWED_LOSS = 0.01
"""How close to an arm's best on dev the frozen setting must come, in leaf values and in exact match."""


@dataclass(frozen=True)
class TaskSection:
    """Where the documents come from: a generated family, or a file that is split by row hash."""

    name: str = "kyc"
    """A task of `python -m evals tasks`; only used when `file` is empty."""
    knobs: dict[str, str] = field(default_factory=dict)
    file: str = ""
    """A JSON Lines file of prompt and response, split 80/10/10 into train, dev and test."""
    train_rows: int = 30_000
    dev_rows: int = 100
    test_rows: int = 400
    """At most so many; a file may hold fewer."""
    seed: int = 0


@dataclass(frozen=True)
class GapConfig:
    """A comparison of twins: the data, the one training budget for all arms, and how outputs are measured."""

    output: str = "runs/gap"
    task: TaskSection = field(default_factory=TaskSection)
    train: TrainConfig = field(default_factory=TrainConfig)
    """The arms' common training config; objective, seed, data files and output are set for each arm."""
    arms: tuple[Objective, ...] = ("autoregressive", "masked_diffusion", "block_diffusion")
    seeds: tuple[int, ...] = (0,)
    workers: int | None = None
    """Arms trained at once. None: one for each core of a CPU, one on a GPU."""
    dtype: Literal["bf16", "fp32"] = "bf16"
    """Of the weights while decoding, the same for all arms."""
    batch_size: int = 50
    """Rows decoded together where quality is measured; speed is measured one row at a time."""
    speed_rows: int = 8
    speed_repeats: int = 5
    speed_compiled: bool = True
    curve_checkpoints: int = 3
    """Checkpoints of each arm, the last included, whose quality the report draws against training steps."""

    def __post_init__(self) -> None:
        if "autoregressive" not in self.arms:
            raise UserError("arms has no 'autoregressive': every ratio is taken to it; add it")


def main(argv: list[str]) -> int:
    flags = {"json": "end with one JSON line on stdout"}
    config, options = parse_config(GapConfig, argv, prog="python -m evals gap", flags=flags)
    keep_large_buffers()
    console, folder = Console(stderr=True), Path(config.output)
    claim_folder(config, folder)
    splits = _write_data(config, folder / "data")
    # The slowest arm first, so that none waits for it at the end.
    order = sorted(config.arms, key=["block_diffusion", "masked_diffusion", "autoregressive"].index)
    runs = {(arm, seed): _training(config, folder, splits, arm, seed) for seed in config.seeds for arm in order}
    train_all(list(runs.values()), config.workers or default_workers())
    for (arm, seed), run in runs.items():
        for path in _evaluate(config, folder, splits, arm, seed, Path(run.output)):
            console.print(f"[dim]{path}[/dim]", soft_wrap=True)
    summary = write_report(folder)
    if options.json:
        print(json.dumps(summary))
    else:
        print((folder / "report.txt").read_text(), end="")
        console.print(f"report: {folder / 'report.md'}   figure: {folder / 'quality_passes.png'}")
    return 0


def _write_data(config: GapConfig, folder: Path) -> dict[str, Path]:
    """The splits as JSON Lines files, and the tokenizer that all arms share."""
    task = config.task
    if task.file:
        names = ("train", "dev", "test")
        splits = {name: folder / f"{name}.jsonl" for name in names}
        if not all(path.exists() for path in splits.values()):
            splits = split_jsonl(task.file, folder, names=names)
    else:
        family = get_task(task.name)
        sizes = {"train": task.train_rows, "dev": max(task.dev_rows, 256), "test": task.test_rows}
        if "unseen_templates" in family.splits:
            sizes["unseen_templates"] = task.test_rows
        splits = {name: folder / f"{name}.jsonl" for name in sizes}
        for name, rows in sizes.items():
            if not splits[name].exists():
                knobs = family.read_knobs(task.knobs)
                write_rows(splits[name], family.generate(name, rows, task.seed, knobs))
    tokenizer = folder / "tokenizer.json"
    if not tokenizer.exists():
        Tokenizer.train(read_texts(splits["train"]), config.train.data.vocab_size).save(tokenizer)
    return splits


def _training(config: GapConfig, folder: Path, splits: dict[str, Path], arm: Objective, seed: int) -> TrainConfig:
    """The training run of one arm: the common config with its objective, seed, data and folder."""
    return replace(
        config.train,
        output=str(folder / f"{arm}-seed{seed}"),
        seed=seed,
        resume="auto",
        checkpoint_every=math.ceil(config.train.steps / config.curve_checkpoints),
        keep_checkpoints=config.curve_checkpoints + 1,
        model=replace(config.train.model, objective=arm),
        data=replace(
            config.train.data,
            train=str(splits["train"]),
            validation=str(splits["dev"]),
            tokenizer=str(folder / "data" / "tokenizer.json"),
        ),
    )


def _evaluate(
    config: GapConfig, folder: Path, splits: dict[str, Path], arm: Objective, seed: int, run: Path
) -> Iterator[Path]:
    """All records of one trained arm: the dev sweep, the frozen setting on test, its speed, and its learning curve."""
    rows = {name: _read_rows(path, config, name) for name, path in splits.items() if name != "train"}
    dtype = torch.bfloat16 if config.dtype == "bf16" else torch.float32
    device = "cuda" if torch.cuda.is_available() else "cpu"
    checkpoints = checkpoints_in(run)
    last = Arm(checkpoints[-1], dtype=dtype, device=device)
    settings = sweep(arm, last.model.config.block_length, last.response_columns)

    def cell(name: str, kind: str, make) -> Path:
        path = folder / "records" / f"{arm}-seed{seed}" / f"{name}.json"
        if not path.exists():
            write_record(path, kind=kind, settings=about, result=make())
        return path

    about: dict[str, Any] = {
        "arm": arm,
        "seed": seed,
        "dtype": config.dtype,
        "device": device,
        "checkpoint": last.folder.name,
        "config": asdict(config),
        "training": json.loads((last.folder / "training.json").read_text()),
        "token_rule": "useful tokens: the answer up to and without its end token",
    }
    swept = []
    for setting in settings:
        made = cell(f"dev-{setting.name}", "quality", lambda s=setting: _quality(config, last, s, "dev", rows["dev"]))
        swept.append((setting, read_record(made)["result"]))
        yield made
    frozen = swept[_frozen([result for _, result in swept])][0]
    for name in rows:
        if name != "dev":
            yield cell(f"{name}-frozen", "quality", lambda n=name: _quality(config, last, frozen, n, rows[n]))
    prompts = [row["prompt"] for row in rows["test"][: config.speed_rows]]
    modes = {"speed-eager": False} | ({"speed-compiled": True} if config.speed_compiled else {})
    for name, compiled in modes.items():
        yield cell(
            name,
            "speed",
            lambda c=compiled: (
                {"setting": frozen.name} | last.one_stream(prompts, frozen, repeats=config.speed_repeats, compiled=c)
            ),
        )
    for checkpoint in checkpoints[:-1]:
        yield cell(
            f"curve-{checkpoint.name}",
            "curve",
            lambda c=checkpoint: _quality(config, Arm(c, dtype=dtype, device=device), frozen, "dev", rows["dev"]),
        )


def _frozen(results: list[dict[str, Any]]) -> int:
    """The setting to go on with: the fewest passes among those near the arm's best in leaf values and exact match.

    Leaf values count too: where no document is exact yet, exact match alone would call every setting equally good.
    """
    good = list(range(len(results)))
    for metric in ("leaf_values_right", "exact"):
        best = max(results[number][metric] for number in good)
        good = [number for number in good if results[number][metric] >= best - ALLOWED_LOSS]
    return min(good, key=lambda number: results[number]["total_passes"])


def _read_rows(path: Path, config: GapConfig, split: str) -> list[dict[str, str]]:
    limit = config.task.dev_rows if split == "dev" else config.task.test_rows
    with path.open() as lines:
        return [json.loads(line) for line, _ in zip(lines, range(limit), strict=False)]


def _quality(config: GapConfig, arm: Arm, setting: Setting, split: str, rows: list[dict[str, str]]) -> dict[str, Any]:
    """Scores one setting on one split: the means, the exact match's interval, the passes, and every row's result."""
    outputs: list[Output] = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(f"{arm.objective}, {setting.name}, {split}", total=len(rows))
        for output in arm.answer([row["prompt"] for row in rows], setting, config.batch_size):
            outputs.append(output)
            progress.advance(task)
    scores = [score_document(output.text, row["response"]) for output, row in zip(outputs, rows, strict=True)]
    ledgers = [output.ledger for output in outputs if output.ledger]
    exact = [score.exact for score in scores]
    total_passes = fmean(ledger.total_passes for ledger in ledgers) if ledgers else 0.0
    return {
        **summarize(scores),
        "split": split,
        "setting": setting.name,
        "decoder": asdict(setting.denoise) if setting.denoise else {"greedy": True, "cache": "exact"},
        "exact_interval": share_interval(exact),
        "too_long": len(rows) - len(ledgers),
        "total_passes": total_passes,
        "passes": {
            kind: fmean(ledger.passes[kind] for ledger in ledgers)
            for kind in (ledgers[0].passes if ledgers else ())
            if any(ledger.passes[kind] for ledger in ledgers)
        },
        "kept": fmean(ledger.kept for ledger in ledgers) if ledgers else 0.0,
        "thrown_away": fmean(ledger.thrown_away for ledger in ledgers) if ledgers else 0.0,
        "tokens_per_forward": sum(ledger.kept for ledger in ledgers) / max(1, sum(x.total_passes for x in ledgers)),
        "rows_exact": [int(flag) for flag in exact],
        "rows_cluster": [row.get("template", str(index)) for index, row in enumerate(rows)],
        "failures": [
            {"prompt": row["prompt"], "gold": row["response"], "output": output.text, "reason": score.reason}
            for row, output, score in zip(rows, outputs, scores, strict=True)
            if not score.exact
        ][:20],
    }

"""`python -m evals gap CONFIG`: train the twins on the same data, decode both, compare, report.

Every station leaves its files in the output folder, and one that finds them there goes on behind them: an interrupted
comparison resumes, and a deleted record is computed again, alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress

from evals.comparison import GapConfig, TaskSection, read_rows, trainings, write_data
from evals.gates import run_gates
from evals.metrics import summarize
from evals.records import read_record, write_record
from evals.report import write_report
from evals.statistics import share_interval
from evals.systems import Arm, Output, Setting, sweep
from evals.training import default_workers, train_all
from mdlm.checkpoint import checkpoints_in
from mdlm.config import Objective
from mdlm.config_file import claim_folder, parse_config
from mdlm.cpu import keep_large_buffers

ALLOWED_LOSS = 0.01
"""How close to an arm's best on dev the frozen setting must come, in leaf values and in exact match."""

GATE_ROWS = 2
"""Dev prompts of each task that the gates decode."""

Rows = dict[str, list[dict[str, str]]]


def main(argv: list[str]) -> int:
    flags = {"json": "end with one JSON line on stdout"}
    config, options = parse_config(GapConfig, argv, prog="python -m evals gap", flags=flags)
    keep_large_buffers()
    console, folder = Console(stderr=True), Path(config.output)
    claim_folder(config, folder)
    splits = write_data(config, folder / "data")
    runs = list(trainings(config, folder))
    train_all([run for _, _, run in runs], config.workers or default_workers())
    for arm, seed, run in runs:
        for path in Cells(config, folder, splits, arm, seed, Path(run.output)):
            console.print(f"[dim]{path}[/dim]", soft_wrap=True)
    summary = write_report(folder)
    if options.json:
        print(json.dumps(summary))
    else:
        print((folder / "report.txt").read_text(), end="")
        console.print(f"report: {folder / 'report.md'}   figure: {folder / 'quality_passes.png'}")
    return 0


class Cells:
    """All records of one trained arm; iterating computes those that are missing and yields their paths.

    They lie in `records/ARM-seedN/TASK/`: every setting on dev, the frozen one on all other splits, its speed, and its
    learning curve.
    """

    def __init__(
        self, config: GapConfig, folder: Path, splits: Sequence[str], arm: Objective, seed: int, run: Path
    ) -> None:
        self.config, self.arm = config, arm
        self.gated = seed == config.seeds[0]  # what they judge is the decoder, which all seeds share
        self.folder = folder / "records" / f"{arm}-seed{seed}"
        paths = {split: folder / "data" / f"{split}.jsonl" for split in splits if split != "train"}
        self.rows: dict[str, Rows] = {split: read_rows(config, path, split) for split, path in paths.items()}
        self.checkpoints = checkpoints_in(run)
        self.loading: dict[str, Any] = {
            "dtype": torch.bfloat16 if config.dtype == "bf16" else torch.float32,
            "device": "cuda" if torch.cuda.is_available() else "cpu",
        }
        self.last = Arm(self.checkpoints[-1], **self.loading)
        self.about: dict[str, Any] = {
            "arm": arm,
            "seed": seed,
            "dtype": config.dtype,
            "device": self.loading["device"],
            "checkpoint": self.last.folder.name,
            "config": asdict(config),
            "training": json.loads((self.last.folder / "training.json").read_text()),
            "token_rule": "useful tokens: the answer up to and without its end token",
        }

    def __iter__(self) -> Iterator[Path]:
        settings = sweep(self.arm, self.last.model.config.block_length, self.last.response_columns)
        of_setting: list[list[dict[str, Any]]] = []
        for setting in settings:
            paths = list(self._quality(f"dev-{setting.name}", self.last, setting, "dev"))
            of_setting.append([read_record(path)["result"] for path in paths])
            yield from paths
        # One setting for the arm, whatever the task.
        frozen = settings[frozen_index([_mean_over_tasks(results) for results in of_setting])]
        for split in self.rows:
            if split != "dev":
                yield from self._quality(f"{split}-frozen", self.last, frozen, split)
        if self.gated:
            yield self._gates(frozen)
        yield from self._speed(frozen)
        for checkpoint in self.checkpoints[:-1]:
            yield from self._quality(f"curve-{checkpoint.name}", checkpoint, frozen, "dev")

    def _cell(self, task: str, name: str, kind: str, make: Callable[[], Any]) -> Path:
        path = self.folder / task / f"{name}.json"
        if not path.exists():
            about = self.about | {"task": task, "group": self.config.sections[task].group}
            write_record(path, kind=kind, settings=about, result=make())
        return path

    def _quality(self, name: str, arm: Arm | Path, setting: Setting, split: str) -> Iterator[Path]:
        for task, rows in self.rows[split].items():

            def make(task: str = task, rows: list[dict[str, str]] = rows) -> dict[str, Any]:
                loaded = Arm(arm, **self.loading) if isinstance(arm, Path) else arm
                return quality(loaded, setting, split, self.config.sections[task], rows, self.config.batch_size)

            yield self._cell(task, name, "curve" if isinstance(arm, Path) else "quality", make)

    def _gates(self, frozen: Setting) -> Path:
        """The gates on the arm's frozen setting, over the first dev prompts of every task."""
        path = self.folder / "gates.json"
        if not path.exists():
            arm = Arm(self.last.folder, dtype=torch.float32, device=self.loading["device"])
            texts = [row["prompt"] for rows in self.rows["dev"].values() for row in rows[:GATE_ROWS]]
            prompts = [prompt for prompt in arm.encode(texts) if len(prompt) <= arm.prompt_columns]
            columns = (arm.prompt_columns, arm.response_columns)
            made = run_gates(arm.model, frozen, prompts, *columns, compiled=self.config.speed_compiled)
            write_record(path, kind="gates", settings=self.about, result=made)
        return path

    def _speed(self, frozen: Setting) -> Iterator[Path]:
        modes = {"speed-eager": False} | ({"speed-compiled": True} if self.config.speed_compiled else {})
        for task, rows in self.rows["test"].items():
            prompts = [row["prompt"] for row in rows[: self.config.speed_rows]]
            for name, compiled in modes.items():

                def make(prompts: list[str] = prompts, compiled: bool = compiled) -> dict[str, Any]:
                    repeats = self.config.speed_repeats
                    measured = self.last.one_stream(prompts, frozen, repeats=repeats, compiled=compiled)
                    return {"setting": frozen.name, **measured}

                yield self._cell(task, name, "speed", make)


def _mean_over_tasks(results: Sequence[dict[str, Any]]) -> dict[str, float]:
    return {name: fmean(r[name] for r in results) for name in ("leaf_values_right", "exact", "total_passes")}


def frozen_index(results: Sequence[dict[str, float]]) -> int:
    """The setting to go on with: the fewest passes among those near the arm's best in leaf values and exact match.

    Leaf values count too: where no document is exact yet, exact match alone would call every setting equally good.
    """
    good = list(range(len(results)))
    for metric in ("leaf_values_right", "exact"):
        best = max(results[number][metric] for number in good)
        good = [number for number in good if results[number][metric] >= best - ALLOWED_LOSS]
    return min(good, key=lambda number: results[number]["total_passes"])


def quality(
    arm: Arm, setting: Setting, split: str, section: TaskSection, rows: list[dict[str, str]], batch_size: int
) -> dict[str, Any]:
    """Scores one setting on one task's split: the means, exact match's interval, the passes, and every row's result."""
    outputs: list[Output] = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(f"{arm.objective}, {setting.name}, {split}", total=len(rows))
        for output in arm.answer([row["prompt"] for row in rows], setting, batch_size):
            outputs.append(output)
            progress.advance(task)
    scores = [section.score(output.text, row) for output, row in zip(outputs, rows, strict=True)]
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

"""What a comparison is: its config, its rows, and the training run of each arm."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, Literal

from evals.metrics import DocumentScore, score_document
from evals.tasks import Example, get_task
from evals.tasks.draws import shuffled
from evals.tasks_cli import write_lines
from mdlm.config import Objective
from mdlm.errors import UserError
from mdlm.tokenizer import Tokenizer
from train.config import TrainConfig
from train.data import read_texts, split_jsonl

LEAST_VALIDATION = 256
"""Dev rows that training validates on, over all tasks, where a task can make as many."""


@dataclass(frozen=True)
class TaskSection:
    """Where the rows of one task come from: a generated family, or a file that is split by row hash."""

    name: str = "kyc"
    """A task of `python -m evals tasks`; only used when `file` is empty."""
    knobs: dict[str, str] = field(default_factory=dict)
    file: str = ""
    """A JSON Lines file of prompt and response, split 80/10/10 into train, dev and test."""
    train_rows: int = 30_000
    """Rows that training sees of it. Real ones are repeated up to as many, where several tasks are trained."""
    dev_rows: int = 100
    test_rows: int = 400
    """At most so many; a file may hold fewer."""
    seed: int = 0

    @property
    def group(self) -> str:
        """structured, infill, reasoning or real: what the report takes together."""
        return "real" if self.file else get_task(self.name).group

    def score(self, output: str, row: dict[str, str]) -> DocumentScore:
        """The stages that an output reaches."""
        if self.file:
            return score_document(output, row["response"])
        task = get_task(self.name)
        example = Example(row["prompt"], row["response"], row["template"], row["split"])
        return task.score(output, example, task.read_knobs(self.knobs))


@dataclass(frozen=True)
class GapConfig:
    """A comparison of twins: the data, the one training budget for all arms, and how outputs are measured."""

    output: str = "runs/gap"
    task: TaskSection = field(default_factory=TaskSection)
    """The one task, where `tasks` is empty."""
    tasks: dict[str, TaskSection] = field(default_factory=dict)
    """Several tasks by the name the report gives them; one model of each arm learns them all."""
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
    """Of each task."""
    speed_repeats: int = 5
    speed_compiled: bool = True
    curve_checkpoints: int = 3
    """Checkpoints of each arm, the last included, whose quality the report draws against training steps."""

    def __post_init__(self) -> None:
        if "autoregressive" not in self.arms:
            raise UserError("arms has no 'autoregressive': every ratio is taken to it; add it")
        for name in self.tasks:
            if not name.replace("_", "").replace("-", "").isalnum():
                raise UserError(f"tasks has {name!r}: a name is letters, digits, - and _, for it names files")

    @property
    def sections(self) -> dict[str, TaskSection]:
        """Name -> task, one or several."""
        return self.tasks or {Path(self.task.file).stem if self.task.file else self.task.name: self.task}


def write_data(config: GapConfig, folder: Path) -> list[str]:
    """Writes `SPLIT.jsonl` with the rows of all tasks, each with its task's name, and the tokenizer all arms share.

    Returns the splits. Files that are there stay as they are.
    """
    rows: dict[str, list[dict[str, str]]] = {}
    for name, section in config.sections.items():
        for split, found in _rows_of(config, name, section, folder).items():
            rows.setdefault(split, []).extend(found)
    if len(config.sections) > 1:
        rows["train"] = shuffled(Random("order of the training rows"), rows["train"])
    for split, found in rows.items():
        if not (folder / f"{split}.jsonl").exists():
            write_lines(folder / f"{split}.jsonl", found)
    tokenizer = folder / "tokenizer.json"
    if not tokenizer.exists():
        Tokenizer.train(read_texts(folder / "train.jsonl"), config.train.data.vocab_size).save(tokenizer)
    return list(rows)


def _rows_of(config: GapConfig, name: str, section: TaskSection, folder: Path) -> dict[str, list[dict[str, str]]]:
    if section.file:
        paths = split_jsonl(section.file, folder / "files" / name, names=("train", "dev", "test"))
        rows = {
            split: [_file_row(json.loads(line), name, split) for line in path.open()] for split, path in paths.items()
        }
        return _repeated(rows, section.train_rows) if config.tasks else rows
    family = get_task(section.name)
    knobs = family.read_knobs(section.knobs)
    least = math.ceil(LEAST_VALIDATION / len(config.sections))
    sizes = {"train": section.train_rows, "dev": max(section.dev_rows, least), "test": section.test_rows}
    sizes |= {split: section.test_rows for split in family.splits if split not in sizes}
    made = {
        split: [{"task": name, **vars(example)} for example in family.generate(split, count, section.seed, knobs)]
        for split, count in sizes.items()
    }
    return _repeated(made, section.train_rows) if config.tasks else made


def _repeated(rows: dict[str, list[dict[str, str]]], count: int) -> dict[str, list[dict[str, str]]]:
    """Real rows are few: training sees them again until there are `count`."""
    return rows | {"train": [rows["train"][number % len(rows["train"])] for number in range(count)]}


def _file_row(row: dict[str, Any], name: str, split: str) -> dict[str, str]:
    kept = {key: str(row[key]) for key in ("prompt", "response", "template") if key in row}
    return {"task": name, "split": split} | kept


def read_rows(config: GapConfig, path: Path, split: str) -> dict[str, list[dict[str, str]]]:
    """The rows of one split that are measured, by task."""
    limits = {
        name: section.dev_rows if split == "dev" else section.test_rows for name, section in config.sections.items()
    }
    rows: dict[str, list[dict[str, str]]] = {}
    with path.open() as lines:
        for line in lines:
            row = json.loads(line)
            of_task = rows.setdefault(row["task"], [])
            if len(of_task) < limits[row["task"]]:
                of_task.append(row)
    return rows


def trainings(config: GapConfig, folder: Path) -> Iterator[tuple[Objective, int, TrainConfig]]:
    """The training run of every arm and seed: the common config with its objective, seed, data and folder.

    The slowest arm first, so that none waits for it at the end.
    """
    slowest_first = ("block_diffusion", "masked_diffusion", "autoregressive")
    for seed in config.seeds:
        for arm in sorted(config.arms, key=slowest_first.index):
            data = replace(
                config.train.data,
                train=str(folder / "data" / "train.jsonl"),
                validation=str(folder / "data" / "dev.jsonl"),
                tokenizer=str(folder / "data" / "tokenizer.json"),
            )
            yield (
                arm,
                seed,
                replace(
                    config.train,
                    output=str(folder / f"{arm}-seed{seed}"),
                    seed=seed,
                    resume="auto",
                    checkpoint_every=math.ceil(config.train.steps / config.curve_checkpoints),
                    keep_checkpoints=config.curve_checkpoints + 1,
                    model=replace(config.train.model, objective=arm),
                    data=data,
                ),
            )

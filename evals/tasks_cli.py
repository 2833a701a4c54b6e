"""`python -m evals tasks` and `python -m evals make-data`."""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

from evals.tasks import TASKS, Example, Task, get_task
from evals.tasks.source import SourceTask
from evals.tasks.task import allowed_text
from mdlm.command import CommandParser
from mdlm.errors import UserError


def list_tasks(argv: list[str]) -> None:
    """Prints what tasks there are."""
    parser = CommandParser("python -m evals tasks", description="Lists the tasks, with an example each.")
    parser.add_argument("name", nargs="*", help="only these tasks")
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    arguments = parser.parse_args(argv)
    tasks = [get_task(name) for name in arguments.name] or list(TASKS.values())
    if arguments.json:
        print(json.dumps([_described(task) for task in tasks]))
        return
    for task in tasks:
        example = _first_example(task)
        print(f"{task.name} ({task.group}): {task.description}")
        print(f"  splits: {', '.join(task.splits)}")
        for field in dataclasses.fields(task.knobs):
            print(f"  --set {field.name}={field.default}  {field.metadata['meaning']}; valid: {allowed_text(field)}")
        print("  example:")
        print("\n".join(f"    {line}" for line in example.prompt.splitlines()))
        print(f"    -> {example.response}\n")


def make_data(argv: list[str]) -> None:
    """Writes rows of one split of a task."""
    parser = CommandParser("python -m evals make-data", description="Writes rows of a task as JSON Lines.")
    parser.add_argument("--task", required=True, help="a name that `python -m evals tasks` lists")
    parser.add_argument("--split", default="train")
    parser.add_argument(
        "--rows",
        type=int,
        required=True,
        help="how many; fewer rows are a prefix of more rows, and real data may hold fewer",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="KNOB=VALUE", type=_setting, dest="settings")
    parser.add_argument("--out", type=Path, required=True, help="the file to write, replaced when it is there")
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    arguments = parser.parse_args(argv)
    if arguments.rows < 1:
        raise UserError(f"--rows {arguments.rows}: ask for at least one row")
    task = get_task(arguments.task)
    knobs = task.read_knobs(dict(arguments.settings))
    rows, digest = write_rows(arguments.out, task.generate(arguments.split, arguments.rows, arguments.seed, knobs))
    if arguments.json:
        made = {"task": task.name, "split": arguments.split, "rows": rows, "seed": arguments.seed}
        print(json.dumps({**made, "knobs": dataclasses.asdict(knobs), "out": str(arguments.out), "sha256": digest}))
    else:
        print(f"wrote {rows} rows to {arguments.out}")


def write_rows(path: Path, examples: Iterable[Example]) -> tuple[int, str]:
    """Writes JSON Lines of prompt, response and template; returns how many, and their SHA-256."""
    names = ("prompt", "response", "template")
    return write_lines(path, ({name: getattr(example, name) for name in names} for example in examples))


def write_lines(path: Path, rows: Iterable[dict[str, str]]) -> tuple[int, str]:
    """Writes rows as JSON Lines; returns how many, and their SHA-256.

    The file appears whole or not at all: an interrupted run leaves an older file of that name as it was.
    """
    if path.is_dir():
        raise UserError(f"{path} is a folder; give the name of a file to write")
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.unfinished")
    count, digest = 0, hashlib.sha256()
    try:
        with unfinished.open("wb") as file:
            for row in rows:
                line = (json.dumps(row, ensure_ascii=False) + "\n").encode("utf-8")
                digest.update(line)
                file.write(line)
                count += 1
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return count, digest.hexdigest()


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form KNOB=VALUE")
    return name, value


def _first_example(task: Task) -> Example:
    if isinstance(task, SourceTask):
        return task.sample  # the listing needs no file and no network
    return next(task.generate(task.splits[0], rows=1, seed=0))


def _described(task: Task) -> dict[str, object]:
    example = _first_example(task)
    knobs = {
        field.name: {"default": field.default, "valid": allowed_text(field), "meaning": field.metadata["meaning"]}
        for field in dataclasses.fields(task.knobs)
    }
    described = {"name": task.name, "group": task.group, "description": task.description, "splits": task.splits}
    return {**described, "knobs": knobs, "example": {"prompt": example.prompt, "response": example.response}}

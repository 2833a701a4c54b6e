"""A run's log: one JSON line a record in `log.jsonl`, and the same numbers to the trackers that the config names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.tracking import get_available_trackers

from mdlm.errors import UserError

LOG = "log.jsonl"
PROJECT = "mdlm-reference"
"""The project under which trackers file a run; its name there is that of its folder."""


def check_trackers(names: tuple[str, ...]) -> None:
    """Raises `UserError` for a tracker that is not installed."""
    for name in names:
        if name not in map(str, get_available_trackers()):
            raise UserError(f"trackers: {name} is not installed; pip install {name}, or leave it out")


def status_of(record: dict[str, Any]) -> str:
    """A record in a few words."""
    loss = "all steps skipped" if record["loss"] is None else f"loss {record['loss']:.3f}"
    return f"{loss}  {record['tokens_per_second']:,.0f} tok/s"


class Log:
    """Open while a run trains. Only the main process writes."""

    def __init__(self, accelerator: Accelerator, folder: Path, config: dict[str, Any]) -> None:
        self.accelerator = accelerator
        self.file = (folder / LOG).open("a") if accelerator.is_main_process else None
        if accelerator.log_with:
            options = {name: {"name": folder.name} for name in ("wandb", "trackio")}
            accelerator.init_trackers(PROJECT, dict(_flat(config)), init_kwargs=options)

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        if self.file:
            self.file.close()
        for tracker in self.accelerator.trackers:
            tracker.finish()

    def write(self, record: dict[str, Any]) -> None:
        if self.file:
            print(json.dumps(record), file=self.file, flush=True)
        if self.accelerator.log_with:
            numbers = {name: value for name, value in _flat(record) if value is not None}
            self.accelerator.log(numbers, step=record["step"])


def _flat(values: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of nested dictionaries and lists, under names like `loss_by_position/3`."""
    if isinstance(values, dict):
        items = list(values.items())
    elif isinstance(values, list | tuple):
        items = list(enumerate(values))
    else:
        yield prefix, values
        return
    for name, value in items:
        yield from _flat(value, f"{prefix}/{name}" if prefix else str(name))

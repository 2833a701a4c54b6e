"""Trains the arms of a comparison, each in a process of its own, several at once where cores are free."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from mdlm.checkpoint import checkpoints_in
from mdlm.config_file import write_config
from mdlm.errors import UserError
from train.config import TrainConfig
from train.log import status_of


@dataclass
class Job:
    """One arm's training run while it goes on."""

    config: TrainConfig
    process: subprocess.Popen[bytes]
    output: TextIO
    task: TaskID

    @property
    def folder(self) -> Path:
        return Path(self.config.output)

    def progress(self) -> tuple[int, str]:
        """The last logged step, and loss and speed in words."""
        try:
            last = json.loads((self.folder / "log.jsonl").read_text().splitlines()[-1])
        except (OSError, IndexError, ValueError):
            return 0, "preparing and compiling"
        return last["step"], status_of(last)


def is_finished(config: TrainConfig) -> bool:
    """Whether the run's last checkpoint is that of its last step."""
    found = checkpoints_in(config.output)
    return bool(found) and found[-1].name == f"step-{config.steps:07d}"


def default_workers() -> int:
    """How many arms to train at once: one for each core of a CPU, one on a GPU.

    The small matrices of a CPU-sized model gain little from a second thread; a second arm gains everything.
    """
    return 1 if torch.cuda.is_available() else max(1, len(os.sched_getaffinity(0)))


def train_all(configs: list[TrainConfig], workers: int) -> None:
    """Brings every run to its last step, resuming those begun. Each writes `train.log` in its folder.

    An interruption is passed on, so that every run saves its state; a run that fails stops the others likewise.
    """
    waiting = [config for config in configs if not is_finished(config)]
    workers = max(1, min(workers, len(waiting)))
    threads = max(1, len(os.sched_getaffinity(0)) // workers)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[status]}"),
        TimeRemainingColumn(),
    )
    running: list[Job] = []
    with Progress(*columns, console=Console(stderr=True)) as progress:
        try:
            while waiting or running:
                while waiting and len(running) < workers:
                    running.append(_start(waiting.pop(0), threads, progress))
                time.sleep(0.5)
                for job in list(running):
                    step, status = job.progress()
                    progress.update(job.task, completed=step, status=status)
                    if job.process.poll() is not None:
                        running.remove(job)
                        _check(job)
        finally:
            for job in running:
                job.process.send_signal(signal.SIGINT)
            for job in running:
                job.process.wait()


def _start(config: TrainConfig, threads: int, progress: Progress) -> Job:
    folder = Path(config.output)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "requested.yaml"
    write_config(config, path)
    output = (folder / "train.log").open("a")
    # Its own session: Ctrl-C reaches only this process, which passes it on once.
    process = subprocess.Popen(
        [sys.executable, "-m", "train", str(path)],
        stdout=output,
        stderr=output,
        env=os.environ | {"OMP_NUM_THREADS": str(threads)},
        start_new_session=True,
    )
    return Job(config, process, output, progress.add_task(config.model.objective, total=config.steps, status=""))


def _check(job: Job) -> None:
    job.output.close()
    if job.process.returncode:
        log = job.folder / "train.log"
        lines = log.read_text().strip().splitlines()
        raise UserError(f"training {job.config.model.objective} failed: {lines[-1] if lines else ''} (see {log})")

"""Kills short training runs at random moments, goes on with --resume=auto, and compares their ends bit for bit.

    python tests/kill_resume.py [--kills 50] [--objectives NAME ...] [--processes 1 2] [--seed 0] [--out FILE.json]

An arm is an objective on a number of processes (gloo). Its run is made once without interruption. Then it is made
again from nothing, SIGKILL ending all its processes at a random moment (of starting, preparing data, a step, saving;
every other time in expectation it waits for a checkpoint to be begun), and again and again, until `--kills` kills have
been made; every run that came to its end must have left the same bytes
as the uninterrupted one: weights, average, optimizer state, counters. The runs keep an average and skip spikes, so
that all there is to resume is resumed. Processes are forked with torch loaded, which spares its import.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}

import torch
import torch._dynamo  # what a run would import on its way
import torch.distributed.tensor

from mdlm.checkpoint import checkpoints_in
from mdlm.config import OBJECTIVES
from mdlm.errors import run_command
from mdlm.provenance import checkout, sha256_of
from train.__main__ import main as train

STEPS = 40
SETTINGS = {
    "steps": STEPS, "batch_size": 4, "precision": "fp32", "compile": "false", "log_every": 3, "checkpoint_every": 2,
    "validate_every": 7, "ema_decay": 0.99, "on_bad_step": "skip", "spike_window": 8, "spike_mads": 1,
    "optimizer.warmup_steps": 2, "optimizer.lr": 0.03, "optimizer.adamw_lr": 0.03,
    "data.vocab_size": 260, "data.prompt_length": 8, "data.response_length": 16, "model.dim": 16, "model.layers": 1,
    "model.heads": 2, "model.kv_heads": 1, "model.head_dim": 8, "model.hidden_dim": 24, "model.block_length": 4,
}  # fmt: skip
COMPARED = ("model.safetensors", "state/weights.safetensors", "state/optimizer.safetensors", "state/progress.json")


@dataclass
class Arm:
    """One objective on one number of processes, all its runs in one folder."""

    objective: str
    processes: int
    folder: Path
    kills: Counter[str] = field(default_factory=Counter)
    """Kills by what they interrupted: `saving` where an unfinished checkpoint was left, else `elsewhere`."""
    ends: list[bool] = field(default_factory=list)
    """For each run that was killed on its way, whether it ended as the uninterrupted one."""

    def start(self, run: Path) -> list[BaseProcess]:
        options = SETTINGS | {"output": run, "resume": "auto", "model.objective": self.objective}
        options |= {f"data.{name}": self.folder / "rows.jsonl" for name in ("train", "validation")}
        words, port = [f"--{name}={value}" for name, value in options.items()], _free_port()
        context = multiprocessing.get_context("fork")
        arguments = [(words, rank, self.processes, port, self.folder / "output.txt") for rank in range(self.processes)]
        processes: list[BaseProcess] = [context.Process(target=_one_process, args=given) for given in arguments]
        for process in processes:
            process.start()
        return processes

    def whole(self) -> tuple[dict[str, str], float]:
        """The uninterrupted run: what it left, and its seconds."""
        started = time.monotonic()
        self._finish(self.start(self.folder / "whole"))
        return left_by(self.folder / "whole"), time.monotonic() - started

    def _finish(self, processes: list[BaseProcess]) -> None:
        for process in processes:
            process.join()
        if any(process.exitcode for process in processes):
            raise SystemExit(f"a run failed: {(self.folder / 'output.txt').read_text()[-2000:]}")

    def killed(self, kills: int, chance: random.Random) -> None:
        """Runs that are killed, `kills` times in all; a life lasts up to a quarter of an uninterrupted run."""
        expected, seconds = self.whole()
        while self.kills.total() < kills:
            run = self.folder / f"run{len(self.ends)}"
            while self.kills.total() < kills:
                processes = self.start(run)
                processes[0].join(timeout=chance.uniform(0, seconds / 4))
                if chance.random() < 0.5:
                    while processes[0].is_alive() and not unfinished(run):
                        time.sleep(0.0005)
                    processes[0].join(timeout=chance.uniform(0, 0.03))
                if processes[0].exitcode is not None:
                    break
                for process in processes:
                    os.kill(process.pid, signal.SIGKILL)  # type: ignore[arg-type]
                for process in processes:
                    process.join()
                self.kills["saving" if unfinished(run) else "elsewhere"] += 1
            else:
                processes = self.start(run)
            self._finish(processes)
            self.ends.append(left_by(run) == expected)
            shutil.rmtree(run)

    def record(self, seconds: float) -> dict[str, Any]:
        return {
            "objective": self.objective,
            "processes": self.processes,
            "kills": self.kills.total(),
            "kills_while_saving": self.kills["saving"],
            "runs": len(self.ends),
            "runs_that_ended_bit_for_bit_the_same": sum(self.ends),
            "seconds": round(seconds, 1),
        }


def unfinished(run: Path) -> bool:
    """Whether a checkpoint is being written, or was when the run was killed."""
    return any(run.glob(".step-*.tmp"))


def left_by(run: Path) -> dict[str, str]:
    """What a finished run left, as SHA-256 of each file that matters."""
    last = checkpoints_in(run)[-1]
    return {"step": last.name} | {name: sha256_of(last / name) for name in COMPARED}


def _one_process(words: list[str], rank: int, processes: int, port: int, output: Path) -> None:
    if processes > 1:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(processes)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "ACCELERATE_USE_CPU": "true"}
    with output.open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    torch.set_num_threads(1)
    sys.exit(run_command(train, words))


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def kill_and_resume(objective: str, processes: int, kills: int, seed: int) -> dict[str, Any]:
    """One arm's record."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        rows = [{"prompt": f"say {number}", "response": "abc" * (1 + number % 4)} for number in range(20)]
        (Path(folder) / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        arm = Arm(objective, processes, Path(folder))
        arm.killed(kills, random.Random(f"{seed} {objective} {processes}"))
    return arm.record(time.monotonic() - started)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--objectives", nargs="+", default=OBJECTIVES, choices=OBJECTIVES)
    parser.add_argument("--processes", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    arms = []
    for processes in options.processes:
        for objective in options.objectives:
            arms.append(kill_and_resume(objective, processes, options.kills, options.seed))
            print(json.dumps(arms[-1]), flush=True)
    commit, changed = checkout()
    made = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "commit": commit, "uncommitted_changes": changed}
    made |= {"torch": torch.__version__, "seed": options.seed, "settings": SETTINGS}
    if options.out:
        options.out.write_text(json.dumps({"kind": "kill_resume", **made, "arms": arms}, indent=2) + "\n")
    return int(any(arm["runs"] != arm["runs_that_ended_bit_for_bit_the_same"] for arm in arms))


if __name__ == "__main__":
    raise SystemExit(main())

"""Oracle 19: a run that is killed and resumed ends, bit for bit, as the run that was left alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file

from mdlm.checkpoint import checkpoints_in
from mdlm.config import OBJECTIVES

STEPS, HALF = 8, 4
SHAPE = {"dim": 16, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 8, "hidden_dim": 24, "block_length": 4}


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "rows.jsonl"
    lines = [{"prompt": f"say {number}", "response": "abc" * (1 + number % 4)} for number in range(20)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def started(rows, folder, objective, *options):
    """`python -m train` of eight steps, a checkpoint after four."""
    settings = {
        "output": folder, "steps": STEPS, "batch_size": 4, "precision": "fp32", "compile": "false", "log_every": 1,
        "checkpoint_every": HALF, "model.objective": objective, "data.train": rows, "data.vocab_size": 260,
        "data.prompt_length": 8, "data.response_length": 16, "keep_checkpoints": 9,
    }  # fmt: skip
    settings |= {f"model.{name}": value for name, value in SHAPE.items()}
    arguments = [f"--{name}={value}" for name, value in settings.items()]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.getcwd()}
    return subprocess.Popen(
        [sys.executable, "-m", "train", *arguments, *options],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_killed_after_its_first_checkpoint_and_resumed_a_run_ends_bit_for_bit_the_same(rows, tmp_path, objective):
    """Weights, optimizer state and counters; the losses of the second half show equal batches and equal corruption."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    process = started(rows, killed, objective)
    alone = started(rows, whole, objective)
    deadline = time.monotonic() + 120
    while not checkpoints_in(killed) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert alone.wait() == 0
    for checkpoint in checkpoints_in(killed)[1:]:  # the kill came late: what it should have lost is taken away
        for path in sorted(checkpoint.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        checkpoint.rmdir()
    assert [folder.name for folder in checkpoints_in(killed)] == [f"step-{HALF:07d}"]
    (killed / "log.jsonl").unlink()
    assert started(rows, killed, objective, "--resume=auto").wait() == 0
    ends = [checkpoints_in(folder)[-1] for folder in (whole, killed)]
    assert {end.name for end in ends} == {f"step-{STEPS:07d}"}
    for name in ("model.safetensors", "state/optimizer.safetensors"):
        one, other = (load_file(end / name) for end in ends)
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one)
    one, other = ((end / "state" / "progress.json").read_text() for end in ends)
    assert one == other
    losses = [[json.loads(line)["loss"] for line in (folder / "log.jsonl").open()] for folder in (whole, killed)]
    assert losses[0][HALF:] == losses[1]

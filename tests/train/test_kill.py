"""Killed at random moments and resumed, a run ends as if it had been left alone: `tests/kill_resume.py`, shortened."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_run_killed_four_times_ends_bit_for_bit_the_same(tmp_path, processes):
    record = tmp_path / "record.json"
    choices = ["--kills=4", "--objectives=block_diffusion", f"--processes={processes}", f"--out={record}"]
    done = subprocess.run(
        [sys.executable, "tests/kill_resume.py", *choices],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (arm,) = json.loads(record.read_text())["arms"]
    assert (arm["kills"], arm["processes"]) == (4, processes)
    assert arm["runs_that_ended_bit_for_bit_the_same"] == arm["runs"] >= 1

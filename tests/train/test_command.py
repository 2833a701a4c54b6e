"""`python -m train` with input it cannot use, and on a disk that takes no more."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from accelerate.utils import LoggerType

from mdlm import load_checkpoint
from mdlm.checkpoint import checkpoints_in
from mdlm.errors import run_command
from train.__main__ import main

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "configs" / "train" / "kyc-2m.yaml"
ROW = '{"prompt": "say a", "response": "abc"}\n'
SMALL = {
    "steps": 2,
    "batch_size": 2,
    "checkpoint_every": 2,
    "compile": "false",
    "precision": "fp32",  # one process holds one precision, and the other tests of training are fp32
    "model.dim": 128,
    "model.layers": 1,
    "model.hidden_dim": 256,
    "data.vocab_size": 300,
    "data.prompt_length": 16,
    "data.response_length": 16,
}
STAND_IN = """
CALLS = []

class config:
    def update(values, **_):
        CALLS.append(("config", values))

class Run:
    def log(self, values, step):
        CALLS.append(("log", (step, values)))

    def finish(self):
        CALLS.append(("finish", None))

def init(**options):
    CALLS.append(("init", options))
    return Run()
"""


def words(folder: Path, **changes) -> list[str]:
    """The command's words for a small run into `folder` on the rows beside it."""
    options = SMALL | {"output": folder / "run", "data.train": folder / "rows.jsonl"} | changes
    return [str(CONFIG), *(f"--{name}={value}" for name, value in options.items())]


@pytest.mark.parametrize(
    ("rows", "changes", "named"),
    [
        (None, {}, ["no data file", "rows.jsonl"]),
        (ROW + '{"prompt": \n', {}, ["rows.jsonl:2"]),
        (ROW + '{"question": "a"}\n', {}, ["rows.jsonl:2", "prompt"]),
        ("", {}, ["rows.jsonl"]),
        (ROW, {"data.train": ""}, ["--data.train"]),
        (ROW, {"output": ""}, ["--output"]),
        (ROW, {"steps": 0}, ["steps", "at least 1"]),
        (ROW, {"stepps": 3}, ["stepps"]),
        (ROW, {"model.objective": "masked"}, ["objective", "masked_diffusion"]),
        (ROW, {"data.tokenizer": "gone.json"}, ["gone.json", "No such file"]),
        (ROW, {"loss.weighting": "bound"}, ["complementary", "plain"]),
    ],
)
def test_wrong_input_is_answered_in_one_line(tmp_path, capsys, rows, changes, named):
    if rows is not None:
        (tmp_path / "rows.jsonl").write_text(rows)
    assert run_command(main, words(tmp_path, **changes)) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("error: ")
    assert all(word in line for word in named), line
    assert not checkpoints_in(tmp_path / "run")


def test_a_missing_config_is_named(capsys):
    assert run_command(main, ["gone.yaml"]) == 2
    assert "gone.yaml" in capsys.readouterr().err


def test_a_folder_that_holds_a_run_is_not_written_over(tmp_path, capsys):
    (tmp_path / "rows.jsonl").write_text(ROW * 4)
    assert run_command(main, words(tmp_path)) == 0
    assert run_command(main, words(tmp_path)) == 2
    assert "--resume=auto" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.slow
def test_a_checkpoint_that_cannot_be_written_costs_no_earlier_one(tmp_path):
    """The system refuses files above 100 kB, as a full disk refuses them: weights do not fit, everything else does."""
    (tmp_path / "rows.jsonl").write_text(ROW * 4)
    assert run_command(main, words(tmp_path)) == 0
    (first,) = checkpoints_in(tmp_path / "run")
    limit = 100_000
    assert (first / "model.safetensors").stat().st_size > limit
    done = subprocess.run(
        [sys.executable, "-m", "train", *words(tmp_path, steps=4, resume="auto")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    line = done.stderr.splitlines()[-1]
    assert line.startswith("error: ") and "model.safetensors: File too large" in line
    assert f"{first.name} is kept" in line and "--resume=auto" in line
    assert checkpoints_in(tmp_path / "run") == [first]
    load_checkpoint(first)
    assert not list((tmp_path / "run").glob(".*.tmp"))
    assert run_command(main, words(tmp_path, steps=4, resume="auto")) == 0
    assert json.loads((checkpoints_in(tmp_path / "run")[-1] / "training.json").read_text())["step"] == 4


def test_a_tracker_that_is_not_installed_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("accelerate.tracking._available_trackers", [])
    (tmp_path / "rows.jsonl").write_text(ROW * 4)
    assert run_command(main, words(tmp_path, trackers='["wandb"]')) == 2
    assert not (tmp_path / "run").exists(), "said before any work"
    assert "wandb is not installed; pip install wandb" in capsys.readouterr().err.splitlines()[-1]


def test_a_tracker_gets_the_config_and_every_record_of_the_log(tmp_path, monkeypatch):
    """A stand-in for the package trackio, called as accelerate calls the real one."""
    (tmp_path / "trackio.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "trackio", raising=False)
    monkeypatch.setattr("accelerate.tracking._available_trackers", [LoggerType.TRACKIO])
    (tmp_path / "rows.jsonl").write_text(ROW * 4)
    assert run_command(main, words(tmp_path, trackers='["trackio"]', log_every=1)) == 0
    import trackio

    (opened, started), (configured, values), *logged, (closed, _) = trackio.CALLS
    assert (opened, started, configured, closed) == (
        "init",
        {"project": "mdlm-reference", "name": "run"},
        "config",
        "finish",
    )
    assert values["model/dim"] == 128
    records = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert [step for _, (step, _) in logged] == [record["step"] for record in records] == [1, 2]
    for record, (_, (_, numbers)) in zip(records, logged, strict=True):
        assert numbers["loss"] == record["loss"] and numbers["gradient_norm"] == record["gradient_norm"]
        by_position = {f"loss_by_position/{i}": x for i, x in enumerate(record["loss_by_position"]) if x is not None}
        assert by_position and by_position.items() <= numbers.items()

"""A run that starts from another one's weights, or from a Qwen3 folder's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from mdlm import load_checkpoint
from mdlm.checkpoint import checkpoints_in
from mdlm.config import OBJECTIVES
from mdlm.errors import run_command
from mdlm.export import main as export
from mdlm.tokenizer import Tokenizer
from train.__main__ import main

CONFIG = Path(__file__).parents[2] / "configs" / "train" / "kyc-2m.yaml"
SMALL = {
    "steps": 2,
    "batch_size": 2,
    "checkpoint_every": 1,
    "compile": "false",
    "precision": "fp32",
    "model.dim": 32,
    "model.layers": 1,
    "model.heads": 2,
    "model.kv_heads": 1,
    "model.head_dim": 16,
    "model.hidden_dim": 48,
    "model.block_length": 4,
    "data.vocab_size": 280,
    "data.prompt_length": 16,
    "data.response_length": 16,
}


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    path.write_text(
        "".join(json.dumps({"prompt": f"say {i}", "response": "abc" * (1 + i % 3)}) + "\n" for i in range(8))
    )
    return path


def words(rows, output, objective, **changes):
    options = SMALL | {"output": output, "data.train": rows, "model.objective": objective} | changes
    return [str(CONFIG), "--data.validation=", *(f"--{name}={value}" for name, value in options.items())]


@pytest.fixture(scope="module")
def origins(rows, tmp_path_factory):
    """One finished run for each objective."""
    folders = {objective: tmp_path_factory.mktemp("origins") / objective for objective in OBJECTIVES}
    for objective, folder in folders.items():
        assert run_command(main, words(rows, folder, objective)) == 0
    return folders


@pytest.fixture
def train(rows, tmp_path):
    """`train(objective, **options)`: exit status of a run into `tmp_path / "run"`."""
    return lambda objective, **changes: run_command(
        main, words(rows, changes.pop("output", tmp_path / "run"), objective, **changes)
    )


def weights_of(folder):
    return load_checkpoint(folder)[0].state_dict()


def provenance_of(run):
    return json.loads((checkpoints_in(run)[-1] / "training.json").read_text())


def nearly(one, other, bound=1e-4):
    return all((one[name] - other[name]).abs().max() < bound for name in one)


# A rate so small that two steps leave the weights where they started.
STILL = {"optimizer.lr": 1e-9, "optimizer.adamw_lr": 1e-9}


@pytest.mark.parametrize("target", OBJECTIVES)
@pytest.mark.parametrize("source", OBJECTIVES)
def test_any_objective_starts_from_any_other(train, origins, tmp_path, source, target):
    assert train(target, init_from=origins[source], seed=5, **STILL) == 0
    last = checkpoints_in(tmp_path / "run")[-1]
    start = checkpoints_in(origins[source])[-1]
    assert nearly(weights_of(last), weights_of(start))
    assert load_checkpoint(last)[0].config.objective == target
    origin = provenance_of(tmp_path / "run")["origin"]
    assert (origin["folder"], origin["objective"]) == (str(start), source)
    assert origin["tokens_seen"] > 0


def test_block_diffusion_learns_from_the_twins_weights(train, origins, tmp_path):
    assert train("block_diffusion", init_from=origins["autoregressive"]) == 0
    assert not nearly(
        weights_of(checkpoints_in(tmp_path / "run")[-1]), weights_of(checkpoints_in(origins["autoregressive"])[-1])
    )


def test_without_a_start_the_weights_are_drawn(train, origins, tmp_path):
    assert train("masked_diffusion", seed=5, **STILL) == 0
    assert not nearly(
        weights_of(checkpoints_in(tmp_path / "run")[-1]), weights_of(origins["masked_diffusion"] / "step-0000002")
    )
    assert provenance_of(tmp_path / "run")["origin"] is None


def test_an_imported_qwen3_folder_is_a_start(train, origins, tmp_path):
    twin, public = origins["autoregressive"], tmp_path / "public"
    assert run_command(export, ["--checkpoint", str(twin), "--to", "qwen3", str(public)]) == 0
    assert run_command(export, ["--from", "qwen3", str(public), str(tmp_path / "start")]) == 0
    assert train("block_diffusion", init_from=tmp_path / "start", **STILL) == 0
    last = checkpoints_in(tmp_path / "run")[-1]
    assert nearly(weights_of(last), weights_of(checkpoints_in(twin)[-1]))
    assert load_checkpoint(last)[1].fingerprint() == load_checkpoint(checkpoints_in(twin)[-1])[1].fingerprint()


def test_a_resumed_run_goes_on_from_its_own_weights(train, origins, tmp_path):
    start = shutil.copytree(checkpoints_in(origins["autoregressive"])[-1], tmp_path / "start")
    steady = {"init_from": start, "optimizer.decay_fraction": 0}
    assert train("block_diffusion", output=tmp_path / "straight", steps=3, **steady) == 0
    assert train("block_diffusion", steps=2, **steady) == 0
    shutil.rmtree(start)  # a run that has begun needs it no more
    assert train("block_diffusion", steps=3, resume="auto", **steady) == 0
    whole, halves = (weights_of(checkpoints_in(tmp_path / name)[-1]) for name in ("straight", "run"))
    assert all(whole[name].equal(halves[name]) for name in whole)
    recorded = [provenance_of(tmp_path / name)["origin"] for name in ("straight", "run")]
    assert recorded[0] == recorded[1]
    assert recorded[1]["folder"] == str(start)


def test_resuming_with_another_start_is_refused(train, origins, capsys):
    assert train("block_diffusion", init_from=origins["autoregressive"]) == 0
    assert train("block_diffusion", init_from=origins["masked_diffusion"], steps=3, resume="auto") == 2
    assert "init_from" in capsys.readouterr().err.splitlines()[-1]


def test_a_start_that_does_not_fit_is_named_in_one_line(train, origins, tmp_path, capsys):
    twin = origins["autoregressive"]

    def complaint(start, **changes):
        assert train("block_diffusion", init_from=start, **changes) == 2
        line = capsys.readouterr().err.splitlines()[-1]
        assert line.startswith("error: ")
        return line

    assert "--model.dim=32 --model.layers=1" in complaint(twin, **{"model.dim": 48, "model.layers": 2})
    assert "--model.rope_theta=10000.0" in complaint(twin, **{"model.rope_theta": 5.0})
    assert "gone" in complaint(tmp_path / "gone")
    Tokenizer.train([], 260).save(tmp_path / "tokenizer.json")
    assert "another tokenizer" in complaint(twin, **{"data.tokenizer": tmp_path / "tokenizer.json"})
    assert run_command(export, ["--checkpoint", str(twin), "--to", "qwen3", str(tmp_path / "public")]) == 0
    assert "python -m mdlm.export --from qwen3" in complaint(tmp_path / "public")
    assert not checkpoints_in(tmp_path / "run")

"""Short training runs, and what they leave, for the tests of training."""

from __future__ import annotations

import json

from safetensors.torch import load_file

from mdlm.checkpoint import checkpoints_in
from train.config import DataConfig, ModelSection, OptimizerConfig, TrainConfig

SHAPE = {"dim": 16, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 8, "hidden_dim": 24, "block_length": 4}
STEPS, HALF = 8, 4


def config_of(folder, objective, **changes):
    folder.mkdir(parents=True, exist_ok=True)
    values = {
        "output": str(folder),
        "seed": 3,
        "steps": STEPS,
        "batch_size": 4,
        "model": ModelSection(objective, **SHAPE),
        "data": DataConfig(prompt_length=8, response_length=16),
        "optimizer": OptimizerConfig(warmup_steps=2, decay_fraction=0.5),
        "precision": "fp32",
        "compile": False,
        "checkpoint_every": HALF,
        "log_every": 2,
    }
    return TrainConfig(**{**values, **changes})


def final_state(folder):
    """Everything a finished run leaves that resuming must not change."""
    last = checkpoints_in(folder)[-1]
    weights = load_file(last / "model.safetensors")
    optimizer = load_file(last / "state" / "optimizer.safetensors")
    return weights, optimizer, json.loads((last / "state" / "progress.json").read_text())


def assert_equal_states(one, two):
    for mine, theirs in zip(one[:2], two[:2], strict=True):
        assert mine.keys() == theirs.keys()
        assert all(mine[name].equal(theirs[name]) for name in mine), "bit-equal"
    assert one[2] == two[2]


def log_of(folder):
    """Records of the log without what time decides."""
    lines = (folder / "log.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "tokens_per_second"} for line in lines]

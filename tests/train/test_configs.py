"""Every config that is shipped for training validates and takes a step, at toy width."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from evals.corpus import CorpusConfig
from evals.gap import GapConfig
from mdlm.config_file import parse_config
from mdlm.tokenizer import Tokenizer
from tests.train.runs import SHAPE, log_of
from train.config import TrainConfig
from train.data import open_dataset, prepare
from train.loop import Run

CONFIGS = Path(__file__).parents[2] / "configs"
KINDS = {"train": TrainConfig, "gap": GapConfig, "corpus": CorpusConfig}
FILES = sorted(path for kind in KINDS for path in (CONFIGS / kind).glob("*.yaml"))
ELSEWHERE = {
    "fleet/example.yaml": "tests/evals/test_fleet_cli.py",
    "heads/demo.yaml": "tests/train/test_heads.py",
    "machines.yaml": "tests/evals/test_roofline.py",
    "prices.yaml": "tests/evals/test_cost.py",
    "workloads/bank.yaml": "tests/evals/test_route.py",
}
"""Files that are no training run, and where they are read and checked."""


def training_of(path: Path) -> tuple[TrainConfig, list[str]]:
    """The file's training config and the arms it is for; `block_diffusion:LENGTH` is one with a block length."""
    config, _ = parse_config(KINDS[path.parent.name], [str(path)], prog="test")
    if isinstance(config, TrainConfig):
        return config, [config.model.objective]
    return config.train, list(config.arms)


def test_every_shipped_config_is_looked_at():
    assert len(FILES) >= 6
    everything = {path.relative_to(CONFIGS).as_posix() for path in CONFIGS.rglob("*.yaml")}
    assert everything - {path.relative_to(CONFIGS).as_posix() for path in FILES} == ELSEWHERE.keys()
    for name, test in ELSEWHERE.items():
        assert Path(name).name in (CONFIGS.parent / test).read_text()


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_shipped_config_takes_a_step_at_toy_width(path, tmp_path):
    """All settings but the trunk's size, rows in a batch, and precision, which one process holds for all tests."""
    config, arms = training_of(path)
    data = config.data
    rows: list[dict[str, str]] = [{"prompt": f"say {n}", "response": "abc " * (1 + n % 9)} for n in range(16)]
    if data.prompt_length == 1:  # for running text
        rows = [{"text": row["response"]} for row in rows]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokenizer, lengths = Tokenizer.train([], 260), {"prompt_length": data.prompt_length}
    lengths |= {"response_length": data.response_length}
    prepare(tmp_path / "rows.jsonl", tmp_path / "tokens", tokenizer, **lengths, too_long=data.too_long)
    for arm in arms:
        folder = tmp_path / arm
        folder.mkdir()
        objective, _, block = arm.partition(":")
        shape = SHAPE | {"block_length": int(block or config.model.block_length)}
        model = replace(config.model, objective=objective, **shape)
        small = replace(config, output=str(folder), model=model, steps=1, batch_size=4, precision="fp32", compile=False)
        run = Run(small, tokenizer, open_dataset(tmp_path / "tokens"), None)
        assert run.train()
        (record,) = log_of(folder)
        assert record["step"] == 1 and math.isfinite(record["loss"]) and record["overflow"] == 0

"""Draft heads: trained on a frozen twin, they guess what it will say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from mdlm import load_checkpoint
from mdlm.checkpoint import checkpoints_in
from mdlm.config_file import parse_config
from mdlm.errors import run_command
from mdlm.heads import load_heads
from mdlm.tokenizer import Tokenizer
from sample import AutoregressiveConfig, decode
from sample.drafters import HeadsDrafter, load_drafter
from sample.speculative import Speculation, decode_speculatively
from train.config import DataConfig, ModelSection, OptimizerConfig, TrainConfig
from train.data import open_dataset, prepare
from train.heads import HeadsConfig, main
from train.loop import Run

CONFIG = Path(__file__).parents[2] / "configs" / "heads" / "demo.yaml"
LETTERS = "abcdefgh"
SHAPE = {"dim": 32, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 16, "hidden_dim": 48}


def row(start: int, length: int) -> dict[str, str]:
    """A letter, and the letters behind it, again and again."""
    return {"prompt": LETTERS[start], "response": (LETTERS * 4)[start + 1 :][:length]}


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    """A twin of a few seconds that knows the order of the letters: its run's folder, with `rows.jsonl` in it."""
    folder = tmp_path_factory.mktemp("twin")
    rows = [row(index % 8, 8 + index % 7) for index in range(56)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokenizer = Tokenizer.train([], 260)
    prepare(folder / "rows.jsonl", folder / "tokens", tokenizer, prompt_length=4, response_length=16)
    config = TrainConfig(
        output=str(folder / "run"),
        steps=120,
        model=ModelSection("autoregressive", **SHAPE),
        data=DataConfig(prompt_length=4, response_length=16),
        optimizer=OptimizerConfig(warmup_steps=5, lr=2e-2, adamw_lr=1e-2),
        precision="fp32",
        compile=False,
    )
    (folder / "run").mkdir()
    Run(config, tokenizer, open_dataset(folder / "tokens"), None).train()
    return folder


def words(twin: Path, folder: Path, **changes) -> list[str]:
    """The shipped config's command at toy size."""
    options = {
        "checkpoint": twin / "run",
        "train": twin / "rows.jsonl",
        "output": folder,
        "steps": 2,
        "batch_size": 8,
        "precision": "fp32",
        "compile": "false",
        "optimizer.warmup_steps": 5,
    }
    return [str(CONFIG), *(f"--{name}={value}" for name, value in (options | changes).items())]


def test_the_shipped_config_is_valid_and_names_the_demos_files():
    config, _ = parse_config(HeadsConfig, [str(CONFIG)], prog="train.heads")
    demo = (CONFIG.parents[1] / "gap" / "demo.yaml").read_text()
    assert "output: runs/demo\n" in demo
    assert config.checkpoint == "runs/demo/autoregressive-seed0"
    assert config.train == "runs/demo/data/train.jsonl"


def test_the_shipped_config_takes_two_steps_and_leaves_heads_and_a_log(twin, tmp_path, capsys):
    assert run_command(main, [*words(twin, tmp_path / "heads", log_every=1), "--json"]) == 0
    folder = Path(json.loads(capsys.readouterr().out)["checkpoint"])
    assert [folder] == checkpoints_in(tmp_path / "heads")
    log = [json.loads(line) for line in (tmp_path / "heads" / "log.jsonl").read_text().splitlines()]
    assert [record["step"] for record in log] == [1, 2]
    assert all(len(record["loss_by_head"]) == 6 for record in log)
    made_of = json.loads((folder / "training.json").read_text())
    assert made_of["config"]["steps"] == 2
    assert made_of["data"]["rows"] == 56
    model, _ = load_checkpoint(checkpoints_in(twin / "run")[-1])
    assert len(load_heads(folder, model)) == 6


def test_the_same_seed_gives_the_same_heads_and_leaves_the_model_as_it_was(twin, tmp_path):
    weights = (checkpoints_in(twin / "run")[-1] / "model.safetensors").read_bytes()
    made = {}
    for name, seed in (("one", 0), ("same", 0), ("other", 1)):
        assert run_command(main, words(twin, tmp_path / name, seed=seed)) == 0
        made[name] = load_file(tmp_path / name / "step-0000002" / "heads.safetensors")
    assert all(made["one"][name].equal(made["same"][name]) for name in made["one"])
    assert not all(made["one"][name].equal(made["other"][name]) for name in made["one"])
    assert (checkpoints_in(twin / "run")[-1] / "model.safetensors").read_bytes() == weights


def test_heads_learn_what_the_twin_will_say(twin, tmp_path):
    """The letters' order is certain: of three guesses a pass nearly all are kept, of new heads' almost none."""
    assert run_command(main, words(twin, tmp_path / "heads", steps=150, heads=3)) == 0
    assert run_command(main, words(twin, tmp_path / "new", steps=1, heads=3)) == 0
    model, tokenizer = load_checkpoint(checkpoints_in(twin / "run")[-1])
    prompts = [[tokenizer.begin_id, *tokenizer.encode(letter)] for letter in LETTERS]
    config = AutoregressiveConfig(16)
    plain = decode(model, prompts, config)
    kept = {}
    for name in ("heads", "new"):
        drafter = load_drafter(str(tmp_path / name), model, tokenizer, config)
        assert isinstance(drafter, HeadsDrafter)
        made = decode_speculatively(model, prompts, config, drafter=drafter, speculation=Speculation(3))
        assert made.answers() == plain.answers()
        accounts = made.ledger.rows()
        kept[name] = sum(a.kept for a in accounts) / sum(a.passes["verify"] for a in accounts)
    texts = [tokenizer.decode(answer) for answer in plain.answers()]
    assert all(text.startswith(row(start, 6)["response"]) for start, text in enumerate(texts))
    assert kept["heads"] > 3
    assert kept["new"] < 1.5


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"checkpoint": ""}, "--checkpoint"),
        ({"train": ""}, "--train"),
        ({"output": ""}, "--output"),
        ({"checkpoint": "gone"}, "gone"),
        ({"train": "gone.jsonl"}, "gone.jsonl"),
        ({"heads": 0}, "heads"),
        ({"steps": 0}, "steps"),
        ({"seed": -1}, "seed"),
        ({"stepps": 4}, "'steps'"),
    ],
)
def test_wrong_input_is_answered_in_one_line(twin, tmp_path, capsys, changes, named):
    assert run_command(main, words(twin, tmp_path / "heads", **changes)) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("error: ")
    assert named in line


def test_a_folder_that_holds_heads_is_not_written_over(twin, tmp_path, capsys):
    assert run_command(main, words(twin, tmp_path / "heads")) == 0
    assert run_command(main, words(twin, tmp_path / "heads")) == 2
    assert "already holds heads" in capsys.readouterr().err
    assert run_command(main, words(twin, tmp_path / "more", checkpoint=tmp_path / "heads")) == 2
    assert "another kind of model" in capsys.readouterr().err

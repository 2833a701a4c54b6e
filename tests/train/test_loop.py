"""A training run: it can be interrupted anywhere and goes on as if nothing had happened."""

from __future__ import annotations

import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mdlm import load_checkpoint
from mdlm.checkpoint import checkpoints_in
from mdlm.config import OBJECTIVES
from mdlm.errors import UserError
from mdlm.objectives import LossConfig
from mdlm.tokenizer import Tokenizer
from sample import AutoregressiveConfig, DenoiseConfig, decode, denoise
from sample.generation import canvas
from tests.train.runs import HALF, SHAPE, STEPS, assert_equal_states, config_of, final_state, log_of
from train.config import DataConfig, ModelSection, OptimizerConfig, TrainConfig
from train.data import open_dataset, prepare, read_texts, split_jsonl
from train.loop import Run

ADDRESSES = Path(__file__).parents[2].parent / "shared" / "data" / "addresses.jsonl"


@pytest.fixture(scope="module", params=OBJECTIVES)
def straight(request, data, tmp_path_factory):
    """A run of `STEPS` steps in one go: its config and its folder."""
    folder = tmp_path_factory.mktemp("straight") / request.param
    config = config_of(folder, request.param)
    run = Run(config, *data, data[1])
    assert run.train() is True
    return config, folder


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_two_halves_are_the_whole_run(straight, data, tmp_path, optimizer):
    """2k steps = k steps, a new process's worth of state, k steps: weights, optimizer, counters and log."""
    config, folder = straight
    if optimizer == "adamw":
        config = replace(config, output=str(tmp_path / "whole"), optimizer=replace(config.optimizer, name="adamw"))
        folder = tmp_path / "whole"
        folder.mkdir()
        Run(config, *data, data[1]).train()
    resumed = tmp_path / "resumed"
    shutil.copytree(folder / f"step-{HALF:07d}", resumed / f"step-{HALF:07d}")
    run = Run(replace(config, output=str(resumed), resume="auto"), *data, data[1])
    run.resume()
    assert run.step == HALF
    assert run.train() is True
    assert_equal_states(final_state(resumed), final_state(folder))
    assert log_of(resumed) == log_of(folder)[HALF // config.log_every :]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_goes_on_bit_exactly(straight, data, tmp_path, number, capfd):
    """The signal comes while a step is computed, between two checkpoints; that step is finished and kept."""
    config, folder = straight
    config = replace(config, output=str(tmp_path))
    run = Run(config, *data, data[1])

    def interrupt(_module, _inputs):
        if run.step == HALF + 1:
            os.kill(os.getpid(), number)

    run.model.norm.register_forward_pre_hook(interrupt)
    before = signal.getsignal(number)
    assert run.train() is False
    assert signal.getsignal(number) is before
    assert [path.name for path in checkpoints_in(tmp_path)] == ["step-0000004", "step-0000006"]
    assert "the state will be saved" in capfd.readouterr().err
    second = Run(config, *data, data[1])
    second.resume()
    assert second.step == HALF + 2
    assert second.train() is True
    assert_equal_states(final_state(tmp_path), final_state(folder))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_interrupted_while_it_validates_is_saved(data, tmp_path, number):
    config = config_of(tmp_path, "autoregressive", validate_every=3)
    run = Run(config, *data, data[1])
    validate = run.validate

    def interrupted():
        os.kill(os.getpid(), number)
        return validate()

    run.validate = interrupted
    assert run.train() is False
    assert [path.name for path in checkpoints_in(tmp_path)] == ["step-0000003"]


def test_counters_survive_an_interruption_between_two_log_lines(data, tmp_path):
    whole, halves = (config_of(tmp_path / name, "masked_diffusion", log_every=3) for name in ("whole", "halves"))
    Run(whole, *data, None).train()
    shutil.copytree(tmp_path / "whole" / f"step-{HALF:07d}", tmp_path / "halves" / f"step-{HALF:07d}")
    run = Run(halves, *data, None)
    run.resume()
    run.train()
    assert final_state(tmp_path / "halves")[2] == final_state(tmp_path / "whole")[2]


def test_validation_comes_as_often_as_it_is_asked_for(data, tmp_path):
    Run(config_of(tmp_path, "autoregressive", validate_every=3), *data, data[1]).train()
    assert sum("validation_loss" in record for record in log_of(tmp_path)) == 3  # after 3, 6 and the last step, 8


def test_a_resumed_run_draws_the_next_batch(straight, data):
    config, _ = straight
    run, fresh = Run(config, *data, None), Run(config, *data, None)
    run.resume()
    assert run.step == STEPS
    next_batch, same = run.batches.batch(run.step), fresh.batches.batch(STEPS)
    assert next_batch.tokens_BL.equal(same.tokens_BL)
    assert next_batch.noise_BR.equal(same.noise_BR)
    assert next_batch.times_BJ.equal(same.times_BJ)
    assert not next_batch.noise_BR.equal(fresh.batches.batch(0).noise_BR)


def test_a_damaged_checkpoint_is_passed_over_by_name(straight, data, tmp_path, capfd):
    config, folder = straight
    shutil.copytree(folder, tmp_path / "run")
    damaged = tmp_path / "run" / f"step-{STEPS:07d}" / "model.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-100])
    run = Run(replace(config, output=str(tmp_path / "run")), *data, data[1])
    run.resume()
    assert run.step == HALF
    assert f"passed over step-{STEPS:07d}" in "".join(capfd.readouterr().err.split("\n"))
    run.train()
    assert_equal_states(final_state(tmp_path / "run"), final_state(folder))


def flipped(path):
    """One bit in the middle of a file is turned over."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "name",
    ["model.safetensors", "config.json", "training.json", "tokenizer.json", "checksums.json"]
    + [f"state/{name}" for name in ("optimizer.safetensors", "progress.json")],
)
def test_a_checkpoint_with_one_bit_turned_over_is_passed_over_and_the_file_named(straight, data, tmp_path, name, capfd):
    config, folder = straight
    shutil.copytree(folder, tmp_path / "run")
    flipped(tmp_path / "run" / f"step-{STEPS:07d}" / name)
    run = Run(replace(config, output=str(tmp_path / "run")), *data, None)
    run.resume()
    assert run.step == HALF
    message = "".join(capfd.readouterr().err.split("\n"))
    assert f"passed over step-{STEPS:07d}" in message
    assert name in message or name == "checksums.json"


def test_a_passed_over_checkpoint_costs_no_good_one_its_place(straight, data, tmp_path):
    """The newest is damaged; what is saved before its step is reached must not be deleted in its favour."""
    config, folder = straight
    shutil.copytree(folder, tmp_path / "run")
    flipped(tmp_path / "run" / f"step-{STEPS:07d}" / "model.safetensors")
    changed = replace(config, output=str(tmp_path / "run"), checkpoint_every=1, keep_checkpoints=1)
    run = Run(changed, *data, data[1])
    run.resume()
    saved, save = [], run.save

    def save_and_look():
        save()
        saved.append([path.name for path in checkpoints_in(tmp_path / "run")])

    run.save = save_and_look
    assert run.train()
    assert saved[0] == ["step-0000005", "step-0000008"]
    assert saved[-1] == ["step-0000008"]
    assert_equal_states(final_state(tmp_path / "run"), final_state(folder))


def test_what_a_killed_run_left_half_written_is_cleared_away(straight, data, tmp_path):
    config, folder = straight
    shutil.copytree(folder, tmp_path / "run")
    shutil.copytree(folder / f"step-{HALF:07d}", tmp_path / "run" / ".step-0000006.17.tmp")
    Run(replace(config, output=str(tmp_path / "run")), *data, None).resume()
    assert not list((tmp_path / "run").glob(".step-*"))


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_an_average_is_what_is_exported_and_validated_and_resumes_bit_exactly(data, tmp_path, optimizer):
    whole, halves, plain = (
        config_of(
            tmp_path / name, "masked_diffusion", ema_decay=decay, optimizer=OptimizerConfig(optimizer, warmup_steps=2)
        )
        for name, decay in (("whole", 0.7), ("halves", 0.7), ("plain", None))
    )
    runs = [Run(config, *data, data[1]) for config in (whole, plain)]
    assert all(run.train() for run in runs)
    half, last = (tmp_path / "whole" / f"step-{step:07d}" for step in (HALF, STEPS))
    weights = load_file(last / "state" / "weights.safetensors")
    exported, _ = load_checkpoint(last)
    assert all(weights[name].equal(value) for name, value in runs[1].model.state_dict().items()), "averages only watch"
    assert any(not weights[name].equal(value) for name, value in exported.state_dict().items())
    assert log_of(tmp_path / "whole")[-1]["validation_loss"] != log_of(tmp_path / "plain")[-1]["validation_loss"]

    shutil.copytree(half, tmp_path / "halves" / half.name)
    run = Run(halves, *data, data[1])
    run.resume()
    assert run.train()
    assert_equal_states(final_state(tmp_path / "halves"), final_state(tmp_path / "whole"))
    assert load_file(tmp_path / "halves" / last.name / "state" / "weights.safetensors").keys() == weights.keys()
    assert all(run.model.state_dict()[name].equal(value) for name, value in weights.items())
    with pytest.raises(UserError, match="ema_decay"):
        Run(replace(halves, ema_decay=None), *data, None).resume()


def test_an_average_is_that_of_the_weights_after_each_step(data, tmp_path):
    """By the recurrence, from weights that were kept along: decay min(0.5, (1 + step) / (10 + step)), steps from 0."""
    run = Run(config_of(tmp_path, "autoregressive", ema_decay=0.5), *data, None)
    mean = run.model.norm.weight.detach().clone()
    step, optimizers_step = [], run.optimizers.step

    def watched(*arguments):
        optimizers_step(*arguments)
        decay = min(0.5, (1 + len(step)) / (10 + len(step)))
        step.append(None)
        mean.copy_(decay * mean + (1 - decay) * run.model.norm.weight.detach())

    run.optimizers.step = watched
    run.train()
    exported, _ = load_checkpoint(checkpoints_in(tmp_path)[-1])
    torch.testing.assert_close(exported.norm.weight, mean, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seed": 4}, "seed"),
        ({"batch_size": 8}, "batch_size"),
        ({"loss": LossConfig(weighting="bound", min_mask_rate=0.0)}, "loss"),
        ({"optimizer": OptimizerConfig(name="adamw")}, "optimizer"),
        ({"data": DataConfig(prompt_length=8, response_length=16, supervised_end="one")}, "supervised_end"),
        ({"model": ModelSection("masked_diffusion", **{**SHAPE, "layers": 2})}, "model"),
    ],
)
def test_another_run_does_not_go_on_from_this_one(straight, data, change, named):
    config, folder = straight
    if named == "supervised_end" and config.supervised_end == "one":
        return
    with pytest.raises(UserError, match=f"{folder.name}.*{named}.*another output folder") as refused:
        Run(replace(config, **change), *data, data[1]).resume()
    assert "\n" not in str(refused.value)


def test_a_run_may_be_prolonged(straight, data, tmp_path):
    config, folder = straight
    shutil.copytree(folder, tmp_path / "run")
    run = Run(replace(config, output=str(tmp_path / "run"), steps=STEPS + 2), *data, data[1])
    run.resume()
    assert run.train()
    assert [path.name for path in checkpoints_in(tmp_path / "run")][-1] == "step-0000010"


def test_a_run_without_a_readable_checkpoint_is_not_started_over(straight, data, tmp_path):
    config, folder = straight
    shutil.copytree(folder, tmp_path / "run")
    for checkpoint in checkpoints_in(tmp_path / "run"):
        (checkpoint / "state" / "optimizer.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match=r"no checkpoint.*can be read"):
        Run(replace(config, output=str(tmp_path / "run")), *data, data[1]).resume()


@pytest.mark.parametrize(
    ("objective", "rule"), [("autoregressive", "one"), ("masked_diffusion", "canvas"), ("block_diffusion", "block")]
)
def test_each_objective_has_its_rule_for_end_tokens_unless_one_is_given(tmp_path, objective, rule):
    assert config_of(tmp_path, objective).supervised_end == rule
    assert config_of(tmp_path, objective, data=DataConfig(supervised_end="one")).supervised_end == "one"


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (TrainConfig, {"seed": -1}),
        (TrainConfig, {"steps": 0}),
        (TrainConfig, {"batch_size": 0}),
        (TrainConfig, {"ema_decay": 1.0}),
        (TrainConfig, {"spike_mads": 0.0}),
        (TrainConfig, {"spike_window": 0}),
        (OptimizerConfig, {"lr": -1.0}),
        (OptimizerConfig, {"gradient_clip": 0.0}),
        (OptimizerConfig, {"betas": (0.9, 1.0)}),
        (OptimizerConfig, {"decay_fraction": 1.5}),
        (OptimizerConfig, {"lr": float("nan")}),
    ],
)
def test_unusable_settings_are_refused_by_name(kind, wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        kind(**wrong)


def test_only_the_newest_checkpoints_are_kept(data, tmp_path):
    config = config_of(tmp_path, "autoregressive", checkpoint_every=2, keep_checkpoints=2)
    Run(config, *data, None).train()
    assert [path.name for path in checkpoints_in(tmp_path)] == ["step-0000006", "step-0000008"]


def test_what_made_the_weights_stands_beside_them(straight, data):
    config, folder = straight
    last = checkpoints_in(folder)[-1]
    made = json.loads((last / "training.json").read_text())
    tokens = sum(int(Run(config, *data, None).batches.batch(step).valid_BL.sum()) for step in range(STEPS))
    assert made["config"]["seed"] == 3
    assert made["supervised_end"] == config.supervised_end
    assert (made["step"], made["tokens_seen"]) == (STEPS, tokens)
    assert made["data"]["train"]["tokens_sha256"] == data[1].manifest.tokens_sha256
    header = json.loads((last / "config.json").read_text())
    assert header["tokens_seen"] == tokens
    assert header["model"]["objective"] == config.model.objective


def test_twins_start_from_bit_equal_weights(data, tmp_path):
    twins = [Run(config_of(tmp_path / name, name), *data, None).model for name in OBJECTIVES]
    for twin in twins[1:]:
        assert all(a.equal(b) for a, b in zip(twins[0].state_dict().values(), twin.state_dict().values(), strict=True))


def test_training_learns_and_leaves_nothing_out(data, tmp_path):
    """Forty steps on a source of twenty rows: the loss falls by a third, the head has room, validation agrees."""
    config = config_of(tmp_path, "block_diffusion", steps=40, loss=LossConfig(min_mask_rate=0.0))
    Run(config, *data, data[1]).train()
    log = log_of(tmp_path)
    assert log[-1]["loss"] < log[0]["loss"] * 2 / 3
    assert log[-1]["validation_loss"] < log[0]["loss"] * 2 / 3
    assert sum(record["overflow"] for record in log) == 0


def test_a_loss_that_is_not_finite_stops_the_run(data, tmp_path):
    config = config_of(tmp_path, "masked_diffusion")
    run = Run(config, *data, None)
    with torch.no_grad():
        run.model.norm.weight.fill_(float("nan"))
    with pytest.raises(UserError, match=r"not finite.*optimizer\.lr"):
        run.train()
    assert checkpoints_in(tmp_path) == []


@pytest.mark.slow
@pytest.mark.skipif(not ADDRESSES.is_file(), reason="the shared data is not here")
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_real_addresses_from_file_to_answer(objective, tmp_path):
    splits = split_jsonl(ADDRESSES, tmp_path / "split")
    tokenizer = Tokenizer.train(read_texts(splits["train"]), 512)
    lengths = {"prompt_length": 64, "response_length": 128}
    sets = {}
    for name in ("train", "dev"):
        manifest = prepare(splits[name], tmp_path / name, tokenizer, **lengths)
        assert manifest.rows > 0.95 * (manifest.rows + manifest.rows_dropped)
        sets[name] = open_dataset(tmp_path / name)
    config = config_of(tmp_path / "run", objective, steps=10, data=DataConfig(**lengths), validation_batches=2)
    run = Run(config, tokenizer, sets["train"], sets["dev"])
    assert run.train()
    log = log_of(tmp_path / "run")
    assert log[-1]["validation_loss"] < log[0]["loss"]

    model, loaded = load_checkpoint(checkpoints_in(tmp_path / "run")[-1])
    prompt = [loaded.begin_id, *loaded.encode("819 Gaffield Place, Evanston, 60201")]
    if objective == "autoregressive":
        generation = decode(model, [prompt], AutoregressiveConfig(max_new_tokens=32))
    else:
        tokens_BL, valid_BL, start = canvas([prompt], 32, pad_id=loaded.pad_id, mask_id=loaded.mask_id)
        generation = denoise(
            model,
            tokens_BL,
            DenoiseConfig(max_denoising_steps=2),
            mask_id=loaded.mask_id,
            end_id=loaded.end_id,
            valid_BL=valid_BL,
            response_start=start,
        )
    assert generation.tokens_BL[0, : len(prompt)].tolist() == prompt
    assert loaded.mask_id not in generation.tokens_BL
    assert isinstance(loaded.decode(generation.answer(0)), str)
    row = generation.ledger.row(0)
    assert row.kept == len(generation.answer(0))
    assert row.total_passes > 0

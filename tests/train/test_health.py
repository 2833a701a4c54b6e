"""The health of a run: a bad step is described, and stops the run or changes nothing."""

from __future__ import annotations

import json
import math
import shutil

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mdlm.checkpoint import checkpoints_in
from mdlm.config import OBJECTIVES
from mdlm.errors import UserError
from mdlm.objectives import LossConfig, training_loss
from tests.train.runs import HALF, STEPS, assert_equal_states, config_of, final_state, log_of
from train.config import OptimizerConfig, TrainConfig
from train.health import SpikeLimit
from train.loop import Run
from train.optimizer import Optimizers


def disturbed(config, data, factors):
    """A run in whose step s (from 0) the last norm's output is multiplied by `factors[s]`."""
    run = Run(config, *data, None)

    def disturb(_module, _inputs, output):
        return output * factors.get(run.step, 1.0) if run.model.norm.weight.requires_grad else output

    run.model.norm.register_forward_hook(disturb)
    return run


def bad_steps(folder):
    return [json.loads(line) for line in (folder / "bad_steps.jsonl").read_text().splitlines()]


def random_gradients(model, seed, value=None):
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
        if value is not None:
            parameter.grad.fill_(value)


@pytest.mark.parametrize("name", ["muon", "adamw"])
@pytest.mark.parametrize("value", [math.nan, math.inf, 3.0])
def test_a_step_that_is_left_out_changes_nothing_and_any_other_is_as_ever(tiny_model, name, value):
    """Steps 0 and 2 are bad, the first of them before there is any state; 1, 3 and 4 end as three steps in a row."""
    config = OptimizerConfig(name=name, weight_decay=0.1, warmup_steps=0, decay_fraction=0.0)
    models = [tiny_model("masked_diffusion").requires_grad_(True) for _ in range(2)]
    skipping, plain = (Optimizers(model, config, steps=9) for model in models)
    for step in range(5):
        bad = step in (0, 2)
        random_gradients(models[0], step, value if bad else None)
        skipping.step(step, torch.tensor(not bad))
        if not bad:
            random_gradients(models[1], step)
            plain.step(step)
    assert all(a.equal(b) for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True))
    one, two = skipping.state_tensors(), plain.state_tensors()
    assert one.keys() == two.keys() and all(one[key].equal(two[key]) for key in one)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_step_that_is_not_finite_is_skipped_and_described(data, tmp_path, objective):
    config = config_of(tmp_path, objective, on_bad_step="skip", ema_decay=0.9, log_every=4)
    run = disturbed(config, data, {5: math.nan})
    assert run.train()
    (record,) = bad_steps(tmp_path)
    assert (record["step"], record["reason"], record["action"], record["loss"]) == (6, "not finite", "skip", "nan")
    assert record["rows"] == run.batches.rows(5).tolist()
    assert record["gradient_norms"].keys() == {"embed_tokens", "layers.0", "norm"}
    assert [line["skipped"] for line in log_of(tmp_path)] == [0, 1]
    weights, optimizer, _ = final_state(tmp_path)
    assert all(tensor.isfinite().all() for tensor in [*weights.values(), *optimizer.values()])
    assert {int(value) for key, value in optimizer.items() if key.endswith("/step")} == {STEPS - 1}


def test_a_run_with_skipped_steps_is_resumed_bit_exactly(data, tmp_path):
    """Spikes too, whose limit follows from losses before the interruption."""
    settings = {"on_bad_step": "skip", "spike_window": 3, "spike_mads": 5.0, "log_every": 3, "ema_decay": 0.9}
    factors = {1: math.nan, 6: 100.0}
    assert disturbed(config_of(tmp_path / "whole", "autoregressive", **settings), data, factors).train()
    assert [(bad["step"], bad["reason"]) for bad in bad_steps(tmp_path / "whole")] == [(2, "not finite"), (7, "spike")]
    shutil.copytree(tmp_path / "whole" / f"step-{HALF:07d}", tmp_path / "halves" / f"step-{HALF:07d}")
    run = disturbed(config_of(tmp_path / "halves", "autoregressive", **settings), data, factors)
    run.resume()
    assert run.train()
    assert_equal_states(final_state(tmp_path / "halves"), final_state(tmp_path / "whole"))
    assert bad_steps(tmp_path / "halves") == bad_steps(tmp_path / "whole")[1:]


def test_a_spike_stops_the_run_and_what_was_saved_stays(data, tmp_path):
    config = config_of(tmp_path, "masked_diffusion", spike_window=4, spike_mads=5.0, log_every=1)
    run = disturbed(config, data, {6: 100.0})
    with pytest.raises(UserError, match=r"loss of step 7 .* is a spike.*bad_steps\.jsonl.*--on_bad_step=skip"):
        run.train()
    (record,) = bad_steps(tmp_path)
    assert record["loss"] > record["limit"] > max(line["loss"] for line in log_of(tmp_path))
    assert [path.name for path in checkpoints_in(tmp_path)] == [f"step-{HALF:07d}"]
    resumed = disturbed(config_of(tmp_path, "masked_diffusion", on_bad_step="skip"), data, {})
    resumed.resume()
    assert resumed.train()


def test_only_the_first_of_many_bad_steps_is_described_where_it_stops_the_run(data, tmp_path):
    run = disturbed(config_of(tmp_path, "masked_diffusion", log_every=4), data, {1: math.nan})
    with pytest.raises(UserError, match=r"step 2 .*not finite"):
        run.train()
    assert [record["step"] for record in bad_steps(tmp_path)] == [2]


def test_ten_bad_steps_in_a_row_end_a_run_that_skips(data, tmp_path):
    """However the log's windows divide them; nine do not, and a record without a good step has no loss."""
    factors = dict.fromkeys(range(1, 10), math.nan) | dict.fromkeys(range(11, 21), math.nan)
    config = config_of(tmp_path, "masked_diffusion", on_bad_step="skip", steps=24, log_every=3, checkpoint_every=24)
    with pytest.raises(UserError, match=r"step 21 .*not finite.*10 bad steps in a row"):
        disturbed(config, data, factors).train()
    assert [record["step"] for record in bad_steps(tmp_path)] == [*range(2, 11), *range(12, 22)]
    assert [record["loss"] is None for record in log_of(tmp_path)] == [False, True, True, False, True, True]


@pytest.mark.parametrize("action", ["stop", "skip"])
def test_a_window_of_one_step_may_be_skipped(data, tmp_path, action):
    config = config_of(tmp_path, "masked_diffusion", on_bad_step=action, log_every=1)
    run = disturbed(config, data, {STEPS - 1: math.nan})
    if action == "stop":
        with pytest.raises(UserError, match="not finite"):
            run.train()
        return
    assert run.train()
    assert [record["skipped"] for record in log_of(tmp_path)] == [0] * (STEPS - 1) + [1]


class _Waits(TorchDispatchMode):
    """Counts the operations for which a host waits for its device: reading a number, and shapes that hang on values."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        name = function.overloadpacket.__name__
        by_mask = name == "index" and any(x is not None and x.dtype == torch.bool for x in arguments[1])
        self.count += by_mask or name in ("_local_scalar_dense", "nonzero", "masked_select")
        return function(*arguments, **(options or {}))


@pytest.mark.parametrize("action", ["stop", "skip"])
def test_a_step_waits_for_nothing(data, tmp_path, action):
    """Four more steps in a window wait four times more: for the batch's token count, which never left the host."""
    counts = []
    for steps in (4, 8):
        settings = {"on_bad_step": action, "ema_decay": 0.9, "log_every": 100, "checkpoint_every": 100}
        run = Run(config_of(tmp_path / f"{steps}", "block_diffusion", steps=steps, **settings), *data, None)
        with _Waits() as waits:
            run.train()
        counts.append(waits.count)
    assert counts[1] - counts[0] == 4


# The limit


def limit_after(losses, pieces, **changes):
    spikes = SpikeLimit(TrainConfig(**{"spike_window": 5, "spike_mads": 4.0, "log_every": 1, **changes}))
    for piece in pieces:
        spikes.add(losses[:piece])
        losses = losses[piece:]
    return spikes.at(sum(pieces))


def test_the_limit_is_the_median_and_some_deviations():
    assert limit_after([9.0, 3.0, 1.0, 2.0, 5.0, 4.0], [6]) == 3.0 + 4.0 * 1.0  # of the last five: 1 to 5
    assert limit_after([2.0] * 5, [5]) == pytest.approx(2.0 * 1.04)
    assert limit_after([0.1] * 5, [5]) == pytest.approx(0.1 + 4.0 * 0.01)
    assert limit_after([math.nan, 2.0, 2.0, 2.0, 2.0], [5]) == pytest.approx(2.0 * 1.04)


def test_there_is_no_limit_before_the_window_is_full_or_where_none_is_asked_for():
    assert limit_after([2.0] * 4, [4]) == math.inf
    assert limit_after([2.0] * 9, [9], spike_mads=None) == math.inf
    assert limit_after([math.nan] * 9, [9]) == math.inf


@pytest.mark.parametrize("pieces", [[11], [3, 3, 3, 2], [3, 1, 2, 3, 2], [10, 1]])
def test_an_interruption_moves_no_limit(pieces):
    losses = [float(number * number % 11) for number in range(11)]
    assert limit_after(losses, pieces, log_every=3) == limit_after(losses[:9], [9], log_every=3)


# Losses by tenths


@pytest.mark.parametrize("loss", [LossConfig(), LossConfig(complementary=True), LossConfig("bound", min_mask_rate=0.0)])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_tenths_add_up_to_the_loss(tiny_model, random_batch, objective, loss):
    model = tiny_model(objective)
    batch = random_batch(model.config, [3, 1], [20, 13])
    mean, counts = training_loss(model, batch, loss, 80)
    tenths = {name: value for name, value in counts.items() if name.startswith("loss_by")}
    assert tenths.keys() == {"loss_by_position", *(["loss_by_mask_rate"] if objective != "autoregressive" else [])}
    for sums in tenths.values():
        assert int(sums[1].sum()) == int(counts["predicted"])
        if loss.weighting == "plain" or objective == "autoregressive":
            torch.testing.assert_close(sums[0].sum() / counts["predicted"], mean)


@pytest.mark.parametrize("objective", ["masked_diffusion", "block_diffusion"])
def test_a_loss_stands_in_the_tenth_of_its_position_and_of_its_copys_mask_rate(tiny_model, random_batch, objective):
    """Time 0.25: a quarter is masked in the first copy, three quarters in the other; columns 4 and 5 of 20 in both."""
    model = tiny_model(objective)
    batch = random_batch(model.config, [3], [20])
    batch.times_BJ.fill_(0.25)
    batch.noise_BR.fill_(0.9)
    batch.noise_BR[:, 4:6] = 0.0
    loss = LossConfig(complementary=True, min_mask_rate=0.0)
    counts = training_loss(model, batch, loss, 40)[1]
    assert counts["loss_by_mask_rate"][1].tolist() == [0, 0, 2, 0, 0, 0, 0, 18, 0, 0]
    assert counts["loss_by_position"][1].tolist() == [2] * 10


def test_the_log_has_the_tenths(data, tmp_path):
    Run(config_of(tmp_path, "block_diffusion", loss=LossConfig(complementary=True)), *data, None).train()
    for record in log_of(tmp_path):
        known = [value for value in record["loss_by_position"] if value is not None]
        assert min(known) <= record["loss"] <= max(known)
        assert len(record["loss_by_position"]) == len(record["loss_by_mask_rate"]) == 10

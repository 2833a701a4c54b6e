"""Who is moved by which optimizer, how fast, and that its state survives as named tensors."""

from __future__ import annotations

import pytest
import torch

from mdlm.errors import UserError
from train.config import OptimizerConfig
from train.optimizer import Optimizers, learning_rate_factor


@pytest.fixture
def model(tiny_model):
    return tiny_model("masked_diffusion", tie_embeddings=False).requires_grad_(True)


def backward(model, seed):
    tokens = torch.randint(0, 8, (2, 6), generator=torch.Generator().manual_seed(seed))
    model(tokens).square().mean().backward()


def members(optimizer):
    return {id(p) for group in optimizer.param_groups for p in group["params"]}


def test_the_rate_warms_up_stays_and_falls_to_zero():
    config = OptimizerConfig(warmup_steps=4, decay_fraction=0.5)
    factors = [learning_rate_factor(step, 20, config) for step in range(21)]
    assert factors[:4] == [0.25, 0.5, 0.75, 1.0]
    assert factors[4:11] == [1.0] * 7
    assert factors[10:] == pytest.approx([1 - i / 10 for i in range(11)])


@pytest.mark.parametrize("config", [OptimizerConfig(warmup_steps=0, decay_fraction=0.0), OptimizerConfig(), None])
def test_no_step_of_a_run_has_a_rate_of_zero_or_above_the_peak(config):
    config = config or OptimizerConfig(warmup_steps=500, decay_fraction=1.0)
    factors = [learning_rate_factor(step, 100, config) for step in range(100)]
    assert all(0 < factor <= 1 for factor in factors)


def test_muon_moves_the_layers_matrices_and_adamw_the_rest(model):
    adamw, muon = Optimizers(model, OptimizerConfig(name="muon"), steps=10).all
    assert isinstance(muon, torch.optim.Muon)
    assert isinstance(adamw, torch.optim.AdamW)
    for name, parameter in model.named_parameters():
        matrix_of_a_layer = name.startswith("layers.") and parameter.ndim == 2
        assert (id(parameter) in members(muon)) == matrix_of_a_layer, name
        assert (id(parameter) in members(adamw)) != matrix_of_a_layer, name


def test_adamw_can_move_everything(model):
    (adamw,) = Optimizers(model, OptimizerConfig(name="adamw"), steps=10).all
    assert members(adamw) == {id(p) for p in model.parameters()}


@pytest.mark.parametrize("name", ["muon", "adamw"])
def test_weight_decay_shrinks_matrices_and_no_norm(model, name):
    """With gradients of zero only the decay moves anything."""
    before = {key: value.detach().clone() for key, value in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    config = OptimizerConfig(name=name, weight_decay=0.1, warmup_steps=0, decay_fraction=0.0)
    Optimizers(model, config, steps=10).step(0)
    for key, value in model.named_parameters():
        if value.ndim == 2:
            assert value.norm() < before[key].norm(), key
        else:
            assert value.equal(before[key]), key


def test_the_first_step_of_adamw_is_its_rate_in_the_gradients_direction(model):
    config = OptimizerConfig(name="adamw", lr=1e-3, warmup_steps=2, decay_fraction=0.0)
    before = model.lm_head.weight.detach().clone()
    backward(model, seed=0)
    sign = model.lm_head.weight.grad.sign()
    optimizers = Optimizers(model, config, steps=10)
    assert optimizers.rate(0) == pytest.approx(5e-4)
    optimizers.step(0)
    torch.testing.assert_close(before - model.lm_head.weight, 5e-4 * sign, rtol=1e-2, atol=1e-7)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("name", ["muon", "adamw"])
def test_the_state_survives_as_named_tensors(tiny_model, name):
    """Three steps, the state carried over into a fresh optimizer, three more: bit-equal to six steps."""
    config = OptimizerConfig(name=name, warmup_steps=2)
    whole = tiny_model("masked_diffusion").requires_grad_(True)
    optimizers = Optimizers(whole, config, steps=6)
    for step in range(6):
        if step == 3:
            carried = {key: value.clone() for key, value in optimizers.state_tensors().items()}
            halves = tiny_model("masked_diffusion").requires_grad_(True)
            halves.load_state_dict(whole.state_dict())
        backward(whole, seed=step)
        optimizers.step(step)
    assert {key.rsplit("/", 1)[0] for key in carried} == {key for key, _ in whole.named_parameters()}
    fresh = Optimizers(halves, config, steps=6)
    fresh.load_state_tensors(carried, "here")
    for step in range(3, 6):
        backward(halves, seed=step)
        fresh.step(step)
    assert all(a.equal(b) for a, b in zip(whole.parameters(), halves.parameters(), strict=True))
    one, two = optimizers.state_tensors(), fresh.state_tensors()
    assert one.keys() == two.keys()
    assert all(one[key].equal(two[key]) for key in one)


def test_a_missing_state_is_refused_by_name(model):
    optimizers = Optimizers(model, OptimizerConfig(), steps=6)
    backward(model, seed=0)
    optimizers.step(0)
    state = {key: value for key, value in optimizers.state_tensors().items() if not key.startswith("norm.weight")}
    with pytest.raises(UserError, match=r"somewhere.*norm\.weight"):
        Optimizers(model, OptimizerConfig(), steps=6).load_state_tensors(state, "somewhere")

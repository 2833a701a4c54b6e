"""The three losses against a reference that runs the head everywhere and sums by hand."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from mdlm.config import OBJECTIVES
from mdlm.corruption import log_probabilities
from mdlm.cpu import compile_static
from mdlm.errors import UserError
from mdlm.objectives import LOSSES, LossConfig, blocks_in_response, positions_a_row, training_loss

PROMPTS, RESPONSES = [5, 2, 3], [9, 4, 7]
DIFFUSION = ["masked_diffusion", "block_diffusion"]
CONFIGS = [
    LossConfig(),
    LossConfig(weighting="bound", min_mask_rate=0.0),
    LossConfig(weighting="bound", schedule="cosine", min_mask_rate=0.1, max_mask_rate=0.8),
    LossConfig(schedule="quadratic", min_mask_rate=0.3),
    LossConfig(complementary=True),
]


def time_of(batch, config, row, column):
    """The timestep that a response column is corrupted at."""
    return batch.times_BJ[row, column // config.block_length if config.objective == "block_diffusion" else 0]


def reference(model, batch, loss):
    """Weighted nats and number of the predicted positions, one position after the other, from plain passes."""
    config, start, schedule = model.config, batch.response_start, loss.training_schedule()
    rows, columns = batch.supervised_BR.shape
    copies = 2 if loss.complementary and config.objective != "autoregressive" else 1
    total, predicted = 0.0, 0
    for row, copy in itertools.product(range(rows), range(copies)):
        clean, valid = batch.tokens_BL[row, None], batch.valid_BL[row, None]
        noisy, weights = clean.clone(), {}
        for column in range(columns):
            if not batch.supervised_BR[row, column]:
                continue
            time = time_of(batch, config, row, column)
            if config.objective == "autoregressive":
                weights[column] = 1.0
            elif bool(batch.noise_BR[row, column] < schedule.mask_rate(time)) == (copy == 0):
                noisy[0, start + column] = config.mask_token_id
                weights[column] = float(schedule.loss_weight(time)) if loss.weighting == "bound" else 1.0
        for column, weight in weights.items():
            tokens, at = noisy, start + column
            if config.objective == "autoregressive":
                tokens, at = clean, at - 1
            elif config.objective == "block_diffusion":
                tokens, first = clean.clone(), start + column // config.block_length * config.block_length
                tokens[:, first : first + config.block_length] = noisy[:, first : first + config.block_length]
            log_probs_V = log_probabilities(model(tokens, valid, start)[0, at], config.mask_token_id)
            total -= weight * float(log_probs_V[clean[0, start + column]])
            predicted += 1
    return total, predicted


@pytest.mark.parametrize("loss", CONFIGS)
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_loss_is_the_mean_over_predicted_positions_computed_one_by_one(tiny_model, random_batch, objective, loss):
    model = tiny_model(objective)
    for seed in range(2):
        batch = random_batch(model.config, PROMPTS, RESPONSES, seed=seed)
        total, predicted = reference(model, batch, loss)
        by_all = objective != "autoregressive" and loss.weighting == "bound"
        divisor = sum(RESPONSES) if by_all else predicted
        value, counts = training_loss(model, batch, loss, capacity=27)
        assert predicted > 0
        assert float(value) == pytest.approx(total / divisor, rel=1e-5)
        assert (counts["predicted"], counts["overflow"]) == (predicted, 0)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_loss_does_not_depend_on_the_room_for_predicted_positions(tiny_model, random_batch, objective):
    model = tiny_model(objective)
    batch = random_batch(model.config, PROMPTS, RESPONSES)
    roomy, counts = training_loss(model, batch, LossConfig(), capacity=27)
    exact, _ = training_loss(model, batch, LossConfig(), capacity=int(counts["predicted"]))
    torch.testing.assert_close(exact, roomy)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_too_little_room_is_counted(tiny_model, random_batch, objective):
    model = tiny_model(objective)
    batch = random_batch(model.config, PROMPTS, RESPONSES)
    batch.times_BJ.fill_(1.0)
    _, counts = training_loss(model, batch, LossConfig(), capacity=16)
    assert (counts["predicted"], counts["overflow"]) == (16, 4)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_batch_without_anything_to_predict_has_no_loss(tiny_model, random_batch, objective):
    model = tiny_model(objective).requires_grad_(True)
    batch = random_batch(model.config, PROMPTS, RESPONSES)
    batch.supervised_BR.fill_(False)
    loss, counts = training_loss(model, batch, LossConfig(weighting="bound"), capacity=16)
    loss.backward()
    assert loss == counts["predicted"] == 0
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


class Watched:
    """The tokens that go through the trunk."""

    def __init__(self, model):
        self.tokens = []
        self.handle = model.embed_tokens.register_forward_pre_hook(lambda _m, inputs: self.tokens.append(inputs[0]))


@pytest.mark.parametrize("objective", DIFFUSION)
def test_prompts_padding_and_unsupervised_columns_are_never_corrupted(tiny_model, random_batch, objective):
    model = tiny_model(objective)
    batch = random_batch(model.config, PROMPTS, RESPONSES)
    batch.times_BJ.fill_(1.0)
    batch.supervised_BR[:, 2] = False
    watched = Watched(model)
    training_loss(model, batch, LossConfig(), 27)
    (tokens,) = watched.tokens
    clean = batch.tokens_BL
    if objective == "block_diffusion":
        assert tokens[:, : clean.shape[1]].equal(clean), "the clean half is clean"
        tokens = torch.cat([clean[:, : batch.response_start], tokens[:, clean.shape[1] :]], dim=1)
    assert tokens[:, : batch.response_start].equal(clean[:, : batch.response_start])
    masked_BR = tokens[:, batch.response_start :] == model.config.mask_token_id
    assert masked_BR.equal(batch.supervised_BR)


def test_next_token_prediction_corrupts_nothing_and_ignores_times_and_noise(tiny_model, random_batch):
    model = tiny_model("autoregressive")
    batch = random_batch(model.config, PROMPTS, RESPONSES)
    watched = Watched(model)
    first, _ = training_loss(model, batch, LossConfig(), 27)
    assert watched.tokens[0].equal(batch.tokens_BL)
    other = replace(batch, times_BJ=batch.times_BJ / 2, noise_BR=1 - batch.noise_BR)
    for loss in CONFIGS:
        assert training_loss(model, other, loss, 27)[0] == first


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_what_is_not_supervised_does_not_count(tiny_model, random_batch, objective):
    """A target in an unsupervised column may be anything, as long as no supervised position sees it."""
    model = tiny_model(objective)
    batch = random_batch(model.config, PROMPTS, RESPONSES)
    other = replace(batch, tokens_BL=batch.tokens_BL.masked_fill(~batch.valid_BL, 3))
    assert not other.tokens_BL.equal(batch.tokens_BL)
    torch.testing.assert_close(
        training_loss(model, other, LossConfig(), 27)[0], training_loss(model, batch, LossConfig(), 27)[0]
    )


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_padding_columns_change_no_loss(tiny_model, random_batch, objective):
    model = tiny_model(objective)
    batch = random_batch(model.config, [4, 4], [8, 8])
    wider = replace(
        batch,
        tokens_BL=torch.nn.functional.pad(batch.tokens_BL, (3, 4), value=model.config.pad_token_id),
        valid_BL=torch.nn.functional.pad(batch.valid_BL, (3, 4)),
        supervised_BR=torch.nn.functional.pad(batch.supervised_BR, (0, 4)),
        noise_BR=torch.nn.functional.pad(batch.noise_BR, (0, 4)),
        times_BJ=torch.nn.functional.pad(batch.times_BJ, (0, 1 if objective == "block_diffusion" else 0), value=0.5),
    )
    for loss in CONFIGS:
        torch.testing.assert_close(
            training_loss(model, wider, loss, 24)[0], training_loss(model, batch, loss, 16)[0], rtol=1e-5, atol=1e-6
        )


def test_every_objective_has_a_loss_and_its_number_of_times(tiny_model):
    assert tuple(LOSSES) == OBJECTIVES
    counts = {name: blocks_in_response(tiny_model(name, block_length=4).config, 10) for name in OBJECTIVES}
    assert counts == {"autoregressive": 1, "masked_diffusion": 1, "block_diffusion": 3}


@pytest.mark.parametrize("objective", DIFFUSION)
def test_complementary_copies_predict_every_supervised_token_once(tiny_model, random_batch, objective):
    model = tiny_model(objective)
    batch = random_batch(model.config, PROMPTS, RESPONSES)
    watched = Watched(model)
    _, counts = training_loss(model, batch, LossConfig(complementary=True), capacity=27)
    assert (counts["predicted"], counts["overflow"]) == (sum(RESPONSES), 0)
    (tokens,) = watched.tokens
    start, columns = batch.response_start, batch.supervised_BR.shape[1]
    if objective == "block_diffusion":
        copies = tokens[:, start + columns :].unflatten(1, (2, columns)).transpose(0, 1)
    else:
        copies = tokens[:, start:].unflatten(0, (2, len(RESPONSES)))
    masked = (copies == model.config.mask_token_id).sum(0)
    assert masked.equal(batch.supervised_BR.long())
    clean_BR = batch.tokens_BL[:, start:]
    assert copies.where(copies != model.config.mask_token_id, clean_BR).equal(clean_BR.expand_as(copies))


@pytest.mark.parametrize("complementary", [False, True])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_positions_of_a_step_are_those_that_go_through_the_trunk(
    tiny_model, random_batch, objective, complementary
):
    model, loss = tiny_model(objective), LossConfig(complementary=complementary)
    batch = random_batch(model.config, PROMPTS, RESPONSES)
    watched = Watched(model)
    training_loss(model, batch, loss, capacity=27)
    columns = batch.supervised_BR.shape[1]
    a_row = positions_a_row(objective, loss, batch.response_start, columns)
    assert sum(tokens.numel() for tokens in watched.tokens) == a_row * len(PROMPTS)


def test_complementary_copies_have_no_bound():
    with pytest.raises(UserError, match=r"complementary.*plain"):
        LossConfig(weighting="bound", complementary=True)


@pytest.mark.slow
@pytest.mark.parametrize("complementary", [False, True])
@pytest.mark.parametrize("objective", DIFFUSION)
def test_the_compiled_loss_is_the_loss_on_a_canvas_that_ends_inside_a_block(
    tiny_model, random_batch, objective, complementary
):
    """Blocks of 16 on 28 columns. A compiler that splits loops at the division into blocks once lost the last 12."""
    torch._dynamo.reset()
    model = tiny_model(objective, block_length=16, max_length=64)
    batch = random_batch(model.config, [20, 11], [28, 28])
    loss = LossConfig(complementary=complementary)
    expected, counts = training_loss(model, batch, loss, 64)
    found, found_counts = compile_static(training_loss)(model, batch, loss, 64)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert counts["predicted"] == found_counts["predicted"]


@pytest.mark.slow
def test_the_compiled_gradient_in_bfloat16_is_the_gradient(tiny_model, random_batch):
    """At these widths GCC 12 once made wrong vector code of the rotary embedding's backward pass, and NaN of all."""
    torch._dynamo.reset()
    shape = {"dim": 192, "heads": 3, "kv_heads": 3, "head_dim": 64, "hidden_dim": 512, "vocab_size": 1024, "layers": 1}
    model = tiny_model("block_diffusion", **shape, block_length=16, max_length=192).requires_grad_(True)
    batch = random_batch(model.config, [80, 41], [112, 60])
    gradients = []
    for compute in (training_loss, compile_static(training_loss)):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            compute(model, batch, LossConfig(complementary=True), 400)[0].backward()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    eager, compiled = gradients
    assert (compiled - eager).norm() < 0.02 * eager.norm()

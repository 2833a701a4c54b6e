"""Oracle 18: what makes the three arms twins, and that each is a proper distribution over tokens."""

from __future__ import annotations

from functools import partial
from itertools import product

import pytest
import torch

from mdlm.config import OBJECTIVES, ModelConfig
from mdlm.corruption import log_probabilities
from mdlm.errors import UserError
from mdlm.likelihood import autoregressive_nll, deterministic_order_nll, exact_nelbo, nelbo, order_nll
from mdlm.objectives import Batch, LossConfig, next_token_loss, training_loss
from mdlm.transformer import Transformer

SHAPE = {"vocab_size": 12, "dim": 16, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 8, "hidden_dim": 24}


@pytest.mark.parametrize("tied", [True, False])
def test_twins_have_equal_parameter_counts_and_bit_equal_initial_weights(tied):
    twins = [
        Transformer(ModelConfig(objective, **SHAPE, tie_embeddings=tied, block_length=block)).initialize(seed=3)
        for block, objective in enumerate(OBJECTIVES, start=4)
    ]
    first = twins[0].state_dict()
    assert len({twin.num_parameters for twin in twins}) == 1
    for twin in twins[1:]:
        weights = twin.state_dict()
        assert list(weights) == list(first)
        assert all(torch.equal(weights[name], first[name]) for name in first)


def test_another_seed_gives_other_weights():
    one, two = (Transformer(ModelConfig("autoregressive", **SHAPE)).initialize(seed) for seed in (0, 1))
    assert not torch.equal(one.embed_tokens.weight, two.embed_tokens.weight)
    assert not torch.equal(one.layers[1].mlp.up_proj.weight, two.layers[1].mlp.up_proj.weight)


@pytest.mark.parametrize("prompt_padding", [0, 2])
def test_the_autoregressive_probabilities_of_all_strings_sum_to_one(tiny_model, prompt_padding):
    model = tiny_model("autoregressive", vocab_size=6)
    config, length = model.config, 3
    pad, begin = config.pad_token_id, config.begin_token_id
    possible = [token for token in range(config.vocab_size) if token != config.mask_token_id]
    strings = torch.tensor(list(product(possible, repeat=length)))
    prompt = torch.tensor([pad] * prompt_padding + [begin, 1])
    total = 0.0
    for string in strings:
        tokens_BL = torch.cat([prompt, string])[None]
        valid_BL = torch.arange(tokens_BL.shape[1])[None] >= prompt_padding
        nothing = torch.zeros(1, length)
        batch = Batch(tokens_BL, valid_BL, torch.ones(1, length, dtype=torch.bool), nothing[:, :1], nothing)
        nll, counted, *_ = next_token_loss(model, batch, LossConfig(), capacity=length)
        assert counted == length
        total += float(nll.double().neg().exp())
    assert len(strings) == 5**3
    assert total == pytest.approx(1, abs=1e-5)


@pytest.fixture(params=[0, 2], ids=lambda columns: f"{columns} columns of padding")
def all_strings(request):
    """`all_strings(config)`: every string of three tokens behind a prompt of two, and the options that say so."""

    def lay_out(config):
        padding = request.param
        possible = [token for token in range(config.vocab_size) if token != config.mask_token_id]
        strings_SL = torch.tensor(list(product(possible, repeat=3)))
        prompt = torch.tensor([config.pad_token_id] * padding + [config.begin_token_id, 1])
        tokens_SL = torch.cat([prompt.expand(len(strings_SL), -1), strings_SL], dim=1)
        valid_SL = (torch.arange(tokens_SL.shape[1]) >= padding).expand_as(tokens_SL)
        options = {"mask_id": config.mask_token_id, "valid_BL": valid_SL, "response_start": padding + 2}
        return tokens_SL, options

    return lay_out


def test_the_autoregressive_likelihoods_of_all_strings_sum_to_one(tiny_model, all_strings):
    model = tiny_model("autoregressive", vocab_size=6)
    tokens_SL, options = all_strings(model.config)
    estimate = autoregressive_nll(model, tokens_SL, **options)
    assert len(tokens_SL) == 5**3
    assert float(estimate.nats_B.neg().exp().sum()) == pytest.approx(1, abs=1e-5)
    assert estimate.bound == "exact_autoregressive"
    assert estimate.standard_error == 0.0
    assert estimate.tokens_B.tolist() == [3] * 5**3


@pytest.mark.parametrize("order", ["left_to_right", "right_to_left"])
@pytest.mark.parametrize(("objective", "block_length"), [("masked_diffusion", 4), ("block_diffusion", 3)])
def test_the_twins_likelihoods_of_all_strings_sum_to_one_in_any_order(
    tiny_model, all_strings, objective, block_length, order
):
    model = tiny_model(objective, vocab_size=6, block_length=block_length)
    tokens_SL, options = all_strings(model.config)
    estimate = order_nll(model, tokens_SL, order, **options)
    assert float(estimate.nats_B.neg().exp().sum()) == pytest.approx(1, abs=1e-5)


def test_the_autoregressive_likelihood_is_the_training_loss(tiny_model, random_batch):
    model = tiny_model("autoregressive")
    batch = random_batch(model.config, [3, 2], [8, 6])
    options = {"mask_id": model.config.mask_token_id, "valid_BL": batch.valid_BL, "response_start": 3}
    loss, _ = training_loss(model, batch, LossConfig(), 16)
    assert autoregressive_nll(model, batch.tokens_BL, **options).nats_per_token == pytest.approx(float(loss), rel=1e-5)


def test_the_autoregressive_likelihood_scores_any_choice_of_tokens(tiny_model, random_batch):
    """Parts of a row add up to the row, the first token given."""
    model = tiny_model("autoregressive")
    tokens_BL = random_batch(model.config, [0, 0], [9, 9]).tokens_BL
    mask = model.config.mask_token_id
    whole = autoregressive_nll(model, tokens_BL, mask_id=mask)
    assert whole.tokens_B.tolist() == [8, 8]
    even_BL = (torch.arange(9) % 2 == 0).expand(2, -1)
    later_BL = torch.arange(9) > 0
    parts = [
        autoregressive_nll(model, tokens_BL, mask_id=mask, scored_BL=scored_BL & later_BL)
        for scored_BL in (even_BL, ~even_BL)
    ]
    torch.testing.assert_close(parts[0].nats_B + parts[1].nats_B, whole.nats_B)


@pytest.mark.parametrize(
    "likelihood",
    [
        nelbo,
        partial(order_nll, order_L="left_to_right"),
        partial(deterministic_order_nll, score="entropy"),
        lambda model, tokens_BL, **options: exact_nelbo(model, tokens_BL[0], **options),
    ],
    ids=["nelbo", "order_nll", "deterministic_order_nll", "exact_nelbo"],
)
def test_next_token_logits_are_no_denoiser(tiny_model, likelihood):
    """They are those of the position behind: a bound from them would be a wrong number with a good name."""
    model = tiny_model("autoregressive")
    with pytest.raises(UserError, match="autoregressive"):
        likelihood(model, torch.tensor([[11, 1, 2]]), mask_id=model.config.mask_token_id, response_start=1)


def test_nothing_predicts_a_rows_first_token(tiny_model):
    model = tiny_model("autoregressive")
    tokens_BL, mask = torch.tensor([[11, 1, 2]]), model.config.mask_token_id
    with pytest.raises(UserError, match="first token"):
        autoregressive_nll(model, tokens_BL, mask_id=mask, response_start=0)
    with pytest.raises(UserError, match="first token"):
        autoregressive_nll(model, tokens_BL, mask_id=mask, scored_BL=torch.ones(1, 3, dtype=torch.bool))


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_mask_token_has_probability_exactly_zero(tiny_model, objective):
    model = tiny_model(objective)
    mask = model.config.mask_token_id
    logits_BLV = model(torch.randint(0, 8, (3, 7), generator=torch.Generator().manual_seed(0)))
    logits_BLV[..., mask] = 1e4  # however much the network wants it
    probabilities_BLV = log_probabilities(logits_BLV, mask).exp()
    assert (probabilities_BLV[..., mask] == 0).all()
    torch.testing.assert_close(probabilities_BLV.sum(-1), torch.ones(3, 7))


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_no_loss_depends_on_the_mask_tokens_logit(tiny_model, random_batch, objective):
    model = tiny_model(objective, tie_embeddings=False)
    batch = random_batch(model.config, [3, 2], [8, 6])
    before, _ = training_loss(model, batch, LossConfig(), 16)
    model.lm_head.weight[model.config.mask_token_id] += 50.0
    after, _ = training_loss(model, batch, LossConfig(), 16)
    assert before == after
    assert before > 0

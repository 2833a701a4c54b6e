"""Oracle 18: what makes the three arms twins, and that each is a proper distribution over tokens."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from mdlm.config import OBJECTIVES, ModelConfig
from mdlm.corruption import log_probabilities
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
        nll, counted, _ = next_token_loss(model, batch, LossConfig(), capacity=length)
        assert counted == length
        total += float(nll.double().neg().exp())
    assert len(strings) == 5**3
    assert total == pytest.approx(1, abs=1e-5)


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

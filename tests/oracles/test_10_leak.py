"""Oracle 10: a block's prediction depends on the noisy tokens of its own block and on earlier clean blocks, and on
nothing else. What must not matter has a gradient of exactly zero."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch

from mdlm.attention import block_indices, logical_positions, side_by_side
from mdlm.config import OBJECTIVES
from mdlm.objectives import LossConfig, training_loss

PROMPT, RESPONSE, BLOCK = 3, 10, 4


@contextmanager
def watched_embeddings(model):
    """Collects the embeddings of every pass, with gradients."""
    seen = []

    def watch(_module, _inputs, output):
        output.requires_grad_().retain_grad()
        seen.append(output)

    handle = model.embed_tokens.register_forward_hook(watch)
    try:
        yield seen
    finally:
        handle.remove()


def touched(embeddings_BLD):
    """Positions whose embedding has any gradient at all, (L,) bool."""
    return (embeddings_BLD.grad != 0).any(-1).any(0)


@pytest.mark.parametrize("causal_prompt", [False, True])
@pytest.mark.parametrize("block", range(3))
def test_a_blocks_logits_see_earlier_clean_blocks_and_their_own_noisy_copy_alone(
    tiny_model, random_batch, block, causal_prompt
):
    model = tiny_model("block_diffusion", causal_prompt=causal_prompt)
    batch = random_batch(model.config, [PROMPT, PROMPT - 1], [RESPONSE] * 2)
    length, positions_BL = PROMPT + RESPONSE, logical_positions(batch.valid_BL)
    noisy_BR = torch.where(batch.noise_BR < 0.5, model.config.mask_token_id, batch.tokens_BL[:, PROMPT:])
    start, stop = block * BLOCK, min((block + 1) * BLOCK, RESPONSE)
    with watched_embeddings(model) as seen:
        hidden = model.hidden(
            torch.cat([batch.tokens_BL, noisy_BR], dim=1),
            torch.cat([positions_BL, positions_BL[:, PROMPT:]], dim=1),
            side_by_side(block_indices(model.config, batch.valid_BL, PROMPT), PROMPT),
        )
    weights = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(0))
    (hidden * weights)[:, length + start : length + stop].sum().backward()
    expected = torch.zeros(length + RESPONSE, dtype=torch.bool)
    expected[: PROMPT + start] = True
    expected[length + start : length + stop] = True
    assert touched(seen[0]).tolist() == expected.tolist()
    padding_D = seen[0].grad[1, 0]
    assert not batch.valid_BL[1, 0]
    assert (padding_D == 0).all()


@pytest.mark.parametrize("block", range(3))
def test_the_block_loss_does_not_see_the_answer(tiny_model, random_batch, block):
    model = tiny_model("block_diffusion")
    batch = random_batch(model.config, [PROMPT], [RESPONSE])
    start, stop, length = block * BLOCK, min((block + 1) * BLOCK, RESPONSE), PROMPT + RESPONSE
    batch.supervised_BR[:, :start] = batch.supervised_BR[:, stop:] = False
    batch.times_BJ.fill_(1.0)
    with watched_embeddings(model) as seen:
        loss, counts = training_loss(model, batch, LossConfig(), RESPONSE)
    loss.backward()
    expected = torch.zeros(length + RESPONSE, dtype=torch.bool)
    expected[: PROMPT + start] = True
    expected[length + start : length + stop] = True
    assert touched(seen[0]).tolist() == expected.tolist()
    assert counts["predicted"] == stop - start


def test_next_token_logits_see_no_later_token(tiny_model, random_batch):
    model = tiny_model("autoregressive")
    batch = random_batch(model.config, [PROMPT], [RESPONSE])
    for position in range(PROMPT + RESPONSE):
        with watched_embeddings(model) as seen:
            logits_BLV = model(batch.tokens_BL, batch.valid_BL, PROMPT)
        logits_BLV[:, position].square().sum().backward()
        assert touched(seen[0]).tolist() == [column <= position for column in range(PROMPT + RESPONSE)]


def test_masked_diffusion_logits_see_every_token(tiny_model, random_batch):
    model = tiny_model("masked_diffusion")
    batch = random_batch(model.config, [PROMPT], [RESPONSE])
    for position in range(PROMPT + RESPONSE):
        with watched_embeddings(model) as seen:
            logits_BLV = model(batch.tokens_BL, batch.valid_BL, PROMPT)
        logits_BLV[:, position].square().sum().backward()
        assert touched(seen[0]).all()


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_padding_never_gets_a_gradient_from_the_loss(tiny_model, random_batch, objective):
    model = tiny_model(objective)
    batch = random_batch(model.config, [PROMPT, 1], [5, RESPONSE])
    batch.times_BJ.fill_(1.0)
    with watched_embeddings(model) as seen:
        loss, _ = training_loss(model, batch, LossConfig(), 2 * RESPONSE)
    loss.backward()
    gradient_BL = seen[0].grad[:, : PROMPT + RESPONSE].abs().sum(-1)
    assert (gradient_BL[~batch.valid_BL] == 0).all()
    assert (gradient_BL[0, :PROMPT] > 0).all()

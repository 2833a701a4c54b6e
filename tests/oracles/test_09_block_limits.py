"""Oracle 9: one block as long as the response is plain masked diffusion; blocks of one token are a chain rule."""

from __future__ import annotations

import pytest
import torch

from mdlm.corruption import log_probabilities
from mdlm.likelihood import exact_nelbo, nelbo, order_nll
from mdlm.objectives import LossConfig, block_diffusion_loss, masked_diffusion_loss, training_loss

MASK, TABLE_LENGTH = 3, 5
LOSSES = [LossConfig(), LossConfig(weighting="bound", min_mask_rate=0), LossConfig(schedule="cosine")]
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def twins(tiny_model, block_length, **changes):
    return (tiny_model(name, block_length=block_length, **changes) for name in ("masked_diffusion", "block_diffusion"))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("block_length", [9, 16])
def test_a_whole_row_as_one_block_is_masked_diffusion(tiny_model, random_batch, block_length, loss):
    whole, blocks = twins(tiny_model, block_length)
    for seed in range(8):
        batch = random_batch(whole.config, [0, 0, 0], [9, 4, 7], seed=seed)
        scored = masked_diffusion_loss(whole, batch, loss, 27)
        assert scored.counted > 0
        torch.testing.assert_close(block_diffusion_loss(blocks, batch, loss, 27), scored, **CLOSE)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_whole_response_as_one_block_is_masked_diffusion_when_prompts_do_not_look_ahead(
    tiny_model, random_batch, loss
):
    """A block model's prompt does not see the response. In a network of one layer nothing hangs on that: what the
    response reads from the prompt are its embeddings."""
    whole, blocks = twins(tiny_model, 9, layers=1)
    batch = random_batch(whole.config, [5, 2, 3], [9, 4, 7])
    plain, _ = training_loss(whole, batch, loss, 27)
    torch.testing.assert_close(training_loss(blocks, batch, loss, 27)[0], plain, **CLOSE)


def chain_rule(model, batch):
    """Nats of each response given its prompt: every token from a mask in its place and the clean tokens before it."""
    start, total = batch.response_start, 0.0
    for column in range(start, batch.tokens_BL.shape[1]):
        tokens_BL = batch.tokens_BL[:, : column + 1].clone()
        tokens_BL[:, column] = model.config.mask_token_id
        logits_BV = model(tokens_BL, batch.valid_BL[:, : column + 1], start)[:, column]
        log_probs_BV = log_probabilities(logits_BV, model.config.mask_token_id)
        nats_B = -log_probs_BV.gather(-1, batch.tokens_BL[:, column, None])[:, 0]
        total += torch.where(batch.supervised_BR[:, column - start], nats_B, 0.0).sum()
    return total


def test_blocks_of_one_token_at_time_one_are_the_chain_rule_without_variance(tiny_model, random_batch):
    model = tiny_model("block_diffusion", block_length=1)
    loss = LossConfig(weighting="bound", min_mask_rate=0)
    batch = random_batch(model.config, [5, 2, 3], [9, 4, 7])
    wanted = chain_rule(model, batch)
    for seed in range(3):
        batch.times_BJ.fill_(1.0)
        batch.noise_BR.uniform_(generator=torch.Generator().manual_seed(seed))
        total, counted, *_ = block_diffusion_loss(model, batch, loss, 27)
        torch.testing.assert_close(total, wanted, **CLOSE)
        assert counted == 9 + 4 + 7


def test_blocks_of_one_token_weigh_each_draw_by_one_over_its_time(tiny_model, random_batch):
    """Whatever the times, a masked token counts 1/t of its nats, so that the mean stays the chain rule."""
    model = tiny_model("block_diffusion", block_length=1)
    batch = random_batch(model.config, [2], [6])
    batch.times_BJ.fill_(0.25)
    batch.noise_BR.fill_(0.2)  # below every rate: all are masked
    total, *_ = block_diffusion_loss(model, batch, LossConfig(weighting="bound", min_mask_rate=0), 6)
    torch.testing.assert_close(total, 4 * chain_rule(model, batch), **CLOSE)


@pytest.mark.parametrize("schedule", [None, "linear"])
@pytest.mark.parametrize("block_length", [9, 16])
def test_the_sampled_bound_of_one_block_is_that_of_masked_diffusion(tiny_model, random_batch, block_length, schedule):
    whole, blocks = twins(tiny_model, block_length)
    batch = random_batch(whole.config, [0, 0, 0], [9, 4, 7])
    options = {"mask_id": whole.config.mask_token_id, "valid_BL": batch.valid_BL, "schedule": schedule, "seed": 3}
    plain, blocked = (nelbo(model, batch.tokens_BL, num_samples=16, **options) for model in (whole, blocks))
    torch.testing.assert_close(blocked.nats_B, plain.nats_B, **CLOSE)


@pytest.mark.parametrize("block_length", [TABLE_LENGTH, TABLE_LENGTH + 3])
def test_a_block_as_long_as_the_row_changes_no_bound(random_table, strings, block_length):
    table, rows_BL = random_table(TABLE_LENGTH), strings(TABLE_LENGTH)[::30]
    plain, blocked = (
        nelbo(table, rows_BL, mask_id=MASK, block_length=length, seed=5) for length in (None, block_length)
    )
    torch.testing.assert_close(blocked.nats_B, plain.nats_B, rtol=1e-12, atol=0)
    exact, exact_blocked = (
        exact_nelbo(table, rows_BL[2], mask_id=MASK, block_length=length) for length in (None, block_length)
    )
    torch.testing.assert_close(exact_blocked.nats_B, exact.nats_B, rtol=1e-12, atol=0)


def test_the_bound_of_blocks_of_one_token_is_the_chain_rule_without_variance(tiny_model, random_batch):
    model = tiny_model("block_diffusion", block_length=1)
    batch = random_batch(model.config, [5, 2, 3], [9, 4, 7])
    options = {"mask_id": model.config.mask_token_id, "valid_BL": batch.valid_BL, "response_start": 5}
    sampled = nelbo(model, batch.tokens_BL, num_samples=3, **options)
    ordered = order_nll(model, batch.tokens_BL, "left_to_right", **options)
    assert sampled.tokens_B.tolist() == ordered.tokens_B.tolist() == [9, 4, 7]
    assert sampled.standard_error == pytest.approx(0, abs=1e-6)
    torch.testing.assert_close(sampled.nats_B, ordered.nats_B, **CLOSE)
    assert float(sampled.nats_B.sum()) == pytest.approx(float(chain_rule(model, batch)), rel=1e-5)


def test_a_table_in_blocks_of_one_token_is_its_own_chain_rule(random_table, strings, enumeration):
    """Later tokens are masked, earlier ones clean: p(x) sums to one."""
    table, strings_SL = random_table(TABLE_LENGTH), strings(TABLE_LENGTH)
    wanted_S = enumeration(table, strings_SL, [[column] for column in range(TABLE_LENGTH)]).nelbo()
    for options in ({"block_length": 1}, {"block_length": 1, "num_samples": 2, "seed": 9}):
        torch.testing.assert_close(nelbo(table, strings_SL, mask_id=MASK, **options).nats_B, wanted_S)
    from_the_left = order_nll(table, strings_SL, "left_to_right", mask_id=MASK)
    torch.testing.assert_close(from_the_left.nats_B, wanted_S)
    assert float(wanted_S.neg().exp().sum()) == pytest.approx(1, abs=1e-12)

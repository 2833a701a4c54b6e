"""Oracle 3: a denoiser that knows nothing costs log V per token, the mask token not counted; and no mask rate is too
small to be drawn."""

from __future__ import annotations

from math import log

import numpy as np
import pytest
import torch

from mdlm.corruption import SCHEDULES, Clipped
from mdlm.errors import UserError
from mdlm.likelihood import deterministic_order_nll, exact_nelbo, nelbo, order_nll
from mdlm.objectives import LossConfig, training_loss

REAL, MASK, PAD = 3, 3, 2
EXACT = pytest.approx(log(REAL), rel=1e-12)
BLOCK_LENGTHS = [None, 1, 2, 4, 9]
PADDINGS = [(0, 0), (2, 0), (0, 3), (1, 2)]


def knows_nothing(tokens_BL):
    """Equal logits for all real tokens, a high one for the mask."""
    logits_BLV = torch.zeros(*tokens_BL.shape, REAL + 1, dtype=torch.float64)
    logits_BLV[..., MASK] = 50
    return logits_BLV


@pytest.fixture(params=PADDINGS, ids=lambda sides: f"padding {sides[0]}+{sides[1]}")
def rows(request):
    """Two rows of seven, the second one shorter, and where they start: tokens, the options that say so, lengths."""
    left, right = request.param
    lengths = torch.tensor([7, 5])
    column_L = torch.arange(left + 7 + right)
    valid_BL = (column_L >= left) & (column_L < left + lengths[:, None])
    drawn_BL = torch.randint(0, REAL, valid_BL.shape, generator=torch.Generator().manual_seed(0))
    tokens_BL = torch.where(valid_BL, drawn_BL, PAD)
    return tokens_BL, {"mask_id": MASK, "valid_BL": valid_BL, "response_start": left}, lengths.tolist()


def assert_log_v(estimate, lengths):
    assert estimate.nats_per_token == EXACT
    assert estimate.bits_per_token == pytest.approx(log(REAL) / log(2), rel=1e-12)
    assert estimate.standard_error == pytest.approx(0, abs=1e-12)
    assert estimate.tokens_B.tolist() == lengths
    assert estimate.nats_B.dtype == torch.float64
    assert estimate.nats_B.tolist() == pytest.approx([log(REAL) * length for length in lengths], rel=1e-12)


@pytest.mark.parametrize("block_length", BLOCK_LENGTHS)
@pytest.mark.parametrize("independent", [False, True])
def test_the_sampled_bound_without_a_clock_is_log_v_exactly(rows, block_length, independent):
    tokens_BL, options, lengths = rows
    options = {**options, "num_samples": 5, "independent": independent}
    assert_log_v(nelbo(knows_nothing, tokens_BL, block_length=block_length, **options), lengths)


@pytest.mark.parametrize("block_length", BLOCK_LENGTHS)
def test_the_enumerated_bound_is_log_v_exactly(rows, block_length):
    tokens_BL, options, lengths = rows
    for row, length in enumerate(lengths):
        options_L = {**options, "valid_L": options["valid_BL"][row], "block_length": block_length}
        del options_L["valid_BL"]
        assert_log_v(exact_nelbo(knows_nothing, tokens_BL[row], **options_L), [length])


@pytest.mark.parametrize("block_length", BLOCK_LENGTHS)
def test_the_chain_rule_in_any_order_is_log_v_exactly(rows, block_length):
    tokens_BL, options, lengths = rows
    columns = tokens_BL.shape[1]
    options = {**options, "block_length": block_length}
    orders = ["left_to_right", "random", torch.arange(columns)]
    if block_length is None:
        orders += ["right_to_left", torch.randperm(columns, generator=torch.Generator().manual_seed(1))]
    else:
        orders += ["blocks"]
    for order in orders:
        assert_log_v(order_nll(knows_nothing, tokens_BL, order, **options), lengths)


@pytest.mark.parametrize("block_length", BLOCK_LENGTHS)
@pytest.mark.parametrize("score", ["confidence", "margin", "entropy"])
def test_greedy_orders_are_log_v_exactly(rows, block_length, score):
    tokens_BL, options, lengths = rows
    assert_log_v(
        deterministic_order_nll(knows_nothing, tokens_BL, score, block_length=block_length, **options), lengths
    )


@pytest.mark.parametrize("block_length", [None, 1, 2])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_sampled_bound_in_continuous_time_is_log_v_within_its_error(rows, sampled_nelbo, schedule, block_length):
    """16 seeds, 512 samples each, z < 4."""
    tokens_BL, options, _ = rows
    options = {**options, "num_samples": 512, "block_length": block_length}
    mean, error = sampled_nelbo(knows_nothing, tokens_BL, schedule=schedule, **options)
    assert 0 < error < 0.02
    assert abs(mean - log(REAL)) < 4 * error


@pytest.mark.parametrize(
    ("schedule", "length"), [(None, 4000), ("linear", 16_000), ("cosine", 16_000), ("quadratic", 8000)]
)
def test_no_mask_rate_is_too_small_to_be_drawn(schedule, length):
    """A long row, 1,000 samples, seed 0: some sample has under four ten-thousandths of it masked.

    A floor of 1e-3 would catch about one sample, expect 16 of 16,000 tokens masked in it, and find at most 6 with
    probability 0.004."""
    shares = []

    def probe(tokens_BL):
        shares.extend((tokens_BL == 1).double().mean(-1).tolist())
        return torch.zeros(1, 1, 2).expand(*tokens_BL.shape, 2)

    row_BL = torch.zeros(1, length, dtype=torch.long)
    nelbo(probe, row_BL, mask_id=1, schedule=schedule, num_samples=1000)
    assert len(shares) <= 1000
    assert min(share for share in shares if share > 0) < 4e-4
    assert max(shares) > 0.99


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_a_schedule_with_a_floor_is_refused(schedule):
    for clipped in (Clipped(schedule, 1e-3, 1.0), Clipped(schedule, 0.0, 0.9)):
        with pytest.raises(UserError, match="bound"):
            nelbo(knows_nothing, torch.zeros(1, 4, dtype=torch.long), mask_id=MASK, schedule=clipped)


@pytest.mark.parametrize("objective", ["masked_diffusion", "block_diffusion"])
def test_a_model_that_knows_nothing_pays_the_log_of_the_real_vocabulary(tiny_model, training_copies, objective):
    """The training loss: log V per masked token, the mask token not counted."""
    model = tiny_model(objective, gain=0.0)
    loss, counts = training_loss(model, training_copies(model.config, 32, 0), LossConfig(), 32 * 5)
    assert counts["predicted"] > 0
    assert float(loss) == pytest.approx(np.log(model.config.vocab_size - 1), rel=1e-6)


@pytest.mark.parametrize("objective", ["masked_diffusion", "block_diffusion"])
def test_the_likelihood_of_a_model_that_knows_nothing_is_the_log_of_the_real_vocabulary(
    tiny_model, random_batch, objective
):
    model = tiny_model(objective, gain=0.0)
    batch = random_batch(model.config, [3, 2], [9, 6])
    options = {"mask_id": model.config.mask_token_id, "valid_BL": batch.valid_BL, "response_start": 3}
    estimate = nelbo(model, batch.tokens_BL, num_samples=4, **options)
    assert estimate.nats_per_token == pytest.approx(np.log(model.config.vocab_size - 1), rel=1e-6)
    assert estimate.tokens_B.tolist() == [9, 6]

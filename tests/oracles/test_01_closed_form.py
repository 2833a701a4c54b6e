"""Oracle 1: the sampled bound, the training loss and the enumerated bound are one number."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mdlm.corruption import SCHEDULES, Polynomial
from mdlm.errors import UserError
from mdlm.likelihood import exact_nelbo, nelbo, order_nll
from mdlm.objectives import LossConfig, training_loss

MASK, LENGTH = 3, 5
BLOCK_LENGTHS = [None, 1, 2, 3]
EXACT = {"rtol": 1e-9, "atol": 0}
CLOSE = {"rtol": 1e-5, "atol": 1e-5}
SMALLEST = {"layers": 1, "heads": 1, "kv_heads": 1}
MODELS = [("masked_diffusion", 4), ("block_diffusion", 1), ("block_diffusion", 2), ("block_diffusion", 8)]
TIMES = [None, *SCHEDULES, Polynomial(3.0, name="cubic")]
TIMES_IDS = ["uniform counts", *SCHEDULES, "cubic"]


@pytest.fixture(scope="module")
def table(random_table):
    return random_table(LENGTH)


@pytest.fixture(scope="module", name="rows_BL")
def every_ninth_string(strings):
    """27 rows."""
    return strings(LENGTH)[4::9]


def exact_rows(denoiser, rows_BL, **options):
    """The enumerated bound of each row by the library, (B,)."""
    return torch.cat([exact_nelbo(denoiser, row_L, **{"mask_id": MASK, **options}).nats_B for row_L in rows_BL])


# By enumeration


@pytest.mark.parametrize("block_length", BLOCK_LENGTHS)
def test_the_enumerated_bound_is_the_closed_form_over_masked_sets(table, rows_BL, enumeration, blocks_of, block_length):
    wanted_B = enumeration(table, rows_BL, blocks_of(list(range(LENGTH)), block_length)).nelbo()
    torch.testing.assert_close(exact_rows(table, rows_BL, block_length=block_length), wanted_B, **EXACT)


@pytest.mark.parametrize("block_length", BLOCK_LENGTHS)
def test_the_enumerated_bound_is_the_mean_over_all_orders_of_the_chain_rule(
    table, rows_BL, enumeration, blocks_of, block_length
):
    numbers = enumeration(table, rows_BL, blocks_of(list(range(LENGTH)), block_length))
    own = torch.stack([numbers.order_nll(order) for order in numbers.orders()])
    options = {"mask_id": MASK, "block_length": block_length}
    given = [order_nll(table, rows_BL, torch.tensor(order), **options).nats_B for order in numbers.orders()]
    torch.testing.assert_close(torch.stack(given), own, **EXACT)
    torch.testing.assert_close(exact_rows(table, rows_BL, block_length=block_length), own.mean(0), **EXACT)


@pytest.mark.parametrize("block_length", [None, 3])
def test_only_scored_positions_are_ever_masked(table, rows_BL, enumeration, blocks_of, sampled_nelbo, block_length):
    """Blocks are ranges of columns, whatever is scored in them. The sampled bound: z < 4."""
    scored_L = torch.tensor([False, True, True, False, True])
    blocks = [[c for c in block if scored_L[c]] for block in blocks_of(list(range(LENGTH)), block_length)]
    wanted_B = enumeration(table, rows_BL, blocks).nelbo()
    options = {"mask_id": MASK, "block_length": block_length}
    torch.testing.assert_close(exact_rows(table, rows_BL, scored_L=scored_L, **options), wanted_B, **EXACT)
    options = {**options, "scored_BL": scored_L.expand_as(rows_BL)}
    mean, error = sampled_nelbo(table, rows_BL, num_samples=128, **options)
    assert abs(mean - float(wanted_B.mean()) / 3) <= 4 * error + 1e-12
    assert nelbo(table, rows_BL, **options).tokens_B.tolist() == [3] * len(rows_BL)


def test_tokens_before_the_response_are_not_left_out_in_silence(table, rows_BL):
    """They belong to no block: a bound that counts them without their nats is too low."""
    everything_BL, options = torch.ones_like(rows_BL, dtype=torch.bool), {"mask_id": MASK, "response_start": 2}
    with pytest.raises(UserError, match="response_start"):
        nelbo(table, rows_BL, scored_BL=everything_BL, **options)
    with pytest.raises(UserError, match="response_start"):
        exact_nelbo(table, rows_BL[0], scored_L=everything_BL[0], **options)


@pytest.mark.parametrize(("objective", "block_length"), MODELS)
def test_a_transformers_enumerated_bound_is_the_closed_form(tiny_model, enumerated_response, objective, block_length):
    model = tiny_model(objective, block_length=block_length)
    numbers = enumerated_response(model)
    arguments = (model, numbers.tokens_BL[0])
    estimate = exact_nelbo(*arguments, mask_id=model.config.mask_token_id, response_start=2)
    torch.testing.assert_close(estimate.nats_B, numbers.nelbo(), **CLOSE)
    own = torch.stack([numbers.order_nll(order) for order in numbers.orders()])
    torch.testing.assert_close(estimate.nats_B, own.mean(0), **CLOSE)


def test_more_sets_than_one_cares_to_enumerate_are_refused(random_table):
    def uniform(tokens_BL):
        return torch.zeros(*tokens_BL.shape, 4)

    row_L = torch.zeros(15, dtype=torch.long)
    with pytest.raises(UserError, match="14"):
        exact_nelbo(uniform, row_L, mask_id=MASK)
    assert float(exact_nelbo(uniform, row_L, mask_id=MASK, block_length=14).nats_B) == pytest.approx(15 * np.log(3))


# By sampling


@pytest.mark.parametrize("block_length", BLOCK_LENGTHS)
@pytest.mark.parametrize("schedule", TIMES, ids=TIMES_IDS)
def test_the_sampled_bound_is_the_enumerated_one(table, rows_BL, sampled_nelbo, schedule, block_length):
    """27 rows, 16 seeds, 256 samples each, z < 4."""
    options = {"mask_id": MASK, "block_length": block_length}
    mean, error = sampled_nelbo(table, rows_BL, schedule=schedule, num_samples=256, **options)
    exact = float(exact_rows(table, rows_BL, block_length=block_length).mean()) / LENGTH
    assert abs(mean - exact) <= 4 * error + 1e-12
    assert error < 0.01 * exact, "sharp enough to tell a wrong weight"


@pytest.mark.parametrize("schedule", TIMES, ids=TIMES_IDS)
def test_a_sampled_bound_says_what_it_is(table, rows_BL, schedule):
    whole = nelbo(table, rows_BL, mask_id=MASK, schedule=schedule, num_samples=64)
    blocks = nelbo(table, rows_BL, mask_id=MASK, schedule=schedule, num_samples=64, block_length=2)
    assert (whole.bound, blocks.bound) == ("nelbo", "nelbo:block_2")
    assert whole.num_samples == blocks.num_samples == 64
    assert whole.nats_per_token == pytest.approx(float(whole.nats_B.sum() / whole.tokens_B.sum()), rel=1e-12)
    assert whole.standard_error > 0


def test_blocks_of_one_token_need_no_samples(table, rows_BL):
    """Which token is masked is then no question, and without a clock neither is the weight."""
    estimate = nelbo(table, rows_BL, mask_id=MASK, block_length=1)
    chain_rule = order_nll(table, rows_BL, "left_to_right", mask_id=MASK, block_length=1)
    torch.testing.assert_close(estimate.nats_B, chain_rule.nats_B, **EXACT)
    assert estimate.standard_error == pytest.approx(0, abs=1e-12)


def test_every_row_gets_its_own_bound(table, rows_BL):
    """27 rows, 40 seeds with 128 samples each: z < 4.5 for the worst row."""
    draws = torch.stack([nelbo(table, rows_BL, mask_id=MASK, seed=seed).nats_B for seed in range(40)])
    error_B = draws.std(0) / len(draws) ** 0.5
    assert ((draws.mean(0) - exact_rows(table, rows_BL)).abs() < 4.5 * error_B).all()


@pytest.mark.parametrize("schedule", [None, *SCHEDULES])
@pytest.mark.parametrize(("objective", "block_length"), MODELS)
def test_a_transformers_sampled_bound_is_the_enumerated_one(
    tiny_model, enumerated_response, sampled_nelbo, objective, block_length, schedule
):
    """One row, 16 seeds, 1,024 samples each, z < 4; the logits are float32."""
    model = tiny_model(objective, block_length=block_length, **SMALLEST)
    numbers = enumerated_response(model)
    options = {"mask_id": model.config.mask_token_id, "response_start": 2}
    mean, error = sampled_nelbo(model, numbers.tokens_BL, schedule=schedule, num_samples=1024, **options)
    exact = float(numbers.nelbo()) / LENGTH
    assert abs(mean - exact) < 4 * error + 1e-6 * exact
    assert error < 0.03 * exact


@pytest.mark.parametrize("independent", [False, True])
@pytest.mark.parametrize("block_length", [None, 2])
@pytest.mark.parametrize("num_samples", [8, 33])
def test_the_standard_error_is_honest(table, rows_BL, num_samples, block_length, independent):
    """The estimate's deviation over 200 seeds against the mean one reported: within a quarter, about five standard
    deviations of such a ratio."""
    options = {"num_samples": num_samples, "block_length": block_length, "independent": independent}
    estimates = [nelbo(table, rows_BL[:3], mask_id=MASK, seed=seed, **options) for seed in range(200)]
    actual = np.std([estimate.nats_per_token for estimate in estimates], ddof=1)
    reported = np.mean([estimate.standard_error for estimate in estimates])
    assert 0.75 < reported / actual < 1.25


@pytest.mark.parametrize(("order", "block_length"), [("random", None), ("blocks", 2), ("blocks", 3)])
def test_random_orders_cost_the_bound_on_average(table, rows_BL, order, block_length):
    """One row a thousand times, each with its own order, z < 4."""
    options = {"mask_id": MASK, "block_length": block_length}
    estimate = order_nll(table, rows_BL[3].expand(1000, -1), order, **options)
    exact = float(exact_nelbo(table, rows_BL[3], **options).nats_B)
    error = float(estimate.nats_B.std()) / 1000**0.5
    assert abs(float(estimate.nats_B.mean()) - exact) < 4 * error
    assert estimate.bound == f"order_nll:{order}"


# The training loss


def drawn_losses(model, loss, training_copies):
    """The training loss of 40 batches of 1,024 rows, seeds 0 to 39: their mean and its standard error.

    The weight 1/t has a heavy tail, hence so many rows: fewer draws would too often miss it.
    """
    with torch.no_grad():
        batches = (training_copies(model.config, 1024, seed) for seed in range(40))
        losses = np.array([float(training_loss(model, batch, loss, 1024 * LENGTH)[0]) for batch in batches])
    return losses.mean(), losses.std(ddof=1) / len(losses) ** 0.5


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("objective", "block_length"), MODELS[:3])
def test_the_mean_training_loss_is_the_enumerated_bound(
    tiny_model, training_copies, enumerated_response, objective, block_length, schedule
):
    """z < 4."""
    model = tiny_model(objective, block_length=block_length, **SMALLEST)
    loss = LossConfig(weighting="bound", min_mask_rate=0.0, schedule=schedule)
    mean, error = drawn_losses(model, loss, training_copies)
    exact = float(enumerated_response(model).nelbo()) / LENGTH
    assert abs(mean - exact) < 4 * error
    assert error < 0.01 * exact, "sharp enough to tell a wrong weight"


def test_a_floor_of_the_mask_rate_is_not_the_bound(tiny_model, training_copies, enumerated_response):
    """It must be 0 for that: a floor of 0.2 is seen at once, z > 4."""
    model = tiny_model("masked_diffusion", **SMALLEST)
    mean, error = drawn_losses(model, LossConfig(weighting="bound", min_mask_rate=0.2), training_copies)
    assert abs(mean - float(enumerated_response(model).nelbo()) / LENGTH) > 4 * error

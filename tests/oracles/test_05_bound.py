"""Oracle 5: the bound is one: never below the nats of p∞, the equal mixture over orders, which sums to one."""

from __future__ import annotations

from math import log

import pytest
import torch

from mdlm.likelihood import exact_nelbo, order_nll

MASK = 3
BLOCK_LENGTHS = [None, 2, 3]


@pytest.fixture(params=[3, 4], ids=lambda length: f"length {length}")
def length(request):
    return request.param


@pytest.mark.parametrize("block_length", BLOCK_LENGTHS)
@pytest.mark.parametrize("seed", range(3))
def test_the_bound_is_above_the_nats_of_the_order_mixture(
    random_table, strings, enumeration, blocks_of, length, seed, block_length
):
    table, strings_SL = random_table(length, seed), strings(length)
    numbers = enumeration(table, strings_SL, blocks_of(list(range(length)), block_length))
    options = {"mask_id": MASK, "block_length": block_length}
    bound_S = torch.cat([exact_nelbo(table, row_L, **options).nats_B for row_L in strings_SL])
    assert (bound_S >= numbers.mixture_nll() - 1e-12).all()
    assert (bound_S > numbers.mixture_nll() + 0.01).any(), "these conditionals belong to no joint distribution"


@pytest.mark.parametrize("block_length", BLOCK_LENGTHS)
def test_the_order_mixture_sums_to_one(random_table, strings, enumeration, blocks_of, length, block_length):
    table, strings_SL = random_table(length), strings(length)
    numbers = enumeration(table, strings_SL, blocks_of(list(range(length)), block_length))
    orders = numbers.orders()
    options = {"mask_id": MASK, "block_length": block_length}
    nats_OS = torch.stack([order_nll(table, strings_SL, torch.tensor(order), **options).nats_B for order in orders])
    mixture_S = log(len(orders)) - torch.logsumexp(-nats_OS, 0)
    torch.testing.assert_close(mixture_S, numbers.mixture_nll(), rtol=1e-9, atol=0)
    assert float(mixture_S.neg().exp().sum()) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("order", ["left_to_right", "right_to_left", "given"])
def test_every_order_alone_sums_to_one(random_table, strings, length, order):
    given = torch.tensor([1, 2, 0, 3][:length]) if order == "given" else order
    estimate = order_nll(random_table(length), strings(length), given, mask_id=MASK)
    assert float(estimate.nats_B.neg().exp().sum()) == pytest.approx(1, abs=1e-12)
    assert estimate.bound == f"order_nll:{order}"
    assert estimate.standard_error == 0.0


@pytest.mark.parametrize(("objective", "block_length"), [("masked_diffusion", 4), ("block_diffusion", 2)])
def test_a_transformers_bound_is_above_the_nats_of_its_order_mixture(
    tiny_model, enumerated_response, objective, block_length
):
    model = tiny_model(objective, block_length=block_length)
    numbers = enumerated_response(model)
    row_L, mask = numbers.tokens_BL[0], model.config.mask_token_id
    bound = float(exact_nelbo(model, row_L, mask_id=mask, response_start=2).nats_B)
    assert bound > float(numbers.mixture_nll())

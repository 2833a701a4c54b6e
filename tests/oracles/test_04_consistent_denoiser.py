"""Oracle 4: when all conditionals belong to one joint distribution, every bound is its exact likelihood."""

from __future__ import annotations

import pytest
import torch

from mdlm.likelihood import deterministic_order_nll, exact_nelbo, order_nll

MASK = 3
EXACT = {"rtol": 0, "atol": 1e-9}


@pytest.fixture(params=[3, 4, 5], ids=lambda length: f"length {length}")
def source(request, random_joint, consistent_table, strings):
    """A denoiser of one joint, all strings, and their exact nats."""
    joint_S = random_joint(request.param)
    return consistent_table(joint_S), strings(request.param), -joint_S.log()


@pytest.mark.parametrize("block_length", [None, 1, 2])
def test_the_bound_is_tight(source, block_length):
    table, strings_SL, nats_S = source
    options = {"mask_id": MASK, "block_length": block_length}
    bounds = [exact_nelbo(table, row_L, **options).nats_B for row_L in strings_SL]
    torch.testing.assert_close(torch.cat(bounds), nats_S, **EXACT)


@pytest.mark.parametrize("order", ["left_to_right", "right_to_left", "random", "reversed pairs"])
def test_every_order_costs_the_same(source, order):
    table, strings_SL, nats_S = source
    length = strings_SL.shape[1]
    if order == "reversed pairs":
        order = torch.tensor([c ^ 1 if c ^ 1 < length else c for c in range(length)])
    torch.testing.assert_close(order_nll(table, strings_SL, order, mask_id=MASK).nats_B, nats_S, **EXACT)


@pytest.mark.parametrize("score", ["confidence", "margin", "entropy"])
def test_a_greedy_order_costs_no_less(source, score):
    table, strings_SL, nats_S = source
    torch.testing.assert_close(deterministic_order_nll(table, strings_SL, score, mask_id=MASK).nats_B, nats_S, **EXACT)


def test_the_sampled_bound_still_varies_by_what_is_masked(source, sampled_nelbo):
    """Only its mean is the likelihood: all strings, 16 seeds, 128 samples each, z < 4."""
    table, strings_SL, nats_S = source
    mean, error = sampled_nelbo(table, strings_SL, mask_id=MASK, num_samples=128)
    assert error > 0
    assert abs(mean - float(nats_S.mean()) / strings_SL.shape[1]) < 4 * error

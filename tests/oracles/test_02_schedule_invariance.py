"""Oracle 2: the bound is the same number under every schedule, by quadrature over time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mdlm.corruption import SCHEDULES, Polynomial
from mdlm.likelihood import exact_nelbo

MASK, LENGTH = 3, 5
ALL = {**SCHEDULES, "cubic": Polynomial(3.0)}


@pytest.fixture(params=ALL.values(), ids=ALL)
def schedule(request):
    return request.param


def quadrature(schedule, numbers):
    """E[w(t) Σ −log p] over t in (0, 1) by Gauss and Legendre, nats of the first row."""
    (block,) = numbers.blocks
    nodes, weights = np.polynomial.legendre.leggauss(200)
    t = torch.tensor((nodes + 1) / 2)
    rate = schedule.mask_rate(t)
    expected = sum(
        rate ** len(s) * (1 - rate) ** (len(block) - len(s)) * float(numbers.cross_entropy(s)[0])
        for s in numbers.masked_sets(block)
    )
    return float((torch.tensor(weights / 2) * schedule.loss_weight(t) * expected).sum())


def test_the_bound_does_not_depend_on_the_schedule(tiny_model, enumerated_response, schedule):
    """To 1e-6."""
    numbers = enumerated_response(tiny_model("masked_diffusion"))
    assert quadrature(schedule, numbers) == pytest.approx(float(numbers.nelbo()), rel=1e-6)


@pytest.mark.parametrize("string", [0, 100, 242])
def test_the_enumerated_likelihood_is_the_quadrature_under_every_schedule(
    random_table, strings, enumeration, schedule, string
):
    """To 1e-6."""
    table, row_L = random_table(LENGTH), strings(LENGTH)[string]
    numbers = enumeration(table, row_L[None], [list(range(LENGTH))])
    estimate = exact_nelbo(table, row_L, mask_id=MASK)
    assert quadrature(schedule, numbers) == pytest.approx(float(estimate.nats_B), rel=1e-6)


def test_the_enumerated_likelihood_of_a_transformer_is_the_quadrature(tiny_model, enumerated_response, schedule):
    """To 1e-6, the logits being float32."""
    model = tiny_model("masked_diffusion")
    numbers = enumerated_response(model)
    row_L = numbers.tokens_BL[0]
    estimate = exact_nelbo(model, row_L, mask_id=model.config.mask_token_id, response_start=2)
    assert quadrature(schedule, numbers) == pytest.approx(float(estimate.nats_B), rel=1e-6)

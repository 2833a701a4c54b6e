"""Oracles 1, 2 and 3: the training loss, averaged over its draws, is the bound that enumeration gives exactly."""

from __future__ import annotations

from itertools import combinations
from math import factorial

import numpy as np
import pytest
import torch

from mdlm.corruption import SCHEDULES, log_probabilities, stratified_times
from mdlm.objectives import Batch, LossConfig, training_loss

PROMPT, RESPONSE = [11, 3], [1, 5, 1, 7, 2]
SMALLEST = {"layers": 1, "heads": 1, "kv_heads": 1}


def cross_entropies(model, block=slice(None)):
    """Nats of the masked tokens of `block`, for every set of masked positions in it: {positions: nats}.

    Earlier response tokens are clean. Later ones are left out, as if the response ended with the block."""
    start, columns = len(PROMPT), list(range(len(RESPONSE))[block])
    mask = model.config.mask_token_id
    nats = {}
    for size in range(1, len(columns) + 1):
        for masked in combinations(columns, size):
            row = torch.tensor([PROMPT + RESPONSE[: columns[-1] + 1]])
            targets, at = row.clone(), torch.tensor(masked) + start
            row[0, at] = mask
            log_probs_LV = log_probabilities(model(row, None, start)[0].double(), mask)
            nats[masked] = float(-log_probs_LV[at, targets[0, at]].sum())
    return nats


def enumerated(nats):
    """The bound in nats: Σ over masked sets S ≠ ∅ of (|S|−1)! (L−|S|)! / L! times their cross-entropy."""
    length = max(map(len, nats))
    return sum(
        factorial(len(s) - 1) * factorial(length - len(s)) / factorial(length) * value for s, value in nats.items()
    )


def exact_bound(model):
    """The whole response's bound, nats: blocks of `block_length` for block diffusion, else one."""
    length = len(RESPONSE)
    if model.config.objective != "block_diffusion":
        return enumerated(cross_entropies(model))
    block = model.config.block_length
    return sum(enumerated(cross_entropies(model, slice(start, start + block))) for start in range(0, length, block))


def many_copies(model, rows, seed):
    """A batch of equal rows with stratified times: one draw of the loss."""
    generator = torch.Generator().manual_seed(seed)
    length, blocked = len(RESPONSE), model.config.objective == "block_diffusion"
    blocks = -(-length // model.config.block_length) if blocked else 1
    tokens_BL = torch.tensor([PROMPT + RESPONSE]).repeat(rows, 1)
    return Batch(
        tokens_BL=tokens_BL,
        valid_BL=torch.ones_like(tokens_BL, dtype=torch.bool),
        supervised_BR=torch.ones(rows, length, dtype=torch.bool),
        times_BJ=stratified_times((rows, blocks), generator).float(),
        noise_BR=torch.rand(rows, length, generator=generator),
    )


def drawn_losses(model, loss):
    """The training loss of 40 batches of 1,024 rows, seeds 0 to 39: their mean and its standard error.

    The weight 1/t has a heavy tail, hence so many rows: fewer draws would too often miss it.
    """
    with torch.no_grad():
        batches = (many_copies(model, 1024, seed) for seed in range(40))
        losses = np.array([float(training_loss(model, batch, loss, 1024 * len(RESPONSE))[0]) for batch in batches])
    return losses.mean(), losses.std(ddof=1) / len(losses) ** 0.5


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("objective", "block_length"), [("masked_diffusion", 4), ("block_diffusion", 1), ("block_diffusion", 2)]
)
def test_the_mean_training_loss_is_the_enumerated_bound(tiny_model, objective, block_length, schedule):
    """z < 4."""
    model = tiny_model(objective, block_length=block_length, **SMALLEST)
    mean, error = drawn_losses(model, LossConfig(weighting="bound", min_mask_rate=0.0, schedule=schedule))
    exact = exact_bound(model) / len(RESPONSE)
    assert abs(mean - exact) < 4 * error
    assert error < 0.01 * exact, "sharp enough to tell a wrong weight"


def test_a_floor_of_the_mask_rate_is_not_the_bound(tiny_model):
    """It must be 0 for that: a floor of 0.2 is seen at once, z > 4."""
    model = tiny_model("masked_diffusion", **SMALLEST)
    mean, error = drawn_losses(model, LossConfig(weighting="bound", min_mask_rate=0.2))
    assert abs(mean - exact_bound(model) / len(RESPONSE)) > 4 * error


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=lambda schedule: schedule.name)
def test_the_bound_does_not_depend_on_the_schedule(tiny_model, schedule):
    """By Gauss-Legendre quadrature of E[w(t) Σ −log p] over t in (0, 1), to 1e-6."""
    nats = cross_entropies(tiny_model("masked_diffusion"))
    nodes, weights = np.polynomial.legendre.leggauss(200)
    t = torch.tensor((nodes + 1) / 2)
    rate = schedule.mask_rate(t)
    expected = sum(rate ** len(s) * (1 - rate) ** (len(RESPONSE) - len(s)) * value for s, value in nats.items())
    integral = float((torch.tensor(weights / 2) * schedule.loss_weight(t) * expected).sum())
    assert integral == pytest.approx(enumerated(nats), rel=1e-6)


@pytest.mark.parametrize("objective", ["masked_diffusion", "block_diffusion"])
def test_a_model_that_knows_nothing_pays_the_log_of_the_real_vocabulary(tiny_model, objective):
    """log V per masked token, the mask token not counted."""
    model = tiny_model(objective, gain=0.0)
    loss, counts = training_loss(model, many_copies(model, 32, seed=0), LossConfig(), 32 * len(RESPONSE))
    assert counts["predicted"] > 0
    assert float(loss) == pytest.approx(np.log(model.config.vocab_size - 1), rel=1e-6)

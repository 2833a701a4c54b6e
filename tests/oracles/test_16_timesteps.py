"""Oracle 16: timesteps are spread evenly over everything that shares an estimate, and each one alone is uniform.

`tests/mdlm/test_corruption.py` tests the strata themselves; here are a lone row, and what the estimates gain."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mdlm.corruption import SCHEDULES, stratified_times
from mdlm.likelihood import nelbo

stats = pytest.importorskip("scipy.stats")
MASK, DRAWS = 3, 2000


def drawn_times(shape):
    """`DRAWS` batches from seed 0, (draws, entries)."""
    generator = torch.Generator().manual_seed(0)
    return torch.stack([stratified_times(shape, generator) for _ in range(DRAWS)]).flatten(1)


@pytest.mark.parametrize("shape", [(1, 4), (1, 7), (5, 3)], ids=lambda shape: f"{shape[0]} rows of {shape[1]} blocks")
def test_every_rows_and_blocks_time_is_uniform(shape):
    """A lone row included. Kolmogorov-Smirnov on 2,000 draws of each, p > 1e-3 for the least of them (Bonferroni)."""
    times = drawn_times(shape)
    least = min(stats.kstest(column.numpy(), "uniform").pvalue for column in times.T)
    assert least * times.shape[1] > 1e-3


def test_no_block_of_a_lone_row_keeps_its_stratum():
    """The rank of each block's time among the four of its row: χ², p > 1e-3 for the least of them (Bonferroni). A
    raster gives block j always the j-th rank, up to a rotation."""
    ranks = drawn_times((1, 4)).argsort(-1).argsort(-1)
    pvalues = [stats.chisquare(np.bincount(column, minlength=4)).pvalue for column in ranks.T]
    assert min(pvalues) * 4 > 1e-3
    neighbours = (ranks[:, 1] - ranks[:, 0]) % 4
    assert stats.chisquare(np.bincount(neighbours, minlength=4)[1:]).pvalue > 1e-3


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
@pytest.mark.parametrize("shape", [(1, 6), (4, 2)], ids=lambda shape: f"{shape[0]} rows of {shape[1]} blocks")
def test_the_mean_over_rows_and_blocks_varies_less_than_with_independent_times(shape, schedule):
    """Of 2,000 batches, seed 0: an eighth or so of the variance; below a quarter is asserted."""
    strata = schedule.mask_rate(drawn_times(shape)).mean(-1)
    generator = torch.Generator().manual_seed(1)
    independent = schedule.mask_rate(torch.rand(strata.shape[0], 8, generator=generator)).mean(-1)
    assert strata.var() < independent.var() * 8 / (shape[0] * shape[1]) / 4


LENGTH = 60


def fewer_clues_less_certain(tokens_BL):
    """Knows a token 0 the better the more it sees, and nothing else: what a sample costs hangs on its mask rate."""
    logits_BLV = torch.zeros(*tokens_BL.shape, 4, dtype=torch.float64)
    logits_BLV[..., 0] = 6 * (tokens_BL != MASK).double().mean(-1, keepdim=True)
    return logits_BLV


def exact_nats_per_token(block_length):
    """Every number of masked tokens in every block counts alike, later blocks being masked."""
    width = block_length or LENGTH
    masked = [behind + count for behind in range(0, LENGTH, width) for count in range(1, width + 1)]
    return np.mean([np.log1p(2 * np.exp(-6 * (1 - count / LENGTH))) for count in masked])


@pytest.mark.parametrize("schedule", [None, *SCHEDULES])
@pytest.mark.parametrize("block_length", [None, 30])
def test_strata_make_the_estimate_less_variable_and_leave_its_mean(schedule, block_length):
    """200 seeds of 32 samples: the variance falls to less than half, and both means are the bound, z < 4."""
    row_BL = torch.zeros(1, LENGTH, dtype=torch.long)
    options = {"mask_id": MASK, "schedule": schedule, "num_samples": 32, "block_length": block_length}
    variance = {}
    for independent in (False, True):
        draws = [
            nelbo(fewer_clues_less_certain, row_BL, seed=seed, independent=independent, **options).nats_per_token
            for seed in range(200)
        ]
        variance[independent] = np.var(draws, ddof=1)
        assert abs(np.mean(draws) - exact_nats_per_token(block_length)) < 4 * (variance[independent] / 200) ** 0.5
    assert variance[False] < variance[True] / 2

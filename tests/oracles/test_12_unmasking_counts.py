"""Oracle 12: how many positions the clock unmasks is binomial, and a row pays only for steps that change it."""

from __future__ import annotations

import pytest
import torch

from mdlm.corruption import SCHEDULES
from sample import DenoiseConfig, denoise
from sample.clock import rates, tick
from sample.noise import row_keys

stats = pytest.importorskip("scipy.stats")
MASK = 3


def nothing(tokens_BL):
    """A denoiser that prefers nothing."""
    return torch.zeros(*tokens_BL.shape, MASK + 1)


def masks_by_step(config, rows, length, steps):
    """Which positions are masked after each step, (steps, rows, length), from the clock alone."""
    masked_BG, keys_B = torch.ones(rows, length, dtype=torch.bool), row_keys(config.seed, torch.arange(rows))
    psi_BG, after = torch.zeros(rows, length), []
    for index in range(steps):
        unmasked_BG, revoked_BG = tick(config, index, steps, masked_BG, ~masked_BG, psi_BG, keys_B, torch.tensor(index))
        assert not (unmasked_BG & ~masked_BG).any()
        assert not (revoked_BG & masked_BG).any()
        masked_BG = masked_BG & ~unmasked_BG | revoked_BG
        after.append(masked_BG)
    return torch.stack(after)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_number_of_positions_unmasked_by_a_step_is_binomial(schedule):
    """χ² of the counts after each of 7 steps in 20,000 rows of 6 positions, p > 1e-3 / 7."""
    rows, length, steps = 20_000, 6, 7
    config = DenoiseConfig(accept="ancestral", schedule=schedule)
    masked = masks_by_step(config, rows, length, steps)
    assert not masked[-1].any(), "the last step leaves no mask"
    for index in range(steps - 1):
        _, rate = rates(config, index, steps)
        expected = rows * torch.tensor(stats.binom.pmf(range(length + 1), length, rate))
        counts = torch.bincount(masked[index].sum(-1), minlength=length + 1).double()
        large = expected >= 5
        pairs = [(counts[large], expected[large]), (counts[~large].sum()[None], expected[~large].sum()[None])]
        found, wanted = (torch.cat([pair[side] for pair in pairs if pair[1].sum() > 0]) for side in (0, 1))
        assert stats.chisquare(found.numpy(), (wanted * rows / wanted.sum()).numpy()).pvalue > 1e-3 / 7


@pytest.mark.parametrize(("steps", "length"), [(16, 8), (64, 12), (4, 20)])
def test_a_row_takes_part_in_as_many_passes_as_the_formula_says(steps, length):
    """N (1 − (1 − 1/N)^L) passes a row under the linear schedule: z < 4 over 3,000 rows of one batch."""
    config = DenoiseConfig(accept="ancestral", temperature=1.0, max_denoising_steps=steps)
    ledger = denoise(nothing, torch.full((3000, length), MASK), config, mask_id=MASK).ledger
    passes = torch.tensor([float(row.total_passes) for row in ledger.rows()])
    expected = steps * (1 - (1 - 1 / steps) ** length)
    assert abs(passes.mean() - expected) < 4 * passes.std() / 3000**0.5


def test_a_rows_passes_do_not_depend_on_its_batch():
    config = DenoiseConfig(accept="ancestral", temperature=1.0, max_denoising_steps=16)
    together = denoise(nothing, torch.full((20, 8), MASK), config, mask_id=MASK)
    for row in range(20):
        alone = denoise(nothing, torch.full((1, 8), MASK), config, mask_id=MASK, rows_B=torch.tensor([row]))
        assert alone.ledger.row(0) == together.ledger.row(row)
        assert alone.tokens_BL[0].equal(together.tokens_BL[row])

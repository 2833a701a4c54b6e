"""Oracle 13: ReMDM's remasking keeps the schedule's mask rate at every step, whatever σ it is allowed."""

from __future__ import annotations

import pytest
import torch

from mdlm.corruption import SCHEDULES
from sample import DenoiseConfig, denoise
from sample.clock import largest_sigma, rates, remasking, tick
from sample.noise import row_keys

MASK, ROWS, LENGTH, STEPS = 3, 6000, 20, 9


def config_of(revoke, eta, schedule="linear", **changes):
    return DenoiseConfig(accept="ancestral", temperature=1.0, revoke=revoke, eta=eta, schedule=schedule, **changes)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("revoke", "eta"), [("remdm_cap", 0.05), ("remdm_cap", 0.4), ("remdm_cap", 1.0), ("remdm_rescale", 0.3),
                        ("remdm_rescale", 1.0)]
)  # fmt: skip
def test_the_mean_mask_rate_after_each_step_is_the_schedules(revoke, eta, schedule):
    """z < 4.5 at each of nine steps, over 120,000 positions; and tokens are masked again at all."""
    config, keys_B = config_of(revoke, eta, schedule), row_keys(0, torch.arange(ROWS))
    masked_BG, psi_BG, revoked = torch.ones(ROWS, LENGTH, dtype=torch.bool), torch.zeros(ROWS, LENGTH), 0
    for index in range(STEPS):
        unmasked_BG, revoked_BG = tick(config, index, STEPS, masked_BG, ~masked_BG, psi_BG, keys_B, torch.tensor(index))
        masked_BG = masked_BG & ~unmasked_BG | revoked_BG
        revoked += int(revoked_BG.sum())
        _, rate = rates(config, index, STEPS)
        error = (rate * (1 - rate) / masked_BG.numel()) ** 0.5
        assert abs(float(masked_BG.double().mean()) - rate) <= 4.5 * error
    assert revoked > 1000
    assert not masked_BG.any()


@pytest.mark.parametrize("revoke", ["remdm_cap", "remdm_rescale", "remdm_confidence"])
def test_without_remasking_it_is_the_ancestral_sampler_bit_for_bit(random_table, revoke):
    table, canvas_BL = random_table(4), torch.full((500, 4), MASK)
    plain = DenoiseConfig(accept="ancestral", temperature=1.0, max_denoising_steps=6)
    expected = denoise(table, canvas_BL, plain, mask_id=MASK)
    made = denoise(table, canvas_BL, config_of(revoke, 0.0, max_denoising_steps=6), mask_id=MASK)
    assert made.tokens_BL.equal(expected.tokens_BL)
    assert made.ledger.rows() == expected.ledger.rows()


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("eta", [0.0, 0.04, 0.7, 1.0, 5.0])
@pytest.mark.parametrize("revoke", ["remdm_cap", "remdm_rescale", "remdm_confidence"])
def test_every_probability_is_one(revoke, eta, schedule):
    """σ within [0, min(1, (1 − α_s)/α_t)], and the chance of being unmasked within [0, 1]."""
    config = config_of(revoke, eta, schedule)
    decoded_BG = torch.tensor([[True, True, False, False]])
    psi_BG = torch.tensor([[0.9, 0.1, 0.0, 0.0]])
    for steps in (1, 2, 10, 100):
        for index in range(steps):
            now, after = rates(config, index, steps)
            sigma_BG = remasking(config, now, after, psi_BG, decoded_BG).expand(1, 4)
            assert 0 <= sigma_BG.min() <= sigma_BG.max() <= largest_sigma(now, after) + 1e-12 <= 1 + 1e-12
            sigma = 0.0 if revoke == "remdm_confidence" else float(sigma_BG.max())
            chance = ((1 - after) - (1 - sigma) * (1 - now)) / now
            assert -1e-12 <= chance <= 1 + 1e-12


def test_the_unsure_are_masked_again_first():
    """Shared out by confidence, σ is larger for a token that was unlikely when it was committed."""
    config = config_of("remdm_confidence", 1.0)
    now, after = rates(config, 5, 10)
    sigma_BG = remasking(config, now, after, torch.tensor([[0.9, 0.2, 0.5]]), torch.tensor([[True, True, True]]))
    assert sigma_BG[0, 1] > sigma_BG[0, 2] > sigma_BG[0, 0] > 0
    assert float(sigma_BG.sum()) == pytest.approx(largest_sigma(now, after))

"""The forward process: schedules, timesteps, masking."""

from __future__ import annotations

import pytest
import torch

from mdlm.corruption import (
    SCHEDULES,
    Clipped,
    Linear,
    Polynomial,
    corrupt,
    get_schedule,
    log_probabilities,
    stratified_times,
    without_mask_token,
)
from mdlm.errors import UserError
from mdlm.objectives import LossConfig

stats = pytest.importorskip("scipy.stats")
ALL = {**SCHEDULES, "cubic": Polynomial(3.0), "square root": Polynomial(0.5)}
CLIPPED = [Clipped(schedule, 0.1, 0.9) for schedule in SCHEDULES.values()]


@pytest.fixture(params=ALL.values(), ids=ALL)
def schedule(request):
    return request.param


def test_a_schedule_goes_from_clean_to_masked_and_never_back(schedule):
    t = torch.linspace(0, 1, 1001, dtype=torch.float64)
    alpha = schedule.alpha(t)
    torch.testing.assert_close(alpha[[0, -1]], torch.tensor([1.0, 0.0], dtype=torch.float64))
    assert (alpha.diff() < 0).all()


@pytest.mark.parametrize("clipped", CLIPPED, ids=lambda schedule: schedule.name)
def test_a_clipped_schedule_keeps_its_rates_between_the_two_given(clipped):
    rate = clipped.mask_rate(torch.linspace(0, 1, 101, dtype=torch.float64))
    torch.testing.assert_close(rate[[0, -1]], torch.tensor([0.1, 0.9], dtype=torch.float64))
    assert (rate.diff() > 0).all()


@pytest.mark.parametrize("any_schedule", [*ALL.values(), *CLIPPED], ids=lambda schedule: schedule.name)
def test_the_derivative_the_mask_rate_and_the_weight_follow_from_alpha(any_schedule):
    t = torch.linspace(0.001, 1, 500, dtype=torch.float64, requires_grad=True)
    alpha = any_schedule.alpha(t)
    (slope,) = torch.autograd.grad(alpha.sum(), t)
    t, alpha = t.detach(), alpha.detach()
    torch.testing.assert_close(any_schedule.alpha_prime(t), slope)
    torch.testing.assert_close(any_schedule.mask_rate(t), 1 - alpha)
    torch.testing.assert_close(any_schedule.loss_weight(t), -slope / (1 - alpha))


def test_the_linear_weight_is_one_over_t_down_to_the_smallest_times():
    t = torch.tensor([1e-12, 1e-7, 0.3, 1.0])
    torch.testing.assert_close(Linear().loss_weight(t), 1 / t, rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_small_times_keep_their_digits_in_float32(name):
    """w(t) t → 1 as t → 0 for every schedule whose mask rate starts linearly."""
    t = torch.tensor([1e-7, 1e-5, 1e-3])
    torch.testing.assert_close(SCHEDULES[name].loss_weight(t) * t, torch.ones(3), rtol=1e-5, atol=0)


def test_schedules_are_found_by_name():
    assert get_schedule("cosine") is SCHEDULES["cosine"]
    assert get_schedule(CLIPPED[0]) is CLIPPED[0]
    with pytest.raises(UserError, match=r"sigmoid.*linear, cosine"):
        get_schedule("sigmoid")


# Timesteps


@pytest.mark.parametrize("shape", [(1,), (1, 1), (3,), (2, 3), (4, 4)])
def test_every_timestep_alone_is_uniform(shape):
    """Kolmogorov-Smirnov on 2,000 draws of each entry, seed 0, p > 1e-3 for the least of them (Bonferroni)."""
    generator = torch.Generator().manual_seed(0)
    times = torch.stack([stratified_times(shape, generator) for _ in range(2000)]).flatten(1)
    assert times.dtype == torch.float64
    assert ((times > 0) & (times <= 1)).all()
    least = min(stats.kstest(column.numpy(), "uniform").pvalue for column in times.T)
    assert least * times.shape[1] > 1e-3


def test_timesteps_hold_one_of_each_stratum_in_a_random_order():
    """The strata between two neighbours, 400 draws, seed 0, p > 1e-3: a raster would keep one and the same distance."""
    generator = torch.Generator().manual_seed(0)
    distances = []
    for _ in range(400):
        times = stratified_times((4, 2), generator)
        gaps = times.flatten().sort().values.diff()
        torch.testing.assert_close(gaps, torch.full((7,), 1 / 8, dtype=torch.float64))
        distances.append(round(float(times[0, 1] - times[0, 0]) % 1 * 8))
    assert stats.chisquare(torch.bincount(torch.tensor(distances), minlength=8)[1:]).pvalue > 1e-3


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_the_mean_over_a_batch_varies_less_than_with_independent_times(schedule):
    """Variance of the mean mask rate of 8 rows, 500 batches, seed 0: about an eighth; below a quarter is asserted."""
    generator = torch.Generator().manual_seed(0)
    strata = torch.stack([schedule.mask_rate(stratified_times((8,), generator)).mean() for _ in range(500)])
    independent = schedule.mask_rate(torch.rand(500, 8, generator=generator)).mean(-1)
    assert strata.var() < independent.var() / 4


def test_the_generator_alone_decides_the_times():
    one, two = (stratified_times((3, 5), torch.Generator().manual_seed(7)) for _ in range(2))
    assert one.equal(two)


# Masking


def test_each_position_is_masked_independently_with_its_own_rate():
    """Counts over 20,000 rows, seed 0, within 4.5 standard deviations; pairs as well."""
    generator = torch.Generator().manual_seed(0)
    rows, rates = 20_000, torch.tensor([0.0, 0.1, 0.5, 0.9, 1.0])
    tokens = torch.arange(5).expand(rows, -1)
    noisy, masked = corrupt(tokens, rates, torch.rand(rows, 5, generator=generator), torch.tensor(True), mask_id=8)
    assert ((noisy == 8) == masked).all()
    assert (noisy[~masked] == tokens[~masked]).all()
    share = masked.float().mean(0)
    assert share[[0, 4]].tolist() == [0, 1]
    assert ((share - rates).abs() <= 4.5 * (rates * (1 - rates) / rows).sqrt()).all()
    together = (masked[:, 1] & masked[:, 3]).float().mean()
    assert abs(together - 0.09) < 4.5 * (0.09 * 0.91 / rows) ** 0.5


def test_what_may_not_be_masked_never_is():
    allowed = torch.tensor([[True, False, True, False]])
    noisy, masked = corrupt(torch.tensor([[1, 2, 3, 4]]), torch.ones(1, 1), torch.zeros(1, 4), allowed, mask_id=8)
    assert noisy.tolist() == [[8, 2, 8, 4]]
    assert masked.equal(allowed)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_softmax_gives_the_mask_token_exactly_nothing_in_every_dtype(dtype):
    logits = torch.tensor([[1.0, 2.0, 60_000.0]], dtype=dtype)
    assert without_mask_token(logits, 2).dtype == dtype
    log_probs = log_probabilities(logits, 2)
    assert log_probs.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert log_probs.exp()[0, 2] == 0
    torch.testing.assert_close(log_probs[0, :2], torch.log_softmax(logits[0, :2].to(log_probs.dtype), -1))


# What a training run makes of them


def test_training_goes_through_the_named_schedule_between_the_named_rates():
    assert LossConfig(min_mask_rate=0.0).training_schedule() is SCHEDULES["linear"]
    clipped = LossConfig(schedule="cosine", min_mask_rate=0.1, max_mask_rate=0.8).training_schedule()
    t = torch.linspace(0, 1, 11, dtype=torch.float64)
    torch.testing.assert_close(clipped.mask_rate(t), 0.1 + 0.7 * SCHEDULES["cosine"].mask_rate(t))


@pytest.mark.parametrize(("name", "mean"), [("linear", 1 / 2), ("quadratic", 1 / 3), ("cosine", 2 / torch.pi)])
def test_the_mean_mask_rate_is_the_schedules_integral(name, mean):
    assert LossConfig(schedule=name, min_mask_rate=0).mean_mask_rate() == pytest.approx(mean, abs=1e-5)
    assert LossConfig(schedule=name, min_mask_rate=0.2).mean_mask_rate() == pytest.approx(0.2 + 0.8 * mean, abs=1e-5)


@pytest.mark.parametrize("rates", [(-0.1, 1.0), (0.5, 0.5), (0.6, 0.2), (0.0, 1.1)])
def test_unusable_mask_rates_are_refused(rates):
    with pytest.raises(UserError, match="min_mask_rate"):
        LossConfig(min_mask_rate=rates[0], max_mask_rate=rates[1])

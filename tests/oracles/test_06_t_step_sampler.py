"""Oracle 6: the ancestral sampler of T steps draws from the distribution that enumeration of its transitions gives."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from sample import DenoiseConfig, denoise
from sample.clock import rates

stats = pytest.importorskip("scipy.stats")
MASK, LENGTH, DRAWS = 3, 3, 100_000


@pytest.fixture(scope="module")
def table(random_table):
    return random_table(LENGTH, seed=5, spread=1.0)


def transitions(table, canvas, chance):
    """All that one step can make of a canvas: {canvas: probability}; each mask is lifted with `chance`."""
    logits_LV = table(torch.tensor([canvas]))[0].clone()
    logits_LV[:, MASK] = -torch.inf
    probabilities_LV = torch.softmax(logits_LV, -1).tolist()
    choices = []
    for token, probabilities in zip(canvas, probabilities_LV, strict=True):
        lifted = [(other, chance * p) for other, p in enumerate(probabilities[:MASK])]
        choices.append([(token, 1.0)] if token != MASK else [(MASK, 1 - chance), *lifted])
    made = {}
    for parts in product(*choices):
        probability = 1.0
        for _, p in parts:
            probability *= p
        made[tuple(token for token, _ in parts)] = probability
    return made


def sampled_distribution(table, steps, schedule="linear"):
    """p_T of every string, {string: probability}, by T transitions from the canvas of masks."""
    config = DenoiseConfig(accept="ancestral", schedule=schedule)
    now = {(MASK,) * LENGTH: 1.0}
    for index in range(steps):
        before, after = rates(config, index, steps)
        following: dict[tuple[int, ...], float] = {}
        for canvas, weight in now.items():
            made = transitions(table, canvas, (before - after) / before)
            assert sum(made.values()) == pytest.approx(1, abs=1e-12)
            for other, probability in made.items():
                following[other] = following.get(other, 0.0) + weight * probability
        now = following
    return now


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_transitions_leave_no_mask_and_lose_no_probability(table, steps, schedule):
    distribution = sampled_distribution(table, steps, schedule)
    left = sum(p for string, p in distribution.items() if MASK in string)
    assert left == pytest.approx(0, abs=1e-12)
    assert sum(distribution.values()) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(("steps", "schedule"), [(1, "linear"), (2, "linear"), (4, "cosine"), (16, "linear")])
def test_sampled_frequencies_are_those_of_the_enumeration(table, strings, steps, schedule):
    """χ² over 27 strings, 10⁵ draws, p > 1e-3, seed 0."""
    config = DenoiseConfig(accept="ancestral", temperature=1.0, max_denoising_steps=steps, schedule=schedule)
    drawn_BL = denoise(table, torch.full((DRAWS, LENGTH), MASK), config, mask_id=MASK).tokens_BL
    distribution = sampled_distribution(table, steps, schedule)
    expected = torch.tensor([distribution[tuple(string)] for string in strings(LENGTH).tolist()], dtype=torch.float64)
    counts = torch.bincount((drawn_BL * torch.tensor([9, 3, 1])).sum(-1), minlength=27)
    assert stats.chisquare(counts.numpy(), (expected * DRAWS / expected.sum()).numpy()).pvalue > 1e-3


def test_the_distance_to_the_order_mixture_falls_as_one_over_the_steps(table, strings, enumeration):
    """Total variation times T stays within a factor of 1.3 from 16 to 128 steps."""
    strings_SL = strings(LENGTH)
    limit = enumeration(table, strings_SL, [[0, 1, 2]]).mixture_nll().neg().exp()
    distances = []
    for steps in (16, 32, 64, 128):
        distribution = sampled_distribution(table, steps)
        reached = torch.tensor([distribution[tuple(string)] for string in strings_SL.tolist()], dtype=torch.float64)
        distances.append(float((reached - limit).abs().sum() / 2) * steps)
    assert max(distances) < 1.3 * min(distances)
    assert distances[0] / 16 > 1e-3, "far enough from zero to fall"


def test_which_positions_the_clock_lifts_does_not_depend_on_what_is_predicted(random_table):
    """Whether a position is unmasked and which token it gets are drawn apart."""
    config = DenoiseConfig(accept="ancestral", temperature=1.0, max_denoising_steps=8, trace=True)
    canvas_BL = torch.full((200, 4), MASK)
    lifted = []
    for seed in (0, 1):
        trace = denoise(random_table(4, seed=seed, spread=4.0), canvas_BL, config, mask_id=MASK).trace
        lifted.append(torch.stack([made.committed_BG for made in trace]))
    assert lifted[0].equal(lifted[1])
    assert lifted[0].any(-1).float().mean() > 0.1

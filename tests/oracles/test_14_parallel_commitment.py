"""Oracle 14: where the joint's mode has all marginals above 1 − ε and (n + 1)ε ≤ 1, n tokens may be committed at once
(Fast-dLLM, 2505.22618, theorem 1)."""

from __future__ import annotations

from functools import reduce

import pytest
import torch

from sample import DenoiseConfig, denoise

stats = pytest.importorskip("scipy.stats")
MASK = 3
CASES = [(length, seed) for length in (3, 4, 5) for seed in range(4)]


def marginals(joint_S, strings_SL):
    """p(x_i = v), (L, 3)."""
    return torch.stack([((strings_SL == token) * joint_S[:, None]).sum(0) for token in range(3)], dim=-1)


def product_of(marginals_LV):
    """The distribution of independent draws, over all strings in their order."""
    return reduce(torch.kron, marginals_LV)


@pytest.fixture(params=CASES, ids=lambda case: f"length {case[0]} seed {case[1]}")
def peaked(request, random_joint, strings):
    """A joint, its mode, ε just above what its marginals miss, and all strings: (n + 1)ε ≤ 1."""
    length, seed = request.param
    strings_SL, noise_S = strings(length), random_joint(length, seed)
    mode = int(torch.randint(len(noise_S), (), generator=torch.Generator().manual_seed(seed)))
    joint_S = noise_S.clone()
    while True:
        # Half of what is elsewhere moves to the mode, until its marginals suffice.
        joint_S = joint_S / 2
        joint_S[mode] += 0.5
        mode_L = marginals(joint_S, strings_SL).gather(-1, strings_SL[mode][:, None])[:, 0]
        epsilon = float(1 - mode_L.min()) * 1.001
        if (length + 1) * epsilon <= 1:
            return joint_S, mode, epsilon, strings_SL


def worst_case(strings_SL, mode, error):
    """Every position is wrong with probability `error`, and never two at once: the mode has 1 − n·error."""
    joint_S = torch.zeros(len(strings_SL), dtype=torch.float64)
    joint_S[mode] = 1 - strings_SL.shape[1] * error
    for column in range(strings_SL.shape[1]):
        other_L = strings_SL[mode].clone()
        other_L[column] = (other_L[column] + 1) % 3
        joint_S[(strings_SL == other_L).all(-1)] = error
    return joint_S


def test_tokens_committed_at_once_are_the_joints_arg_max(consistent_table, peaked):
    joint_S, mode, epsilon, strings_SL = peaked
    assert int(joint_S.argmax()) == mode
    canvas_BL = torch.full((1, strings_SL.shape[1]), MASK)
    for config in (DenoiseConfig(threshold=1 - epsilon), DenoiseConfig(max_denoising_steps=1)):
        generation = denoise(consistent_table(joint_S), canvas_BL, config, mask_id=MASK)
        assert generation.tokens_BL.tolist() == [strings_SL[mode].tolist()]
        assert generation.ledger.total_calls == 1, "all at once"


def test_the_total_variation_of_independent_draws_is_bounded(peaked):
    """By (3n − 1)ε/2, enumerated."""
    joint_S, _, epsilon, strings_SL = peaked
    product_S = product_of(marginals(joint_S, strings_SL))
    assert float(product_S.sum()) == pytest.approx(1)
    distance = float((product_S - joint_S).abs().sum()) / 2
    assert 0 < distance < (3 * strings_SL.shape[1] - 1) * epsilon / 2


@pytest.mark.parametrize("length", [3, 4, 5])
def test_errors_that_never_coincide_are_within_the_bounds_up_to_the_limit(consistent_table, strings, length):
    """The worst case at a given ε, close to (n + 1)ε = 1."""
    strings_SL, mode = strings(length), 5
    epsilon = 0.999 / (length + 1)
    joint_S = worst_case(strings_SL, mode, epsilon * 0.999)
    assert int(joint_S.argmax()) == mode
    canvas_BL = torch.full((1, length), MASK)
    generation = denoise(consistent_table(joint_S), canvas_BL, DenoiseConfig(threshold=1 - epsilon), mask_id=MASK)
    assert generation.tokens_BL.tolist() == [strings_SL[mode].tolist()]
    assert generation.ledger.total_calls == 1
    distance = float((product_of(marginals(joint_S, strings_SL)) - joint_S).abs().sum()) / 2
    assert distance < (3 * length - 1) * epsilon / 2


@pytest.mark.parametrize("length", [3, 4, 5])
def test_beyond_the_limit_tokens_committed_at_once_need_not_be_the_arg_max(consistent_table, strings, length):
    """The same joint with (n + 1)ε > 1: one pass still gives the product's arg-max, and the joint's is another."""
    strings_SL, likeliest_apart = strings(length), 5
    joint_S = worst_case(strings_SL, likeliest_apart, 1.01 / (length + 1))
    canvas_BL = torch.full((1, length), MASK)
    generation = denoise(consistent_table(joint_S), canvas_BL, DenoiseConfig(max_denoising_steps=1), mask_id=MASK)
    assert generation.tokens_BL.tolist() == [strings_SL[likeliest_apart].tolist()]
    assert int(joint_S.argmax()) != likeliest_apart


def test_what_one_pass_draws_is_the_product_of_the_marginals(consistent_table, random_joint, strings):
    """χ² over 81 strings of 100,000 draws, seed 0, p > 1e-3; their measured total variation to the joint is the
    enumerated one within 0.01."""
    strings_SL, joint_S, draws = strings(4), random_joint(4), 100_000
    product_S = product_of(marginals(joint_S, strings_SL))
    canvas_BL = torch.full((draws, 4), MASK)
    config = DenoiseConfig(temperature=1.0, max_denoising_steps=1)
    drawn_BL = denoise(consistent_table(joint_S), canvas_BL, config, mask_id=MASK).tokens_BL
    counts_S = torch.bincount((drawn_BL * torch.tensor([27, 9, 3, 1])).sum(-1), minlength=81)
    assert stats.chisquare(counts_S.numpy(), (draws * product_S).numpy()).pvalue > 1e-3
    measured = float((counts_S / draws - joint_S).abs().sum()) / 2
    assert measured == pytest.approx(float((product_S - joint_S).abs().sum()) / 2, abs=0.01)


def test_a_threshold_that_one_position_misses_takes_a_second_pass(consistent_table, random_joint, strings):
    """What was committed then counts: the second pass draws its token from the conditional, not from the marginal."""
    strings_SL, joint_S = strings(3), random_joint(3, 3)
    certainty_L = marginals(joint_S, strings_SL).amax(-1)
    threshold = float(certainty_L.sort().values[:2].mean())
    generation = denoise(
        consistent_table(joint_S), torch.full((1, 3), MASK), DenoiseConfig(threshold=threshold), mask_id=MASK
    )
    last = int(certainty_L.argmin())
    apart_L = marginals(joint_S, strings_SL).argmax(-1)
    agreeing_S = ((strings_SL == apart_L).sum(-1) - (strings_SL[:, last] == apart_L[last]).long()) == 2
    wanted_L = strings_SL[int(torch.where(agreeing_S, joint_S, 0).argmax())]
    assert generation.tokens_BL.tolist() == [wanted_L.tolist()]
    assert generation.ledger.total_calls == 2

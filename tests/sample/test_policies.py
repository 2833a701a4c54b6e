"""The choices of a pass: candidates, scores, and how many of them are committed."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mdlm.corruption import log_probabilities
from sample.accepting import View, accepted
from sample.config import DenoiseConfig
from sample.noise import row_keys, uniform
from sample.policies import SCORES, candidates, keep_top_p, quota, rank_among

stats = pytest.importorskip("scipy.stats")
PROBABILITIES = torch.tensor([0.5, 0.25, 0.15, 0.07, 0.03])


def noise(seed, *shape, purpose="token"):
    return uniform(row_keys(seed, torch.arange(shape[0])), torch.tensor(0), purpose, shape[1:])


def drawn(probabilities, temperature, top_p, draws, seed):
    log_probs = probabilities.log().expand(1, draws, -1)
    tokens = candidates(log_probs, temperature, top_p, noise(seed, *log_probs.shape))
    return torch.bincount(tokens.flatten(), minlength=len(probabilities))


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_candidates_have_the_tempered_frequencies(temperature):
    """Chi-squared over 100,000 draws, seed 0, p > 1e-3."""
    expected = torch.softmax(PROBABILITIES.double().log() / temperature, dim=-1)
    counts = drawn(PROBABILITIES, temperature, 1.0, 100_000, seed=0)
    assert stats.chisquare(counts, (expected / expected.sum() * 100_000).numpy()).pvalue > 1e-3


def test_rare_candidates_keep_their_frequency():
    """A token of probability 1e-6 among 2²¹ draws, seed 0: within 4 standard deviations of a Poisson count. Tempered
    to 2 it has probability about 1e-3, and float32 noise would be felt there."""
    rare = torch.tensor([1 - 1e-6, 1e-6])
    expected = 2**21 * 1e-3 / (1 + 1e-3)
    assert abs(drawn(rare, 2.0, 1.0, 2**21, seed=0)[1] - expected) < 4 * expected**0.5


def test_the_noise_reaches_tokens_that_float32_noise_never_would():
    """A token of probability e⁻³⁰ is drawn once in 10¹³ times: by noise 2⁻⁵⁰ away from the end of its interval, not
    by noise 2⁻²⁴ away from it, which is as near as float32 comes."""
    log_probs = torch.tensor([[[0.0, -30.0]]], dtype=torch.float64)

    def drawn_at(distance):
        ends = (distance, 1 - distance)
        noise = [torch.tensor([[[0.5, end]]], dtype=torch.float64) for end in ends]
        return {int(candidates(log_probs, 1.0, 1.0, noise_BGV)) for noise_BGV in noise}

    assert drawn_at(2.0**-50) == {0, 1}
    assert drawn_at(2.0**-24) == {0}


def test_at_temperature_zero_the_likeliest_is_taken_and_the_first_of_equals():
    log_probs = torch.log(torch.tensor([[[0.1, 0.6, 0.3], [0.4, 0.2, 0.4]]]))
    assert candidates(log_probs, 0.0, 1.0, None).tolist() == [[1, 0]]


@pytest.mark.parametrize(
    ("top_p", "kept"), [(1e-9, 1), (0.49, 1), (0.51, 2), (0.74, 2), (0.76, 3), (0.95, 4), (0.975, 5), (1.0, 5)]
)
def test_top_p_keeps_the_token_that_crosses_it(top_p, kept):
    shuffled = torch.tensor([3, 0, 4, 2, 1])
    left = keep_top_p(PROBABILITIES[shuffled].log()[None, None], top_p)[0, 0].isfinite()
    assert sorted(shuffled[left].tolist()) == list(range(kept))


def test_top_p_candidates_are_the_nucleus_renormalised():
    """Chi-squared over 50,000 draws, seed 1, p > 1e-3: mass 0.7 needs 0.5 + 0.25."""
    counts = drawn(PROBABILITIES, 1.0, 0.7, 50_000, seed=1)
    assert counts[2:].sum() == 0
    assert stats.chisquare(counts[:2], [50_000 * 2 / 3, 50_000 / 3]).pvalue > 1e-3


def test_top_p_applies_to_the_tempered_distribution():
    """At temperature 2 the likeliest token has probability 0.36, so that a nucleus of 0.4 holds two."""
    counts = drawn(PROBABILITIES, 2.0, 0.4, 1000, seed=0)
    assert (counts > 0).tolist() == [True, True, False, False, False]


def test_the_mask_token_is_no_candidate_at_any_temperature():
    logits = torch.zeros(1, 20_000, 3)
    logits[..., 2] = 100.0
    log_probs = log_probabilities(logits, mask_id=2)
    for temperature in (0.0, 0.01, 1.0, 100.0):
        tokens = candidates(log_probs, temperature, 1.0, noise(0, *log_probs.shape))
        assert (tokens != 2).all()


def test_scores_are_what_they_are_called():
    probabilities = torch.tensor([[[0.5, 0.3, 0.2], [1.0, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3]]])
    log_probs, candidate = probabilities.log(), torch.tensor([[1, 0, 2]])
    score = {name: SCORES[name](log_probs, candidate, noise(0, 1, 3))[0] for name in SCORES}
    torch.testing.assert_close(score["confidence"], torch.tensor([0.3, 1.0, 1 / 3]))
    torch.testing.assert_close(score["margin"], torch.tensor([0.2, 1.0, 0.0]))
    entropy = -(0.5 * torch.tensor(0.5).log() + 0.3 * torch.tensor(0.3).log() + 0.2 * torch.tensor(0.2).log())
    torch.testing.assert_close(score["entropy"], -torch.stack([entropy, torch.tensor(0.0), torch.tensor(3.0).log()]))
    assert ((score["random"] >= 0) & (score["random"] < 1)).all()


def test_the_random_score_prefers_no_position():
    """Which of four positions comes first in 8,000 rows: chi-squared, seed 0, p > 1e-3."""
    noise_BG = noise(0, 8000, 4, purpose="score")
    score = SCORES["random"](torch.zeros(8000, 4, 2), torch.zeros(8000, 4, dtype=torch.long), noise_BG)
    assert stats.chisquare(torch.bincount(score.argmax(-1), minlength=4)).pvalue > 1e-3


def test_scores_of_half_precision_logits_are_computed_in_float32():
    """Two bf16 logits that differ give probabilities near one that bf16 could not tell apart."""
    logits = torch.tensor([[[9.0, 0.0, -50.0], [9.5, 0.0, -50.0]]], dtype=torch.bfloat16)
    log_probs = log_probabilities(logits, mask_id=2)
    for name in ("confidence", "margin", "entropy"):
        score = SCORES[name](log_probs, torch.zeros(1, 2, dtype=torch.long), None)
        assert score.dtype == torch.float32
        assert score[0, 1] > score[0, 0]


def test_equal_scores_are_ranked_from_left_to_right_on_every_row():
    masked = torch.tensor([[True] * 6, [True, False, True, True, False, True]])
    ranks = rank_among(torch.ones(2, 6), masked)
    assert ranks[0].tolist() == [0, 1, 2, 3, 4, 5]
    assert ranks[1][masked[1]].tolist() == [0, 1, 2, 3]
    assert (ranks[1][~masked[1]] >= 4).all()


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    score=st.lists(st.sampled_from([0.1, 0.5, 0.9]), min_size=5, max_size=5),
    masked=st.lists(st.booleans(), min_size=5, max_size=5),
    share=st.integers(0, 5),
    threshold=st.none() | st.sampled_from([0.0, 0.5, 0.90001, 2.0]),
)
def test_a_pass_commits_the_surest_masked_positions_and_all_above_the_threshold(score, masked, share, threshold):
    scores, masks = torch.tensor([score]).double(), torch.tensor([masked])
    nothing, key = torch.zeros(1, 5, 2), torch.zeros(1, dtype=torch.int64)
    config = DenoiseConfig(threshold=threshold)
    view = View(config, nothing, masks.long(), scores, masks, torch.tensor([share]), key, key[0], {})
    committed = accepted(view)[0]
    surest = sorted((-s, i) for i, (s, m) in enumerate(zip(score, masked, strict=True)) if m)[:share]
    reach = {i for i in range(5) if masked[i] and threshold is not None and score[i] >= threshold}
    assert set(committed.nonzero().flatten().tolist()) == {i for _, i in surest} | reach


@given(masks=st.lists(st.integers(0, 40), min_size=1, max_size=4), passes=st.integers(1, 50))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_shares_are_equal_the_remainder_goes_to_the_first_and_the_last_pass_takes_all(masks, passes):
    at_start = torch.tensor(masks)
    shares = torch.stack([quota(at_start, index, passes) for index in range(passes)])
    assert (shares[-1] == at_start).all(), "whatever is left"
    before_last = shares[:-1]
    last = at_start - before_last.sum(0)
    equal = torch.cat([before_last, last[None]])
    assert (equal.sum(0) == at_start).all()
    assert (equal.amax(0) - equal.amin(0) <= 1).all()
    assert (equal.diff(dim=0) <= 0).all()

"""Oracle 7: one token a pass at random positions draws from p∞, the equal mixture over orders."""

from __future__ import annotations

import pytest
import torch

from sample import DenoiseConfig, denoise

stats = pytest.importorskip("scipy.stats")
MASK, LENGTH, DRAWS = 3, 4, 100_000


@pytest.fixture(scope="module")
def table(random_table):
    return random_table(LENGTH, seed=2, spread=1.0)


def chi_square(table, strings_SL, numbers, config, start=0):
    """The p-value of `DRAWS` rows of one batch under the mixture; what is not in a block is given, strings differ in
    nothing else."""
    canvas_BL = strings_SL[:1].repeat(DRAWS, 1)
    canvas_BL[:, start:] = MASK
    drawn_BL = denoise(table, canvas_BL, config, mask_id=MASK, response_start=start).tokens_BL
    assert drawn_BL[:, :start].equal(canvas_BL[:, :start])
    places_L = 3 ** torch.arange(LENGTH - 1, -1, -1)
    index_S, index_B = (strings_SL * places_L).sum(-1), (drawn_BL * places_L).sum(-1)
    counts_S = torch.bincount(index_B, minlength=3**LENGTH)[index_S]
    assert counts_S.sum() == DRAWS
    expected_S = DRAWS * numbers.mixture_nll().neg().exp()
    assert expected_S.min() >= 5
    return stats.chisquare(counts_S.numpy(), (expected_S * DRAWS / expected_S.sum()).numpy()).pvalue


@pytest.mark.parametrize("rule", [{"score": "random"}, {"accept": "first_hitting"}], ids=["random", "first hitting"])
@pytest.mark.parametrize("block_length", [None, 2])
@pytest.mark.parametrize("seed", [0, 1])
def test_one_token_a_pass_in_random_order_draws_from_the_order_mixture(
    table, strings, enumeration, blocks_of, seed, block_length, rule
):
    """χ² over 81 strings, p > 1e-3; by random scores, and by hitting times."""
    strings_SL = strings(LENGTH)
    numbers = enumeration(table, strings_SL, blocks_of(list(range(LENGTH)), block_length))
    config = DenoiseConfig(temperature=1.0, block_length=block_length, seed=seed, **rule)
    assert chi_square(table, strings_SL, numbers, config) > 1e-3


def test_a_given_prompt_conditions_the_draws(table, strings, enumeration):
    """χ² over the 27 strings that begin with the first token, p > 1e-3."""
    strings_SL = strings(LENGTH)[:27]
    numbers = enumeration(table, strings_SL, [[1, 2, 3]])
    config = DenoiseConfig(score="random", temperature=1.0)
    assert chi_square(table, strings_SL, numbers, config, start=1) > 1e-3


@pytest.mark.parametrize(
    "config",
    [
        DenoiseConfig(score="confidence", temperature=1.0),
        DenoiseConfig(score="random", temperature=0.9),
        DenoiseConfig(score="random", temperature=1.0, max_denoising_steps=2),
    ],
    ids=["by confidence", "colder", "two tokens a pass"],
)
def test_other_ways_of_filling_a_canvas_draw_from_something_else(table, strings, enumeration, config):
    """The same χ² sees it: p < 1e-6."""
    strings_SL = strings(LENGTH)
    numbers = enumeration(table, strings_SL, [list(range(LENGTH))])
    assert chi_square(table, strings_SL, numbers, config) < 1e-6

"""The draft length: from costs and acceptances made up for the purpose, and measured on a tiny model."""

from __future__ import annotations

import pytest
import torch

from evals.draft_length import (
    WIDTHS,
    Choice,
    CostCurve,
    choose_draft_length,
    expected_speedup,
    measure_acceptance,
    measure_costs,
)
from mdlm.errors import UserError
from sample import AutoregressiveConfig, decode
from sample.drafters import DraftModel, PromptLookup

CURVE = {1: 10.0, 2: 11.0, 4: 13.0, 8: 30.0}
HALVES = [0.5, 0.25, 0.125, 0.0625]


def test_the_choice_is_the_one_computed_by_hand():
    """n = 1: 1.5 / 12; n = 2: 1.75 / 13; n = 3: 1.875 / 14; n = 4, half-way to width 8 by a quarter: 1.9375 / 18.25.
    A guess costs nothing but a fixed second."""
    chosen = choose_draft_length(CURVE, HALVES, {1: 1.0, 4: 1.0})
    assert chosen == Choice(2, 1.75, 13.0)
    assert chosen.tokens_per_second == pytest.approx(1.75 / 13)


def test_the_drafters_own_cost_shortens_and_sure_guesses_lengthen_the_draft():
    """Four seconds a guess: 1.5 / 15 is the most. All guesses kept: 2/11, 3/12, 4/13, 5/17.25, 6/21.5, 7/25.75,
    8/30: the fourth is the most with four guesses, and the third with three."""
    assert choose_draft_length(CURVE, HALVES, {1: 4.0, 4: 16.0}).draft_length == 1
    assert choose_draft_length(CURVE, [1.0] * 7, {1: 0.0}) == Choice(3, 4.0, 13.0)
    flat = dict.fromkeys(CURVE, 10.0)
    assert choose_draft_length(flat, [1.0] * 7, {1: 0.0}).draft_length == 7
    assert choose_draft_length(flat, [0.0] * 7, {1: 0.0}).draft_length == 1


def test_the_expected_speedup_counts_the_prefill_on_both_sides():
    """Eleven tokens, of which ten take steps: (5 + 10 · 10) / (5 + 10 · 13 / 1.75)."""
    curve = CostCurve(prefill=5.0, plain_step=10.0, verify=CURVE)
    assert expected_speedup(Choice(2, 1.75, 13.0), curve, 11) == pytest.approx(105 / (5 + 130 / 1.75))


def test_a_drafter_without_guesses_is_refused():
    with pytest.raises(UserError, match="longer answers"):
        choose_draft_length(CURVE, [], {})


def test_costs_are_measured_at_every_width(ending_model, prompts):
    curve = measure_costs(ending_model("autoregressive"), prompts, AutoregressiveConfig(10))
    assert tuple(curve.verify) == WIDTHS
    assert min(curve.prefill, curve.plain_step, *curve.verify.values()) > 0


@pytest.mark.parametrize("most", [1, 3, 20])
def test_a_twin_that_drafts_for_itself_has_every_guess_kept_that_still_fits(ending_model, prompts, most):
    model, config = ending_model("autoregressive"), AutoregressiveConfig(10)
    found = measure_acceptance(model, prompts, config, DraftModel(model, config), most)
    decoded = [min(len(answer) + 1, 10) for answer in decode(model, prompts, config).answers()]
    kept = []
    for left in (count - 1 for count in decoded):
        while left:
            kept.append(min(most, left - 1))
            left -= kept[-1] + 1
    wanted = [sum(many >= i for many in kept) / len(kept) for i in range(1, most + 1)]
    assert found.shares == pytest.approx(wanted)
    assert set(found.guess_seconds) == {1, most}
    assert found.tokens_a_row == pytest.approx(sum(decoded) / len(decoded))


def test_shares_never_rise_along_a_draft(ending_model, prompts):
    found = measure_acceptance(ending_model("autoregressive"), prompts, AutoregressiveConfig(30), PromptLookup(), 8)
    assert len(found.shares) == 8
    assert found.shares == sorted(found.shares, reverse=True)
    assert torch.tensor(found.shares).sum() > 0

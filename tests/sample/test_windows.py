"""Where logits come from: fused store and shadows are exact, caches say what they are, windows grow or overlap."""

from __future__ import annotations

import pytest
import torch

from mdlm.corruption import log_probabilities
from mdlm.errors import UserError
from sample import DenoiseConfig, denoise
from sample.generation import canvas
from sample.ledger import Ledger
from sample.windows import CachedBlocks, WholeCanvas

MASK, END, PAD = 8, 9, 10
RESPONSE = 14
RULES = [
    DenoiseConfig(),
    DenoiseConfig(threshold=0.5),
    DenoiseConfig(max_denoising_steps=2),
    DenoiseConfig(accept="factor"),
    DenoiseConfig(accept="entropy_bound", score="entropy"),
    DenoiseConfig(accept="stable", threshold=0.3, kl_passes=1),
    DenoiseConfig(accept="runs"),
    DenoiseConfig(accept="ancestral", temperature=1.0, max_denoising_steps=5),
    DenoiseConfig(accept="ancestral", temperature=1.0, max_denoising_steps=5, revoke="remdm_cap", eta=0.3),
    DenoiseConfig(accept="ancestral", temperature=1.0, max_denoising_steps=5, revoke="remdm_confidence"),
    DenoiseConfig(accept="first_hitting", temperature=1.0),
    DenoiseConfig(threshold=0.3, revoke="verify", revoke_threshold=0.6),
    DenoiseConfig(threshold=0.3, ends="in_order"),
    DenoiseConfig(temperature=1.0, top_p=0.9, score="random"),
]


def changed(config, **changes):
    return DenoiseConfig(**(vars(config) | changes))


def decoded(model, prompts, config, response=RESPONSE, columns=None, **options):
    tokens_BL, valid_BL, start = canvas(prompts, response, pad_id=PAD, mask_id=MASK, columns=columns)
    return denoise(
        model, tokens_BL, config, mask_id=MASK, end_id=END, valid_BL=valid_BL, response_start=start, **options
    )


def answers(generation):
    return generation.tokens_BL[:, generation.response_start :]


@pytest.mark.parametrize("config", RULES)
@pytest.mark.parametrize("objective", ["masked_diffusion", "block_diffusion"])
def test_a_row_alone_is_the_row_in_a_padded_batch_under_every_rule(ending_model, prompts, objective, config):
    """Sampled ones too: a row's noise goes by its number."""
    model = ending_model(objective)
    config = changed(config, block_length=4)
    together, wider = decoded(model, prompts, config), decoded(model, prompts, config, columns=9)
    reordered = decoded(model, prompts[::-1], config, rows_B=torch.arange(len(prompts)).flip(0))
    for row, prompt in enumerate(prompts):
        alone = decoded(model, [prompt], config, rows_B=torch.tensor([row]))
        for other, place in ((together, row), (wider, row), (reordered, len(prompts) - 1 - row)):
            assert answers(alone)[0].equal(answers(other)[place])
            assert alone.ledger.row(0) == other.ledger.row(place)


@pytest.mark.parametrize("config", RULES)
def test_equal_rows_with_equal_numbers_are_decoded_alike_and_others_draw_their_own(ending_model, prompts, config):
    model = ending_model("masked_diffusion")
    same = decoded(model, [prompts[0]] * 2, config, rows_B=torch.tensor([3, 3]))
    assert answers(same)[0].equal(answers(same)[1])
    other = decoded(model, [prompts[0]] * 2, config, rows_B=torch.tensor([3, 4]))
    assert answers(other)[0].equal(answers(other)[1]) == (config.temperature == 0)


@pytest.mark.parametrize("config", RULES)
@pytest.mark.parametrize("block_length", [2, 4])
def test_cache_and_fused_store_do_not_show_in_the_result(ending_model, prompts, config, block_length):
    model = ending_model("block_diffusion")
    config = changed(config, block_length=block_length)
    plain = decoded(model, prompts, config)
    fused = decoded(model, prompts, changed(config, fused_store=True))
    without = decoded(model, prompts, changed(config, cache="none"))
    assert answers(plain).equal(answers(fused))
    assert answers(plain).equal(answers(without))


@pytest.mark.parametrize(
    "config", [DenoiseConfig(), DenoiseConfig(threshold=0.4), DenoiseConfig(max_denoising_steps=2)]
)
def test_the_fused_store_saves_exactly_the_store_passes(ending_model, prompts, trunk_calls, config):
    model = ending_model("block_diffusion")
    plain = decoded(model, prompts, config).ledger
    with trunk_calls(model) as calls:
        fused = decoded(model, prompts, changed(config, fused_store=True)).ledger
    assert fused.total_calls == len(calls) == plain.total_calls - plain.calls["store"]
    assert plain.calls["store"] >= 2
    for row in range(len(prompts)):
        one, other = plain.row(row), fused.row(row)
        assert other.total_passes == one.total_passes - one.passes["store"]
        assert sum(other.positions.values()) == sum(one.positions.values()), "the same positions, in fewer passes"


def test_a_block_is_stored_late_for_a_row_whose_next_blocks_are_given(tiny_model):
    """Rows of templates: some blocks have no masks, so that several finished blocks wait for one pass."""
    model = tiny_model("block_diffusion", block_length=2)
    tokens_BL = torch.tensor(
        [
            [1, MASK, 2, 3, 4, 5, 6, MASK, MASK],
            [1, MASK, MASK, MASK, 2, 3, MASK, 4, MASK],
            [1, 2, 3, 4, 5, 6, 7, 0, MASK],
        ]
    )
    options = {"mask_id": MASK, "response_start": 1}
    for config in (DenoiseConfig(), DenoiseConfig(threshold=0.3)):
        fused = changed(config, fused_store=True)
        expected = denoise(model, tokens_BL, changed(config, cache="none"), **options)
        together = denoise(model, tokens_BL, fused, **options)
        assert together.tokens_BL.equal(expected.tokens_BL)
        for row in range(3):
            alone = denoise(model, tokens_BL[row, None], fused, **options)
            assert alone.tokens_BL[0].equal(together.tokens_BL[row])
            assert alone.ledger.row(0) == together.ledger.row(row)


@pytest.mark.parametrize("config", RULES)
def test_looking_less_often_whether_a_window_is_full_changes_only_the_calls(ending_model, prompts, config):
    """As on a GPU, where looking waits for the device."""
    model = ending_model("block_diffusion")
    often, seldom = (decoded(model, prompts, changed(config, stop_check_every=every)) for every in (1, 3))
    assert answers(often).equal(answers(seldom))
    assert often.ledger.rows() == seldom.ledger.rows()
    windows = -(-RESPONSE // 4)
    assert often.ledger.total_calls <= seldom.ledger.total_calls <= often.ledger.total_calls + 2 * windows


def leave_one_out(model, tokens_BL, column):
    """log p of a column that is masked while all others stand, from shadow positions: not the model's plain pass."""
    masked_BL = tokens_BL.clone()
    masked_BL[:, column] = MASK
    return log_probabilities(model(masked_BL, None, 1)[:, column], MASK)


def test_shadows_see_what_their_position_sees_but_not_its_token(tiny_model):
    """In a network of one layer nothing reaches a shadow through others, so it is the pass with its token masked."""
    for objective in ("masked_diffusion", "block_diffusion"):
        model = tiny_model(objective, layers=1, block_length=8)
        tokens_BL = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 0, 1]])
        everyone = torch.ones(1, dtype=torch.bool)
        valid_BL = torch.ones_like(tokens_BL, dtype=torch.bool)
        for kind in (WholeCanvas, CachedBlocks) if objective == "block_diffusion" else (WholeCanvas,):
            source = kind(model, valid_BL, 1, Ledger(1), block_length=8, verified=True)
            source.prefill(tokens_BL, 1, torch.ones(1, dtype=torch.long), everyone)
            logits = source.logits(tokens_BL, 1, 9, everyone)
            assert logits.shape[1] == 16
            for column in range(1, 9):
                shadow = log_probabilities(logits[:, 8 + column - 1], MASK)
                torch.testing.assert_close(shadow, leave_one_out(model, tokens_BL, column), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["prefix", "dual"])
def test_an_approximate_cache_refreshes_at_every_window_and_says_that_it_drifts(
    ending_model, prompts, trunk_calls, kind
):
    model = ending_model("masked_diffusion")
    config = DenoiseConfig(block_length=5, cache=kind, stop_at_end=False)
    with trunk_calls(model) as calls:
        generation = decoded(model, prompts, config)
    assert generation.ledger.total_calls == len(calls)
    assert generation.ledger.calls["refresh"] == 3
    assert generation.ledger.calls["denoise"] == 14 - 3
    measured = decoded(model, prompts, changed(config, measure_drift=True))
    assert answers(measured).equal(answers(generation)), "measuring changes nothing"
    assert measured.drift.positions == len(prompts) * (10 + 10 + 6)
    assert measured.drift.kl > 1e-4
    assert 0 <= measured.drift.changed_share <= 1


@pytest.mark.parametrize("kind", ["prefix", "dual"])
def test_an_approximate_cache_evaluates_fewer_positions(ending_model, prompts, kind):
    model = ending_model("masked_diffusion")
    config = DenoiseConfig(block_length=5, stop_at_end=False)
    plain = decoded(model, prompts, config).ledger.row(0)
    cached = decoded(model, prompts, changed(config, cache=kind)).ledger.row(0)
    assert cached.total_passes == plain.total_passes
    length, window = len(prompts[0]) + RESPONSE, {"prefix": [14, 9, 4], "dual": [5, 5, 4]}[kind]
    assert plain.positions["denoise"] == length * RESPONSE
    assert cached.positions["refresh"] == 3 * length
    assert cached.positions["denoise"] == 4 * window[0] + 4 * window[1] + 3 * window[2]


def test_an_approximate_cache_of_one_pass_a_window_is_exact(ending_model, prompts):
    """Nothing is reused then."""
    model = ending_model("masked_diffusion")
    config = DenoiseConfig(block_length=5, max_denoising_steps=1)
    assert answers(decoded(model, prompts, config)).equal(
        answers(decoded(model, prompts, changed(config, cache="dual")))
    )


def test_a_growing_canvas_does_not_see_what_is_not_there_yet(ending_model, prompts):
    """Each window is decoded as if the canvas ended with it."""
    model = ending_model("masked_diffusion")
    config = DenoiseConfig(block_length=5, growing=True, stop_at_end=False)
    grown = decoded(model, prompts[:1], config)
    tokens = torch.tensor([prompts[0]])
    for width in (5, 5, 4):
        canvas_BL = torch.cat([tokens, torch.full((1, width), MASK)], dim=1)
        tokens = denoise(model, canvas_BL, DenoiseConfig(), mask_id=MASK, response_start=len(prompts[0])).tokens_BL
    assert grown.tokens_BL.equal(tokens)
    assert not answers(decoded(model, prompts[:1], changed(config, growing=False))).equal(answers(grown))
    assert grown.ledger.row(0).positions["denoise"] == 5 * 11 + 5 * 16 + 4 * 20


def flooding(tokens_BL):
    """A denoiser that is surest of end tokens at the far end, and would write text from the left."""
    length = tokens_BL.shape[1]
    logits_BLV = torch.zeros(*tokens_BL.shape, 12)
    logits_BLV[..., END] = torch.linspace(0.5, 6, length)
    logits_BLV[..., 1] = 3.0
    return logits_BLV


def ends_committed(generation):
    return sum(int((made.committed_BG & (made.tokens_BL == END)).sum()) for made in generation.trace)


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 2.0])
def test_ends_in_order_do_not_flood_the_canvas(temperature):
    """Committed where they stand surest, ends fill the right half; in order, one is committed and finishes the row."""
    canvas_BL = torch.full((16, 20), MASK)
    options = {"mask_id": MASK, "end_id": END}
    for rule in (DenoiseConfig(), DenoiseConfig(threshold=0.6), DenoiseConfig(max_denoising_steps=4)):
        config = changed(rule, temperature=temperature, trace=True)
        anywhere = denoise(flooding, canvas_BL, config, **options)
        in_order = denoise(flooding, canvas_BL, changed(config, ends="in_order"), **options)

        assert ends_committed(in_order) <= 16, "one for each row"
        assert ends_committed(anywhere) > 3 * 16


def test_the_end_tokens_mass_is_reported_by_position():
    made = denoise(flooding, torch.full((1, 20), MASK), DenoiseConfig(trace=True), mask_id=MASK, end_id=END).trace[0]
    expected = log_probabilities(flooding(torch.full((1, 20), MASK)), MASK).exp()[..., END]
    torch.testing.assert_close(made.end_mass_BG, expected)


def test_a_pipelined_block_commits_only_what_reaches_the_threshold(tiny_model):
    """And its row is the same alone and in a batch; without joining it is the plain decode."""
    model = tiny_model("block_diffusion", block_length=4)
    prompts = [[11, 1, 2, 3], [11, 6], [11, 3, 3]]
    plain = decoded(model, prompts, DenoiseConfig(threshold=0.7), response=12)
    config = DenoiseConfig(threshold=0.7, pipeline=0.25, trace=True)
    ahead = decoded(model, prompts, config, response=12)
    assert ahead.ledger.calls["denoise"] <= plain.ledger.calls["denoise"] + 3
    for cache in ("exact", "none"):
        for fused in (False, True):
            other = decoded(model, prompts, changed(config, cache=cache, fused_store=fused), response=12)
            assert answers(other).equal(answers(ahead))
    for row, prompt in enumerate(prompts):
        alone = decoded(model, [prompt], config, response=12, rows_B=torch.tensor([row]))
        assert answers(alone)[0].equal(answers(ahead)[row])
        assert alone.ledger.row(0) == ahead.ledger.row(row)
    never = decoded(model, prompts, changed(config, threshold=2.0, pipeline=0.0), response=12)
    assert answers(never).equal(answers(decoded(model, prompts, DenoiseConfig(), response=12)))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"accept": "best"}, "accept"),
        ({"revoke": "remdm_cap"}, "ancestral"),
        ({"accept": "ancestral", "revoke": "verify"}, "remdm_cap"),
        ({"accept": "stable"}, "threshold"),
        ({"pipeline": 0.5}, "threshold"),
        ({"pipeline": 2.0, "threshold": 0.5}, "pipeline"),
        ({"growing": True}, "block_length"),
        ({"cache": "dual"}, "block_length"),
        ({"ends": "never"}, "ends"),
        ({"eta": -1.0}, "eta"),
    ],
)
def test_choices_that_do_not_go_together_are_refused_by_name(changes, says):
    with pytest.raises(UserError, match=says):
        DenoiseConfig(**changes)


def test_choices_that_a_model_cannot_have_are_refused_by_name(tiny_model, prompts):
    for objective, changes, says in (
        ("block_diffusion", {"cache": "dual", "block_length": 4}, "exact"),
        ("block_diffusion", {"growing": True, "block_length": 4}, "growing"),
        ("masked_diffusion", {"pipeline": 0.5, "threshold": 0.5, "block_length": 4}, "pipeline"),
    ):
        with pytest.raises(UserError, match=says):
            decoded(tiny_model(objective), prompts, DenoiseConfig(**changes))

"""The denoiser: what it may change, what it must fill, and that neither cache, batch nor padding shows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mdlm.errors import UserError
from sample import DenoiseConfig, denoise
from sample.generation import canvas
from sample.policies import SCORES

VOCAB, MASK, END, PAD = 12, 8, 9, 10
DIFFUSION = ["masked_diffusion", "block_diffusion"]
ACCEPTING = [
    DenoiseConfig(),
    DenoiseConfig(max_denoising_steps=1),
    DenoiseConfig(max_denoising_steps=3),
    DenoiseConfig(max_denoising_steps=3, block_length=5),
    DenoiseConfig(threshold=0.3),
    DenoiseConfig(threshold=-1.0, score="entropy", block_length=3),
    DenoiseConfig(threshold=0.1, score="margin", max_denoising_steps=2),
    DenoiseConfig(stop_at_end=False, max_denoising_steps=2),
]


def table(seed=0, vocab=VOCAB):
    """A denoiser that is no network: logits are a random function of the position and of all visible tokens."""

    def logits(tokens_BL):
        rows = []
        for tokens_L in tokens_BL.tolist():
            generator = torch.Generator().manual_seed(hash((seed, *tokens_L)) % 2**62)
            rows.append(3 * torch.randn(len(tokens_L), vocab, generator=generator))
        return torch.stack(rows)

    return logits


def decoded(denoiser, prompts, config, response=10, columns=None, **options):
    tokens_BL, valid_BL, start = canvas(prompts, response, pad_id=PAD, mask_id=MASK, columns=columns)
    return denoise(
        denoiser, tokens_BL, config, mask_id=MASK, end_id=END, valid_BL=valid_BL, response_start=start, **options
    )


configs = st.builds(
    DenoiseConfig,
    max_denoising_steps=st.none() | st.integers(1, 12),
    threshold=st.none() | st.floats(-3, 1.5),
    score=st.sampled_from(sorted(SCORES)),
    block_length=st.none() | st.integers(1, 12),
    cache=st.sampled_from(["exact", "none"]),
    temperature=st.sampled_from([0.0, 0.01, 1.0, 5.0]),
    top_p=st.sampled_from([1e-6, 0.5, 0.9, 1.0]),
    seed=st.integers(0, 3),
    stop_at_end=st.booleans(),
)
tokens = st.sampled_from([*range(8), END, *[MASK] * 9])


@st.composite
def templates(draw):
    """Canvases with fixed tokens anywhere, padding on the left, and the column where responses begin."""
    length, start = draw(st.integers(1, 12)), draw(st.integers(0, 4))
    rows = draw(st.integers(1, 3))
    cells = [draw(st.lists(tokens, min_size=length, max_size=length)) for _ in range(rows)]
    prompts = [draw(st.lists(st.integers(0, 7), min_size=start, max_size=start)) for _ in range(rows)]
    padding = [draw(st.integers(0, max(0, start - 1))) for _ in range(rows)]
    tokens_BL = torch.tensor([[PAD] * p + prompt[p:] + row for p, prompt, row in zip(padding, prompts, cells)])  # noqa: B905
    valid_BL = torch.arange(start + length) >= torch.tensor(padding)[:, None]
    return tokens_BL, valid_BL, start


@pytest.mark.parametrize("kind", [*DIFFUSION, "table"])
@settings(max_examples=60, deadline=None, derandomize=True)
@given(template=templates(), config=configs, ends=st.booleans())
def test_fixed_tokens_never_change_and_no_mask_is_left(ending_model, kind, template, config, ends):
    tokens_BL, valid_BL, start = template
    denoiser = table() if kind == "table" else ending_model(kind)
    before_BL = tokens_BL.clone()
    options = {"valid_BL": valid_BL, "response_start": start, "end_id": END if ends else None}
    filled = denoise(denoiser, tokens_BL, config, mask_id=MASK, **options)
    assert torch.equal(tokens_BL, before_BL), "the caller's canvas is not written to"
    fixed_BL = before_BL != MASK
    assert torch.equal(filled.tokens_BL[fixed_BL], before_BL[fixed_BL])
    assert (filled.tokens_BL != MASK).all()
    assert ((filled.tokens_BL >= 0) & (filled.tokens_BL < VOCAB)).all()


@pytest.mark.parametrize("config", ACCEPTING)
def test_the_mask_token_is_never_produced_however_likely(config):
    def wants_masks(tokens_BL):
        logits_BLV = torch.zeros(*tokens_BL.shape, VOCAB)
        logits_BLV[..., MASK] = 1e4
        return logits_BLV

    filled = denoise(wants_masks, torch.full((2, 10), MASK), config, mask_id=MASK)
    assert (filled.tokens_BL != MASK).all()


@pytest.mark.parametrize("objective", DIFFUSION)
@pytest.mark.parametrize("config", ACCEPTING)
def test_a_row_alone_is_the_row_in_a_batch(ending_model, prompts, objective, config):
    model = ending_model(objective)
    together = decoded(model, prompts, config)
    wider = decoded(model, prompts, config, columns=9)
    for row, prompt in enumerate(prompts):
        alone = decoded(model, [prompt], config)
        for other in (together, wider):
            assert alone.tokens_BL[0, alone.response_start :].equal(other.tokens_BL[row, other.response_start :])
            assert alone.ledger.row(0) == other.ledger.row(row)


def test_the_rows_above_end_in_different_windows(ending_model, prompts):
    answers = decoded(ending_model("block_diffusion"), prompts, DenoiseConfig()).answers()
    assert len({len(answer) // 4 for answer in answers}) > 1
    assert max(map(len, answers)) == 10


@settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data(), config=st.sampled_from(ACCEPTING))
@pytest.mark.parametrize("objective", DIFFUSION)
def test_a_template_alone_is_the_template_in_a_batch(ending_model, objective, data, config):
    model = ending_model(objective)
    tokens_BL, valid_BL, start = data.draw(templates())
    options = {"mask_id": MASK, "end_id": END, "response_start": start}
    together = denoise(model, tokens_BL, config, valid_BL=valid_BL, **options)
    for row in range(len(tokens_BL)):
        alone = denoise(model, tokens_BL[row, None], config, valid_BL=valid_BL[row, None], **options)
        assert alone.tokens_BL[0].equal(together.tokens_BL[row])


def test_an_end_token_in_a_template_means_the_same_alone_and_in_a_batch(tiny_model):
    """Blocks of two; the first row's masks come after a block that holds a fixed end token."""
    model = tiny_model("block_diffusion", block_length=2)
    tokens_BL = torch.tensor([[1, 2, END, MASK, MASK], [1, MASK, MASK, MASK, MASK]])
    options = {"mask_id": MASK, "end_id": END, "response_start": 1}
    together = denoise(model, tokens_BL, **options)
    assert denoise(model, tokens_BL[:1], **options).tokens_BL[0].equal(together.tokens_BL[0])


def template_ledgers(model, tokens_BL, start=1):
    """The account of each row alone, and in one batch."""
    together = denoise(model, tokens_BL, mask_id=MASK, response_start=start).ledger.rows()
    alone = [denoise(model, row[None], mask_id=MASK, response_start=start).ledger.row(0) for row in tokens_BL]
    return list(zip(alone, together, strict=True))


TEMPLATES = torch.tensor([[1, 2, 3, MASK, MASK], [1, MASK, MASK, MASK, MASK], [1, MASK, MASK, 2, 3]])
"""In blocks of two behind a prompt of one: rows whose first and last masks lie in different blocks."""


def test_a_template_takes_alone_the_passes_it_takes_in_a_batch(tiny_model):
    for alone, together in template_ledgers(tiny_model("block_diffusion", block_length=2), TEMPLATES):
        assert alone.passes == together.passes


def test_a_template_costs_alone_what_it_costs_in_a_batch(tiny_model):
    for alone, together in template_ledgers(tiny_model("block_diffusion", block_length=2), TEMPLATES):
        assert alone == together


@pytest.mark.xfail(strict=True, reason="where the batch has no prefill, a row's leading fixed blocks are not booked")
def test_a_template_without_a_prompt_costs_alone_what_it_costs_in_a_batch(tiny_model):
    tokens_BL = torch.tensor([[1, 2, MASK, MASK], [MASK, MASK, MASK, MASK]])
    for alone, together in template_ledgers(tiny_model("block_diffusion", block_length=2), tokens_BL, start=0):
        assert alone == together


def test_a_row_without_masks_costs_nothing_in_a_batch_either(tiny_model):
    full = torch.tensor([[1, 2, 3], [1, MASK, MASK]])
    for alone, together in template_ledgers(tiny_model("block_diffusion", block_length=2), full):
        assert alone == together


@pytest.mark.parametrize("causal_prompt", [False, True])
@pytest.mark.parametrize("config", ACCEPTING)
def test_the_cache_does_not_show_in_the_result(ending_model, prompts, config, causal_prompt):
    model = ending_model("block_diffusion", causal_prompt=causal_prompt)
    cached = decoded(model, prompts, config)
    uncached = decoded(model, prompts, DenoiseConfig(**{**vars(config), "cache": "none"}))
    assert cached.tokens_BL.equal(uncached.tokens_BL)
    for with_cache, without in zip(cached.ledger.rows(), uncached.ledger.rows(), strict=True):
        assert with_cache.passes["denoise"] == without.passes["denoise"]
        assert with_cache.passes["prefill"] == 1
        assert without.passes["prefill"] == without.passes["store"] == 0


@pytest.mark.parametrize("temperature", [0.7, 2.0])
def test_the_cache_does_not_show_in_samples(ending_model, prompts, temperature):
    model = ending_model("block_diffusion")
    config = DenoiseConfig(temperature=temperature, top_p=0.9, seed=5, max_denoising_steps=2)
    uncached = DenoiseConfig(**{**vars(config), "cache": "none"})
    assert decoded(model, prompts, config).tokens_BL.equal(decoded(model, prompts, uncached).tokens_BL)


def test_the_seed_decides_what_is_sampled(ending_model, prompts):
    model = ending_model("masked_diffusion")

    def sampled(seed):
        return decoded(model, prompts, DenoiseConfig(temperature=1.0, score="random", seed=seed)).tokens_BL

    assert sampled(1).equal(sampled(1))
    assert not sampled(1).equal(sampled(2))


def test_blocks_are_filled_from_left_to_right_and_later_ones_stay_masked_until_then(ending_model, prompts):
    config = DenoiseConfig(trace=True, stop_at_end=False, max_denoising_steps=2)
    filled = decoded(ending_model("block_diffusion"), prompts, config)
    assert [step.start - filled.response_start for step in filled.trace] == [0, 0, 4, 4, 8, 8]
    for step in filled.trace:
        block = (step.start - filled.response_start) // 4
        behind = filled.response_start + 4 * (block + 1)
        assert (step.tokens_BL[:, behind:] == MASK).all()
        assert (step.tokens_BL[:, : step.start] != MASK).all()
    assert filled.trace[-1].tokens_BL.equal(filled.tokens_BL)


def test_every_pass_commits_its_share_of_the_surest(ending_model, prompts):
    config = DenoiseConfig(max_denoising_steps=4, trace=True)
    filled = decoded(ending_model("masked_diffusion"), prompts, config)
    masked_BG = torch.ones(len(prompts), 10, dtype=torch.bool)
    for step, share in zip(filled.trace, [3, 3, 2, 2], strict=True):
        assert (step.committed_BG.sum(-1) == share).all()
        assert not (step.committed_BG & ~masked_BG).any()
        left_BG = masked_BG & ~step.committed_BG
        surest = torch.where(left_BG, step.score_BG, -1.0).amax(-1)
        assert (torch.where(step.committed_BG, step.score_BG, 2.0).amin(-1) >= surest).all()
        masked_BG = left_BG
    assert not masked_BG.any()


def test_a_threshold_commits_all_that_reach_it_and_otherwise_one(ending_model, prompts):
    filled = decoded(ending_model("masked_diffusion"), prompts, DenoiseConfig(threshold=0.5, trace=True))
    masked_BG, several = torch.ones(len(prompts), 10, dtype=torch.bool), False
    for step in filled.trace:
        sure_BG = masked_BG & (step.score_BG >= 0.5)
        wanted_B = torch.maximum(sure_BG.sum(-1), masked_BG.any(-1).long())
        assert (step.committed_BG & sure_BG).equal(sure_BG)
        assert step.committed_BG.sum(-1).equal(wanted_B)
        several |= bool((sure_BG.sum(-1) > 1).any())
        masked_BG &= ~step.committed_BG
    assert several
    assert not masked_BG.any()


def test_one_pass_is_the_arg_max_of_every_position():
    prompts = [[1, 2, 3], [4, 5, 6]]
    tokens_BL, _, _ = canvas(prompts, 6, pad_id=PAD, mask_id=MASK)
    denoiser = table()
    logits_BLV = denoiser(tokens_BL)
    logits_BLV[..., MASK] = -torch.inf
    filled = denoise(denoiser, tokens_BL, DenoiseConfig(max_denoising_steps=1), mask_id=MASK)
    assert filled.tokens_BL[:, 3:].equal(logits_BLV.argmax(-1)[:, 3:])


def test_an_end_token_stops_a_row_where_nothing_fixed_follows():
    def ends_at_once(tokens_BL):
        logits_BLV = torch.zeros(*tokens_BL.shape, VOCAB)
        logits_BLV[..., END] = 5.0
        return logits_BLV

    tokens_BL = torch.full((2, 12), MASK)
    tokens_BL[1, 9] = 7  # a template's suffix
    config = DenoiseConfig(block_length=4, max_denoising_steps=1)
    filled = denoise(ends_at_once, tokens_BL, config, mask_id=MASK, end_id=END)
    first, second = filled.ledger.rows()
    assert (first.total_passes, second.total_passes) == (1, 3)
    assert (filled.tokens_BL[0] == END).all()
    assert filled.tokens_BL[1].tolist() == [END] * 9 + [7, END, END]
    stubborn = DenoiseConfig(block_length=4, max_denoising_steps=1, stop_at_end=False)
    assert denoise(ends_at_once, tokens_BL, stubborn, mask_id=MASK, end_id=END).ledger.row(0).total_passes == 3


def test_a_finished_row_is_no_longer_evaluated(ending_model, prompts, trunk_calls):
    model = ending_model("block_diffusion")
    with trunk_calls(model) as rows_of_calls:
        together = decoded(model, prompts, DenoiseConfig())
    assert rows_of_calls[0] == len(prompts)
    assert rows_of_calls[-1] < len(prompts)
    assert together.ledger.total_calls == len(rows_of_calls)


def test_an_untouched_canvas_costs_nothing(tiny_model):
    filled = denoise(tiny_model("block_diffusion"), torch.tensor([[1, 2, 3]]), mask_id=MASK, response_start=1)
    assert filled.tokens_BL.tolist() == [[1, 2, 3]]
    assert filled.ledger.total_calls == 0


@pytest.mark.parametrize(
    ("objective", "tokens", "options", "named"),
    [
        ("autoregressive", [1, MASK], {}, "decode"),
        ("masked_diffusion", [1, MASK], {"mask_id": 7}, "mask"),
        ("masked_diffusion", [1, VOCAB, MASK], {}, "token 12"),
        ("masked_diffusion", [1] * 64 + [MASK], {}, "65 positions"),
        ("block_diffusion", [MASK, 1, MASK], {"response_start": 1}, "response_start"),
    ],
)
def test_what_cannot_be_denoised_is_refused_by_name(tiny_model, objective, tokens, options, named):
    with pytest.raises(UserError, match=named):
        denoise(tiny_model(objective), torch.tensor([tokens]), **{"mask_id": MASK, **options})


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"max_denoising_steps": 0}, "max_denoising_steps"),
        ({"block_length": 0}, "block_length"),
        ({"score": "confidense"}, "confidense"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
    ],
)
def test_unusable_settings_are_refused_by_name(wrong, named):
    with pytest.raises(UserError, match=named) as refused:
        DenoiseConfig(**wrong)
    assert "\n" not in str(refused.value)

"""Texts with gaps as rows to decode: what is a gap, what stays fixed, and where the answer ends."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mdlm.config import ModelConfig
from mdlm.errors import UserError
from mdlm.tokenizer import Tokenizer
from sample.config import DenoiseConfig
from sample.denoise import denoise
from sample.infill import Layout, Marker, answer

TOKENIZER = Tokenizer.train(["the cat sat on the mat", '{"name":"Ada","born":1815}'] * 4, 300)
MASK, END, BEGIN = TOKENIZER.mask_id, TOKENIZER.end_id, TOKENIZER.begin_id
IDS = {f"{role}_token_id": getattr(TOKENIZER, f"{role}_id") for role in ("mask", "end", "pad", "begin")}


def model_config(objective="masked_diffusion", **changes):
    sizes = {"vocab_size": TOKENIZER.vocab_size, "max_length": 64, "block_length": 8}
    return ModelConfig(objective, **{**sizes, **IDS, **changes})


def layout(objective="masked_diffusion", word="mask", *, config=None, **known):
    return Layout(TOKENIZER, config or model_config(objective), Marker(word), **known)


def tokens(text, word="mask", limit=50):
    return Marker(word).tokens(text, TOKENIZER, limit)[0]


def test_a_marker_is_one_mask_token_and_a_counted_one_as_many_as_it_says():
    assert tokens("the<|mask|> sat<|mask:3|>.") == [
        *TOKENIZER.encode("the"),
        MASK,
        *TOKENIZER.encode(" sat"),
        *[MASK] * 3,
        *TOKENIZER.encode("."),
    ]


def test_markers_may_touch_and_may_be_all_there_is():
    assert tokens("<|mask|><|mask:2|>") == [MASK] * 3


@pytest.mark.parametrize("text", ["<|blank|>", "<mask>", "<|mask", "mask:3", "<|Mask|>", "<|masked|>"])
def test_what_is_no_marker_is_text(text):
    assert not Marker().occurs_in(text)
    assert tokens(text) == TOKENIZER.encode(text)


def test_another_marker_word_leaves_the_usual_one_in_the_text():
    assert tokens("<|mask:2|><|x.y:2|>", "x.y") == [*TOKENIZER.encode("<|mask:2|>"), MASK, MASK]
    assert MASK not in tokens("<|x_y|>", "x.y")


@pytest.mark.parametrize("word", ["", "<|mask|>", "a b", "mask:3"])
def test_a_marker_word_that_cannot_stand_between_bars_is_refused(word):
    with pytest.raises(UserError, match="word between the bars"):
        Marker(word)


@pytest.mark.parametrize("count", ["0", "-1", "x", "", "51", "9" * 5000, "1.5", "٣"])
def test_a_count_that_is_no_number_of_tokens_that_fit_is_refused(count):
    with pytest.raises(UserError, match="from 1 to 50"):
        tokens(f"the <|mask:{count}|>")


def test_a_prompt_comes_before_a_response_of_masks_alone():
    (request,) = layout(response_length=20).requests(["the cat"])
    assert request.prompt == [BEGIN, *TOKENIZER.encode("the cat")]
    assert request.response == [MASK] * 20
    assert not request.is_infill


def test_an_empty_prompt_is_the_begin_token_alone():
    (request,) = layout(response_length=20).requests([""])
    assert request.prompt == [BEGIN]


def test_a_response_takes_what_fits_where_its_trained_length_does_not():
    long = "the cat sat on the mat" * 7
    (request,) = layout(response_length=60).requests([long])
    assert len(request.prompt) + len(request.response) == 64
    (request,) = layout().requests(["the cat"])
    assert len(request.prompt) + len(request.response) == 64


@pytest.mark.parametrize(("asked", "columns"), [(None, 24), (1, 8), (8, 8), (9, 16)])
def test_block_diffusion_rounds_a_response_up_to_whole_blocks(asked, columns):
    (request,) = layout("block_diffusion", response_length=20).requests(["the cat"], max_new_tokens=asked)
    assert len(request.response) == columns


def test_a_last_block_that_does_not_fit_stays_short():
    room = 64 - 1 - len(TOKENIZER.encode("the cat"))
    (request,) = layout("block_diffusion").requests(["the cat"], max_new_tokens=room)
    assert len(request.response) == room


def test_a_text_with_gaps_is_the_response_and_nothing_is_added_to_it():
    (request,) = layout(response_length=20).requests(["the<|mask:2|> sat"])
    assert request.prompt == [BEGIN]
    assert request.response == tokens("the<|mask:2|> sat")
    assert request.is_infill


@pytest.mark.parametrize(
    ("rule", "ends"),
    [
        (None, 1),
        ("one", 1),
        ("block", 5),  # 3 tokens of template, blocks of 8
        ("canvas", 17),
    ],
)
def test_a_template_gets_the_end_tokens_that_training_put_behind_an_answer(rule, ends):
    rules = layout("block_diffusion", response_length=20, supervised_end=rule)
    (request,) = rules.requests(["the cat"], template="{<|mask|>}")
    assert request.prompt == [BEGIN, *TOKENIZER.encode("the cat")]
    assert request.response == [*tokens("{<|mask|>}"), *[END] * ends]


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        (["x" * 64], {}, r"the prompt has 65 tokens where 63 fit.*64 in all"),
        (["a", "x" * 64], {}, "prompt 2 has 65 tokens"),
        (["xx"], {"max_new_tokens": 62}, "--max-new-tokens 62: the prompt has 3 tokens.*at most 61"),
        (["<|mask:40|>" * 2], {}, "the prompt with its gaps has 80 tokens where 63 fit"),
        (["xx"], {"template": "<|mask:61|>"}, "template with its end token behind the prompt has 62 tokens where 61"),
        (["xx"], {"template": "no gap"}, r"--template has no gap.*<\|mask\|>"),
        (["a", "b<|mask|>"], {"template": "<|mask|>"}, "prompt 2 has a gap"),
        (["xx"], {"template": "<|mask|>", "max_new_tokens": 3}, "--max-new-tokens has no meaning"),
        (["a<|mask|>"], {"max_new_tokens": 3}, "--max-new-tokens has no meaning"),
    ],
)
def test_a_row_that_cannot_be_laid_out_is_refused(texts, options, message):
    with pytest.raises(UserError, match=message):
        layout().requests(texts, **options)


def test_a_gap_is_refused_for_an_autoregressive_model_unless_the_text_means_it():
    with pytest.raises(UserError, match=r"prompt 2 has a gap <\|mask\|>.*--mask-marker"):
        layout("autoregressive").requests(["a", "b <|mask|>"])
    (request,) = layout("autoregressive", word="blank").requests(["b <|mask|>"])
    assert MASK not in request.prompt


def test_an_answer_stops_at_the_first_end_token_behind_the_last_fixed_text():
    def ended(filled, response):
        return answer(filled, response, mask_id=MASK, end_id=END)

    masks = [MASK] * 4
    assert ended([7, 8, END, 9], masks) == [7, 8]
    assert ended([7, 8, 9, 10], masks) == [7, 8, 9, 10]
    assert ended([END, 7, 7, 7], masks) == []
    assert ended([7, END, 20, 8], [MASK, MASK, 20, MASK]) == [7, END, 20, 8]
    assert ended([7, END, 20, END, 8], [MASK, MASK, 20, MASK, MASK]) == [7, END, 20]
    assert ended([20, 7, END, END, END], [20, MASK, MASK, END, END]) == [20, 7]


pieces = st.lists(st.text(alphabet="the cat é\n{}", max_size=6) | st.integers(1, 4), min_size=1, max_size=6)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    parts=pieces, objective=st.sampled_from(["masked_diffusion", "block_diffusion"]), threshold=st.none() | st.just(0)
)
def test_fixed_text_comes_out_as_it_went_in(tiny_model, parts, objective, threshold):
    text = "".join(f"<|mask:{part}|>" if isinstance(part, int) else part for part in parts)
    (request,) = layout(objective).requests([text + "<|mask|>"])
    model = tiny_model(objective, vocab_size=TOKENIZER.vocab_size, **IDS)
    row = torch.tensor([request.prompt + request.response])
    filled = denoise(model, row, DenoiseConfig(threshold=threshold), mask_id=MASK, end_id=END, response_start=1)
    result = filled.tokens_BL[0, 1:]
    given = torch.tensor(request.response)
    assert torch.equal(result[given != MASK], given[given != MASK])
    assert not (result == MASK).any()


def test_a_gap_of_up_to_n_tokens_is_closed_by_an_end_token_and_keeps_the_text_behind_it():
    found, gaps = Marker().tokens("the<|mask:..3|> sat<|mask:2|>", TOKENIZER, 50)
    the, sat = TOKENIZER.encode("the"), TOKENIZER.encode(" sat")
    start = len(the)
    assert found == [*the, *[MASK] * 3, *sat, *[MASK] * 2]
    assert gaps == ((start, start + 3),)
    ids = {"mask_id": MASK, "end_id": END, "open_gaps": gaps}
    for inside, kept in (([5, END, 6], [5]), ([END, 5, 6], []), ([5, 6, 7], [5, 6, 7]), ([5, END, END], [5])):
        filled = [*the, *inside, *sat, 7, END]
        assert answer(filled, found, **ids) == [*the, *kept, *sat, 7]
    assert answer([*the, 5, END, 6, *sat, 7, 7], found, **ids) == [*the, 5, *sat, 7, 7]


def test_a_gap_of_up_to_n_at_the_end_of_the_text_ends_it():
    found, gaps = Marker().tokens("the<|mask:..3|>", TOKENIZER, 50)
    the = TOKENIZER.encode("the")
    response = [*found, END]
    for inside, kept in (([5, END, 6], [5]), ([5, 6, 7], [5, 6, 7])):
        got = answer([*the, *inside, END], response, mask_id=MASK, end_id=END, open_gaps=gaps)
        assert got == [*the, *kept]

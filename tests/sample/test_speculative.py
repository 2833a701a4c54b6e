"""Speculation is lossless: whatever is guessed, the tokens are those of plain decoding."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mdlm.errors import UserError
from mdlm.heads import DraftHeads
from sample import AutoregressiveConfig, decode
from sample.drafters import DraftModel, HeadsDrafter, PromptLookup
from sample.speculative import Speculation, decode_speculatively

stats = pytest.importorskip("scipy.stats")
END, PAD = 9, 10
RESPONSE = 10
CONFIGS = [
    AutoregressiveConfig(RESPONSE),
    AutoregressiveConfig(RESPONSE, temperature=1.0),
    AutoregressiveConfig(RESPONSE, temperature=0.7, top_p=0.8, seed=3),
    AutoregressiveConfig(RESPONSE, temperature=2.0, stop_check_every=3, seed=1),
    AutoregressiveConfig(RESPONSE, prefill_chunk=4),
]


class Guesses:
    """A drafter that is told what to guess: the right tokens, wrong ones, or end tokens."""

    def __init__(self, right_BR, kind):
        self.right_BR, self.kind = right_BR, kind

    def start(self, tokens_BL, valid_BL, prompt_columns, rows_B, ledger):
        self.start_column = prompt_columns

    def propose(self, tokens_BL, newest_B, count, working_B, hidden_BD):
        if self.kind == "ends":
            return torch.full((len(newest_B), count), END)
        place_BW = newest_B[:, None] + 1 - self.start_column + torch.arange(count)
        right_BW = self.right_BR.gather(1, place_BW.clamp(max=RESPONSE - 1))
        return right_BW if self.kind == "right" else (right_BW + 1) % 8

    def keep_rows(self, keep):
        self.right_BR = self.right_BR[keep]


def random_heads(model, count=4):
    heads = DraftHeads(model.config.dim, count).requires_grad_(False)
    generator = torch.Generator().manual_seed(7)
    for weight in heads.parameters():
        weight.normal_(generator=generator)
    return heads


DRAFTERS = {
    "lookup": lambda model, smaller, config: PromptLookup(),
    "lookup of one": lambda model, smaller, config: PromptLookup(longest=1),
    "lookup of any length": lambda model, smaller, config: PromptLookup(longest=None),
    "a smaller twin": lambda model, smaller, config: DraftModel(smaller, config),
    "itself": lambda model, smaller, config: DraftModel(model, config),
    "heads": lambda model, smaller, config: HeadsDrafter(model, random_heads(model), config),
    "one head": lambda model, smaller, config: HeadsDrafter(model, random_heads(model, 1), config),
}
"""Every drafter there is: (model, a smaller twin, config) -> drafter."""
TOLD = ["right", "wrong", "ends"]


@pytest.mark.parametrize("drafter", [*DRAFTERS, *TOLD])
@pytest.mark.parametrize("length", [1, 3, 7, 30])
@pytest.mark.parametrize("config", CONFIGS)
def test_the_tokens_are_those_of_plain_decoding(
    ending_model, tiny_model, prompts, trunk_calls, config, length, drafter
):
    """Ragged prompts, rows that end early and inside a draft, drafts longer than what is left."""
    model = ending_model("autoregressive")
    plain = decode(model, prompts, config)
    if drafter in TOLD:
        chosen = Guesses(plain.tokens_BL[:, plain.response_start :], drafter)
    else:
        chosen = DRAFTERS[drafter](model, tiny_model("autoregressive", seed=5, layers=1), config)
    with trunk_calls(model) as calls:
        made = decode_speculatively(model, prompts, config, drafter=chosen, speculation=Speculation(length))
    assert made.answers() == plain.answers()
    ledger = made.ledger
    of_model = ledger.calls["prefill"] + ledger.calls["verify"] + (ledger.calls["draft"] if drafter == "itself" else 0)
    assert of_model == len(calls)
    for row, answer in enumerate(made.answers()):
        assert ledger.row(row).kept == len(answer) == plain.ledger.row(row).kept
        assert ledger.row(row).total_passes <= plain.ledger.row(row).total_passes * (1 + 2 * length)


def test_right_guesses_save_passes_and_wrong_ones_cost_none_of_the_models(ending_model, tiny_model, prompts):
    model, config = ending_model("autoregressive"), AutoregressiveConfig(RESPONSE)
    plain = decode(model, prompts, config)
    response_BR = plain.tokens_BL[:, plain.response_start :]
    verified = {}
    for kind in ("right", "wrong"):
        made = decode_speculatively(
            model, prompts, config, drafter=Guesses(response_BR, kind), speculation=Speculation(3)
        )
        verified[kind] = made.ledger.calls["verify"]
    longest = max(min(len(answer) + 1, RESPONSE) for answer in plain.answers())
    assert verified["wrong"] == longest - 1
    assert verified["right"] == -(-(longest - 1) // 4)


@pytest.mark.parametrize("config", CONFIGS[:3])
def test_a_twin_that_drafts_for_itself_is_always_right(ending_model, prompts, config):
    """Sampled too: both draw with the row's own noise."""
    model = ending_model("autoregressive")
    made = decode_speculatively(
        model, prompts[:1], config, drafter=DraftModel(model, config), speculation=Speculation(4)
    )
    tokens = made.ledger.row(0).kept
    assert made.ledger.calls["verify"] <= -(-tokens // 5) + 1


@pytest.mark.parametrize("drafter", ["lookup", "a smaller twin", "heads"])
def test_sampled_speculation_has_the_models_distribution(tiny_model, drafter):
    """χ² of two tokens behind one prompt against the exact probabilities, 40,000 rows of seed 0, p > 1e-3, with
    guesses that are sometimes right and sometimes wrong."""
    model = tiny_model("autoregressive", vocab_size=6, gain=6.0)  # tokens 0 and 1; then mask, end, pad, begin
    rows, config = 40_000, AutoregressiveConfig(2, temperature=1.0)
    prompt = [5, 1, 0, 1]
    smaller = tiny_model("autoregressive", seed=4, vocab_size=6, gain=6.0)
    chosen = DRAFTERS[drafter](model, smaller, config)
    made = decode_speculatively(model, [prompt] * rows, config, drafter=chosen, speculation=Speculation(1))
    thrown_away = [made.ledger.row(row).thrown_away for row in range(200)]
    assert len(set(thrown_away)) > 1
    drawn_BR = made.tokens_BL[:, len(prompt) :]
    first_V, expected, counts = next_probabilities(model, prompt), [], []
    for token in (0, 1, 4, 5):
        second_V = next_probabilities(model, [*prompt, token])
        for other in (0, 1, 3, 4, 5):
            expected.append(float(first_V[token] * second_V[other]))
            counts.append(int(((drawn_BR[:, 0] == token) & (drawn_BR[:, 1] == other)).sum()))
    expected.append(float(first_V[3]))
    counts.append(rows - sum(counts))
    expected = rows * torch.tensor(expected, dtype=torch.float64)
    assert expected.min() >= 5
    found = torch.tensor(counts, dtype=torch.float64)
    assert stats.chisquare(found.numpy(), (expected * rows / expected.sum()).numpy()).pvalue > 1e-3


def next_probabilities(model, tokens):
    """The model's distribution of the token behind some, the mask token (2) left out."""
    logits_V = model(torch.tensor([tokens]))[0, -1]
    logits_V[2] = -torch.inf
    return torch.softmax(logits_V.double(), -1)


def test_lookup_continues_the_longest_and_latest_match():
    lookup = PromptLookup(longest=3)
    rows = [
        [PAD, 1, 2, 3, 4, 2, 3, 7, 1, 2, 3, 0, 0, 0, 0],  # "1 2 3" stood before: 4 2 3
        [PAD, 5, 3, 6, 0, 4, 3, 7, 1, 2, 3, 0, 0, 0, 0],  # only "3" did, last before 7 1 2
        [PAD, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0],  # a run goes on
        [PAD, PAD, PAD, PAD, PAD, PAD, PAD, 1, 2, 1, 2, 0, 0, 0, 0],  # so does a repetition
    ]
    tokens_BL = torch.tensor(rows)
    lookup.start(tokens_BL, tokens_BL != PAD, 8, None, None)
    guesses = lookup.propose(tokens_BL, torch.tensor([10, 10, 10, 10]), 3, None, None)
    assert guesses.tolist() == [[4, 2, 3], [7, 1, 2], [1, 1, 1], [1, 2, 1]]


@given(
    row=st.lists(st.integers(0, 2), min_size=1, max_size=14),
    padding=st.integers(0, 3),
    longest=st.sampled_from([1, 2, 3, 5, None]),
)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_lookup_equals_a_search_by_hand(row, padding, longest):
    tokens_BL = torch.tensor([[0] * padding + row + [2, 2]])
    valid_BL = torch.tensor([[False] * padding + [True] * (len(row) + 2)])
    newest = len(row) - 1

    def matched(place):
        length = 0
        while length <= place and length != longest and row[place - length] == row[newest - length]:
            length += 1
        return length

    best = max(range(newest), key=lambda place: (matched(place), place), default=0)
    lookup = PromptLookup(longest)
    lookup.start(tokens_BL, valid_BL, padding + len(row), None, None)
    guesses = lookup.propose(tokens_BL, torch.tensor([padding + newest]), 2, None, None)
    if newest and matched(best):
        copied = [*row, row[best + 1]]
        assert guesses.tolist() == [[row[best + 1], copied[best + 2]]]


@given(
    prompt=st.lists(st.integers(0, 7), min_size=0, max_size=12),
    drafter=st.sampled_from([*DRAFTERS]),
    length=st.integers(1, 9),
    new=st.integers(1, 12),
    temperature=st.sampled_from([0.0, 1.0]),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_any_prompt_shorter_than_the_match_or_empty_is_decoded_as_ever(
    ending_model, tiny_model, prompt, drafter, length, new, temperature
):
    """Beside a row of another length. An empty prompt is its begin token."""
    model, config = ending_model("autoregressive"), AutoregressiveConfig(new, temperature=temperature)
    rows = [[11, *prompt], [11, 1]]
    chosen = DRAFTERS[drafter](model, tiny_model("autoregressive", seed=5, layers=1), config)
    made = decode_speculatively(model, rows, config, drafter=chosen, speculation=Speculation(length))
    assert made.answers() == decode(model, rows, config).answers()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_an_empty_prompt_alone_is_decoded_as_ever(ending_model, tiny_model, drafter, temperature):
    model, config = ending_model("autoregressive"), AutoregressiveConfig(RESPONSE, temperature=temperature)
    chosen = DRAFTERS[drafter](model, tiny_model("autoregressive", seed=5, layers=1), config)
    made = decode_speculatively(model, [[11]], config, drafter=chosen, speculation=Speculation(5))
    assert made.answers() == decode(model, [[11]], config).answers()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_heads_see_the_state_that_the_newest_token_was_drawn_from(ending_model, prompts, temperature):
    """Recomputed without a cache, for ragged rows that leave the batch one by one."""
    model, config = ending_model("autoregressive"), AutoregressiveConfig(RESPONSE, temperature=temperature)
    seen = []

    class Watching(HeadsDrafter):
        def start(self, tokens_BL, valid_BL, prompt_columns, rows_B, ledger):
            self.valid_BL = valid_BL

        def propose(self, tokens_BL, newest_B, count, working_B, hidden_BD):
            for tokens_L, valid_L, newest, hidden_D in zip(tokens_BL, self.valid_BL, newest_B, hidden_BD, strict=True):
                before = tokens_L[:newest][valid_L[:newest]]
                seen.append((model.head(hidden_D), model(before[None])[0, -1]))
            return super().propose(tokens_BL, newest_B, count, working_B, hidden_BD)

        def keep_rows(self, keep):
            self.valid_BL = self.valid_BL[keep]

    drafter = Watching(model, random_heads(model), config)
    decode_speculatively(model, prompts, config, drafter=drafter, speculation=Speculation(4))
    assert len(seen) > len(prompts)
    for given_V, wanted_V in seen:
        torch.testing.assert_close(given_V, wanted_V, rtol=1e-4, atol=1e-4)


def test_heads_guess_no_further_than_they_are_many_and_cost_no_pass(ending_model, prompts):
    model, config = ending_model("autoregressive"), AutoregressiveConfig(RESPONSE)
    drafter = HeadsDrafter(model, random_heads(model, 2), config)
    made = decode_speculatively(model, prompts[:1], config, drafter=drafter, speculation=Speculation(9))
    account = made.ledger.row(0)
    assert account.positions["verify"] == 3 * account.passes["verify"]
    assert account.passes["draft"] == 0


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("length", [1, 8, 40])
def test_a_row_at_the_models_longest_is_decoded_to_its_end(tiny_model, drafter, length):
    """Guesses run past the longest row, and past a draft model that was made for shorter ones; none of them is kept."""
    model, config = tiny_model("autoregressive", seed=1, max_length=12), AutoregressiveConfig(10)
    plain = decode(model, [[11, 1]], config)
    assert len(plain.answer(0)) == 10, "it does not end before"
    chosen = DRAFTERS[drafter](model, tiny_model("autoregressive", seed=5, layers=1, max_length=6), config)
    made = decode_speculatively(model, [[11, 1]], config, drafter=chosen, speculation=Speculation(length))
    assert made.answers() == plain.answers()


def test_every_position_of_a_verify_pass_is_kept_or_thrown_away(ending_model, prompts):
    """Also where a draft goes beyond the end token or the limit. The first token comes with the prefill."""
    model, config = ending_model("autoregressive"), AutoregressiveConfig(RESPONSE)
    for length in (1, 4, 30):
        drafter = DraftModel(model, config)
        made = decode_speculatively(model, prompts, config, drafter=drafter, speculation=Speculation(length))
        for account in made.ledger.rows():
            assert account.kept + account.thrown_away == 1 + account.positions["verify"]


def test_wrong_use_is_refused_by_name(tiny_model):
    with pytest.raises(UserError, match="draft_length"):
        Speculation(0)
    with pytest.raises(UserError, match="longest"):
        PromptLookup(0)
    with pytest.raises(UserError, match="masked_diffusion"):
        DraftModel(tiny_model("masked_diffusion"), AutoregressiveConfig())

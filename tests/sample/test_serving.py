"""A queue over slots gives the rows that `decode` gives, whoever stands beside them, and books what it evaluated."""

from __future__ import annotations

from itertools import islice

import pytest
import torch

from mdlm.errors import UserError
from sample import AutoregressiveConfig, decode
from sample.serving import Serving

RESPONSE = 10
CONFIGS = [
    AutoregressiveConfig(RESPONSE),
    AutoregressiveConfig(RESPONSE, temperature=1.0),
    AutoregressiveConfig(RESPONSE, temperature=0.7, top_p=0.8, seed=3),
    AutoregressiveConfig(RESPONSE, stop_check_every=4),
    AutoregressiveConfig(RESPONSE, temperature=1.0, stop_check_every=50, seed=1),
    AutoregressiveConfig(RESPONSE, prefill_chunk=2, prompt_columns=9),
    AutoregressiveConfig(1),
]


@pytest.fixture(scope="module")
def model(ending_model):
    return ending_model("autoregressive")


@pytest.fixture(scope="module")
def queue(prompts):
    """Twelve prompts of 1 to 8 tokens; some answers end early, one at once."""
    more = [[11], [11, 5, 5], [11, 0, 1, 2, 3, 4, 5, 6], [11, 6, 6, 6], [11, 2], [11, 4, 4, 4, 4], [11, 7], [11, 1, 1]]
    return prompts + more


def by_row(finished):
    finished = sorted(finished)
    return [row.tokens for row in finished], [row.account for row in finished]


@pytest.mark.parametrize("slots", [1, 3, 8, 20])
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("waves", [False, True])
def test_every_row_is_the_row_of_decode(model, queue, trunk_calls, config, slots, waves):
    plain = decode(model, queue, config)
    serving = Serving(model, queue, config, slots=slots, waves=waves)
    with trunk_calls(model) as rows_of_calls:
        tokens, accounts = by_row(serving)
    assert tokens == plain.answers()
    assert sum(serving.work.calls.values()) == len(rows_of_calls) > 0
    booked = sum(account.total_passes for account in accounts)
    assert booked + serving.work.idle == sum(rows_of_calls)
    positions = sum(sum(account.positions.values()) for account in accounts)
    assert positions + serving.work.idle + serving.work.padding == serving.work.positions
    for account, answer in zip(accounts, tokens, strict=True):
        assert account.kept == len(answer)
        assert account.kept + account.thrown_away <= config.max_new_tokens
    if config.stop_check_every is None:
        assert accounts == plain.ledger.rows()


def test_the_queue_holds_what_the_tests_speak_of(model, queue):
    lengths = [len(answer) for answer in decode(model, queue, AutoregressiveConfig(RESPONSE)).answers()]
    assert len(set(lengths)) > 3
    assert min(lengths) == 0, "a row that ends at once"
    assert max(lengths) == RESPONSE, "a row that never ends"


@pytest.mark.parametrize("config", CONFIGS[1:3])
def test_the_order_of_the_queue_changes_no_row(model, queue, config):
    order = torch.randperm(len(queue), generator=torch.Generator().manual_seed(0))
    shuffled = Serving(model, [queue[row] for row in order], config, slots=3, rows_B=order)
    found = {int(order[finished.row]): finished.tokens for finished in shuffled}
    assert [found[row] for row in range(len(queue))] == decode(model, queue, config).answers()


def test_a_free_slot_is_refilled_while_others_go_on_and_waves_wait_for_their_slowest(model, queue):
    config = AutoregressiveConfig(RESPONSE)
    refilled, waves = (Serving(model, queue, config, slots=4, waves=waves) for waves in (False, True))
    order = [finished.row for finished in refilled]
    assert sorted(order) == list(range(len(queue))) != order
    list(waves)
    assert refilled.work.calls["decode"] < waves.work.calls["decode"]
    assert refilled.work.idle < waves.work.idle
    lengths = [len(answer) for answer in decode(model, queue, config).answers()]
    slowest = [max(min(n + 1, RESPONSE) for n in lengths[first : first + 4]) for first in (0, 4, 8)]
    assert waves.work.calls["decode"] == sum(n - 1 for n in slowest)


@pytest.mark.parametrize("stop_check_every", [1, 3, 8])
def test_tokens_behind_an_end_are_booked_up_to_the_next_look(model, queue, stop_check_every):
    config = AutoregressiveConfig(RESPONSE, stop_check_every=stop_check_every)
    _, accounts = by_row(Serving(model, queue, config, slots=len(queue)))
    for account in accounts:  # all rows begin together: looks come after every n-th token, and after the last
        next_look = -(-min(account.kept + 1, RESPONSE) // stop_check_every) * stop_check_every
        assert account.kept + account.thrown_away == min(next_look, RESPONSE)


def test_finished_rows_are_handed_out_before_the_queue_is_done(model, queue, trunk_calls):
    serving = Serving(model, queue, AutoregressiveConfig(RESPONSE), slots=3)
    plain = decode(model, queue, AutoregressiveConfig(RESPONSE)).answers()
    with trunk_calls(model) as calls:
        first = list(islice(serving, 4))
        so_far = len(calls)
        rest = list(serving)
    assert so_far < len(calls)
    assert by_row(first + rest)[0] == plain


def test_an_interruption_keeps_the_rows_that_were_finished(model, queue, monkeypatch):
    serving = Serving(model, queue, AutoregressiveConfig(RESPONSE), slots=2)
    hidden, calls = model.hidden, iter(range(25))

    def interrupted(*arguments, **options):
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return hidden(*arguments, **options)

    monkeypatch.setattr(model, "hidden", interrupted)
    kept = []

    def collect():
        for finished in serving:
            kept.append(finished)

    with pytest.raises(KeyboardInterrupt):
        collect()
    monkeypatch.undo()
    plain = decode(model, queue, AutoregressiveConfig(RESPONSE))
    assert 0 < len(kept) < len(queue)
    for row, tokens, account in kept:
        assert tokens == plain.answer(row)
        assert account == plain.ledger.row(row)


@pytest.mark.parametrize("buckets", [[1], [2, 5], [8], [4, 40]])
def test_buckets_change_padding_and_nothing_else(model, queue, buckets):
    config = AutoregressiveConfig(RESPONSE)
    serving = Serving(model, queue, config, slots=3, buckets=buckets)
    tokens, accounts = by_row(serving)
    plain = decode(model, queue, config)
    assert (tokens, accounts) == (plain.answers(), plain.ledger.rows())
    padded = [min([n for n in [*buckets, 8] if n >= len(prompt)]) - len(prompt) for prompt in queue]
    assert serving.work.padding == sum(padded)


def test_long_prompts_are_read_in_chunks_that_share_what_does_not_fill_one(model):
    config = AutoregressiveConfig(2, prefill_chunk=4)
    serving = Serving(model, [[11, 1, 2, 3, 4, 5, 6, 7, 0], [11, 2]], config, slots=2, buckets=[4])
    (long, short) = by_row(serving)[1]
    assert (long.passes["prefill"], long.positions["prefill"]) == (3, 9)
    assert (short.passes["prefill"], short.positions["prefill"]) == (1, 2)
    assert serving.work.calls["prefill"] == 4
    assert serving.work.padding == 3 * 4 - 9 + 4 - 2


@pytest.mark.slow
@pytest.mark.parametrize("config", [CONFIGS[2], CONFIGS[5]])
def test_compiled_is_eager(model, queue, config):
    compiled = AutoregressiveConfig(**{**vars(config), "compile": True})
    rows = by_row(Serving(model, queue, compiled, slots=5))
    assert rows == by_row(Serving(model, queue, config, slots=5))


@pytest.mark.parametrize(
    ("objective", "prompts", "named"),
    [
        ("masked_diffusion", [[1]], "denoise"),
        ("autoregressive", [], "no prompt"),
        ("autoregressive", [[1], []], "prompt 2"),
        ("autoregressive", [[1, 12]], "token 12"),
        ("autoregressive", [[1], [1] * 60, [2]], "64"),
    ],
)
def test_what_cannot_be_decoded_is_refused_by_name_before_any_work(tiny_model, trunk_calls, objective, prompts, named):
    model = tiny_model(objective)
    with trunk_calls(model) as calls, pytest.raises(UserError, match=named) as refused:
        Serving(model, prompts, AutoregressiveConfig(max_new_tokens=5), slots=1)
    assert calls == []
    with pytest.raises(UserError, match=named) as of_decode:
        decode(model, prompts, AutoregressiveConfig(max_new_tokens=5))
    assert str(refused.value) == str(of_decode.value)


@pytest.mark.parametrize(("wrong", "named"), [({"slots": 0}, "slots"), ({"slots": 1, "buckets": []}, "buckets")])
def test_unusable_settings_are_refused_by_name(model, prompts, wrong, named):
    with pytest.raises(UserError, match=named):
        Serving(model, prompts, **wrong)

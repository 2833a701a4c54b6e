"""The autoregressive decoder: the chain rule's arg-max or sample, whatever the cache, the batch and the padding."""

from __future__ import annotations

import pytest
import torch

from mdlm.attention import KVCache, block_indices, logical_positions
from mdlm.corruption import log_probabilities
from mdlm.errors import UserError
from sample import AutoregressiveConfig, decode
from sample.autoregressive import chunks, last_logits

VOCAB, MASK, END = 12, 8, 9


@pytest.fixture(scope="module")
def model(ending_model):
    return ending_model("autoregressive")


def responses(generation):
    return generation.tokens_BL[:, generation.response_start :]


def greedy_chain(model, prompt, new_tokens):
    """Token after token from plain passes over the row alone."""
    row, answer = list(prompt), []
    while len(answer) < new_tokens and END not in answer:
        logits_V = model(torch.tensor([row]), None, len(prompt))[0, -1]
        answer.append(int(log_probabilities(logits_V, MASK).argmax()))
        row.append(answer[-1])
    return answer


def test_greedy_decoding_is_the_chain_of_arg_maxes(model, prompts):
    generation = decode(model, prompts, AutoregressiveConfig(max_new_tokens=10))
    chains = [greedy_chain(model, prompt, 10) for prompt in prompts]
    assert len({len(chain) for chain in chains}) > 2, "rows that end at different times"
    for row, chain in enumerate(chains):
        assert responses(generation)[row, : len(chain)].tolist() == chain
        assert generation.answer(row) == [token for token in chain if token != END]
        width = generation.response_start - len(prompts[row])
        assert generation.tokens_BL[row, width : generation.response_start].tolist() == prompts[row]


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("stop_check_every", [None, 3])
def test_the_cache_does_not_show_in_the_result(tiny_model, prompts, kv_heads, temperature, stop_check_every):
    model = tiny_model("autoregressive", seed=4, kv_heads=kv_heads)
    options = {"max_new_tokens": 10, "temperature": temperature, "top_p": 0.9, "stop_check_every": stop_check_every}
    cached = decode(model, prompts, AutoregressiveConfig(**options))
    uncached = decode(model, prompts, AutoregressiveConfig(**options, cache=False))
    assert cached.tokens_BL.equal(uncached.tokens_BL)
    for with_cache, without in zip(cached.ledger.rows(), uncached.ledger.rows(), strict=True):
        assert with_cache.passes == without.passes
        assert with_cache.positions["decode"] <= without.positions["decode"]


@pytest.mark.parametrize("stop_check_every", [None, 5])
def test_a_row_alone_is_the_row_in_a_batch(model, prompts, stop_check_every):
    config = AutoregressiveConfig(max_new_tokens=10, stop_check_every=stop_check_every)
    together = decode(model, prompts, config)
    for row, prompt in enumerate(prompts):
        alone = decode(model, [prompt], config)
        assert responses(alone)[0].equal(responses(together)[row])
        assert alone.ledger.row(0) == together.ledger.row(row)


@pytest.mark.parametrize("cache", [True, False])
def test_wider_prompt_columns_change_neither_tokens_nor_accounts(model, prompts, cache):
    narrow, wide = (decode(model, prompts, AutoregressiveConfig(10, prompt_columns=n, cache=cache)) for n in (None, 20))
    assert wide.response_start == 20
    assert responses(wide).equal(responses(narrow))
    assert wide.ledger.rows() == narrow.ledger.rows()


@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 6, 50])
@pytest.mark.parametrize("columns", [None, 7, 20])
@pytest.mark.parametrize("options", [{}, {"cache": False}, {"temperature": 1.0, "top_p": 0.9}])
def test_a_prompt_in_chunks_is_the_prompt_at_once(model, prompts, trunk_calls, chunk, columns, options):
    """Left padding included: rows shorter than a chunk, and chunks of which a row has padding alone."""
    whole = decode(model, prompts, AutoregressiveConfig(10, prompt_columns=columns, **options))
    config = AutoregressiveConfig(10, prompt_columns=columns, prefill_chunk=chunk, **options)
    with trunk_calls(model) as calls:
        in_chunks = decode(model, prompts, config)
    assert in_chunks.tokens_BL.equal(whole.tokens_BL)
    assert in_chunks.ledger.total_calls == len(calls)
    assert in_chunks.ledger.calls["prefill"] == -(-(columns or 6) // chunk)
    for prompt, ours, theirs in zip(prompts, in_chunks.ledger.rows(), whole.ledger.rows(), strict=True):
        assert ours.passes["prefill"] == -(-len(prompt) // chunk)
        assert ours.positions == theirs.positions
        assert ours.kv_positions - theirs.kv_positions == sum(range(len(prompt) - chunk, 0, -chunk))


@pytest.mark.parametrize("chunk", [2, 3, 5])
def test_chunks_leave_the_keys_and_logits_of_one_pass(tiny_model, chunk):
    """float32 to 1e-5, at weights of the size they begin training with."""
    model = tiny_model("autoregressive", gain=1.0)
    tokens_BP = torch.randint(0, 8, (2, 13), generator=torch.Generator().manual_seed(0))
    valid_BP = torch.ones_like(tokens_BP, dtype=torch.bool)
    valid_BP[1, :6] = False
    caches, logits = [], []
    for size in (None, chunk):
        cache = KVCache(model.config, 2, 13, dtype=model.dtype)
        blocks_BP, positions_BP = block_indices(model.config, valid_BP, 13), logical_positions(valid_BP)
        for start, stop, _ in chunks(13, size):
            columns = slice(start, stop)
            inputs = (tokens_BP[:, columns], positions_BP[:, columns], blocks_BP[:, columns], torch.arange(13)[columns])
            last_B1V = last_logits(model, *inputs, cache)
        caches.append(torch.stack(cache.keys_BKSN + cache.values_BKSN).transpose(2, 3)[:, valid_BP])
        logits.append(last_B1V)
    torch.testing.assert_close(logits[0], logits[1], rtol=0, atol=1e-5)
    torch.testing.assert_close(caches[0], caches[1], rtol=0, atol=1e-5)


@pytest.mark.parametrize(("columns", "size"), [(1, 1), (5, 5), (5, 9), (8, 4), (9, 4), (11, 4), (7, 1), (6, None)])
def test_chunks_have_one_size_and_read_every_column_in_order(columns, size):
    passes = chunks(columns, size)
    assert {stop - start for start, stop, _ in passes} == {min(size or columns, columns)}
    read = 0
    for start, stop, booked in passes:
        assert start <= read < booked <= stop
        read = booked
    assert read == columns
    assert len(passes) == -(-columns // (size or columns))


def test_how_seldom_one_looks_for_ends_does_not_change_the_answers(model, prompts):
    answers = [decode(model, prompts, AutoregressiveConfig(10, stop_check_every=n)).answers() for n in (1, 4, 10, 50)]
    assert answers[1:] == answers[:-1]


def test_a_row_stops_at_its_end_token(model, prompts, trunk_calls):
    with trunk_calls(model) as rows_of_calls:
        generation = decode(model, prompts, AutoregressiveConfig(max_new_tokens=10))
    passes = [len(greedy_chain(model, prompt, 10)) for prompt in prompts]
    assert [row.total_passes for row in generation.ledger.rows()] == passes
    assert rows_of_calls == [sum(n > index for n in passes) for index in range(max(passes))]


def test_samples_follow_the_models_distribution_and_their_seed(model):
    """The first token of 4,000 equal rows against the model's probabilities: chi-squared, seed 0, p > 1e-3."""
    stats = pytest.importorskip("scipy.stats")
    prompt = [11, 1, 2]
    config = AutoregressiveConfig(max_new_tokens=1, temperature=2.5)
    drawn = responses(decode(model, [prompt] * 4000, config)).flatten()
    logits_V = model(torch.tensor([prompt]), None, 3)[0, -1].double()
    logits_V[MASK] = -torch.inf
    expected = 4000 * torch.softmax(logits_V / 2.5, dim=-1)
    counts = torch.bincount(drawn, minlength=VOCAB)
    assert counts[MASK] == 0
    real = torch.arange(VOCAB) != MASK
    assert expected[real].min() > 5, "enough draws of every token for the approximation"
    assert stats.chisquare(counts[real], expected[real]).pvalue > 1e-3
    assert drawn.equal(responses(decode(model, [prompt] * 4000, config)).flatten())
    other = AutoregressiveConfig(max_new_tokens=1, temperature=2.5, seed=1)
    assert not drawn.equal(responses(decode(model, [prompt] * 4000, other)).flatten())


def test_the_mask_token_is_never_produced(tiny_model, prompts):
    model = tiny_model("autoregressive", tie_embeddings=False)
    model.lm_head.weight[MASK] *= 100
    for temperature in (0.0, 3.0):
        config = AutoregressiveConfig(max_new_tokens=20, temperature=temperature)
        assert (responses(decode(model, prompts, config)) != MASK).all()


def test_a_display_sees_every_token(model, prompts):
    seen = []
    generation = decode(model, prompts[:1], AutoregressiveConfig(max_new_tokens=10), on_token=seen.append)
    decoded = torch.cat(seen, dim=1)[0]
    assert decoded.equal(responses(generation)[0, : len(decoded)])
    assert len(decoded) == generation.ledger.row(0).total_passes


@pytest.mark.parametrize(
    ("objective", "prompts", "named"),
    [
        ("masked_diffusion", [[1]], "denoise"),
        ("autoregressive", [], "no prompt"),
        ("autoregressive", [[1], []], "prompt 2"),
        ("autoregressive", [[1, VOCAB]], "token 12"),
        ("autoregressive", [[1, -1]], "token -1"),
        ("autoregressive", [[1] * 60], "64"),
    ],
)
def test_what_cannot_be_decoded_is_refused_by_name(tiny_model, objective, prompts, named):
    with pytest.raises(UserError, match=named) as refused:
        decode(tiny_model(objective), prompts, AutoregressiveConfig(max_new_tokens=5))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"stop_check_every": 0}, "stop_check_every"),
        ({"prefill_chunk": 0}, "prefill_chunk"),
        ({"temperature": -1.0}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
    ],
)
def test_unusable_settings_are_refused_by_name(wrong, named):
    with pytest.raises(UserError, match=named):
        AutoregressiveConfig(**wrong)

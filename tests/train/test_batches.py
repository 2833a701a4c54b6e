"""Batches: a pure function of seed and step, equal for twins and for any number of processes."""

from __future__ import annotations

import itertools
import json
from collections import Counter

import numpy as np
import pytest
import torch

from mdlm.config import OBJECTIVES, ModelConfig
from mdlm.objectives import LossConfig, training_loss
from mdlm.tokenizer import Tokenizer
from train.batches import BatchSource
from train.data import open_dataset, prepare

stats = pytest.importorskip("scipy.stats")
PROMPT, RESPONSE, BLOCK = 8, 12, 4
ENDS = ["one", "block", "canvas"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Bytes alone: one character of the answers below is one token."""
    return Tokenizer.train([], 260)


@pytest.fixture(scope="module")
def dataset_of(tokenizer, tmp_path_factory):
    """`dataset_of(answer lengths, response columns)`: one row for each, told apart by its prompt."""

    def make(lengths, response_length=RESPONSE, too_long="drop"):
        folder = tmp_path_factory.mktemp("data")
        rows = [{"prompt": f"{i:x}" * (1 + i % 2), "response": "a" * length} for i, length in enumerate(lengths)]
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        lengths = {"prompt_length": PROMPT, "response_length": response_length}
        prepare(folder / "rows.jsonl", folder / "tokens", tokenizer, **lengths, too_long=too_long)
        return open_dataset(folder / "tokens")

    return make


@pytest.fixture(scope="module")
def dataset(dataset_of):
    return dataset_of([1, 3, 4, 7, 8, 11, 2, 5, 6, 10])


def source(dataset, tokenizer, objective="block_diffusion", *, batch_size=6, seed=0, end="block", block=BLOCK, **share):
    config = ModelConfig(
        objective,
        vocab_size=tokenizer.vocab_size,
        block_length=block,
        mask_token_id=tokenizer.mask_id,
        end_token_id=tokenizer.end_id,
        pad_token_id=tokenizer.pad_id,
        begin_token_id=tokenizer.begin_id,
    )
    return BatchSource(dataset, config, batch_size=batch_size, seed=seed, supervised_end=end, **share)


def tensors(batch):
    return [batch.tokens_BL, batch.valid_BL, batch.supervised_BR, batch.times_BJ, batch.noise_BR]


def test_a_batch_is_the_same_whenever_it_is_asked_for(dataset, tokenizer):
    forward, backward = source(dataset, tokenizer), source(dataset, tokenizer)
    first = [tensors(forward.batch(step)) for step in range(6)]
    second = [tensors(backward.batch(step)) for step in reversed(range(6))][::-1]
    for one, two in zip(first, second, strict=True):
        assert all(a.equal(b) for a, b in zip(one, two, strict=True))


def test_steps_and_seeds_differ_in_rows_times_and_noise(dataset, tokenizer):
    base = source(dataset, tokenizer).batch(0)
    for other in (source(dataset, tokenizer).batch(1), source(dataset, tokenizer, seed=1).batch(0)):
        assert not base.tokens_BL.equal(other.tokens_BL)
        assert not base.times_BJ.equal(other.times_BJ)
        assert not base.noise_BR.equal(other.noise_BR)


def test_twins_see_equal_rows_in_equal_order_under_equal_noise(dataset, tokenizer):
    for step in range(8):
        sources = [source(dataset, tokenizer, objective, end="canvas") for objective in OBJECTIVES]
        assert len({tuple(twin.rows(step)) for twin in sources}) == 1
        first, *others = [twin.batch(step) for twin in sources]
        for other in others:
            assert first.tokens_BL.equal(other.tokens_BL)
            assert first.valid_BL.equal(other.valid_BL)
            assert first.supervised_BR.equal(other.supervised_BR)
            assert first.noise_BR.equal(other.noise_BR)


@pytest.mark.parametrize("processes", [2, 3, 6])
def test_the_number_of_processes_changes_nothing(dataset, tokenizer, processes):
    whole = source(dataset, tokenizer)
    shares = [source(dataset, tokenizer, process=p, processes=processes) for p in range(processes)]
    for step in range(5):
        parts = [tensors(share.batch(step)) for share in shares]
        together = [torch.cat(pieces) for pieces in zip(*parts, strict=True)]
        assert all(a.equal(b) for a, b in zip(together, tensors(whole.batch(step)), strict=True))


@pytest.mark.parametrize("batch_size", [3, 6, 10, 25])
def test_every_epoch_shows_every_row_once_in_a_fresh_order(dataset, tokenizer, batch_size):
    batches, size = source(dataset, tokenizer, batch_size=batch_size), len(dataset)
    order = np.concatenate([batches.rows(step) for step in range(-(-4 * size // batch_size))])
    epochs = [order[start : start + size].tolist() for start in range(0, 4 * size, size)]
    assert all(Counter(epoch) == Counter(range(size)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4


@pytest.mark.parametrize("processes", [1, 3])
def test_each_rows_and_blocks_time_is_uniform(dataset, tokenizer, processes):
    """Kolmogorov-Smirnov over 1,500 steps, one row a process where there are three; seed 0, p > 1e-3 (Bonferroni)."""
    share = source(dataset, tokenizer, batch_size=3, process=processes - 1, processes=processes)
    times = torch.stack([share.batch(step).times_BJ.flatten() for step in range(1500)])
    least = min(stats.kstest(column.numpy(), "uniform").pvalue for column in times.T)
    assert least * times.shape[1] > 1e-3


@pytest.mark.parametrize("objective", ["masked_diffusion", "block_diffusion"])
def test_the_times_of_all_rows_blocks_and_processes_are_one_set_of_strata(dataset, tokenizer, objective):
    shares = [source(dataset, tokenizer, objective, process=p, processes=2) for p in range(2)]
    times = torch.cat([share.batch(3).times_BJ.flatten() for share in shares])
    assert len(times) == 6 * (3 if objective == "block_diffusion" else 1)
    gaps = times.double().sort().values.diff()
    torch.testing.assert_close(gaps, torch.full_like(gaps, 1 / len(times)), rtol=0, atol=1e-6)


# Layout


def expected_row(dataset, tokenizer, index, end):
    """Columns of a row, and how many of its response are supervised, by the rule as it is documented."""
    prompt, response, ends = dataset.row(index)
    supervised = len(response)
    if ends:
        to_block_end = min(-(-(supervised + 1) // BLOCK) * BLOCK, RESPONSE)
        supervised = {"one": supervised + 1, "block": to_block_end, "canvas": RESPONSE}[end]
    answer = [*response.tolist(), *[tokenizer.end_id] * (supervised - len(response))]
    padding = [tokenizer.pad_id] * (PROMPT - len(prompt))
    return [*padding, *prompt.tolist(), *answer, *[tokenizer.pad_id] * (RESPONSE - supervised)], supervised


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("lengths", [[1, 3, 4, 7, 8, 11], [5, 12, 40, 12, 3, 11]])
def test_rows_are_laid_out_and_supervised_as_documented(dataset_of, tokenizer, lengths, end):
    dataset = dataset_of(lengths, too_long="cut")
    batches = source(dataset, tokenizer, end=end)
    batch, rows = batches.batch(0), batches.rows(0)
    assert batch.response_start == PROMPT
    assert {bool(dataset.row(i)[2]) for i in range(len(lengths))} == ({True} if max(lengths) < 12 else {True, False})
    for b, row in enumerate(rows):
        tokens, supervised = expected_row(dataset, tokenizer, int(row), end)
        prompt = len(dataset.row(int(row))[0])
        assert batch.tokens_BL[b].tolist() == tokens
        assert batch.supervised_BR[b].tolist() == [column < supervised for column in range(RESPONSE)]
        first, last = PROMPT - prompt, PROMPT + supervised
        assert batch.valid_BL[b].tolist() == [first <= column < last for column in range(PROMPT + RESPONSE)]
        assert batches.supervised_per_row()[row] == supervised


# The bound on supervised positions


def most_wanted(batches, loss, steps):
    """The most positions that any of the first batches predicts."""
    schedule, most = loss.training_schedule(), 0
    for step in range(steps):
        batch = batches.batch(step)
        if batches.config.objective == "autoregressive":
            most = max(most, int(batch.supervised_BR.sum()))
            continue
        columns = batch.noise_BR.shape[1]
        block = batches.config.block_length if batches.config.objective == "block_diffusion" else columns
        times_BR = batch.times_BJ.repeat_interleave(block, dim=1)[:, :columns]
        masked_BR = batch.noise_BR < schedule.mask_rate(times_BR)
        if loss.complementary:
            masked_BR = torch.ones_like(masked_BR)  # in the one copy or in the other
        most = max(most, int((masked_BR & batch.supervised_BR).sum()))
    return most


LOSSES = [
    LossConfig(),
    LossConfig(schedule="cosine", min_mask_rate=0.3),
    LossConfig(schedule="quadratic"),
    LossConfig(complementary=True),
]
LENGTHS = {"equal": [9] * 20, "spread": list(range(1, 21)), "outliers": [2] * 19 + [20]}


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_head_has_room_for_every_batch(dataset_of, tokenizer, objective, lengths):
    """200 batches of every loss and rule for ends, seed 0."""
    dataset = dataset_of(LENGTHS[lengths], response_length=24)
    for loss, end in itertools.product(LOSSES, ENDS):
        batches = source(dataset, tokenizer, objective, batch_size=16, end=end)
        assert most_wanted(batches, loss, 200) <= batches.capacity(loss) <= 16 * 24


def test_the_head_has_room_where_answers_leave_blocks_empty(dataset_of, tokenizer):
    """Answers of one block on a canvas of two: which strata the supervised blocks get is a draw of its own.

    1,000 batches, seed 0; six standard deviations leave no batch out."""
    batches = source(dataset_of([100] * 64, response_length=256), tokenizer, batch_size=8, block=128)
    assert most_wanted(batches, LossConfig(), 1000) <= batches.capacity(LossConfig())


@pytest.mark.parametrize("processes", [2, 8])
def test_a_process_has_room_for_whatever_strata_it_gets(dataset, tokenizer, processes):
    batches = source(dataset, tokenizer, batch_size=8, process=1, processes=processes)
    assert most_wanted(batches, LossConfig(), 500) <= batches.capacity(LossConfig())


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_no_batch_overflows_in_the_loss_itself(dataset, tokenizer, tiny_model, objective):
    batches = source(dataset, tokenizer, objective, batch_size=16, end="canvas")
    names = ("vocab_size", "mask_token_id", "end_token_id", "pad_token_id", "begin_token_id")
    model = tiny_model(objective, layers=1, **{name: getattr(batches.config, name) for name in names})
    capacity = batches.capacity(LossConfig())
    for step in range(20):
        _, counts = training_loss(model, batches.batch(step), LossConfig(), capacity)
        assert counts["overflow"] == 0
        assert 0 < counts["predicted"] <= capacity

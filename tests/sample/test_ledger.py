"""The ledger: what it counts is what the trunk did, and its accounts add up with the tokens."""

from __future__ import annotations

import pytest
import torch

from sample import AutoregressiveConfig, DenoiseConfig, Ledger, decode, denoise
from sample.generation import canvas
from sample.presets import PRESETS, preset

MASK, END, PAD = 8, 9, 10
RESPONSE = 10
AUTOREGRESSIVE = [
    AutoregressiveConfig(RESPONSE),
    AutoregressiveConfig(RESPONSE, cache=False),
    AutoregressiveConfig(RESPONSE, temperature=1.0, top_p=0.8),
    AutoregressiveConfig(RESPONSE, stop_check_every=4),
]
DIFFUSION = [
    DenoiseConfig(),
    DenoiseConfig(cache="none"),
    DenoiseConfig(max_denoising_steps=3),
    DenoiseConfig(max_denoising_steps=1, block_length=3),
    DenoiseConfig(threshold=0.3, stop_at_end=False),
    DenoiseConfig(threshold=0.3, block_length=5, cache="none"),
    DenoiseConfig(temperature=1.0, score="random", trace=True),
    DenoiseConfig(score="margin", max_denoising_steps=2),
]
PUBLISHED = [preset(name, block_length=4) for name in PRESETS]
FUSED = [preset(name, fused_store=True) for name in PRESETS]
APPROXIMATE = [preset(name, block_length=4, cache=kind) for name in ("llada", "klass") for kind in ("prefix", "dual")]
EVERY_DECODER = [
    *[("autoregressive", config) for config in AUTOREGRESSIVE],
    *[("masked_diffusion", config) for config in DIFFUSION + PUBLISHED + APPROXIMATE],
    *[("block_diffusion", config) for config in DIFFUSION + PUBLISHED + FUSED],
]


def run(model, config, prompts):
    if isinstance(config, AutoregressiveConfig):
        return decode(model, prompts, config)
    tokens_BL, valid_BL, start = canvas(prompts, RESPONSE, pad_id=PAD, mask_id=MASK)
    return denoise(model, tokens_BL, config, mask_id=MASK, end_id=END, valid_BL=valid_BL, response_start=start)


@pytest.mark.parametrize(("objective", "config"), EVERY_DECODER)
def test_the_ledgers_calls_are_what_a_forward_hook_counts(ending_model, prompts, trunk_calls, objective, config):
    model = ending_model(objective)
    with trunk_calls(model) as rows_of_calls:
        generation = run(model, config, prompts)
    ledger = generation.ledger
    assert ledger.total_calls == len(rows_of_calls) > 0
    passes = [row.total_passes for row in ledger.rows()]
    assert max(passes) <= len(rows_of_calls)
    assert sum(passes) <= sum(rows_of_calls)


@pytest.mark.parametrize(("objective", "config"), EVERY_DECODER)
def test_tokens_kept_are_the_answer_and_the_rest_was_thrown_away(ending_model, prompts, objective, config):
    generation = run(ending_model(objective), config, prompts)
    assert {len(answer) for answer in generation.answers()} != {RESPONSE}
    for index, answer in enumerate(generation.answers()):
        row = generation.ledger.row(index)
        assert row.kept == len(answer)
        assert row.tokens_per_forward == pytest.approx(row.kept / row.total_passes)
        assert row.kept + row.thrown_away <= RESPONSE
        ended = row.kept < RESPONSE
        assert (row.thrown_away >= 1) == ended, "the end token itself is not kept"
        assert row.to_dict()["tokens_per_forward"] == row.tokens_per_forward


@pytest.mark.parametrize(("objective", "config"), EVERY_DECODER)
def test_a_row_takes_at_least_the_passes_its_tokens_need(ending_model, prompts, objective, config):
    for row in run(ending_model(objective), config, prompts).ledger.rows():
        decoded = row.kept + row.thrown_away
        if objective == "autoregressive":
            assert row.total_passes == decoded
            assert row.passes["prefill"] == 1
        elif config == DenoiseConfig() or config == DenoiseConfig(cache="none"):
            assert row.passes["denoise"] == decoded, "one token a pass"
        else:
            assert row.passes["denoise"] <= decoded


def test_a_row_by_hand_block_diffusion(ending_model, prompts):
    """Prompt of 4, response of 10 in blocks of 4, 4 and 2; two passes a block; nothing ends."""
    config = DenoiseConfig(max_denoising_steps=2, stop_at_end=False)
    row = run(ending_model("block_diffusion"), config, [prompts[0], prompts[2]]).ledger.row(1)
    assert {kind: n for kind, n in row.passes.items() if n} == {"prefill": 1, "denoise": 6, "store": 2}
    assert {kind: n for kind, n in row.positions.items() if n} == {"prefill": 4, "denoise": 2 * (4 + 4 + 2), "store": 8}
    assert row.kv_positions == 4 + 2 * (8 + 12 + 14) + 8 + 12
    assert row.total_passes == 9


def test_a_row_by_hand_masked_diffusion(ending_model, prompts):
    config = DenoiseConfig(max_denoising_steps=3, stop_at_end=False)
    row = run(ending_model("masked_diffusion"), config, [prompts[0], prompts[2]]).ledger.row(1)
    assert {kind: n for kind, n in row.passes.items() if n} == {"denoise": 3}
    assert row.positions["denoise"] == 3 * 14
    assert row.kv_positions == 3 * 14


def test_a_row_by_hand_autoregressive(ending_model, prompts):
    """Prompt of 4; n tokens take one prefill and n − 1 passes of one position, which see 5, 6, ... keys."""
    generation = run(ending_model("autoregressive"), AutoregressiveConfig(RESPONSE), [prompts[0], prompts[2]])
    row = generation.ledger.row(1)
    tokens = row.kept + row.thrown_away
    assert row.passes["prefill"] == 1
    assert row.passes["decode"] == tokens - 1
    assert row.positions["prefill"] == 4
    assert row.positions["decode"] == tokens - 1
    assert row.kv_positions == sum(range(4, 4 + tokens))


def test_fixed_tokens_are_no_decoded_tokens():
    def uniform(tokens_BL):
        return torch.zeros(*tokens_BL.shape, 12)

    tokens_BL = torch.tensor([[1, MASK, 2, MASK, 3, 3], [MASK] * 6])
    first, second = denoise(uniform, tokens_BL, mask_id=MASK, end_id=END).ledger.rows()
    assert (first.kept, first.total_passes) == (2, 2)
    assert (second.kept, second.total_passes) == (6, 6)


def test_an_account_without_passes_has_no_rate():
    row = Ledger(1).row(0)
    assert row.tokens_per_forward == 0.0
    assert row.to_dict()["passes"] == {}

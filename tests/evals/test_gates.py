"""Gates let honest decoders through and refuse each planted fault by its name."""

from __future__ import annotations

import pytest

from evals.gates import CACHE, COMPILED, LEDGER, LOSSLESS, ROWS, run_gates
from evals.systems import Setting, generate
from sample import AutoregressiveConfig, DenoiseConfig, decode

PROMPTS = [[11, 1, 2, 3], [11, 4, 5, 6, 7, 0], [11, 3]]
COLUMNS, RESPONSE = 8, 10
ARMS = {
    "autoregressive": Setting("greedy"),
    "masked_diffusion": Setting("threshold", DenoiseConfig(threshold=0.3)),
    "block_diffusion": Setting("threshold", DenoiseConfig(threshold=0.3)),
}


@pytest.fixture(params=list(ARMS))
def arm(request, tiny_model):
    return tiny_model(request.param, max_length=COLUMNS + RESPONSE, gain=25.0, tie_embeddings=False)


def honest(model):
    def decoder(prompts, columns=COLUMNS, **changes):
        return generate(model, prompts, ARMS[model.config.objective], columns, RESPONSE, **changes)

    return decoder


def failed(model, *, compiled=False, **planted):
    gates = run_gates(model, ARMS[model.config.objective], PROMPTS, COLUMNS, RESPONSE, compiled=compiled, **planted)
    assert all(gate["detail"] for gate in gates)
    return [gate["gate"] for gate in gates if not gate["passed"]]


def with_wrong_token(made):
    """The same answer but for the first row's second token."""
    place = made.response_start + 1
    made.tokens_BL[0, place] = (made.tokens_BL[0, place] + 1) % 7
    made.ledger.kept[0] = len(made.answers()[0])
    return made


def test_the_gates_of_every_objective_pass(arm):
    gates = run_gates(arm, ARMS[arm.config.objective], PROMPTS, COLUMNS, RESPONSE, compiled=False)
    assert all(gate["passed"] for gate in gates), gates
    names = [ROWS, CACHE, LEDGER] + [LOSSLESS] * (arm.config.objective == "autoregressive")
    assert [gate["gate"] for gate in gates] == names


@pytest.mark.slow
def test_the_compiled_gate_passes(arm):
    assert failed(arm, compiled=True) == []


def test_a_decoder_that_takes_padding_for_text_is_refused(arm):
    def decoder(prompts, columns=COLUMNS, **changes):
        longest = max(map(len, prompts))
        padded = [[arm.config.pad_token_id] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
        return honest(arm)(padded, columns, **changes)

    assert failed(arm, decode=decoder, speculate=lambda prompts, *_: decoder(prompts))[0] == ROWS


@pytest.mark.parametrize("lie", [-1, 1])
def test_a_ledger_that_drops_or_adds_a_pass_is_refused(arm, lie):
    def decoder(prompts, columns=COLUMNS, **changes):
        made = honest(arm)(prompts, columns, **changes)
        kind = "decode" if arm.config.objective == "autoregressive" else "denoise"
        made.ledger.calls[kind] += lie
        return made

    assert failed(arm, decode=decoder) == [LEDGER]


def test_a_ledger_that_keeps_more_than_was_written_is_refused(arm):
    def decoder(prompts, columns=COLUMNS, **changes):
        made = honest(arm)(prompts, columns, **changes)
        made.ledger.kept[0] += 1
        return made

    assert failed(arm, decode=decoder) == [LEDGER]


@pytest.mark.parametrize("objective", ["autoregressive", "block_diffusion"])
def test_a_cache_that_is_not_exact_is_refused(tiny_model, objective):
    model = tiny_model(objective, max_length=COLUMNS + RESPONSE, gain=25.0, tie_embeddings=False)

    def decoder(prompts, columns=COLUMNS, **changes):
        made = honest(model)(prompts, columns, **changes)
        return with_wrong_token(made) if changes.get("cache") in (False, "none") else made

    assert failed(model, decode=decoder) == [CACHE]


def test_a_compiled_step_that_decodes_other_tokens_is_refused(arm):
    def decoder(prompts, columns=COLUMNS, **changes):
        compiled = changes.pop("compile", False)
        made = honest(arm)(prompts, columns, **changes)
        return with_wrong_token(made) if compiled else made

    assert failed(arm, compiled=True, decode=decoder) == [COMPILED]


def test_a_drafter_whose_wrong_guess_is_kept_is_refused(tiny_model):
    model = tiny_model("autoregressive", max_length=COLUMNS + RESPONSE, gain=25.0, tie_embeddings=False)

    def lossy(prompts, length, temperature):
        config = AutoregressiveConfig(RESPONSE, temperature, prompt_columns=COLUMNS)
        made = decode(model, prompts, config)
        return with_wrong_token(made) if length > 4 else made

    assert failed(model, speculate=lossy) == [LOSSLESS]

"""Gates: what must hold of the decoders, here and now, before a comparison may print a headline.

Each gate decodes a few prompts with the very setting that the headline uses, in float32, where equal means equal token
by token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch

from evals.systems import Setting, generate
from mdlm.transformer import Transformer
from sample import AutoregressiveConfig, Generation
from sample.drafters import PromptLookup
from sample.speculative import Speculation, decode_speculatively

ROWS, CACHE, LEDGER, COMPILED, LOSSLESS = (
    "rows independent",
    "cache exact",
    "ledger honest",
    "eager equals compiled",
    "lossless speculation",
)
DRAFT_LENGTHS = (1, 4, 9)
TEMPERATURES = (0.0, 1.0)

Prompts = Sequence[Sequence[int]]
Decode = Callable[..., Generation]
"""(prompts, columns=of the prompts, **changes of the decoder's config) -> what it decodes."""


@dataclass(frozen=True)
class Gate:
    """What was held against what, and whether it was equal."""

    gate: str
    passed: bool
    detail: str


def run_gates(
    model: Transformer,
    setting: Setting,
    prompts: Prompts,
    prompt_columns: int,
    response_columns: int,
    *,
    compiled: bool = True,
    decode: Decode | None = None,
    speculate: Decode | None = None,
) -> list[dict[str, Any]]:
    """Runs every gate that the model's objective has; plain values for a record.

    Args:
        model: in float32.
        prompts: token ids, of different lengths.
        compiled: whether the headline's decoder is compiled; without it there is nothing to hold against eager.
        decode, speculate: the decoders under test; by default those of the headline and of `evals speculation`.
    """

    def headline(prompts: Prompts, columns: int = prompt_columns, **changes: Any) -> Generation:
        return generate(model, prompts, setting, columns, response_columns, **changes)

    def guessing(prompts: Prompts, length: int, temperature: float) -> Generation:
        config = AutoregressiveConfig(response_columns, temperature, prompt_columns=prompt_columns)
        return decode_speculatively(
            model, prompts, config, drafter=PromptLookup(), speculation=Speculation(draft_length=length)
        )

    decode, speculate = decode or headline, speculate or guessing
    gates = [_rows_independent(decode, prompts), _cache_exact(model, decode, prompts)]
    gates.append(_ledger_honest(model, decode, prompts))
    if compiled:
        gates.append(_equal(COMPILED, "eager", decode(prompts), "compiled", decode(prompts, compile=True)))
    if model.config.objective == "autoregressive":
        gates.append(_lossless(decode, speculate, prompts))
    return [asdict(gate) for gate in gates]


def _rows_independent(decode: Decode, prompts: Prompts) -> Gate:
    together = decode(prompts)
    backwards = list(reversed(decode(list(reversed(prompts))).answers()))
    alone = [decode([prompt]).answers()[0] for prompt in prompts]
    twice = decode([*prompts, *prompts]).answers()
    answers = together.answers()
    unpadded = [decode([prompt], columns=len(prompt)).answers()[0] for prompt in prompts]
    others = {"alone": alone, "without padding": unpadded, "in reversed order": backwards, "beside a copy": twice}
    for name, other in others.items():
        if place := _first_difference(answers, other):
            return Gate(ROWS, False, f"{len(prompts)} rows in a batch and {name} differ first at {place}")
    return Gate(ROWS, True, f"{len(prompts)} rows in a batch, {', '.join(others)}: equal tokens")


def _cache_exact(model: Transformer, decode: Decode, prompts: Prompts) -> Gate:
    if model.config.objective == "masked_diffusion":
        return Gate(CACHE, True, "the whole canvas is evaluated at every pass; there is no cache")
    without: dict[str, Any] = {"cache": False} if model.config.objective == "autoregressive" else {"cache": "none"}
    return _equal(CACHE, "with the cache", decode(prompts), "without", decode(prompts, **without))


def _ledger_honest(model: Transformer, decode: Decode, prompts: Prompts) -> Gate:
    with _trunk_calls(model) as rows_of_calls:
        made = decode(prompts)
    booked, counted = made.ledger.total_calls, len(rows_of_calls)
    passes, kept = sum(row.total_passes for row in made.ledger.rows()), [row.kept for row in made.ledger.rows()]
    detail = f"{booked} calls booked, {counted} counted at the trunk; {passes} passes of rows in {sum(rows_of_calls)}"
    lengths = [len(answer) for answer in made.answers()]
    if kept != lengths:
        return Gate(LEDGER, False, f"{detail}; tokens kept {kept}, in the answers {lengths}")
    return Gate(LEDGER, booked == counted and passes <= sum(rows_of_calls), detail)


def _lossless(decode: Decode, speculate: Decode, prompts: Prompts) -> Gate:
    for temperature in TEMPERATURES:
        plain = decode(prompts, temperature=temperature)
        for length in DRAFT_LENGTHS:
            names = f"plain at temperature {temperature:g}", f"with {length} guesses"
            gate = _equal(LOSSLESS, names[0], plain, names[1], speculate(prompts, length, temperature))
            if not gate.passed:
                return gate
    how = f"{len(DRAFT_LENGTHS)} draft lengths at temperatures {TEMPERATURES[0]:g} and {TEMPERATURES[1]:g}"
    return Gate(LOSSLESS, True, f"{len(prompts)} rows, {how}: the plain decoder's tokens")


def _equal(gate: str, name: str, made: Generation, other_name: str, other: Generation) -> Gate:
    place = _first_difference(made.answers(), other.answers())
    if place:
        return Gate(gate, False, f"{name} and {other_name} differ first at {place}")
    return Gate(gate, True, f"{len(made.answers())} rows {name} and {other_name}: equal tokens")


def _first_difference(ours: list[list[int]], theirs: list[list[int]]) -> str | None:
    for row, (answer, other) in enumerate(zip(ours, theirs, strict=False)):
        if answer != other:
            pairs = zip(answer, other, strict=False)
            token = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(answer), len(other)))
            return f"row {row}, token {token}"
    return None


@contextmanager
def _trunk_calls(model: Transformer):
    """Rows of every call of the trunk meanwhile, counted where it runs."""
    rows: list[int] = []
    hook = model.layers[0].register_forward_hook(lambda module, arguments, output: rows.append(len(arguments[0])))
    try:
        with torch.no_grad():
            yield rows
    finally:
        hook.remove()

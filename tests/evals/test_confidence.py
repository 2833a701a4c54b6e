"""What a confidence reads off a trace, against traces written by hand and against the model's own logits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from evals.confidence import Confidence, Features, features, value_tokens
from mdlm.errors import UserError
from mdlm.tokenizer import Tokenizer
from sample import DenoiseConfig, denoise
from sample.generation import Generation, Pass
from sample.ledger import Ledger


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(["the cat sat"] * 4, 300)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ('{"a": "xy"}', '"xy"'),
        ('{"n": -12.5e3, "t": true, "z": null}', "-12.5e3truenull"),
        ('{"a": ["b", 1, {}], "c": {"d": ""}}', '"b"1""'),
        (r'{"a\"b": "c\"d:"}', r'"c\"d:"'),
        ('{"k" : "v"}', '"v"'),
        ('{"open": "Zoë', "Zoë"),  # a string that was never closed: the text counts
        ("3 1 2", "312"),
        ("", ""),
        ("{}", ""),
    ],
)
def test_value_tokens_are_the_leaves(tokenizer, text, values):
    tokens = tokenizer.encode(text)
    chosen = [token for token, flag in zip(tokens, value_tokens(tokens, tokenizer), strict=True) if flag]
    kept = b"".join(tokenizer.token_bytes(token) for token in chosen).decode()
    assert kept.replace(" ", "") == values.replace(" ", "")


def step(start, committed, margin, entropy, rows=(0,), length=8):
    committed_BG = torch.tensor(committed, dtype=torch.bool)
    zeros = torch.zeros(committed_BG.shape)
    canvas_BL = torch.zeros(len(rows), length, dtype=torch.int64)
    return Pass(1, torch.tensor(rows), start, canvas_BL, committed_BG, committed_BG & False, zeros, zeros,
                committed_BG.any(-1), torch.tensor(margin), torch.tensor(entropy))  # fmt: skip


def test_features_of_a_trace_written_by_hand(tokenizer):
    one, brace, close, end = (*(tokenizer.encode(text)[0] for text in "1{}"), tokenizer.end_id)
    # A prompt of two, then a window of three and one of two: { 1 1 | } end.
    tokens_BL = torch.tensor([[one, one, brace, one, one, close, end]])
    trace = [
        step(2, [[True, False, False]], [[0.1, 0.0, 0.0]], [[0.7, 9.0, 9.0]]),
        step(2, [[False, True, False]], [[0.0, 0.9, 0.0]], [[9.0, 0.2, 9.0]]),
        step(2, [[False, False, True]], [[0.0, 0.0, 0.4]], [[9.0, 9.0, 0.3]]),
        step(5, [[True, True]], [[0.2, 0.3]], [[0.4, 0.4]]),
    ]
    (found,) = features(Generation(tokens_BL, Ledger(1), 2, end, trace), tokenizer)
    # The brace's margin of 0.1 is no value's. Of three passes the second ends past the half, and so is late.
    assert found.lowest_margin == pytest.approx(0.4)
    assert found.mean_entropy == pytest.approx((0.7 + 0.2 + 0.3 + 0.4 + 0.4) / 5)
    assert found.late_share == 1.0
    # A token that was revoked counts as it was committed last; what follows the end token does not count.
    later = [*trace[:3], step(2, [[False, True, False]], [[0.0, 0.05, 0.0]], [[9.0, 2.0, 9.0]])]
    tokens_BL[0, 5] = end
    (found,) = features(Generation(tokens_BL, Ledger(1), 2, end, [*later, trace[3]]), tokenizer)
    assert found.lowest_margin == pytest.approx(0.05)
    assert found.mean_entropy == pytest.approx((0.7 + 2.0 + 0.3 + 0.4) / 4)


def test_a_trace_holds_the_margins_and_entropies_of_the_logits():
    """Of a table of logits, the mask token left out; keeping them changes no token."""
    table_LV = 3 * torch.randn(6, 12, generator=torch.Generator().manual_seed(1))
    asked = {"mask_id": 8, "end_id": 9, "response_start": 1}
    canvas_BL = torch.tensor([[11, 8, 8, 8, 8, 8], [11, 8, 3, 8, 8, 8]])
    kept, plain = (
        denoise(
            lambda tokens_BL: table_LV.expand(len(tokens_BL), -1, -1), canvas_BL, DenoiseConfig(trace=trace), **asked
        )
        for trace in (True, False)
    )
    assert kept.tokens_BL.equal(plain.tokens_BL) and len(kept.trace) >= 4
    others = [token for token in range(12) if token != 8]
    p_LV = torch.softmax(table_LV[1:, others].double(), dim=-1)
    top_LV = p_LV.sort(descending=True).values
    for step in kept.trace:
        torch.testing.assert_close(step.margin_BG[0].double(), top_LV[:, 0] - top_LV[:, 1])
        torch.testing.assert_close(step.entropy_BG[0].double(), -(p_LV * p_LV.log()).sum(-1))


def test_a_decode_without_its_passes_is_refused(tokenizer):
    with pytest.raises(ValueError, match="trace=True"):
        features(Generation(torch.zeros(1, 4, dtype=torch.int64), Ledger(1), 2, None), tokenizer)


def rows(count, seed=0):
    """Outputs whose chance of being right is logistic in the features: 1.5 a standard deviation of log doubt."""
    random = np.random.default_rng(seed)
    doubt = random.normal(-3, 1, count)
    chance = 1 / (1 + np.exp(1.5 * (doubt + 2)))
    made = [Features(1 - float(np.exp(min(d, 0.0))), float(np.exp(random.normal(-2, 1))), 0.5) for d in doubt]
    return made, random.random(count) < chance, chance


def test_a_confidence_recovers_the_chance_it_was_made_with():
    confidence = Confidence(*rows(4000)[:2])
    of_rows, _, chance = rows(500, seed=1)
    assert np.abs(confidence(of_rows) - chance).mean() < 0.03
    assert confidence.coefficients["lowest_margin"] < -1  # more doubt, less confidence
    assert abs(confidence.coefficients["mean_entropy"]) < 0.2 and confidence.coefficients["late_share"] == 0.0


@pytest.mark.parametrize("right", [True, False])
def test_rows_of_one_kind_teach_nothing(right):
    made, _, _ = rows(10)
    with pytest.raises(UserError, match="--calibrate"):
        Confidence(made, [right] * 10)

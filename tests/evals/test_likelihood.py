"""The likelihood command: one rule of counting for all arms; neither batches nor interruptions show in a result."""

from __future__ import annotations

import json
import math

import pytest
import torch

from evals.likelihood import LikelihoodConfig, compare, main, score_file
from evals.statistics import ratio_difference, ratio_error
from mdlm.checkpoint import save_checkpoint
from mdlm.errors import UserError, run_command
from mdlm.tokenizer import Tokenizer

TEXTS = ["the cat sat on the mat", "a dog", '{"name":"Ada","born":1815}', "é and ü", "the dog sat"]
ARMS = {"autoregressive": "one", "masked_diffusion": "canvas", "block_diffusion": "block"}


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(TEXTS * 4, 280)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "rows.jsonl"
    rows = [{"prompt": f"say {number}", "response": text} for number, text in enumerate(TEXTS)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def saved(folder, model, tokenizer, end, response_length=44):
    lengths = {"prompt_length": 12, "response_length": response_length}
    training = {"config": {"data": lengths}, "supervised_end": end, "response_length": response_length}
    save_checkpoint(folder, model, tokenizer, training)
    return folder


@pytest.fixture(scope="module")
def arms(tmp_path_factory, tiny_model, tokenizer):
    """One random checkpoint for each objective, and one for each that knows nothing."""
    ids = {f"{role}_token_id": getattr(tokenizer, f"{role}_id") for role in ("mask", "end", "pad", "begin")}
    folders = {}
    for arm, end in ARMS.items():
        for name, gain in ((arm, 20.0), (f"flat-{arm}", 0.0)):
            model = tiny_model(arm, vocab_size=tokenizer.vocab_size, block_length=8, gain=gain, **ids)
            folders[name] = saved(tmp_path_factory.mktemp("arms") / name / "step-1", model, tokenizer, end)
    return folders


def nats(result):
    return torch.tensor([row["nats"] for row in result["rows"]])


def test_every_arm_counts_the_same_tokens_and_bytes(arms, data, tokenizer):
    """An answer's tokens and one end token, whatever the arm fills its canvas or its block up with."""
    for arm in ARMS:
        rows = score_file(arms[arm], data, LikelihoodConfig(samples=8))["rows"]
        assert [row["bytes"] for row in rows] == [len(text.encode()) for text in TEXTS]
        assert [row["tokens"] for row in rows] == [len(tokenizer.encode(text)) + 1 for text in TEXTS]


def test_a_model_that_knows_nothing_pays_for_every_token_it_has_to_predict(arms, data, tokenizer):
    """log V for each: the answer and one end token; those and what fills the block; or the whole canvas."""
    log_v = math.log(tokenizer.vocab_size - 1)
    lengths = torch.tensor([len(tokenizer.encode(text)) + 1 for text in TEXTS])
    predicted = {
        "autoregressive": lengths,
        "block_diffusion": ((lengths + 7) // 8 * 8).clamp(max=44),
        "masked_diffusion": torch.full_like(lengths, 44),
    }
    for arm, expected in predicted.items():
        got = nats(score_file(arms[f"flat-{arm}"], data, LikelihoodConfig(samples=8)))
        torch.testing.assert_close(got.mean(1), (expected * log_v).float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bound", ["nelbo", "random", "left_to_right", "blocks", "confidence"])
@pytest.mark.parametrize("arm", ARMS)
def test_the_batch_size_changes_no_result(arms, data, arm, bound):
    config = LikelihoodConfig(bound=bound, samples=8, block_length=None if arm == "autoregressive" else 8)
    alone, together = (score_file(arms[arm], data, config, batch_size=size) for size in (1, 5))
    torch.testing.assert_close(nats(alone), nats(together), rtol=1e-4, atol=1e-4)


def test_an_interrupted_run_goes_on_where_it_was(arms, data, tmp_path):
    folder, partial, config = arms["block_diffusion"], tmp_path / "rows.jsonl", LikelihoodConfig(samples=8)
    whole = score_file(folder, data, config, batch_size=1)
    score_file(folder, data, config, batch_size=1, rows=2, partial=partial)
    lines = partial.read_text().splitlines(keepends=True)
    assert len(lines) == 1 + 2
    planted = json.loads(lines[1]) | {"nats": [1.0] * 8}
    partial.write_text(lines[0] + json.dumps(planted) + "\n" + lines[2] + '{"nats": [3.')  # cut short by the kill
    resumed = score_file(folder, data, config, batch_size=1, partial=partial)
    assert resumed["rows"][0]["nats"] == [1.0] * 8, "a finished row is not scored again"
    assert resumed["rows"][1:] == whole["rows"][1:]
    with pytest.raises(UserError, match="other weights, data or settings"):
        score_file(folder, data, LikelihoodConfig(samples=16), partial=partial)
    finished = score_file(folder, data, config, partial=partial)
    assert finished["rows"] == resumed["rows"]
    assert finished["bound"] == whole["bound"] == "nelbo:block_8"


def test_checkpoints_are_compared_on_the_same_bytes_only(arms, data, tmp_path, tiny_model, tokenizer):
    config = LikelihoodConfig(samples=8)
    results = {arm: score_file(arms[arm], data, config) for arm in ARMS}
    compared = compare(results)
    first, last = compared["autoregressive"], compared["masked_diffusion"]
    difference = last["summary"]["bits_per_byte"]["value"] - first["summary"]["bits_per_byte"]["value"]
    assert last["difference"]["bits_per_byte"] == pytest.approx(difference)
    with pytest.raises(UserError, match="same bytes"):
        compare(results | {"shorter": score_file(arms["block_diffusion"], data, config, rows=3)})


def test_the_command_prints_a_record_with_every_bound_named(arms, data, tmp_path, capsys):
    out = tmp_path / "record.json"
    argv = ["--checkpoint", *(str(arms[arm]) for arm in ARMS), "--data", str(data), "--samples", "8"]
    assert run_command(main, [*argv, "--out", str(out), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["result"] == json.loads(out.read_text())["result"]
    bounds = {name: result["bound"] for name, result in record["result"].items()}
    assert bounds == {
        "autoregressive": "exact_autoregressive", "masked_diffusion": "nelbo", "block_diffusion": "nelbo:block_8",
    }  # fmt: skip
    assert record["result"]["autoregressive"]["summary"]["bits_per_byte"]["monte_carlo"] == 0
    assert record["result"]["masked_diffusion"]["summary"]["bits_per_byte"]["monte_carlo"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["record.json"], "no partial file is left"
    assert run_command(main, argv) == 0
    printed = capsys.readouterr().out
    for text in ("exact_autoregressive", "nelbo:block_8", "Counted:", "bytes"):
        assert text in printed


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--samples", "0"], "--samples 0"),
        (["--bound", "best"], "--bound"),
        (["--bound", "blocks"], "block_length"),
        (["--data", "nowhere.jsonl"], "nowhere.jsonl"),
        (["--checkpoint", "nowhere"], "nowhere"),
        (["--out", "."], "--out"),
    ],
)
def test_wrong_use_is_answered_in_one_line(arms, data, capsys, options, says):
    argv = ["--checkpoint", str(arms["masked_diffusion"]), "--data", str(data), *options]
    assert run_command(main, argv) == 2
    error = capsys.readouterr().err.strip()
    assert says in error
    assert "\n" not in error


def test_errors_of_ratios_are_those_of_many_samples():
    """Standard errors of Σx/Σy and of a paired difference against the spread over 2,000 samples, seed 0: within 8 %."""
    generator = torch.Generator().manual_seed(0)
    ratios, stated, differences, paired = [], [], [], []
    for _ in range(2000):
        y = 5 + 10 * torch.rand(60, generator=generator)
        x, z = (y * (1 + 0.3 * torch.randn(60, generator=generator)) for _ in range(2))
        ratios.append(float(x.sum() / y.sum()))
        stated.append(ratio_error(x.tolist(), y.tolist()))
        difference, error = ratio_difference(x.tolist(), (0.5 * x + 0.5 * z).tolist(), y.tolist())
        differences.append(difference)
        paired.append(error)
    for values, errors in ((ratios, stated), (differences, paired)):
        spread = float(torch.tensor(values).std())
        assert float(torch.tensor(errors).mean()) == pytest.approx(spread, rel=0.08)

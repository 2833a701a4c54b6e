"""`python -m evals speed`: the numbers agree with each other and with the ledger. Nothing here asserts a speed."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from evals.__main__ import main
from evals.plain_decoding import PlainDecoder
from evals.published import published_loop
from evals.records import read_record
from evals.speed import print_record
from evals.speed_parts import (
    ANSWER,
    ASKED_SHAPES,
    PASS_CALLS,
    WIDTHS,
    Session,
    check,
    decoders,
    model_config,
    outside_trunk,
    training_steps,
)
from mdlm.config import OBJECTIVES
from mdlm.errors import run_command
from mdlm.transformer import Transformer
from sample import AutoregressiveConfig, DenoiseConfig, decode, denoise
from sample.ledger import Ledger

ROOT = Path(__file__).resolve().parents[2]
REPEATS, ROWS = 2, 2
SESSION = Session(dtype="fp32", device="cpu", repeats=1, batch_size=ROWS, modes=("eager",), seed=0)


def speed(*words):
    """Runs the command in a process of its own: it sets threads and compiler limits for the whole process."""
    command = [sys.executable, "-m", "evals", "speed", "--shape", "tiny", "--batch-size", ROWS, *words]
    return subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The tiny shape, eager: the JSON line and the record's file."""
    path = tmp_path_factory.mktemp("speed") / "speed.json"
    done = speed("--eager", "--repeats", REPEATS, "--json", "--out", path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    return json.loads(done.stdout), path


@pytest.fixture
def result(measured):
    """Part -> what was measured at the tiny shape."""
    return {part: of_part["tiny"] for part, of_part in measured[0]["result"].items()}


def test_the_json_line_is_the_record_that_is_written(measured):
    line, path = measured
    assert read_record(path) == line
    assert line["kind"] == "speed"
    settings = line["settings"]
    assert {"seed", "dtype", "device", "compile", "repeats", "token_rule"} <= settings.keys()
    assert settings["shapes"] == {part: ["tiny"] for part in ASKED_SHAPES}
    assert settings["config"]["tiny"] == model_config("tiny").to_dict()


def test_the_curve_of_a_pass_has_every_width_with_its_floor(result):
    curve, floor = result["pass"]["modes"]["eager"], result["pass"]["floor"]
    assert list(curve) == list(map(str, WIDTHS))
    for width, entry in curve.items():
        seconds = entry["seconds"]
        assert seconds["n"] == REPEATS * PASS_CALLS
        assert 0 < seconds["median"] <= seconds["p90"] <= seconds["p99"]
        assert entry["weight_bytes_per_second"] * seconds["median"] == pytest.approx(entry["weight_bytes"])
        assert entry["bytes"] > entry["weight_bytes"] + entry["cache_bytes"]  # logits and embeddings beside them
        memory = entry["bytes"] / floor["copy_bytes_per_second"]
        assert entry["floor_seconds"] == pytest.approx(max(memory, entry["flops"] / floor["flops_per_second"]))
        assert entry["times_floor"] == pytest.approx(seconds["median"] / entry["floor_seconds"])
        assert entry["flops"] == int(width) * curve["1"]["flops"]
    assert curve["1"]["against_one_position"]["median"] == 1.0


def test_bytes_and_flops_of_a_pass_are_those_of_its_shape(result):
    # Two layers of q, k, v, o (128 to 128) and three matrices to or from 384, a tied table of 512 rows; the norms:
    # 2 · 128 a layer, one at the end, and 64 for queries and keys each.
    matrices = 2 * (4 * 128 * 128 + 3 * 128 * 384) + 512 * 128
    parameters = matrices + 5 * 128 + 4 * 64
    entry = result["pass"]["modes"]["eager"]["32"]
    assert entry["weight_bytes"] == 2 * parameters
    assert entry["cache_bytes"] == 2 * 2 * (256 + 32) * 128 * 2  # keys and values, layers, columns, width, two bytes
    assert entry["flops"] == 32 * (2 * matrices + 2 * 2 * 256 * 128 * 2)


def test_both_arms_decode_the_whole_answer_in_the_passes_of_their_setting(result):
    arms = result["decode"]["modes"]["eager"]["arms"]
    assert arms["block_diffusion"]["ledger"]["passes"] == {"prefill": 1, "denoise": 32, "store": 3}
    assert arms["autoregressive"]["ledger"]["passes"] == {"prefill": 1, "decode": 127}
    for entry in arms.values():
        assert entry["ledger"]["kept"] == 128
        assert entry["seconds"]["n"] == REPEATS
        assert entry["useful_tokens_per_second"] * entry["seconds"]["median"] == pytest.approx(128)
        split = entry["split"]
        assert 0 < split["loop_share"]["median"] < 1
        assert 0 < split["whole_share"]["median"] < 1
        assert split["trunk_seconds"]["median"] < split["loop_seconds"]["median"] < split["seconds"]["median"]


def test_decoders_of_the_same_weights_write_the_same_tokens(result):
    twin = result["twin"]
    assert list(twin["decoders"]) == ["ours, eager", "transformers generate"]
    # All weights but the embedding's second use, and the keys and values of 192 columns on average.
    assert twin["weight_bytes"] == result["pass"]["modes"]["eager"]["1"]["weight_bytes"]
    assert twin["cache_bytes"] == 192 * 2 * 2 * 128 * 2
    for entry in twin["decoders"].values():
        assert entry["tokens_per_second"] * entry["seconds"]["median"] == pytest.approx(ANSWER)
        assert entry["times_floor"] * entry["tokens_per_second"] == pytest.approx(twin["floor_tokens_per_second"])
        assert entry["same_tokens"] > 0.1  # bf16 may round a near tie the other way; what follows then differs
    assert twin["decoders"]["ours, eager"]["same_tokens"] == 1.0


def test_a_plain_loop_decodes_what_ours_decodes():
    """In fp32, grouped heads and both heads' kinds."""
    for tied in (True, False):
        config = replace(model_config("tiny", "autoregressive"), kv_heads=1, tie_embeddings=tied)
        model = Transformer(config).initialize(0).eval().requires_grad_(False)
        prompt = SESSION.draw(config, 9).tolist()
        made = decode(model, [prompt], AutoregressiveConfig(20)).answers()[0]
        loop = PlainDecoder(model, 40, compiled=False)
        assert loop.generate(prompt, len(made)) == made


def test_training_is_measured_for_every_objective(result):
    training = result["training"]
    assert list(training["objectives"]) == list(OBJECTIVES)
    assert training["tokens_a_step"] == ROWS * 256
    for measured in training["objectives"].values():
        entry = measured["modes"]["eager"]
        assert entry["seconds"]["n"] == REPEATS
        assert entry["tokens_per_second"] * entry["seconds"]["median"] == pytest.approx(ROWS * 256)


def test_without_compiled_sides_no_target_is_checked(result):
    assert [of_part["checks"] for of_part in result.values()] == [[], [], [], []]
    assert "speedup" not in result["training"]["objectives"]["autoregressive"]


@pytest.mark.slow
def test_a_compiled_step_stands_beside_the_eager_one_with_its_target():
    done = speed("--part", "training", "--objective", "autoregressive", "--repeats", 1, "--json")
    assert done.returncode == 0, done.stderr
    training = json.loads(done.stdout)["result"]["training"]["tiny"]
    ((objective, measured),) = training["objectives"].items()
    eager, compiled = (measured["modes"][mode]["seconds"] for mode in ("eager", "compiled"))
    assert compiled["first_call"] > eager["first_call"]  # it compiled
    (target,) = training["checks"]
    assert objective in target["what"]
    assert target["measured"]["median"] == pytest.approx(eager["median"] / compiled["median"])
    assert (target["relation"], target["asked"], target["met"]) == ("at least", 1.5, None)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_step_that_is_timed_trains(objective):
    step = training_steps(model_config("tiny", objective), SESSION)["eager"]
    losses = [step() for _ in range(5)]
    assert losses == sorted(set(losses), reverse=True)  # one batch at a low rate: every step lowers its loss


@pytest.mark.parametrize(("arm", "passes"), [("block_diffusion", 36), ("autoregressive", 128)])
def test_time_is_counted_as_outside_or_inside_the_trunk_where_it_is_spent(monkeypatch, arm, passes):
    pause, decoder = 0.002, decoders("tiny", SESSION)[0][arm]
    in_loop = (passes - 1) * pause
    count, hidden = Ledger.count, Transformer.hidden

    def slow(function):
        def call(*arguments, **options):
            time.sleep(pause)
            return function(*arguments, **options)

        return call

    monkeypatch.setattr(Ledger, "count", slow(count))
    split = outside_trunk(lambda: decoder(False), "cpu")
    assert split["loop_seconds"] - split["trunk_seconds"] >= in_loop
    monkeypatch.setattr(Ledger, "count", count)
    monkeypatch.setattr(Transformer, "hidden", slow(hidden))
    split = outside_trunk(lambda: decoder(False), "cpu")
    assert split["trunk_seconds"] >= in_loop
    assert split["loop_seconds"] <= split["seconds"] - pause


def test_a_pass_that_the_clock_does_not_see_is_an_error(monkeypatch):
    count = Ledger.count

    def twice(self, *arguments):
        count(self, *arguments)
        count(self, *arguments)

    monkeypatch.setattr(Ledger, "count", twice)
    with pytest.raises(RuntimeError, match="36 passes, the ledger 72"):
        outside_trunk(lambda: decoders("tiny", SESSION)[0]["block_diffusion"](False), "cpu")


@pytest.mark.parametrize(("name", "parameters"), [("2m", 2.1e6), ("30m", 31.5e6), ("100m", 104e6)])
def test_shapes_are_named_by_their_parameters(name, parameters):
    with torch.device("meta"):
        model = Transformer(model_config(name))
    assert model.num_parameters == pytest.approx(parameters, rel=0.02)


def test_a_target_is_judged_only_at_the_shape_it_is_asked_of():
    measured = {"median": 1.5}
    options = {"at_most": True, "part": "pass"}
    assert check("ratio", measured, 1.6, shape="30m", **options)["met"] is True
    assert check("ratio", measured, 1.4, shape="30m", **options)["met"] is False
    assert check("ratio", measured, 1.4, shape="tiny", **options)["met"] is None
    assert check("ratio", measured, 1.4, shape="30m", **{**options, "at_most": False})["met"] is True


def test_the_tables_show_targets_and_numbers_of_the_record(measured):
    record = json.loads(json.dumps(measured[0]))
    shown = {"median": 1.234, "interval": (1.1, 1.3), "p90": 1.3}
    record["result"]["pass"]["tiny"]["checks"] = [check("ratio", shown, 1.6, at_most=True, part="pass", shape="30m")]
    buffer = io.StringIO()
    print_record(record, Console(file=buffer, width=160))
    text = buffer.getvalue()
    assert all(word in text for word in ("ratio", "at most 1.6", "1.234", "[1.10, 1.30]", "met", "orientation only"))
    rate = record["result"]["decode"]["tiny"]["modes"]["eager"]["arms"]["autoregressive"]["useful_tokens_per_second"]
    assert f"{rate:,.0f}" in text
    assert all(objective in text for objective in OBJECTIVES)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--shape", "3m"), "'3m'"),
        (("--part", "sampling"), "'sampling'"),
        (("--repeats", "0"), "--repeats 0: it must be at least 1"),
        (("--batch-size", "0"), "--batch-size 0"),
        (("--threads", "many"), "'many'"),
        (("--out", "."), "is a folder"),
        (("--nonsense",), "--nonsense"),
    ],
)
def test_a_wrong_command_line_is_answered_with_one_line(capsys, words, complaint):
    assert run_command(main, ["speed", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert complaint in err


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_asking_for_a_gpu_that_is_not_there_says_so(capsys):
    assert run_command(main, ["speed", "--device", "cuda"]) == 2
    assert "no GPU" in capsys.readouterr().err


def test_both_arms_have_the_weights_of_the_seed():
    arms = [SESSION.model(model_config("tiny", objective)) for objective in ("autoregressive", "block_diffusion")]
    other = replace(SESSION, seed=1).model(model_config("tiny"))
    for one, two in zip(arms[0].parameters(), arms[1].parameters(), strict=True):
        assert torch.equal(one, two)
    assert not torch.equal(arms[0].embed_tokens.weight, other.embed_tokens.weight)


def test_the_published_loop_fills_the_canvas_as_our_decoder_does(tiny_model):
    """Equal weights and passes in float32: what differs is only how often what is evaluated."""
    model = tiny_model("block_diffusion", block_length=4)
    canvas_BL = torch.tensor([[1, 2, 3] + [8] * 10, [4, 5, 6] + [8] * 10])
    theirs = published_loop(
        lambda tokens_BL: model(tokens_BL, None, 3),
        canvas_BL,
        mask_id=8,
        response_start=3,
        block_length=4,
        passes=3,
    )
    ours = denoise(model, canvas_BL, DenoiseConfig(max_denoising_steps=3), mask_id=8, response_start=3)
    assert theirs.equal(ours.tokens_BL)

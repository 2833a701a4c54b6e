"""`python -m evals roofline`: its record, its figures, what it judges and what it refuses. Nothing asserts a speed."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from evals.__main__ import main
from evals.batching import crossover
from evals.ceilings import Machine
from evals.records import read_record
from evals.roofline import (
    RATIOS,
    Workload,
    predicted_crossover,
    speedup,
)
from evals.roofline_report import compare, predict
from evals.speed_parts import SHAPES
from mdlm.config import ModelConfig
from mdlm.errors import run_command

ROOT = Path(__file__).resolve().parents[2]
SMALL = ModelConfig("block_diffusion", vocab_size=12, dim=16, layers=2, heads=4, kv_heads=2, head_dim=8, hidden_dim=24)
WIDE = ModelConfig("block_diffusion", vocab_size=8192, dim=512, layers=8, heads=8, kv_heads=2, hidden_dim=1536)
MACHINE = Machine("made up", 1e12, {"bf16": 2e14}, "here")


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The tiny shape, eager, in a process of its own: the JSON line and the folder."""
    folder = tmp_path_factory.mktemp("roofline")
    command = [sys.executable, "-m", "evals", "roofline", "--shape", "tiny", "--batch", "2", "1", "--prompt", "8"]
    command += ["--answer", "8", "--block", "4", "--tokens-per-forward", "2", "--measure", "--eager"]
    command += ["--threads", "1", "--repeats", "1", "--device", "cpu", "--json", "--out", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), folder


def test_the_json_line_is_the_record_that_is_written_beside_its_figures(measured):
    line, folder = measured
    assert read_record(folder / "roofline.json") == line
    assert line["kind"] == "roofline"
    for name in ("roofline-tiny.png", "speedup-tiny.png"):
        assert (folder / name).read_bytes().startswith(b"\x89PNG")


def test_predicted_and_measured_stand_side_by_side(measured):
    result = measured[0]["result"]["tiny"]
    assert {(entry["pass"], entry["batch"]) for entry in result["passes"] if "measured_seconds" in entry} == {
        (name, batch) for name in ("autoregressive step", "block pass") for batch in (1, 2)
    }
    machine, seconds = result["machine"], {}
    for entry in result["passes"]:
        bound = max(entry["bytes"] / machine["bandwidth"], entry["flops"] / machine["flops_per_second"])
        assert entry["predicted_seconds"] == pytest.approx(bound)
        if taken := entry.get("measured_seconds"):
            seconds[entry["pass"], entry["batch"]] = taken["median"]
            assert entry["error"] == pytest.approx(entry["predicted_seconds"] / taken["median"] - 1)
    for entry in result["speedup"]:
        ratio = 2 * seconds["autoregressive step", entry["batch"]] / seconds["block pass", entry["batch"]]
        assert entry["measured"]["median"] == pytest.approx(ratio)
    assert machine["bandwidth"] == result["floor"]["copy_bytes_per_second"]
    assert set(result["crossover"]) == {"predicted", "closed_form", "measured", "attained"}


def test_the_error_of_a_crossover_is_judged_unless_its_ceilings_were_fitted():
    """Passes that take their predicted seconds but for a block pass of half the rate: b* lies at about half."""
    config = ModelConfig("block_diffusion", **SHAPES["30m"], block_length=16)
    work, sizes = Workload(config, 16, 16, 16), [1, 8, 16, 32, 64]
    result = predict(work, {1.0: work}, MACHINE, dtype="bf16", tokens=4, batches=sizes)
    slow = replace(MACHINE, peak={"bf16": MACHINE.peak["bf16"] / 2})
    seconds = {
        "autoregressive step": {str(size): {"median": work.step(size).seconds(MACHINE, "bf16")} for size in sizes},
        "block pass": {str(size): {"median": work.block_pass(size).seconds(slow, "bf16")} for size in sizes},
    }
    ratios = [speedup(work, size, 4, slow, "bf16") for size in sizes]
    sweep = {
        "seconds": seconds,
        "speedup": {str(size): {"median": ratio} for size, ratio in zip(sizes, ratios, strict=True)},
        "crossover": crossover(sizes, ratios),
    }
    compare(result, work, sweep, "bf16")
    found, exact = result["crossover"], predicted_crossover(work, 4, slow, "bf16")["batch"]
    assert found["measured"]["batch"] == pytest.approx(exact, rel=0.1)
    assert found["predicted"]["error"] > 0.25
    assert found["predicted"]["within"] is False
    assert found["attained"]["batch"] == pytest.approx(exact, rel=0.01)
    assert "within" not in found["attained"]
    assert result["attained"]["share_of_peak"] == pytest.approx(0.5)
    assert result["attained"]["share_of_bandwidth"] == pytest.approx(1)


def test_every_ratio_is_predicted_and_measured_end_to_end(measured):
    result = measured[0]["result"]["tiny"]
    assert [entry["ratio"] for entry in result["ratios"]] == list(RATIOS)
    for entry in result["ratios"]:
        assert entry["prompt"] + entry["answer"] == 17 * 4
        for arm, ratio in entry["measured"]["speedup"].items():
            seconds = entry["measured"]["seconds"]
            assert ratio["median"] == pytest.approx(seconds["autoregressive"]["median"] / seconds[arm]["median"])
            assert entry["predicted"]["1"][arm] > 0


def test_a_named_machine_is_printed_with_its_source(capsys):
    words = ["--machine", "H100", "--shape", "8b", "--prompt", "1024", "--answer", "512", "--batch", "1", "64"]
    assert run_command(main, ["roofline", *words]) == 0
    text = capsys.readouterr().out
    for word in (
        "autoregressive step",
        "full canvas",
        "prefill",
        "bandwidth",
        "arithmetic",
        "data sheet",
        "b*, closed",
    ):
        assert word in text
    assert "b*, predicted: 7" in text
    assert "nowhere in the sweep" in text


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--machine", "H10"), "did you mean 'H100'?"),
        (("--machine", "B200", "--dtype", "fp32"), "no peak for fp32"),
        (("--prompt", "0"), "--prompt 0: it must be at least 1"),
        (("--block", "-4"), "--block -4"),
        (("--batch", "1", "0"), "--batch"),
        (("--machine", "H100", "--weight-bytes", "-1"), "bytes of weights are -1"),
        (("--machine", "H100", "--weight-bytes", "0"), "bytes of weights are 0"),
        (("--total", "0"), "--total 0"),
        (("--tokens-per-forward", "33"), "at most --block 32"),
        (("--tokens-per-forward", "-1"), "above 0"),
        (("--answer", "16"), "lower --block"),
        (("--total", "40"), "--total 40"),
        (("--machine", "H100", "--measure"), "leave out --machine"),
        (("--paged", "--measure"), "--paged"),
        (("--shape", "9t"), "'9t'"),
    ],
)
def test_a_wrong_command_line_is_answered_with_one_line(capsys, words, complaint):
    assert run_command(main, ["roofline", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert complaint in err

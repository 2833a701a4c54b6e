"""`python -m evals corpus` and `estimators`, from nothing to their records, on a budget that teaches nothing."""

from __future__ import annotations

import json

import pytest

from evals.corpus import main
from evals.estimators import main as estimators
from evals.records import read_record
from mdlm.errors import run_command

ARMS = ["autoregressive", "block_diffusion:4", "masked_diffusion"]
SMALL = {
    "markov_symbols": 6000, "rows": 6, "samples": 8, "curve_rows": 4, "curve_samples": 8, "curve_checkpoints": 2,
    "train.steps": 4, "train.batch_size": 4, "train.compile": "false", "train.precision": "fp32",
    "train.model.dim": 16, "train.model.layers": 1, "train.model.heads": 1, "train.model.kv_heads": 1,
    "train.model.head_dim": 16, "train.model.hidden_dim": 16,
    "train.data.vocab_size": 260, "train.data.prompt_length": 1, "train.data.response_length": 16,
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The output folder of one small comparison, and the options that made it."""
    folder = tmp_path_factory.mktemp("corpus") / "run"
    options = [f"--{name}={value}" for name, value in SMALL.items()]
    options += [f"--arms={json.dumps(ARMS)}", f"--output={folder}"]
    assert run_command(main, [*options, "--json"]) == 0
    return folder, options


def test_the_record_has_every_arm_with_its_bound_and_its_distance_to_the_source(run):
    folder, _ = run
    record = read_record(folder / "likelihood.json")
    assert {arm: result["bound"] for arm, result in record["result"].items()} == {
        "autoregressive": "exact_autoregressive", "block_diffusion:4": "nelbo:block_4", "masked_diffusion": "nelbo",
    }  # fmt: skip
    truth = record["settings"]["truth"]
    for arm in ARMS:
        summary = record["result"][arm]["summary"]
        assert summary["bytes"] == summary["tokens"] == 6 * 16
        excess = summary["bits_per_byte"]["value"] - truth["bits_per_byte"]
        assert truth[arm]["excess"] == pytest.approx(excess)
        assert [point["step"] for point in record["settings"]["curves"][arm]] == [2, 4]
        assert len(record["settings"]["training"][arm]["losses"]) >= 1
    assert (folder / "likelihood.png").stat().st_size > 10_000


def test_what_is_there_is_not_made_again(run, capsys):
    folder, options = run
    before = (folder / "likelihood.json").stat().st_mtime_ns
    assert run_command(main, options) == 0
    assert (folder / "likelihood.json").stat().st_mtime_ns == before
    printed = capsys.readouterr().out
    assert "The source itself" in printed
    assert "nelbo:block_4" in printed


def test_another_config_does_not_get_the_folder(run, capsys):
    _, options = run
    assert run_command(main, [*options, "--rows=5"]) == 2
    assert "another config" in capsys.readouterr().err


@pytest.mark.parametrize("arm", ["block_diffusion", "masked_diffusion:4", "gpt", "block_diffusion:x"])
def test_an_arm_that_is_none_is_refused(arm, tmp_path, capsys):
    assert run_command(main, [f'--arms=["{arm}"]', f"--output={tmp_path / 'run'}"]) == 2
    assert arm in capsys.readouterr().err


def test_ways_to_draw_samples_are_compared_by_the_spread_of_their_repeats(run, capsys):
    folder, _ = run
    argv = ["--checkpoint", str(folder / "masked_diffusion"), "--data", str(folder / "data" / "test.txt")]
    argv += ["--rows", "2", "--samples", "8", "--repeats", "3"]
    assert run_command(estimators, [*argv, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)["result"]
    assert [way["name"] for way in result] == [
        "independent times, linear", "stratified times, linear", "independent times, cosine",
        "stratified times, cosine", "independent counts", "stratified counts",
    ]  # fmt: skip
    for way in result:
        ratio = result[0]["standard_error"] / way["standard_error"]
        assert way["smaller_than_independent_times"] == pytest.approx(ratio)
    assert run_command(estimators, argv) == 0
    assert "stratified counts" in capsys.readouterr().out

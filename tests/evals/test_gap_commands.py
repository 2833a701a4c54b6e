"""The commands that take up a finished comparison, and every command of the README."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from evals.comparison import TaskSection
from evals.fallback import main as fallback
from evals.memory import main as memory
from evals.metrics import plain_score
from evals.presets import main as presets
from evals.speculation import main as speculation
from evals.throughput import main as throughput
from mdlm.errors import run_command
from sample.presets import PRESETS
from tests.evals.runs import ROOT, SUITE, TINY, records
from train.heads import main as train_heads


@pytest.mark.slow
def test_the_readmes_commands_run(tmp_path, monkeypatch):
    """Every `python -m` line of the README, in its order, at toy size where it trains."""
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    shutil.copytree(ROOT / "results" / "roofline-h100-8b", tmp_path / "results" / "roofline-h100-8b")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    rows = [{"prompt": f"City: Rom{n}; Name: Ada", "response": f'{{"city":"Rom{n}"}}'} for n in range(60)]
    Path("my.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    training = [option.removeprefix("--train.") for option in TINY if option.startswith("--train.")]
    commands = [
        line.strip() for line in (ROOT / "README.md").read_text().splitlines() if line.strip().startswith("python -m ")
    ]
    commands.insert(0, next(line for line in makefile_demo()))
    assert len(commands) >= 5
    for command in commands:
        extra = []
        if "-m evals gap" in command:
            extra = [*TINY, "--train.data.prompt_length=400", "--task.train_rows=60", "--seeds=[0]"]
            extra += [f"--tasks={json.dumps(SUITE)}"] if "h100" in command else []
        elif "-m evals fleet" in command:
            extra = ["--requests=400", "--seeds=2", "--steps=2"]
        elif "-m train" in command:
            extra = [f"--{option}" for option in training]
        run(command, extra)


def makefile_demo() -> list[str]:
    """The command behind `make demo`."""
    lines = (ROOT / "Makefile").read_text().splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("demo:"))
    return [line.strip().replace("$(BIN)/", "") for line in lines[start + 1 : start + 2]]


def run(command: str, extra: list[str]) -> None:
    import shlex
    import subprocess

    words = [sys.executable, *shlex.split(command)[1:], *extra]
    done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=300)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


def test_every_preset_is_decoded_on_the_arms_and_the_cache_gives_the_same_texts(compared, tmp_path, capsys):
    assert presets([str(compared), "--rows", "2", "--out", str(tmp_path), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)["result"]
    arms = ("block_diffusion", "autoregressive")
    of_arm = {arm: [cell["preset"] for cell in result["cells"] if cell["arm"] == arm] for arm in arms}
    assert of_arm == {"block_diffusion": list(PRESETS), "autoregressive": ["greedy"]}
    windows = {cell["window"] for cell in result["cells"] if cell["arm"] == "masked_diffusion"}
    assert windows == {"whole canvas", "blocks", "blocks, prefix cache", "blocks, dual cache"}
    assert all(found["same_texts"] == 1 for found in result["cache_against_none"].values())
    assert {path.name for path in tmp_path.iterdir()} == {"presets.json", "presets.png"}


@pytest.fixture(scope="module")
def heads(compared, tmp_path_factory) -> Path:
    """Draft heads of the comparison's twin, by the shipped config at toy size."""
    folder = tmp_path_factory.mktemp("heads") / "heads"
    options = {
        "checkpoint": compared / "autoregressive-seed0",
        "train": compared / "data" / "train.jsonl",
        "output": folder,
        "steps": 2,
        "precision": "fp32",
        "compile": "false",
        "too_long": "cut",
    }
    config = str(ROOT / "configs" / "heads" / "demo.yaml")
    assert train_heads([config, *(f"--{name}={value}" for name, value in options.items())]) == 0
    return folder


DRAFTERS = ["prompt lookup", "prompt lookup, any length", "draft model", "heads"]


def test_speculation_is_measured_beside_plain_decoding_of_the_same_rows(compared, heads, capsys):
    draft = str(compared / "autoregressive-seed0")
    options = ["--rows", "2", "--dev-rows", "2", "--dtype", "fp32", "--draft", draft, "--heads", str(heads)]
    assert speculation([str(compared), *options, "--lengths", "2", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)["result"]
    assert list(result["costs"]["verify"]) == ["1", "2", "4", "8", "16", "32"]
    assert [found["drafter"] for found in result["tuned"]] == DRAFTERS
    plain, *ways = result["ways"]
    assert plain["drafter"] == "plain"
    for way in ways:
        assert way["different_texts"] == 0
        assert 1 <= way["tokens_a_verify_pass"] <= way["draft_length"] + 1
        assert way["passes"] - way["draft_passes"] <= plain["passes"]
    for found in result["tuned"]:
        chosen = [way for way in ways if way["drafter"] == found["drafter"] and way.get("chosen")]
        assert [way["draft_length"] for way in chosen] == [found["draft_length"]]
        assert chosen[0]["predicted_faster_than_plain"] == found["predicted_faster_than_plain"] > 0
        assert {way["draft_length"] for way in ways if way["drafter"] == found["drafter"]} == {2, found["draft_length"]}
    assert len(result["tuned"][-1]["shares"]) == 6, "there are six heads"


def test_speculation_is_measured_on_rows_of_any_file_and_shown_as_a_table(compared, tmp_path, capsys):
    rows = (compared / "data" / "test.jsonl").read_text().splitlines()[:4]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows) + "\n")
    (tmp_path / "dev.jsonl").write_text(rows[0] + "\n")
    twin, data = str(compared / "autoregressive-seed0"), ["--data", str(tmp_path / "rows.jsonl"), "--dtype", "fp32"]
    for dev in (["--dev-rows", "1"], ["--dev", str(tmp_path / "dev.jsonl")]):
        assert speculation([twin, *data, "--rows", "2", *dev, "--out", str(tmp_path / "record.json")]) == 0
        shown = capsys.readouterr().out
        assert all(name in shown for name in ("plain", *DRAFTERS[:2], "chosen on 1 dev rows"))
        settings = json.loads((tmp_path / "record.json").read_text())["settings"]
        assert (settings["rows"], settings["dev_rows"]) == (2, 1)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--dev", "rows.jsonl"], "--data"),
        (["--data", "gone.jsonl"], "gone.jsonl"),
        (["--rows", "0"], "--rows"),
        (["--dev-rows", "0"], "--dev-rows"),
        (["--heads", "TWIN"], "--heads"),
        (["--draft", "HEADS"], "--draft"),
        (["--lengths", "0"], "draft_length"),
        (["--data", "broken.jsonl"], "broken.jsonl:2"),
        (["--data", "short.jsonl", "--rows", "1"], "--dev-rows"),
    ],
)
def test_speculation_on_wrong_input_says_what_and_how_to_mend_it(compared, heads, tmp_path, capsys, options, named):
    (tmp_path / "broken.jsonl").write_text('{"prompt": "a"}\n{"question": "a"}\n')
    (tmp_path / "short.jsonl").write_text('{"prompt": "a"}\n')
    places = {"TWIN": compared / "autoregressive-seed0", "HEADS": heads}
    words = [str(places.get(word) or (tmp_path / word if word.endswith(".jsonl") else word)) for word in options]
    run = compared / "autoregressive-seed0" if "--data" in options else compared
    assert run_command(speculation, [str(run), "--dtype", "fp32", *words]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("error: ")
    assert named in line


def test_throughput_is_that_of_the_arms_at_their_frozen_settings(compared, tmp_path, capsys):
    words = ["--rows", "2", "--batch-size", "1", "2", "--repeats", "1", "--dtype", "fp32", "--device", "cpu"]
    assert throughput([str(compared), *words, "--json", "--out", str(tmp_path)]) == 0
    line = json.loads(capsys.readouterr().out)
    assert json.loads((tmp_path / "throughput.json").read_text()) == line
    for arm, decoder in line["settings"]["decoders"].items():
        frozen = records(compared)[f"{arm}-seed0/test-frozen"]["result"]
        assert decoder["setting"] == frozen["setting"]
        assert decoder["decoder"] == (None if arm == "autoregressive" else frozen["decoder"])
        assert line["settings"]["quality_on_test"][arm]["exact"] == frozen["exact"]
    tokens = {(cell["way"], cell["batch"]): cell["tokens"] for cell in line["result"]["cells"]}
    assert tokens["autoregressive, queue", 2] == tokens["autoregressive, static batches", 1]


PRICED = ["--node-per-hour", "3.6", "--utilisation", "0.5"]


def test_a_fallback_is_priced_from_outputs_whose_traces_were_kept(compared, tmp_path, capsys, monkeypatch):
    """The toy is never right, so that a lenient checker decides; texts, rows and tokens are those of the records."""
    texts = []

    def lenient(section, output, row):
        texts.append(output)
        return plain_score(len(texts) % 3 > 0)

    monkeypatch.setattr(TaskSection, "score", lenient)
    options = [*PRICED, "--dtype", "fp32", "--api", "gpt-5.4-mini", "--out", str(tmp_path)]
    assert fallback([str(compared), *options, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert json.loads((tmp_path / "fallback.json").read_text()) == record
    assert (tmp_path / "fallback.png").stat().st_size > 1000
    result = record["result"]
    assert {name: split["n"] for name, split in result["splits"].items()} == {"test": 4, "unseen_templates": 4}
    frozen = records(compared)["block_diffusion-seed0/test-frozen"]["result"]
    assert record["settings"]["setting"] == frozen["setting"]
    before = sum(1 for _ in (compared / "data" / "dev.jsonl").open())
    assert {row["output"] for row in frozen["failures"]} <= set(texts[before : before + 4])
    assert [(row["basis"], row["to"]) for row in result["costs"]] == [
        ("one stream", "twin"),
        ("one stream", "gpt-5.4-mini"),
    ]
    assert fallback([str(compared), *options]) == 0
    shown = capsys.readouterr().out
    assert "pays below" in shown and f"{len(texts) - before - 8} rows" not in shown


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ([], "nothing to tell apart"),  # the toy is never right
        (["--error", "1.5"], "error bound"),
        (["--utilisation", "1.5"], "utilisation"),
        (["--node-per-hour", "-1"], "below 0"),
        (["--task", "kcy"], "did you mean 'kyc'"),
        (["--seed", "7"], "no such arm"),
        (["--calibrate", "broken.jsonl"], "line 2"),
        (["--calibrate", "missing.jsonl"], "cannot be read"),
        (["--calibrate", "short.jsonl"], "--calibrate"),
        (["--api", "nobody"], "unknown API"),
    ],
)
def test_a_fallback_on_wrong_input_says_what_and_how_to_mend_it(compared, tmp_path, capsys, options, named):
    (tmp_path / "broken.jsonl").write_text('{"prompt": "a", "response": "{}"}\n{"prompt": "a"}\n')
    (tmp_path / "short.jsonl").write_text('{"prompt": "a", "response": "{}"}\n')
    words = [str(tmp_path / word) if word.endswith(".jsonl") else word for word in options]
    assert run_command(fallback, [str(compared), *PRICED, "--dtype", "fp32", *words]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("error: ") and named in line


def test_a_folder_that_holds_no_comparison_is_refused(tmp_path, capsys):
    for command, options in ((presets, []), (speculation, []), (throughput, []), (fallback, PRICED)):
        assert run_command(command, [str(tmp_path), *options]) == 2
        assert "evals gap" in capsys.readouterr().err


def test_memory_is_measured_for_both_loops_in_processes_of_their_own(capsys):
    assert memory(["--length", "128", "--device", "cpu", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["result"]
    assert row["cache"] == 2 * 4 * 128 * 4 * 64 * 4
    assert 0 < row["ours"] < row["published"]
    assert row["published"] > row["logits_of_the_canvas"]

"""The comparison at toy size: every station leaves its files, resumes behind them, and the report repeats them."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from evals.gap import main
from evals.memory import main as memory
from evals.presets import main as presets
from evals.report import write_report
from evals.speculation import main as speculation
from evals.throughput import main as throughput
from mdlm.errors import UserError, run_command
from sample.presets import PRESETS
from train.heads import main as train_heads

ROOT = Path(__file__).parents[2]
TINY = [
    "--train.steps=3",
    "--train.batch_size=4",
    "--train.compile=false",
    "--train.precision=fp32",
    "--train.log_every=1",
    "--train.validation_batches=1",
    "--train.model.dim=16",
    "--train.model.layers=1",
    "--train.model.heads=1",
    "--train.model.kv_heads=1",
    "--train.model.head_dim=16",
    "--train.model.hidden_dim=16",
    "--train.data.vocab_size=300",
    "--train.data.prompt_length=160",
    "--train.data.response_length=128",
    "--train.data.too_long=cut",
    "--dtype=fp32",
    "--batch_size=4",
    "--task.dev_rows=3",
    "--task.test_rows=4",
    "--speed_rows=1",
    "--speed_repeats=1",
    "--speed_compiled=false",
    "--curve_checkpoints=2",
]


@pytest.fixture(scope="module")
def compared(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("gap") / "run"
    config = str(ROOT / "configs" / "gap" / "demo.yaml")
    assert main([config, f"--output={folder}", "--task.train_rows=60", *TINY]) == 0
    return folder


def records(folder: Path) -> dict[str, dict]:
    """`ARM-seedN/NAME` -> record of a comparison of one task; with several, `ARM-seedN/TASK/NAME`."""
    found = {path.relative_to(folder / "records"): path for path in folder.glob("records/*/*/*.json")}
    one = len({path.parts[1] for path in found}) == 1
    return {
        f"{path.parts[0]}/{path.stem}" if one else str(path.with_suffix("")): json.loads(full.read_text())
        for path, full in found.items()
    }


def test_the_report_its_figure_and_a_record_for_each_cell_are_written(compared):
    written = {"report.md", "report.html", "report.txt", "quality_passes.png", "tasks.png", "summary.json"}
    assert written <= {path.name for path in compared.iterdir()}
    found = records(compared)
    for arm in ("autoregressive", "masked_diffusion", "block_diffusion"):
        assert {f"{arm}-seed0/test-frozen", f"{arm}-seed0/unseen_templates-frozen", f"{arm}-seed0/speed-eager"} <= set(
            found
        )
    record = found["block_diffusion-seed0/test-frozen"]
    assert record["result"]["n"] == 4
    assert {"commit", "versions", "machine", "date", "settings"} <= record.keys()
    assert record["settings"]["training"]["config"]["steps"] == 3


def test_the_twins_had_equal_parameters_tokens_and_steps_and_the_report_prints_them(compared):
    arms = json.loads((compared / "summary.json").read_text())["arms"]
    assert len({(arm["parameters"], arm["steps"], arm["rows_a_step"]) for arm in arms}) == 1
    report = (compared / "report.md").read_text()
    assert f"{arms[0]['parameters']:,}" in report
    assert "one call of the trunk" in report


def test_every_number_of_the_tables_stands_in_a_record(compared):
    summary = json.loads((compared / "summary.json").read_text())
    rows = {row["arm"]: row for row in summary["quality"]["test"]}
    for name, record in records(compared).items():
        if name.endswith("/test-frozen"):
            ours = rows[name.split("-seed")[0]]
            assert ours["exact"] == record["result"]["exact"]
            assert ours["total_passes"] == record["result"]["total_passes"]


SUITE = {
    "kyc": {"name": "kyc", "knobs": {"fields": "6", "decoys": "0"}, "train_rows": 40, "dev_rows": 3, "test_rows": 4},
    "sql": {"name": "sql", "train_rows": 40, "dev_rows": 3, "test_rows": 4},
}


@pytest.fixture(scope="module")
def suite(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("suite")
    few = [{"prompt": f"City: Rom{n}", "response": f'{{"city":"Rom{n}"}}'} for n in range(60)]
    (folder / "towns.jsonl").write_text("".join(json.dumps(row) + "\n" for row in few))
    towns = {"file": str(folder / "towns.jsonl"), "train_rows": 70, "dev_rows": 3, "test_rows": 4}
    words = [f"--output={folder / 'run'}", "--seeds=[0,1]", f"--tasks={json.dumps(SUITE | {'towns': towns})}"]
    assert main([str(ROOT / "configs" / "gap" / "demo.yaml"), *words, *TINY]) == 0
    return folder / "run"


def test_one_model_of_each_arm_learns_all_tasks_of_a_suite_and_each_is_measured_apart(suite):
    rows = [json.loads(line) for line in (suite / "data" / "train.jsonl").open()]
    assert {task: sum(row["task"] == task for row in rows) for task in ("kyc", "sql", "towns")} == {
        "kyc": 40,
        "sql": 40,
        "towns": 70,
    }
    assert {row["task"] for row in rows[:20]} == {"kyc", "sql", "towns"}  # mixed, not one behind the other
    assert len(list(suite.glob("*-seed*"))) == 6
    found = records(suite)
    for arm in ("autoregressive", "masked_diffusion", "block_diffusion"):
        for seed in (0, 1):
            cells = {name: found[f"{arm}-seed{seed}/{name}/test-frozen"] for name in ("kyc", "sql", "towns")}
            assert len({cell["result"]["setting"] for cell in cells.values()}) == 1  # one setting, not one a task
            assert [cell["settings"]["group"] for cell in cells.values()] == ["structured", "structured", "real"]


def test_the_gates_of_every_arm_passed_and_stand_in_the_report(compared):
    summary = json.loads((compared / "summary.json").read_text())
    assert {gate["arm"] for gate in summary["gates"]} == {"autoregressive", "masked_diffusion", "block_diffusion"}
    assert all(gate["passed"] for gate in summary["gates"])
    assert "lossless speculation" in (compared / "report.md").read_text()


def test_a_report_refuses_every_headline_when_a_gate_failed_and_names_it(compared, tmp_path):
    folder = shutil.copytree(compared, tmp_path / "run")
    path = folder / "records" / "block_diffusion-seed0" / "gates.json"
    record = json.loads(path.read_text())
    record["result"][0] |= {"passed": False, "detail": "row 0, token 3"}
    path.write_text(json.dumps(record))
    write_report(folder)
    for name in ("report.md", "report.txt", "report.html"):
        text = " ".join((folder / name).read_text().split())
        assert "REFUSED" in text and "rows independent (block_diffusion, seed 0)" in text and "token 3" in text
        assert "exact ÷ twin" not in text.split("How to read it")[0] and "Speed at one stream" not in text


def test_the_report_of_a_suite_has_groups_seeds_and_claims(suite):
    summary = json.loads((suite / "summary.json").read_text())
    assert [(row["group"], row["tasks"]) for row in summary["groups"][::3]] == [
        ("structured", ["kyc", "sql"]),
        ("real", ["towns"]),
    ]
    for row in summary["quality"]["test"]:
        assert list(row["exact_of_seeds"]) == ["0", "1"]
    assert {claim["verdict"] for claim in summary["claims"]} == {"not shown"}  # nothing was learned in three steps
    page = (suite / "report.html").read_text()
    assert "http" not in page.replace("http-equiv", "")
    assert page.count("<table>") == len((suite / "report.md").read_text().split("\n## ")) - 2


def test_a_second_call_trains_and_measures_nothing_again(compared):
    config = str(ROOT / "configs" / "gap" / "demo.yaml")
    before = {path: path.stat().st_mtime_ns for path in compared.rglob("*.json") if path.name != "summary.json"}
    main([config, f"--output={compared}", "--task.train_rows=60", *TINY])
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_deleted_record_is_computed_again_alone_and_comes_out_equal(compared):
    path = compared / "records" / "block_diffusion-seed0" / "kyc" / "test-frozen.json"
    before = json.loads(path.read_text())["result"]
    others = {p: p.stat().st_mtime_ns for p in compared.glob("records/*/*/*.json") if p != path}
    path.unlink()
    config = str(ROOT / "configs" / "gap" / "demo.yaml")
    main([config, f"--output={compared}", "--task.train_rows=60", *TINY])
    assert json.loads(path.read_text())["result"] == before
    assert {p: p.stat().st_mtime_ns for p in others} == others


def test_a_folder_of_another_comparison_is_refused(compared):
    config = str(ROOT / "configs" / "gap" / "demo.yaml")
    with pytest.raises(UserError, match="another config"):
        main([config, f"--output={compared}", "--task.train_rows=61", *TINY])


def test_arms_without_the_twin_are_refused():
    with pytest.raises(UserError, match="autoregressive"):
        main(["--arms=[block_diffusion]"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["addresses", "restaurants"])
def test_real_files_go_the_same_way(name, tmp_path):
    source = ROOT.parent / "shared" / "data" / f"{name}.jsonl"
    if not source.is_file():
        pytest.skip("the real data sets are not here")
    few = tmp_path / f"{name}.jsonl"
    few.write_text("".join(source.read_text().splitlines(keepends=True)[:80]))
    config = str(ROOT / "configs" / "gap" / "file.yaml")
    assert main([config, f"--output={tmp_path / 'run'}", f"--task.file={few}", *TINY]) == 0
    assert records(tmp_path / "run")["masked_diffusion-seed0/test-frozen"]["result"]["n"] == 4


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


def test_a_folder_that_holds_no_comparison_is_refused(tmp_path, capsys):
    for command in (presets, speculation, throughput):
        assert run_command(command, [str(tmp_path)]) == 2
        assert "evals gap" in capsys.readouterr().err


def test_memory_is_measured_for_both_loops_in_processes_of_their_own(capsys):
    assert memory(["--length", "128", "--device", "cpu", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["result"]
    assert row["cache"] == 2 * 4 * 128 * 4 * 64 * 4
    assert 0 < row["ours"] < row["published"]
    assert row["published"] > row["logits_of_the_canvas"]

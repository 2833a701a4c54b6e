"""The comparison at toy size: every station leaves its files, resumes behind them, and the report repeats them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from evals.gap import main
from evals.report import write_report
from mdlm.errors import UserError
from tests.evals.runs import ROOT, SUITE, TINY, records


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

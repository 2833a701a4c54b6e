"""`python -m train plot`: the curves of runs on top of each other."""

from __future__ import annotations

import json
import sys

import pytest

from mdlm.errors import run_command
from tests.train.runs import config_of
from train.__main__ import main
from train.loop import Run
from train.plot import read_log, series


@pytest.fixture(scope="module")
def runs(data, tmp_path_factory):
    folders = [tmp_path_factory.mktemp("runs") / name for name in ("autoregressive", "block_diffusion")]
    for folder in folders:
        Run(config_of(folder, folder.name), *data, data[1]).train()
    return folders


def test_several_runs_come_into_one_figure(runs, tmp_path, capsys):
    figure = tmp_path / "figures" / "curves.svg"
    assert run_command(main, ["plot", *map(str, runs), f"--out={figure}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {"figure": str(figure)}
    assert figure.read_text().count("<path") > 20
    assert run_command(main, ["plot", str(runs[0] / "log.jsonl"), f"--out={tmp_path / 'one.png'}"]) == 0
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")


def test_a_step_that_was_logged_again_after_an_interruption_counts_once(tmp_path):
    """The later record holds, and numbers that were not logged at a step leave no point there."""
    lines = [{"step": 2, "loss": 9}, {"step": 4, "loss": 8}, {"step": 2, "loss": 7}, {"step": 3, "loss": 6, "v": None}]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert series(read_log(tmp_path), "loss") == ([2, 3, 4], [7, 6, 8])
    assert series(read_log(tmp_path), "v") == ([], [])


@pytest.mark.parametrize(
    ("content", "named"), [(None, "no such log"), ("", "no record yet"), ('{"loss": 1}\n', "log.jsonl:1"), ("{", ":1")]
)
def test_a_log_that_cannot_be_drawn_is_named(tmp_path, capsys, content, named):
    if content is not None:
        (tmp_path / "log.jsonl").write_text(content)
    assert run_command(main, ["plot", str(tmp_path), f"--out={tmp_path / 'a.png'}"]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert named in line and "log.jsonl" in line


def test_another_format_is_refused_with_those_there_are(runs, tmp_path, capsys):
    assert run_command(main, ["plot", str(runs[0]), f"--out={tmp_path / 'a.doc'}"]) == 2
    assert "png" in capsys.readouterr().err.splitlines()[-1]


def test_without_matplotlib_the_command_says_what_to_install(runs, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert run_command(main, ["plot", str(runs[0]), f"--out={tmp_path / 'a.png'}"]) == 2
    assert "mdlm-reference[evals]" in capsys.readouterr().err
    assert not (tmp_path / "a.png").exists()


def test_a_figure_needs_a_name(runs, capsys):
    assert run_command(main, ["plot", str(runs[0])]) == 2
    assert "--out" in capsys.readouterr().err

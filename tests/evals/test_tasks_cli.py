"""`python -m evals`, `tasks` and `make-data` as a user meets them."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys

import pytest

from evals.__main__ import COMMANDS, main
from evals.tasks import TASKS, get_task
from mdlm.errors import run_command

KYC = get_task("kyc")


def evals(*argv):
    return run_command(main, [str(word) for word in argv])


def complaint(capsys, *argv):
    """The one line that a wrong command line is answered with."""
    assert evals(*argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err


def make_data(out, *more):
    return ("make-data", "--task", "kyc", "--out", out, *more)


@pytest.mark.parametrize("argv", [(), ("--help",), ("-h",)])
def test_without_a_command_it_lists_the_commands(capsys, argv):
    assert evals(*argv) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in COMMANDS)


def test_an_unknown_command_is_answered_with_the_nearest(capsys):
    line = complaint(capsys, "make-date")
    assert "did you mean 'make-data'" in line
    assert "gap" in line


def test_tasks_shows_each_task_with_splits_knobs_and_an_example(capsys):
    assert evals("tasks") == 0
    out = capsys.readouterr().out
    example = next(KYC.generate("train", 1, 0))
    assert all(text in out for text in (*TASKS, KYC.description, *KYC.splits, "fields=8", "6..10", example.response))


def test_tasks_as_json_is_one_line(capsys):
    assert evals("tasks", "kyc", "--json") == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    (kyc,) = json.loads(out)
    assert kyc["name"] == "kyc"
    assert kyc["splits"] == ["train", "dev", "test", "unseen_templates"]
    assert kyc["knobs"]["decoys"]["default"] == 2
    json.loads(kyc["example"]["response"])


def test_make_data_writes_the_rows_of_the_generator(tmp_path, capsys):
    path = tmp_path / "new folder" / "test.jsonl"
    settings = ("--split", "test", "--rows", 20, "--seed", 5, "--set", "fields=6", "--set", "decoys=1")
    assert evals(*make_data(path, *settings, "--json")) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    made = json.loads(out)
    assert made["knobs"] == {"fields": 6, "decoys": 1, "templates": 128, "kind": "form", "mrz": "read"}
    assert made["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    lines = path.read_text(encoding="utf-8").split("\n")
    expected = KYC.generate("test", 20, 5, KYC.knobs(fields=6, decoys=1))
    assert [json.loads(line) for line in lines[:-1]] == [
        {"prompt": row.prompt, "response": row.response, "template": row.template} for row in expected
    ]
    assert lines[-1] == ""


def test_make_data_says_where_the_rows_are(tmp_path, capsys):
    assert evals(*make_data(tmp_path / "a.jsonl", "--rows", 3)) == 0
    assert capsys.readouterr().out == f"wrote 3 rows to {tmp_path / 'a.jsonl'}\n"


def test_an_interrupted_run_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch):
    path = tmp_path / "train.jsonl"
    path.write_text("old\n")

    some = list(KYC.generate("train", 3, 0))

    def interrupted(*_):
        yield from some
        raise KeyboardInterrupt

    monkeypatch.setattr("evals.tasks.Task.generate", interrupted)
    assert evals(*make_data(path, "--rows", 10)) == 130
    assert path.read_text() == "old\n"
    assert os.listdir(tmp_path) == ["train.jsonl"]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--rows", 5, "--set", "field=6"), ["'field'", "did you mean 'fields'", "decoys, templates"]),
        (("--rows", 5, "--set", "fields=11"), ["fields='11'", "6..10"]),
        (("--rows", 5, "--set", "fields=six"), ["fields='six'", "6..10"]),
        (("--rows", 5, "--set", "fields"), ["'fields'", "KNOB=VALUE"]),
        (("--rows", 5, "--split", "tests"), ["'tests'", "did you mean 'test'", "unseen_templates"]),
        (("--rows", 0), ["--rows 0", "at least one"]),
        (("--rows", "many"), ["--rows", "'many'"]),
        ((), ["--rows"]),
        (("--rows", 5, "--task", "kyk"), ["'kyk'", "did you mean 'kyc'"]),
        (("--rows", 5, "--sed", 1, "--nonsense"), ["--nonsense", "--help"]),
    ],
)
def test_wrong_input_is_answered_in_one_line_and_nothing_is_written(tmp_path, capsys, more, words):
    line = complaint(capsys, *make_data(tmp_path / "x.jsonl", *more))
    assert all(word in line for word in words), line
    assert os.listdir(tmp_path) == []


def test_a_folder_is_no_file_to_write(tmp_path, capsys):
    assert "is a folder" in complaint(capsys, *make_data(tmp_path, "--rows", 1))


def test_a_place_that_cannot_be_written_is_named(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert str(tmp_path / "file") in complaint(capsys, *make_data(tmp_path / "file" / "x.jsonl", "--rows", 1))


def test_python_m_evals_runs_without_a_traceback():
    command = [sys.executable, "-m", "evals", "tusks"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [os.getcwd(), *sys.path]))}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: unknown command 'tusks'; did you mean 'tasks'?")
    assert done.stderr.count("\n") == 1

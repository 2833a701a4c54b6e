"""Records: what they hold besides the result, and that a file is whole or not there."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from evals.records import make_record, read_record, write_record
from mdlm.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = {"config": {"dim": 128}, "seed": 3, "dtype": "bf16", "compile": None}
RESULT = {"exact": 0.5, "n": 8, "interval": [0.2, 0.8]}


def git(folder, *words):
    done = subprocess.run(["git", "-C", folder, *words], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def test_a_record_says_what_made_its_result():
    record = make_record("quality", SETTINGS, RESULT)
    assert record["kind"] == "quality"
    assert record["settings"] == SETTINGS
    assert record["result"] == RESULT
    assert record["versions"]["torch"] == version("torch")
    assert record["machine"]["threads"] == torch.get_num_threads()
    assert record["machine"]["cores"] >= 1
    assert record["machine"]["cpu"]
    age = datetime.now(UTC) - datetime.fromisoformat(record["date"])
    assert timedelta(0) <= age < timedelta(minutes=5)


def test_a_record_names_the_commit_of_this_checkout():
    own = git(ROOT, "rev-parse", "--show-toplevel") == str(ROOT)
    record = make_record("quality", SETTINGS, RESULT)
    assert record["commit"] == (git(ROOT, "rev-parse", "HEAD") if own else None)
    assert record["uncommitted_changes"] is (git(ROOT, "status", "--porcelain") != "" if own else None)


def test_a_copy_inside_another_repository_does_not_take_that_ones_commit(tmp_path):
    who = ("-c", "user.name=n", "-c", "user.email=e@example.org")
    assert git(tmp_path, "init", "-q") is not None
    assert git(tmp_path, *who, "commit", "-q", "--allow-empty", "-m", "another project") is not None
    for package in ("mdlm", "evals"):
        shutil.copytree(ROOT / package, tmp_path / "lib" / package)
    code = "from evals.records import make_record; print(make_record('k', {}, 0)['commit'])"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path / "lib", capture_output=True, text=True)
    assert done.stdout == "None\n", done.stderr


def test_what_is_written_is_what_is_read(tmp_path):
    path = tmp_path / "new folder" / "record.json"
    written = write_record(path, kind="quality", settings=SETTINGS, result=RESULT)
    assert read_record(path) == written
    assert os.listdir(path.parent) == ["record.json"]


@pytest.mark.parametrize("result", [float("nan"), [float("inf")], {"model": object()}])
def test_a_result_that_is_no_json_leaves_the_older_record_as_it_was(tmp_path, result):
    path = tmp_path / "record.json"
    older = write_record(path, "quality", SETTINGS, RESULT)
    with pytest.raises((ValueError, TypeError)):
        write_record(path, "quality", SETTINGS, result)
    assert read_record(path) == older
    assert os.listdir(tmp_path) == ["record.json"]


def test_a_full_disk_leaves_the_older_record_as_it_was_and_no_litter(tmp_path, monkeypatch):
    path = tmp_path / "record.json"
    older = write_record(path, "quality", SETTINGS, RESULT)

    def full(_descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_record(path, "quality", SETTINGS, {"exact": 1.0})
    assert read_record(path) == older
    assert os.listdir(tmp_path) == ["record.json"]


def test_a_folder_is_no_place_for_a_record(tmp_path):
    with pytest.raises(UserError, match="is a folder"):
        write_record(tmp_path, "quality", SETTINGS, RESULT)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "no such record"),
        ('{"kind": "qual', "not valid JSON"),
        ("[1, 2]", "not a record"),
        ('{"kind": "quality", "result": 1}', "not a record"),
        (json.dumps({"kind": "k", "format_version": 99, "settings": {}, "result": 1}), "format_version 99"),
    ],
)
def test_a_file_that_is_no_record_is_refused_by_name(tmp_path, text, words):
    path = tmp_path / "record.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError, match=words) as raised:
        read_record(path)
    assert str(path) in str(raised.value)

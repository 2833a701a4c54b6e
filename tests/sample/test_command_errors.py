"""`python -m sample` with input it cannot use, and interrupted."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mdlm.errors import run_command
from sample import __main__ as command
from sample import denoise
from sample.__main__ import main

PROMPTS = ["the cat", "Ada", "sat on the mat", "[red]é[/red]"]


def each(flag, values):
    return [word for value in values for word in (flag, value)]


# Bad input


@pytest.mark.parametrize(
    ("arm", "options", "words"),
    [
        ("nowhere", (), ["nowhere", "no such folder"]),
        ("masked_diffusion", ("--prompt", ""), ["--prompt", "empty", "--unconditional"]),
        ("masked_diffusion", ("--prompt", "a", "--prompt", " \n"), ["number 2 of 2", "empty"]),
        ("masked_diffusion", ("--prompt", "1" * 48), ["49 tokens", "47 fit", "48 in all"]),
        ("autoregressive", ("--prompt", "1" * 48), ["49 tokens", "47 fit", "48 in all"]),
        ("masked_diffusion", ("--prompt", "1", "--max-new-tokens", 47), ["--max-new-tokens 47", "at most 46"]),
        ("autoregressive", ("--prompt", "1", "--max-new-tokens", 47), ["--max-new-tokens 47", "at most 46"]),
        ("masked_diffusion", ("--prompt", "1", "--max-new-tokens", 0), ["--max-new-tokens", "'0'", "at least 1"]),
        ("masked_diffusion", ("--prompt", "1", "--block-length", 0), ["--block-length", "'0'", "at least 1"]),
        ("block_diffusion", ("--prompt", "1", "--block-length", "eight"), ["--block-length", "'eight'"]),
        ("autoregressive", ("--prompt", "1", "--threshold", 0.9), ["--threshold", "autoregressive", "leave it out"]),
        ("autoregressive", ("--prompt", "1", "--score", "margin"), ["--score", "autoregressive"]),
        ("masked_diffusion", ("--prompt", "1", "--speculate", "lookup"), ["--speculate", "masked_diffusion"]),
        ("autoregressive", ("--prompt", "1", "--speculate", "nowhere"), ["nowhere"]),
        ("autoregressive", ("--prompt", "1", "--speculate", "lookup:0"), ["longest match", "at least 1"]),
        ("autoregressive", ("--prompt", "1", "--speculate", "lookup:all"), ["lookup:all", "lookup:any"]),
        ("autoregressive", ("--prompt", "1", "--draft-length", "3"), ["--draft-length", "--speculate"]),
        ("autoregressive", ("--prompt", "1", "--speculate", "lookup", "--show"), ["--speculate", "--show"]),
        ("autoregressive", ("--prompt", "1", "--preset", "wino"), ["--preset", "autoregressive"]),
        ("autoregressive", ("--prompt", "1", "--max-denoising-steps", 2), ["--max-denoising-steps", "autoregressive"]),
        ("autoregressive", ("--prompt", "1", "--template", "<|mask|>"), ["--template", "autoregressive"]),
        ("autoregressive", ("--prompt", "1<|mask|>"), ["<|mask|>", "autoregressive", "--mask-marker"]),
        ("masked_diffusion", ("--prompt", "1<|mask:0|>"), ["<|mask:0|>", "from 1 to 47"]),
        ("masked_diffusion", ("--prompt", "1", "--template", "1"), ["--template", "no gap"]),
        ("masked_diffusion", ("--prompt", "1", "--mask-marker", "<|x|>"), ["'<|x|>'", "between the bars"]),
        ("masked_diffusion", ("--prompt", "1", "--threshold", 90), ["--threshold 90", "confidence", "at most 1"]),
        ("masked_diffusion", ("--prompt", "1", "--threshold", "nan"), ["--threshold", "'nan'"]),
        ("masked_diffusion", ("--prompt", "1", "--score", "confidense"), ["--score", "'confidense'", "confidence"]),
        ("masked_diffusion", ("--prompt", "1", "--temperature", -1), ["temperature", "0 or more"]),
        ("masked_diffusion", ("--prompt", "1", "--temperature", 1, "--top-p", 0), ["top_p", "above 0"]),
        ("masked_diffusion", ("--prompt", "1", "--top-p", 0.9), ["--top-p", "--temperature"]),
        ("masked_diffusion", ("--prompt", "1", "--seed", -1), ["--seed", "'-1'"]),
        ("masked_diffusion", ("--prompt", "1", "--device", "tpu"), ["--device tpu", "cpu, cuda"]),
        ("masked_diffusion", ("--prompt", "1", "--dtype", "fp8"), ["--dtype", "'fp8'", "bf16"]),
        ("masked_diffusion", ("--prompt", "1", "--show", -1), ["--show -1"]),
        ("masked_diffusion", ("--prompt", "1", "--unconditional"), ["--unconditional", "--prompt"]),
        ("masked_diffusion", ("--prompt", "1", "--treshold", 0.9), ["'--treshold'", "did you mean '--threshold'"]),
        ("masked_diffusion", ("--prompt", "1", "--max-new", 4), ["'--max-new'", "--max-new-tokens"]),
        ("masked_diffusion", ("the cat",), ["'the cat'", "--prompt TEXT"]),
        ("masked_diffusion", ("--prompt", "\udcff"), ["surrogate"]),
    ],
)
def test_wrong_input_is_answered_in_one_line(complaint, arm, options, words):
    line = complaint(arm, *options)
    assert all(word in line for word in words), line


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_device_that_is_not_there_is_named(complaint):
    line = complaint("masked_diffusion", "--prompt", "1", "--device", "cuda")
    assert "--device cuda" in line
    assert "--device cpu" in line


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", b'{"prompt": "a"}\n\n{"prompt": \n', ["a.jsonl:3", "broken JSON"]),
        ("a.jsonl", b'{"prompt": "a"}\n["prompt"]\n', ["a.jsonl:2", '"prompt"']),
        ("a.jsonl", b'{"text": "a"}\n', ["a.jsonl:1", '"prompt"']),
        ("a.jsonl", b'{"prompt": "a"}\n{"prompt": ""}', ["a.jsonl:2", "empty"]),
        ("a.jsonl", b'{"prompt": 1' + b"0" * 5000 + b"}", ["a.jsonl:1", "unreadable JSON"]),
        ("a.txt", b"caf\xc3\xa9\ncaf\xe9\n", ["a.txt:2", "byte 10", "UTF-8"]),
        ("a.txt", b"\n \n", ["a.txt", "no prompts"]),
    ],
)
def test_a_broken_prompts_file_is_named_with_its_line(complaint, tmp_path, name, content, words):
    path = tmp_path / name
    path.write_bytes(content)
    line = complaint("masked_diffusion", "--prompts", path)
    assert all(word in line for word in words), line


def test_a_missing_prompts_file_is_named(complaint, tmp_path):
    assert "gone.txt: No such file" in complaint("masked_diffusion", "--prompts", tmp_path / "gone.txt")
    assert str(tmp_path) in complaint("masked_diffusion", "--prompts", tmp_path)


@pytest.mark.parametrize(("content", "words"), [(b"", ["stdin", "empty"]), (b"\xff", ["stdin:1", "UTF-8"])])
def test_unusable_stdin_is_named(complaint, stdin_of, content, words):
    stdin_of(content)
    line = complaint("masked_diffusion")
    assert all(word in line for word in words), line


def test_a_closed_stdin_is_no_prompt(complaint, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    assert "--prompt TEXT" in complaint("masked_diffusion")


def test_a_damaged_checkpoint_is_named(complaint, checkpoints, tmp_path):
    def damaged(name, change):
        folder = tmp_path / name
        shutil.copytree(checkpoints["masked_diffusion"], folder)
        change(folder / name)
        return complaint(folder, "--prompt", "1")

    def truncate(path: Path):
        path.write_bytes(path.read_bytes()[:-100])

    assert "model.safetensors cannot be read" in damaged("model.safetensors", truncate)
    assert "not valid JSON" in damaged("config.json", truncate)
    assert "tokenizer.json" in damaged("tokenizer.json", Path.unlink)
    (tmp_path / "empty").mkdir()
    assert "empty holds neither a checkpoint" in complaint(tmp_path / "empty", "--prompt", "1")


# Interruptions and real processes


@pytest.mark.parametrize("as_json", [False, True])
def test_an_interrupted_run_keeps_the_answers_it_has(checkpoints, monkeypatch, capsys, as_json):
    answered = []

    def interrupted(*args, **more):
        if answered:
            raise KeyboardInterrupt
        answered.append(1)
        return denoise(*args, **more)

    monkeypatch.setattr(command, "denoise", interrupted)
    options = [*each("--prompt", PROMPTS), "--batch-size", "3", *["--json"] * as_json]
    assert run_command(main, ["--checkpoint", str(checkpoints["masked_diffusion"]), *options]) == 130
    out, err = capsys.readouterr()
    assert err.count("\n") == 2
    assert err.startswith("3 answers")
    if as_json:
        made = json.loads(out)
        assert made["complete"] is False
        assert [result["prompt"] for result in made["results"]] == PROMPTS[:3]
    else:
        assert out.count("\n") >= 3


def test_ctrl_c_ends_a_process_with_130_and_no_traceback(checkpoints, started, tmp_path):
    (tmp_path / "prompts.txt").write_text("the cat\n" * 50_000)
    options = ("--prompts", tmp_path / "prompts.txt", "--batch-size", 1)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with started("--checkpoint", checkpoints["autoregressive"], *options, **pipes) as process:
        first = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert first.endswith("\n")
    assert re.search(r"^\d+ answers?, ", err)
    assert "Traceback" not in err
    assert err.endswith("interrupted; what was already written is kept\n")


def test_a_process_with_wrong_input_has_one_line_and_no_traceback(started, tmp_path):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with started("--checkpoint", tmp_path / "nowhere", "--prompt", "1", **pipes) as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: ")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_full_disk_is_answered_in_one_line(checkpoints, started, options):
    pipes = {"stdout": open("/dev/full", "w"), "stderr": subprocess.PIPE, "text": True}  # noqa: SIM115
    with (
        pipes["stdout"],
        started("--checkpoint", checkpoints["autoregressive"], "--prompt", "1", *options, **pipes) as process,
    ):
        _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "Traceback" not in err and "Exception ignored" not in err
    assert err.splitlines()[-1].startswith("error: the disk is full")

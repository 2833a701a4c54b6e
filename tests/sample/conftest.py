"""Random checkpoints and the command line that all tests of decoding share."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from functools import partial

import pytest

from mdlm.checkpoint import save_checkpoint
from mdlm.errors import run_command
from mdlm.tokenizer import Tokenizer
from sample.__main__ import main

ARMS = ("autoregressive", "masked_diffusion", "block_diffusion")
TEXTS = ["the cat sat on the mat", '{"name":"Ada","born":1815}', "é and [red]ü[/red]"]


@pytest.fixture(scope="session")
def tokenizer():
    return Tokenizer.train(TEXTS * 4, 300)


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory, tiny_model, tokenizer):
    """One random checkpoint for each objective, objective -> folder."""
    ids = {f"{role}_token_id": getattr(tokenizer, f"{role}_id") for role in ("mask", "end", "pad", "begin")}
    folders = {}
    for arm in ARMS:
        model = tiny_model(arm, vocab_size=tokenizer.vocab_size, max_length=48, block_length=8, **ids)
        folders[arm] = tmp_path_factory.mktemp("models") / arm
        save_checkpoint(folders[arm], model, tokenizer, {"response_length": 20})
    return folders


@pytest.fixture
def sample(checkpoints, capsys):
    """`sample(arm, *options)`: stdout and stderr of a run that succeeds."""

    def run(arm, *options):
        assert run_command(main, ["--checkpoint", str(checkpoints[arm]), *map(str, options)]) == 0
        return capsys.readouterr()

    return run


@pytest.fixture
def record(sample):
    """`record(arm, *options)`: the one JSON line."""

    def run(arm, *options):
        out = sample(arm, *options, "--json").out
        assert out.count("\n") == 1
        return json.loads(out)

    return run


@pytest.fixture
def complaint(checkpoints, capsys):
    """`complaint(arm, *options)`: the one line that a wrong command line is answered with."""

    def run(arm, *options):
        folder = checkpoints.get(arm, arm)
        assert run_command(main, ["--checkpoint", str(folder), *map(str, options)]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        return err

    return run


@pytest.fixture
def stdin_of(monkeypatch):
    """`stdin_of(bytes)` is what the command reads from its stdin."""
    return lambda content: monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


@pytest.fixture
def started():
    """`started(*options, **pipes)`: the command as a process of its own."""

    def start(*options, **pipes):
        path = os.pathsep.join([os.getcwd(), *filter(None, sys.path)])
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        # A shell may have started the tests with SIGINT ignored, which a child would inherit.
        pipes["preexec_fn"] = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        return subprocess.Popen([sys.executable, "-m", "sample", *map(str, options)], env=environment, **pipes)

    return start

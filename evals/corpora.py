"""Corpora that need no download: a Markov chain, whose entropy is known, and the sources of Python's own library."""

from __future__ import annotations

import hashlib
import json
import math
import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from mdlm.errors import UserError

SPLITS = ("train", "dev", "test")
SHARES = (0.9, 0.05, 0.05)
_LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__", "lib-dynload"}


class MarkovChain:
    """A first-order chain over the ten digits, drawn by `seed`: every text's probability is known.

    Rows of the transition matrix are Dirichlet(0.3): a few likely successors each, none impossible.
    """

    def __init__(self, seed: int = 0) -> None:
        self.transition = np.random.default_rng([seed, 0]).dirichlet(np.full(10, 0.3), size=10)
        self.transition = 0.99 * self.transition + 0.001
        values, vectors = np.linalg.eig(self.transition.T)
        stationary = np.real(vectors[:, np.argmax(np.real(values))])
        self.stationary = stationary / stationary.sum()

    def text(self, length: int, seed: int) -> str:
        """A run of the chain from its stationary distribution."""
        uniform = np.random.default_rng([seed, 1]).random(length)
        cumulative = self.transition.cumsum(1)
        states = np.empty(length, dtype=np.int64)
        states[0] = np.searchsorted(self.stationary.cumsum(), uniform[0])
        for place in range(1, length):
            states[place] = np.searchsorted(cumulative[states[place - 1]], uniform[place])
        return "".join(map(str, np.minimum(states, 9)))

    def nats(self, text: str) -> float:
        """−log of the probability of a text that starts anywhere in a run."""
        states = np.array(list(map(int, text)))
        return float(-np.log(self.stationary[states[0]]) - np.log(self.transition[states[:-1], states[1:]]).sum())

    def entropy_rate(self) -> float:
        """Nats a symbol, in the long run."""
        return float(-(self.stationary[:, None] * self.transition * np.log(self.transition)).sum())

    def entropy(self, length: int) -> float:
        """Nats of a window of that length: the first symbol's and the transitions'."""
        first = float(-(self.stationary * np.log(self.stationary)).sum())
        return first + (length - 1) * self.entropy_rate()


def write_markov(folder: Path, seed: int, symbols: int) -> dict[str, Path]:
    """Three runs of the chain as text files, `symbols` long for training and a twentieth for each other."""
    chain, paths = MarkovChain(seed), {}
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(SPLITS):
        paths[name] = folder / f"{name}.txt"
        if not paths[name].exists():
            _write(paths[name], chain.text(symbols if name == "train" else symbols // 20, seed=1000 * seed + number))
    return paths


def write_stdlib(folder: Path) -> dict[str, Path]:
    """The running Python's library sources as JSON Lines of `text`, split by top-level module.

    All files of a module fall on one side; its name's SHA-256 decides. Tests are left out.
    """
    lines: dict[str, list[str]] = {name: [] for name in SPLITS}
    for split, _, path in stdlib_files():
        text = path.read_text(encoding="utf-8", errors="replace")
        if text.strip():
            lines[split].append(json.dumps({"text": text}) + "\n")
    if not all(lines.values()):
        raise UserError(f"{_root()} holds too few modules to split; use a Python whose library is installed as sources")
    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: folder / f"{name}.jsonl" for name in SPLITS}
    for name, path in paths.items():
        if not path.exists():
            _write(path, "".join(lines[name]))
    return paths


def stdlib_files() -> Iterator[tuple[str, str, Path]]:
    """(split, top-level module, path) of every source file of the running Python's library, in order of path."""
    for path in sorted(_sources(_root())):
        module = path.relative_to(_root()).parts[0].removesuffix(".py")
        position = int.from_bytes(hashlib.sha256(module.encode()).digest()[:8], "big") / 2**64
        yield SPLITS[int(np.searchsorted(np.cumsum(SHARES)[:-1], position, side="right"))], module, path


def _root() -> Path:
    return Path(sysconfig.get_paths()["stdlib"])


def _sources(root: Path) -> Iterator[Path]:
    for folder, names, files in os.walk(root):
        names[:] = [name for name in names if name not in _LEFT_OUT]
        yield from (Path(folder) / file for file in files if file.endswith(".py"))


def _write(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def bits(nats: float) -> float:
    """Nats in bits."""
    return nats / math.log(2)

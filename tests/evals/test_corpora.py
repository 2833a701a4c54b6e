"""Corpora without a download: a chain whose probabilities are what its texts show, and a library split by module."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from evals.corpora import MarkovChain, write_markov, write_stdlib


def test_the_chains_transitions_have_their_probabilities():
    """Every one of 100 transition counts in a text of 400,000 symbols within 4.5 standard deviations."""
    chain = MarkovChain(seed=3)
    states = np.array(list(map(int, chain.text(400_000, seed=1))))
    counts = np.zeros((10, 10))
    np.add.at(counts, (states[:-1], states[1:]), 1)
    rows = counts.sum(1, keepdims=True)
    deviation = np.sqrt(rows * chain.transition * (1 - chain.transition))
    assert (np.abs(counts - rows * chain.transition) < 4.5 * deviation).all()
    assert np.allclose(chain.stationary @ chain.transition, chain.stationary)
    assert np.abs(rows[:, 0] / rows.sum() - chain.stationary).max() < 0.005


def test_the_chains_entropy_is_the_mean_of_its_nats():
    """5,000 windows of 16 symbols, within four standard errors; windows of one run overlap in nothing."""
    chain = MarkovChain(seed=0)
    text = chain.text(80_000, seed=2)
    nats = np.array([chain.nats(text[start : start + 16]) for start in range(0, 80_000, 16)])
    assert abs(nats.mean() - chain.entropy(16)) < 4 * nats.std() / math.sqrt(len(nats))
    assert chain.entropy(17) - chain.entropy(16) == pytest.approx(chain.entropy_rate())


def test_all_texts_of_the_chain_have_probability_one():
    chain = MarkovChain(seed=1)
    total = sum(math.exp(-chain.nats(f"{number:03d}")) for number in range(1000))
    assert total == pytest.approx(1)


def test_the_splits_of_the_chain_are_different_runs(tmp_path):
    paths = write_markov(tmp_path, seed=0, symbols=20_000)
    texts = {name: path.read_text() for name, path in paths.items()}
    assert {name: len(text) for name, text in texts.items()} == {"train": 20_000, "dev": 1000, "test": 1000}
    assert texts["dev"] != texts["test"]
    assert texts["dev"][:200] not in texts["train"]


def test_the_library_is_split_by_module(tmp_path):
    """No text stands on two sides, and the files of one package stand on one."""
    paths = write_stdlib(tmp_path)
    texts = {name: [json.loads(line)["text"] for line in path.open()] for name, path in paths.items()}
    assert min(map(len, texts.values())) >= 5
    assert not set(texts["train"]) & (set(texts["dev"]) | set(texts["test"]))
    sides = {
        name for name, rows in texts.items() for text in rows if "class JSONDecoder" in text or "c_scanner" in text
    }
    assert len(sides) == 1

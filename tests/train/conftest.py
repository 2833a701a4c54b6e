"""What the tests of training share."""

from __future__ import annotations

import json

import pytest

from mdlm.tokenizer import Tokenizer
from train.data import open_dataset, prepare


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """Tokenizer and data set of twenty short rows."""
    folder = tmp_path_factory.mktemp("data")
    rows = [{"prompt": f"say {i}", "response": "abc" * (1 + i % 4)} for i in range(20)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokenizer = Tokenizer.train([], 260)
    prepare(folder / "rows.jsonl", folder / "tokens", tokenizer, prompt_length=8, response_length=16)
    return tokenizer, open_dataset(folder / "tokens")

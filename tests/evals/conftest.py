"""A finished comparison at toy size, one for each module that asks."""

from __future__ import annotations

from pathlib import Path

import pytest

from evals.gap import main
from tests.evals.runs import ROOT, TINY


@pytest.fixture(scope="module")
def compared(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("gap") / "run"
    config = str(ROOT / "configs" / "gap" / "demo.yaml")
    assert main([config, f"--output={folder}", "--task.train_rows=60", *TINY]) == 0
    return folder

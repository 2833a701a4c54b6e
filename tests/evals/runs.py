"""What the tests of comparisons share: options of a toy size, a suite of tasks, and how records are read."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]
TINY = [
    "--train.steps=3",
    "--train.batch_size=4",
    "--train.compile=false",
    "--train.precision=fp32",
    "--train.log_every=1",
    "--train.validation_batches=1",
    "--train.model.dim=16",
    "--train.model.layers=1",
    "--train.model.heads=1",
    "--train.model.kv_heads=1",
    "--train.model.head_dim=16",
    "--train.model.hidden_dim=16",
    "--train.data.vocab_size=300",
    "--train.data.prompt_length=160",
    "--train.data.response_length=128",
    "--train.data.too_long=cut",
    "--dtype=fp32",
    "--batch_size=4",
    "--task.dev_rows=3",
    "--task.test_rows=4",
    "--speed_rows=1",
    "--speed_repeats=1",
    "--speed_compiled=false",
    "--curve_checkpoints=2",
]

SUITE = {
    "kyc": {"name": "kyc", "knobs": {"fields": "6", "decoys": "0"}, "train_rows": 40, "dev_rows": 3, "test_rows": 4},
    "sql": {"name": "sql", "train_rows": 40, "dev_rows": 3, "test_rows": 4},
}


def records(folder: Path) -> dict[str, dict]:
    """`ARM-seedN/NAME` -> record of a comparison of one task; with several, `ARM-seedN/TASK/NAME`."""
    found = {path.relative_to(folder / "records"): path for path in folder.glob("records/*/*/*.json")}
    one = len({path.parts[1] for path in found}) == 1
    return {
        f"{path.parts[0]}/{path.stem}" if one else str(path.with_suffix("")): json.loads(full.read_text())
        for path, full in found.items()
    }

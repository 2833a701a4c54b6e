"""Twenty training losses of each objective and optimizer: a change that should not alter results moves none of them.

    python tests/golden/regenerate.py

writes them anew, which is right only together with a change that is meant to alter training; the commit says why. CPU,
fp32, eager, one thread, toy size. `tests/train/test_golden.py` recomputes and compares.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any, Literal

import torch

from mdlm.config import OBJECTIVES
from mdlm.tokenizer import Tokenizer
from train.config import DataConfig, ModelSection, OptimizerConfig, TrainConfig
from train.data import open_dataset, prepare
from train.loop import Run

FOLDER = Path(__file__).parent
STEPS = 20
SHAPE = {"dim": 32, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 8, "hidden_dim": 48, "block_length": 4}
OPTIMIZERS: tuple[Literal["adamw", "muon"], ...] = ("adamw", "muon")
LOGGED = ("step", "loss", "learning_rate", "tokens_seen", "predicted")


def golden_run(objective: str, optimizer: Literal["adamw", "muon"], folder: Path) -> list[dict[str, Any]]:
    """The log of twenty steps in `folder`: losses, and what must not change at all."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    rows = [{"prompt": f"count {n}", "response": " ".join(map(str, range(n % 7 + 1)))} for n in range(30)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokenizer = Tokenizer.train([], 260)
    prepare(folder / "rows.jsonl", folder / "tokens", tokenizer, prompt_length=12, response_length=16)
    config = TrainConfig(
        output=str(folder),
        seed=7,
        steps=STEPS,
        batch_size=8,
        model=ModelSection(objective, **SHAPE),  # type: ignore[arg-type]
        data=DataConfig(prompt_length=12, response_length=16),
        optimizer=OptimizerConfig(optimizer, warmup_steps=5),
        precision="fp32",
        compile=False,
        log_every=1,
    )
    Run(config, tokenizer, open_dataset(folder / "tokens"), None).train()
    torch.set_num_threads(threads)
    records = map(json.loads, (folder / "log.jsonl").read_text().splitlines())
    return [{name: record[name] for name in LOGGED} for record in records]


def main() -> None:
    for objective in OBJECTIVES:
        for optimizer in OPTIMIZERS:
            with tempfile.TemporaryDirectory() as folder:
                lines = ",\n".join(map(json.dumps, golden_run(objective, optimizer, Path(folder))))
            (FOLDER / f"{objective}-{optimizer}.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()

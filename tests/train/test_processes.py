"""One, two and four processes on a CPU (gloo) see the same batches and train the same model, to rounding."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.train.runs import final_state, log_of

ROOT = Path(__file__).parents[2]
OPTIONS = {
    "steps": 12, "batch_size": 8, "precision": "fp32", "compile": "false", "log_every": 1, "checkpoint_every": 12,
    "validate_every": 6, "validation_batches": 2, "optimizer.warmup_steps": 2, "data.vocab_size": 260,
    "data.prompt_length": 8, "data.response_length": 16, "model.dim": 16, "model.layers": 1, "model.heads": 2,
    "model.kv_heads": 1, "model.head_dim": 8, "model.hidden_dim": 24, "model.block_length": 4,
}  # fmt: skip


def trained(folder: Path, processes: int, objective: str, weighting: str) -> Path:
    run = folder / f"{processes}"
    options = OPTIONS | {"output": run, "model.objective": objective, "loss.weighting": weighting}
    options |= {f"data.{name}": folder / "rows.jsonl" for name in ("train", "validation")}
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", processes, "--master-port", 0, "--standalone"]
    words = [sys.executable, *(launch if processes > 1 else []), "-m", "train"]
    words += [f"--{name}={value}" for name, value in options.items()]
    environment = os.environ | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(list(map(str, words)), cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("objective", "weighting", "processes"),
    [
        ("autoregressive", "bound", 2),
        ("masked_diffusion", "plain", 2),
        ("masked_diffusion", "bound", 4),
        ("block_diffusion", "bound", 2),
    ],
)
def test_the_number_of_processes_changes_no_loss(tmp_path, objective, weighting, processes):
    """Answers of 1 to 12 tokens: a mean of the processes' means would be another loss."""
    rows = [{"prompt": f"say {n}", "response": "abcdefghijkl"[: 1 + (n * n) % 12]} for n in range(24)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    one, many = (trained(tmp_path, count, objective, weighting) for count in (1, processes))
    for alone, together in zip(log_of(one), log_of(many), strict=True):
        assert alone.keys() == together.keys()
        for name in ("loss", "gradient_norm", "validation_loss"):
            if name in alone:
                assert together[name] == pytest.approx(alone[name], rel=2e-4), f"{name} at step {alone['step']}"
        for name in ("tokens_seen", "predicted", "overflow"):
            assert together[name] == alone[name]
    (weights, _, progress), (others, _, also) = (final_state(run) for run in (one, many))
    assert progress["predicted"] == also["predicted"]
    for name, weight in weights.items():
        torch.testing.assert_close(others[name], weight, rtol=0, atol=2e-3, msg=name)

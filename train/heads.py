"""`python -m train.heads CONFIG [--key=value ...]`: draft heads on a frozen autoregressive model.

One process, a few minutes, deterministic in the seed; nothing to resume. The output folder holds `config.yaml`,
`log.jsonl`, `data/` and at the end `step-NNNNNNN/`, which `python -m sample --speculate` takes.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from mdlm.checkpoint import checkpoints_in, load_checkpoint, read_header, resolve_checkpoint
from mdlm.config_file import parse_config, write_config
from mdlm.cpu import compile_static, keep_large_buffers
from mdlm.errors import UserError, run_command
from mdlm.heads import DraftHeads, heads_loss, save_heads, weights_fingerprint
from mdlm.objectives import LossConfig
from mdlm.provenance import checkout
from train.batches import BatchSource
from train.config import OptimizerConfig
from train.data import open_dataset, prepare
from train.optimizer import Optimizers

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


@dataclass(frozen=True)
class HeadsConfig:
    """One training of draft heads, from a model and a data file to a folder."""

    checkpoint: str = ""
    """The model to guess for: a checkpoint or a run's folder, autoregressive."""
    train: str = ""
    """Rows of the kind it was trained on; the same sources as for training."""
    output: str = ""
    """Created, and refused if it holds heads already."""
    heads: int = 4
    """How many tokens behind the next one are guessed."""
    seed: int = 0
    """Of the first weights and of the rows' order."""
    steps: int = 1000
    batch_size: int = 16
    """Rows of one step."""
    optimizer: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(lr=2e-2))
    precision: Literal["bf16", "fp32"] = "bf16"
    compile: bool = True
    too_long: Literal["drop", "cut"] = "drop"
    log_every: int = 10

    def __post_init__(self) -> None:
        for name in ("heads", "steps", "batch_size", "log_every"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.seed < 0:
            raise UserError(f"seed is {self.seed}; it must be 0 or more")


def main(argv: list[str]) -> int:
    config, options = parse_config(
        HeadsConfig, argv, prog="python -m train.heads", flags={"json": "end with one JSON line on stdout"}
    )
    for name, what in (("checkpoint", "the model"), ("train", "the rows"), ("output", "the folder to write")):
        if not getattr(config, name):
            raise UserError(f"{name} is empty; give --{name}=PATH, {what}, or a `{name}:` line in the config")
    if checkpoints_in(config.output):
        raise UserError(f"{config.output} already holds heads; choose another --output or delete it")
    keep_large_buffers()
    torch.set_float32_matmul_precision("high")
    run = HeadsRun(config, Console(stderr=True))
    write_config(config, Path(config.output) / "config.yaml")
    folder = run.train()
    if options.json:
        print(json.dumps({"checkpoint": str(folder), "step": config.steps}))
    else:
        run.console.print(f"draft heads: {folder}")
    return 0


class HeadsRun:
    """A frozen model, heads on it, and the batches that the model's own training would see."""

    def __init__(self, config: HeadsConfig, console: Console) -> None:
        self.config, self.console, self.folder = config, console, Path(config.output)
        source = resolve_checkpoint(config.checkpoint)
        header = read_header(source)
        if (objective := header["model"].objective) != "autoregressive":
            raise UserError(f"{source} is {objective}; draft heads are for autoregressive models")
        if not (columns := header.get("response_length")):
            raise UserError(f"{source} does not say its response_length; give a checkpoint that training has written")
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model, tokenizer = load_checkpoint(source, dtype=DTYPES[config.precision], device=self.device)
        self.fingerprint = weights_fingerprint(self.model)
        self.manifest = prepare(
            config.train,
            self.folder / "data",
            tokenizer,
            prompt_length=self.model.config.max_length - columns,
            response_length=columns,
            too_long=config.too_long,
        )
        console.print(f"train: {self.manifest.summary()}")
        self.batches = BatchSource(
            open_dataset(self.folder / "data"),
            self.model.config,
            batch_size=config.batch_size,
            seed=config.seed,
            supervised_end=header.get("supervised_end") or "one",
        )
        self.capacity = self.batches.capacity(LossConfig())
        self.heads = DraftHeads(self.model.config.dim, config.heads).initialize(config.seed).to(self.device)
        self.optimizers = Optimizers(self.heads, config.optimizer, config.steps)
        self._loss = compile_static(heads_loss) if config.compile else heads_loss

    def train(self) -> Path:
        """Runs all steps and writes the heads; returns their folder."""
        columns = TextColumn("draft heads"), BarColumn(bar_width=24), MofNCompleteColumn()
        status = TextColumn("{task.fields[status]}"), TimeRemainingColumn()
        window: list[Tensor] = []
        since = time.perf_counter()
        with (self.folder / "log.jsonl").open("w") as log, Progress(*columns, *status, console=self.console) as bar:
            task = bar.add_task("", total=self.config.steps, status="")
            for step in range(self.config.steps):
                window.append(self._one_step(step))
                if (step + 1) % self.config.log_every and step + 1 < self.config.steps:
                    continue
                record = self._record(step, window, time.perf_counter() - since)
                print(json.dumps(record), file=log, flush=True)
                bar.update(task, completed=step + 1, status=f"loss {record['loss']:.3f}")
                window, since = [], time.perf_counter()
        folder = self.folder / f"step-{self.config.steps:07d}"
        save_heads(folder, self.heads, self.model, self._provenance())
        return folder

    def _one_step(self, step: int) -> Tensor:
        """Forward, backward, update; each head's loss (K,), on the device."""
        batch = self.batches.batch(step).to(self.device)
        with torch.autocast(self.device, torch.bfloat16, enabled=self.config.precision == "bf16"):
            loss, losses_K = self._loss(self.model, self.heads, batch, self.capacity)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.heads.parameters(), self.config.optimizer.gradient_clip)
        self.optimizers.step(step)
        return losses_K

    def _record(self, step: int, window: list[Tensor], seconds: float) -> dict[str, Any]:
        """The log record of some steps. A loss that is not finite ends the training."""
        by_head = torch.stack(window).float().mean(0).tolist()
        if not all(map(math.isfinite, by_head)):
            raise UserError(f"the loss is not finite near step {step + 1}; lower optimizer.lr and start again")
        return {
            "step": step + 1,
            "loss": fmean(by_head),
            "loss_by_head": by_head,
            "learning_rate": self.optimizers.rate(step),
            "seconds": seconds,
        }

    def _provenance(self) -> dict[str, Any]:
        """What made these heads, for `training.json`."""
        commit, changed = checkout()
        return {
            "config": asdict(self.config),
            "weights_sha256": self.fingerprint,
            "data": asdict(self.manifest),
            "commit": commit,
            "uncommitted_changes": changed,
            "versions": {name: version(name) for name in ("torch", "tokenizers", "safetensors")},
        }


if __name__ == "__main__":
    raise SystemExit(run_command(main))

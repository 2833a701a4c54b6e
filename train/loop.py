"""The training loop: one compiled step from tokens to loss, exact resume, checkpoints written whole.

A run's folder holds `config.yaml`, `log.jsonl`, `data/` (token files) and `step-NNNNNNN/` checkpoints, each with a
`state/` beside the weights for resuming.
"""

from __future__ import annotations

import json
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mdlm.checkpoint import checkpoints_in, load_checkpoint, save_checkpoint
from mdlm.errors import UserError
from mdlm.objectives import Batch, LossConfig, training_loss
from mdlm.tokenizer import Tokenizer
from mdlm.transformer import Transformer
from train.batches import BatchSource
from train.config import TrainConfig
from train.data import TokenDataset
from train.optimizer import Optimizers


class TrainingStep(nn.Module):
    """Batch in, mean loss and counts out: what is compiled, and what a distributed wrapper wraps."""

    def __init__(self, model: Transformer, loss: LossConfig, capacity: int, *, compiled: bool) -> None:
        super().__init__()
        self.model, self.loss, self.capacity = model, loss, capacity
        self.compute = torch.compile(training_loss, dynamic=False) if compiled else training_loss

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        return self.compute(self.model, batch, self.loss, self.capacity)


class Run:
    """One training run, from prepared token files to its last checkpoint."""

    def __init__(
        self, config: TrainConfig, tokenizer: Tokenizer, train_set: TokenDataset, validation_set: TokenDataset | None
    ) -> None:
        self.config, self.tokenizer, self.folder = config, tokenizer, Path(config.output)
        self.accelerator = Accelerator(
            mixed_precision="bf16" if config.precision == "bf16" else "no", cpu=not torch.cuda.is_available()
        )
        model_config = config.model_config(tokenizer)
        self.model = Transformer(model_config).initialize(config.seed)

        def source(dataset: TokenDataset, seed: int) -> BatchSource:
            return BatchSource(
                dataset,
                model_config,
                batch_size=config.batch_size,
                seed=seed,
                supervised_end=config.supervised_end,
                process=self.accelerator.process_index,
                processes=self.accelerator.num_processes,
            )

        self.batches = source(train_set, config.seed)
        self.validation = source(validation_set, config.seed + 1) if validation_set else None
        self.manifests = {"train": train_set.manifest, "validation": validation_set and validation_set.manifest}
        self.step, self.tokens_seen, self.predicted = 0, 0, 0
        capacity = self.batches.capacity(config.loss)
        module = TrainingStep(self.model, config.loss, capacity, compiled=config.compile)
        self.module = self.accelerator.prepare(module)
        self.optimizers = Optimizers(self.model, config.optimizer, config.steps)
        self.console = Console(stderr=True, quiet=not self.accelerator.is_main_process)

    def resume(self) -> None:
        """Goes on from the newest readable checkpoint in the run's folder, naming the ones passed over."""
        for folder in reversed(checkpoints_in(self.folder)):
            try:
                saved, _ = load_checkpoint(folder)
                state = load_file(folder / "state" / "optimizer.safetensors")
                progress = json.loads((folder / "state" / "progress.json").read_text())
            except (UserError, OSError, ValueError, Exception) as error:
                self.console.print(f"passed over {folder.name}: {error}")
                continue
            if saved.config != self.model.config or progress["seed"] != self.config.seed:
                raise UserError(f"{folder} was trained with another model or seed; choose another output folder")
            self.model.load_state_dict(saved.state_dict())
            self.optimizers.load_state_tensors(state, str(folder))
            self.step, self.tokens_seen = progress["step"], progress["tokens_seen"]
            self.predicted = progress["predicted"]
            self.console.print(f"resumed from {folder} at step {self.step}")
            return
        self.console.print(f"no checkpoint in {self.folder} yet; starting at step 0")

    def train(self) -> bool:
        """Runs to the last step. False when a signal ended it earlier; the state is saved either way."""
        config, columns = (
            self.config,
            (
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[status]}"),
                TimeRemainingColumn(),
            ),
        )
        log = (self.folder / "log.jsonl").open("a") if self.accelerator.is_main_process else None
        with _stop_requests() as stop_requested, Progress(*columns, console=self.console) as progress:
            task = progress.add_task(config.model.objective, total=config.steps, completed=self.step, status="")
            window: list[tuple[Tensor, dict[str, Tensor]]] = []
            tokens_before, since = self.tokens_seen, time.perf_counter()
            while self.step < config.steps and not stop_requested():
                batch = self.batches.batch(self.step)
                self.tokens_seen += int(batch.valid_BL.sum()) * self.accelerator.num_processes
                loss, counts = self.module(batch.to(self.accelerator.device))
                self.accelerator.backward(loss)
                norm = self.accelerator.clip_grad_norm_(self.model.parameters(), config.optimizer.gradient_clip)
                rate = self.optimizers.step(self.step)
                self.step += 1
                window.append((loss.detach(), {"gradient_norm": norm, **counts}))
                if self.step % config.log_every == 0 or self.step == config.steps:
                    seconds = time.perf_counter() - since
                    record = self._summarise(window, rate, (self.tokens_seen - tokens_before) / seconds)
                    if self.step % config.validate_every == 0 or self.step == config.steps:
                        record["validation_loss"] = self.validate()
                    if log:
                        print(json.dumps(record), file=log, flush=True)
                    status = f"loss {record['loss']:.3f}  {record['tokens_per_second']:,.0f} tok/s"
                    progress.update(task, completed=self.step, status=status)
                    window, tokens_before, since = [], self.tokens_seen, time.perf_counter()
                if self.step % config.checkpoint_every == 0 or self.step == config.steps:
                    before_saving = time.perf_counter()
                    self.save()
                    since += time.perf_counter() - before_saving
            finished = self.step >= config.steps
        if not finished:
            self.save()
        if log:
            log.close()
        return finished

    def _summarise(self, window: list, rate: float, tokens_per_second: float) -> dict[str, Any]:
        losses = torch.stack([loss for loss, _ in window]).tolist()
        totals = {key: torch.stack([counts[key].float() for _, counts in window]) for key in window[0][1]}
        self.predicted += int(totals["predicted"].sum()) * self.accelerator.num_processes
        if not all(map(_is_finite, losses)):
            raise UserError(f"the loss is not finite near step {self.step}; lower optimizer.lr, then start again")
        return {
            "step": self.step,
            "loss": sum(losses) / len(losses),
            "gradient_norm": float(totals["gradient_norm"].mean()),
            "learning_rate": rate,
            "tokens_per_second": tokens_per_second,
            "tokens_seen": self.tokens_seen,
            "predicted": self.predicted,
            "overflow": int(totals["overflow"].sum()),
        }

    def validate(self) -> float | None:
        """Mean loss over fixed validation batches under fixed noise; None without a validation set."""
        if self.validation is None:
            return None
        losses, capacity = [], self.config.batch_size * self.validation.response_length
        with torch.no_grad(), self.accelerator.autocast():
            for step in range(self.config.validation_batches):
                batch = self.validation.batch(step).to(self.accelerator.device)
                losses.append(training_loss(self.model, batch, self.config.loss, capacity)[0])
        return float(self.accelerator.reduce(torch.stack(losses).mean(), "mean"))

    def save(self) -> None:
        """Writes a checkpoint with its state, whole or not at all, and drops the oldest beyond the number kept."""
        self.accelerator.wait_for_everyone()
        if not self.accelerator.is_main_process:
            return
        progress = {
            "step": self.step,
            "seed": self.config.seed,
            "tokens_seen": self.tokens_seen,
            "predicted": self.predicted,
        }

        def write_state(folder: Path) -> None:
            (folder / "state").mkdir()
            save_file(self.optimizers.state_tensors(), folder / "state" / "optimizer.safetensors")
            (folder / "state" / "progress.json").write_text(json.dumps(progress) + "\n")

        folder = self.folder / f"step-{self.step:07d}"
        save_checkpoint(folder, self.model, self.tokenizer, self._provenance(), extra=write_state)
        for old in checkpoints_in(self.folder)[: -self.config.keep_checkpoints]:
            shutil.rmtree(old, ignore_errors=True)

    def _provenance(self) -> dict[str, Any]:
        """What made these weights, for `training.json`."""
        return {
            "config": asdict(self.config),
            "supervised_end": self.config.supervised_end,
            "response_length": self.config.data.response_length,
            "step": self.step,
            "tokens_seen": self.tokens_seen,
            "predicted": self.predicted,
            "parameters": self.model.num_parameters,
            "data": {name: manifest and asdict(manifest) for name, manifest in self.manifests.items()},
            "commit": _commit(),
            "versions": {name: version(name) for name in ("torch", "accelerate", "tokenizers", "safetensors")},
            "machine": f"{platform.machine()}, {self.accelerator.device.type}, {torch.get_num_threads()} threads",
            "processes": self.accelerator.num_processes,
        }


def _is_finite(value: float) -> bool:
    return value == value and abs(value) != float("inf")


def _commit() -> str | None:
    """The commit this program runs from, where it runs from a checkout."""
    here = Path(__file__).resolve().parent
    try:
        shown = subprocess.run(["git", "-C", here, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return shown.stdout.strip() or None


@contextmanager
def _stop_requests() -> Iterator[Callable[[], bool]]:
    """Turns the first SIGINT or SIGTERM into a request that the loop reads after its step; a second one kills."""
    asked: list[int] = []

    def remember(number: int, frame: object) -> None:
        asked.append(number)
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        print("stopping after this step; the state will be saved", file=sys.stderr)

    previous = {number: signal.signal(number, remember) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)

"""The training loop: one compiled step from tokens to loss, exact resume, checkpoints written whole.

A run's folder holds `config.yaml`, `log.jsonl`, `data/` (token files) and `step-NNNNNNN/` checkpoints, each with a
`state/` beside the weights for resuming.
"""

from __future__ import annotations

import json
import math
import platform
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from accelerate import Accelerator
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from mdlm.checkpoint import checkpoints_in, load_checkpoint, save_checkpoint, write_tensors
from mdlm.errors import UserError
from mdlm.objectives import Batch, LossConfig, training_loss
from mdlm.provenance import checkout
from mdlm.tokenizer import Tokenizer
from mdlm.transformer import Transformer
from train.batches import BatchSource
from train.config import TrainConfig
from train.data import TokenDataset
from train.optimizer import Optimizers
from train.start import start_from


class TrainingStep(nn.Module):
    """Batch in, mean loss and counts out: what is compiled, and what a distributed wrapper wraps."""

    def __init__(self, model: Transformer, loss: LossConfig, capacity: int, *, compiled: bool) -> None:
        super().__init__()
        self.model, self.loss, self.capacity = model, loss, capacity
        self.compute = torch.compile(training_loss, dynamic=False) if compiled else training_loss

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        return self.compute(self.model, batch, self.loss, self.capacity)


class _Window:
    """Steps since the last log record, still on the device."""

    def __init__(self, tokens_before: int) -> None:
        self.losses: list[Tensor] = []
        self.counts: list[dict[str, Tensor]] = []
        self.tokens_before, self.since = tokens_before, time.perf_counter()

    def add(self, loss: Tensor, counts: dict[str, Tensor]) -> None:
        self.losses.append(loss)
        self.counts.append(counts)


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
        self.origin: dict[str, Any] | None = None
        goes_on = config.resume == "auto" and checkpoints_in(self.folder)
        if config.init_from and not goes_on:
            self.origin = start_from(config.init_from, self.model, tokenizer)

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
        self.train_manifest = train_set.manifest
        self.validation_manifest = validation_set.manifest if validation_set else None
        self.step, self.tokens_seen, self.predicted = 0, 0, 0
        capacity = self.batches.capacity(config.loss)
        module = TrainingStep(self.model, config.loss, capacity, compiled=config.compile)
        self.module = self.accelerator.prepare(module)
        self.optimizers = Optimizers(self.model, config.optimizer, config.steps)
        self.console = Console(stderr=True, quiet=not self.accelerator.is_main_process)

    def resume(self) -> None:
        """Goes on from the newest readable checkpoint in the run's folder, naming the ones passed over.

        A checkpoint of a run that would see other batches or another optimizer is refused.
        """
        folders = checkpoints_in(self.folder)
        for folder in reversed(folders):
            try:
                saved, _ = load_checkpoint(folder)
                state = load_file(folder / "state" / "optimizer.safetensors")
                progress = json.loads((folder / "state" / "progress.json").read_text())
            except (UserError, OSError, ValueError, SafetensorError) as error:
                self.console.print(f"passed over {folder.name}: {error}")
                continue
            if saved.config != self.model.config:
                raise UserError(f"{folder} holds another model; choose another output folder")
            for name, value in self._identity().items():
                if progress.get(name) != value:
                    raise UserError(
                        f"{folder} was trained with {name} {progress.get(name)!r}, the config says {value!r}; "
                        "restore it, or choose another output folder"
                    )
            self.model.load_state_dict(saved.state_dict())
            self.optimizers.load_state_tensors(state, str(folder))
            self.step, self.tokens_seen = progress["step"], progress["tokens_seen"]
            self.predicted, self.origin = progress["predicted"], progress.get("origin")
            self.console.print(f"resumed from {folder} at step {self.step}")
            return
        if folders:
            raise UserError(f"no checkpoint in {self.folder} can be read; mend or delete them to start again")
        self.console.print(f"no checkpoint in {self.folder} yet; starting at step 0")

    def _identity(self) -> dict[str, Any]:
        """What a run must keep to be the same run when it goes on."""
        return {
            "seed": self.config.seed,
            "init_from": self.config.init_from or None,
            "batch_size": self.config.batch_size,
            "optimizer": asdict(self.config.optimizer) | {"betas": list(self.config.optimizer.betas)},
            "loss": asdict(self.config.loss),
            "supervised_end": self.config.supervised_end,
            "tokens_sha256": self.train_manifest.tokens_sha256,
        }

    def train(self) -> bool:
        """Runs to the last step. False when a signal ended it earlier; the state is saved either way."""
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[status]}"),
            TimeRemainingColumn(),
        )
        config, log_path = self.config, self.folder / "log.jsonl"
        log = log_path.open("a") if self.accelerator.is_main_process else nullcontext()
        with log as lines, _stop_requests() as asked, Progress(*columns, console=self.console) as progress:
            task = progress.add_task(config.model.objective, total=config.steps, completed=self.step, status="")
            window, last = _Window(self.tokens_seen), self.step >= config.steps
            while not last:
                window.add(*self._one_step())
                last = self.step == config.steps or asked()
                validates = last or self.step % config.validate_every == 0
                saves = last or self.step % config.checkpoint_every == 0
                # Whatever is saved has been checked and counted: a checkpoint closes the window as well.
                if not (validates or saves or self.step % config.log_every == 0):
                    continue
                record = self._close(window)
                if validates:
                    record["validation_loss"] = self.validate()
                if lines:
                    print(json.dumps(record), file=lines, flush=True)
                status = f"loss {record['loss']:.3f}  {record['tokens_per_second']:,.0f} tok/s"
                progress.update(task, completed=self.step, status=status)
                last = last or asked()
                if last or saves:
                    self.save()
                window = _Window(self.tokens_seen)
        return self.step >= config.steps

    def _one_step(self) -> tuple[Tensor, dict[str, Tensor]]:
        """Forward, backward, update. Waits for nothing on the device."""
        batch = self.batches.batch(self.step)
        self.tokens_seen += int(batch.valid_BL.sum()) * self.accelerator.num_processes
        loss, counts = self.module(batch.to(self.accelerator.device))
        self.accelerator.backward(loss)
        norm = self.accelerator.clip_grad_norm_(self.model.parameters(), self.config.optimizer.gradient_clip)
        self.optimizers.step(self.step)
        self.step += 1
        return loss.detach(), {"gradient_norm": norm, **counts}

    def _close(self, window: _Window) -> dict[str, Any]:
        """The window's log record. A loss that is not finite ends the run before anything is saved."""
        seconds = time.perf_counter() - window.since
        losses = torch.stack(window.losses).tolist()
        counts = {key: torch.stack([c[key].float() for c in window.counts]) for key in window.counts[0]}
        if not all(map(math.isfinite, losses + counts["gradient_norm"].tolist())):
            raise UserError(
                f"the loss or its gradient is not finite near step {self.step}; lower optimizer.lr and start again "
                f"(checkpoints in {self.folder} are from before)"
            )
        self.predicted += int(counts["predicted"].sum()) * self.accelerator.num_processes
        return {
            "step": self.step,
            "loss": fmean(losses),
            "gradient_norm": float(counts["gradient_norm"].mean()),
            "learning_rate": self.optimizers.rate(self.step - 1),
            "tokens_per_second": (self.tokens_seen - window.tokens_before) / seconds,
            "tokens_seen": self.tokens_seen,
            "predicted": self.predicted,
            "overflow": int(counts["overflow"].sum()),
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
        progress = self._identity() | {
            "step": self.step,
            "tokens_seen": self.tokens_seen,
            "predicted": self.predicted,
            "origin": self.origin,
        }

        def write_state(folder: Path) -> None:
            (folder / "state").mkdir()
            write_tensors(folder / "state" / "optimizer.safetensors", self.optimizers.state_tensors())
            (folder / "state" / "progress.json").write_text(json.dumps(progress) + "\n")

        folder = self.folder / f"step-{self.step:07d}"
        save_checkpoint(folder, self.model, self.tokenizer, self._provenance(), extra=write_state)
        for old in checkpoints_in(self.folder)[: -self.config.keep_checkpoints]:
            shutil.rmtree(old, ignore_errors=True)

    def _provenance(self) -> dict[str, Any]:
        """What made these weights, for `training.json`."""
        commit, changed = checkout()
        return {
            "config": asdict(self.config),
            "origin": self.origin,
            "supervised_end": self.config.supervised_end,
            "response_length": self.config.data.response_length,
            "step": self.step,
            "tokens_seen": self.tokens_seen,
            "predicted": self.predicted,
            "parameters": self.model.num_parameters,
            "data": {
                "train": asdict(self.train_manifest),
                "validation": self.validation_manifest and asdict(self.validation_manifest),
            },
            "commit": commit,
            "uncommitted_changes": changed,
            "versions": {name: version(name) for name in ("torch", "accelerate", "tokenizers", "safetensors")},
            "machine": f"{platform.machine()}, {self.accelerator.device.type}, {torch.get_num_threads()} threads",
            "processes": self.accelerator.num_processes,
        }


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

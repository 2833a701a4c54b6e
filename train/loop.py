"""The training loop: one compiled step from tokens to loss, exact resume, checkpoints written whole.

A run's folder holds `config.yaml`, `log.jsonl`, `bad_steps.jsonl` if there were any, `data/` (token files) and
`step-NNNNNNN/` checkpoints, each with a `state/` beside the weights for resuming.
"""

from __future__ import annotations

import copy
import json
import platform
import shutil
import signal
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
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from mdlm.checkpoint import checkpoints_in, load_checkpoint, save_checkpoint, verify_checkpoint, write_tensors
from mdlm.cpu import compile_static
from mdlm.errors import UserError
from mdlm.objectives import Batch, LossConfig, training_loss
from mdlm.provenance import checkout
from mdlm.tokenizer import Tokenizer
from mdlm.transformer import Transformer
from train.batches import BatchSource
from train.config import TrainConfig
from train.data import TokenDataset
from train.health import BadSteps, GradientNorms, SpikeLimit
from train.log import Log, status_of
from train.optimizer import Optimizers
from train.start import start_from


class TrainingStep(nn.Module):
    """Batch in, mean loss and counts out: what is compiled, and what a distributed wrapper wraps."""

    def __init__(self, model: Transformer, loss: LossConfig, capacity: int, *, compiled: bool) -> None:
        super().__init__()
        self.model, self.loss, self.capacity = model, loss, capacity
        self.compute = compile_static(training_loss) if compiled else training_loss

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        return self.compute(self.model, batch, self.loss, self.capacity)


class _Window:
    """Steps since the last log record, still on the device."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Tensor]] = []
        self.tokens, self.since = 0, time.perf_counter()


class Run:
    """One training run, from prepared token files to its last checkpoint."""

    def __init__(
        self, config: TrainConfig, tokenizer: Tokenizer, train_set: TokenDataset, validation_set: TokenDataset | None
    ) -> None:
        self.config, self.tokenizer, self.folder = config, tokenizer, Path(config.output)
        self.accelerator = Accelerator(
            mixed_precision="bf16" if config.precision == "bf16" else "no",
            cpu=not torch.cuda.is_available(),
            log_with=list(config.trackers) or None,
            project_dir=self.folder,
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
        self._checkout = checkout()
        capacity = self.batches.capacity(config.loss)
        module = TrainingStep(self.model, config.loss, capacity, compiled=config.compile)
        self.module = self.accelerator.prepare(module)
        self.average = copy.deepcopy(self.model).requires_grad_(False) if config.ema_decay is not None else None
        self.optimizers = Optimizers(self.model, config.optimizer, config.steps)
        self.gradient_norms, self.spikes = GradientNorms(self.model), SpikeLimit(config)
        self.bad_steps = BadSteps(config, list(self.gradient_norms.parts), self.batches.rows)
        self.console = Console(stderr=True, quiet=not self.accelerator.is_main_process)

    @property
    def evaluated(self) -> Transformer:
        """What is validated and exported: the average of the weights where one is kept."""
        return self.model if self.average is None else self.average

    def resume(self) -> None:
        """Goes on from the newest checkpoint in the run's folder whose checksums hold, naming the ones passed over.

        A checkpoint of a run that would see other batches or another optimizer is refused.
        """
        folders = checkpoints_in(self.folder)
        if self.accelerator.is_main_process:
            for unfinished in self.folder.glob(".step-*"):  # a killed process was writing it
                shutil.rmtree(unfinished, ignore_errors=True)
        for folder in reversed(folders):
            try:
                verify_checkpoint(folder)
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
            self.evaluated.load_state_dict(saved.state_dict())
            if self.average is not None:
                self.model.load_state_dict(load_file(folder / "state" / "weights.safetensors"))
            self.optimizers.load_state_tensors(state, str(folder))
            self.step, self.tokens_seen = progress["step"], progress["tokens_seen"]
            self.predicted, self.origin = progress["predicted"], progress.get("origin")
            self.spikes.recent = progress["recent_losses"]
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
            "ema_decay": self.config.ema_decay,
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
        config = self.config
        log = Log(self.accelerator, self.folder, asdict(config))
        with log, _stop_requests() as asked, Progress(*columns, console=self.console) as progress:
            task = progress.add_task(config.model.objective, total=config.steps, completed=self.step, status="")
            window, last = self._open(), self.step >= config.steps
            while not last:
                self._one_step(window)
                last = self.step == config.steps or self._agreed(asked())
                validates = last or self.step % config.validate_every == 0
                saves = last or self.step % config.checkpoint_every == 0
                # Whatever is saved has been checked and counted: a checkpoint closes the window as well.
                if not (validates or saves or self.step % config.log_every == 0):
                    continue
                record = self._close(window)
                if validates:
                    record["validation_loss"] = self.validate()
                log.write(record)
                progress.update(task, completed=self.step, status=status_of(record))
                last = last or self._agreed(asked())
                if last or saves:
                    self.save()
                window = self._open()
        return self.step >= config.steps

    def _agreed(self, asked: bool) -> bool:
        """Whether to stop, the same answer in every process; several ask each other only when a log record is due."""
        if self.accelerator.num_processes == 1 or self.step % self.config.log_every:
            return asked and self.accelerator.num_processes == 1
        flag = torch.tensor(float(asked), device=self.accelerator.device)
        return bool(self.accelerator.reduce(flag, "sum"))

    def _open(self) -> _Window:
        """A new window, and the limit that its losses are held to, put on the device ahead of them."""
        self._limit = torch.tensor(self.spikes.at(self.step), device=self.accelerator.device)
        return _Window()

    def _one_step(self, window: _Window) -> None:
        """Forward, backward, update. Waits for nothing on the device."""
        batch, config = self.batches.batch(self.step), self.config
        window.tokens += int(batch.valid_BL.sum())
        loss, counts = self.module(batch.to(self.accelerator.device))
        loss = loss * self._share(counts["divisor"])
        self.accelerator.backward(loss)
        loss, norms = self.accelerator.reduce(loss.detach(), "mean"), self.gradient_norms()
        norm = self.accelerator.clip_grad_norm_(self.model.parameters(), config.optimizer.gradient_clip)
        good = norm.isfinite() & loss.isfinite() & (loss <= self._limit)
        self.optimizers.step(self.step, good if config.on_bad_step == "skip" else None)
        self._update_average(good)
        self.step += 1
        window.steps.append({"loss": loss, "gradient_norm": norm, "norms": norms, "good": good, **counts})

    def _share(self, divisor: Tensor) -> Tensor:
        """What a process's mean weighs in the mean over processes, so that it is the mean over the global batch.

        Gradients are averaged over processes, whose rows hold unequal numbers of positions.
        """
        processes = self.accelerator.num_processes
        if processes == 1:
            return torch.ones_like(divisor, dtype=torch.float32)
        return divisor * processes / self.accelerator.reduce(divisor.clone(), "sum")

    @torch.no_grad()
    def _update_average(self, good: Tensor) -> None:
        """Moves the average towards the weights, faster in the first steps; a bad step does not move it."""
        if self.average is None or self.config.ema_decay is None:
            return
        share = (1 - min(self.config.ema_decay, (1 + self.step) / (10 + self.step))) * good
        for mean, parameter in zip(self.average.parameters(), self.model.parameters(), strict=True):
            mean.lerp_(parameter, share)

    def _close(self, window: _Window) -> dict[str, Any]:
        """The window's log record. Bad steps are reported; they end the run before anything is saved, or are left out.

        Means are over the good steps, sums over all processes.
        """
        seconds = time.perf_counter() - window.since
        seen = {key: torch.stack([step[key] for step in window.steps]) for key in window.steps[0]}
        self.bad_steps.check(seen, self.step, float(self._limit), write=self.accelerator.is_main_process)
        good, losses = seen["good"], seen["loss"].tolist()
        sums = {key: x[good].sum(0) for key, x in seen.items() if key.startswith("loss_by")}
        sums |= {key: seen[key].sum() for key in ("predicted", "overflow")}
        sums["tokens"] = torch.tensor(window.tokens, device=good.device)
        sums = self.accelerator.reduce(sums, "sum")
        self.predicted += int(sums["predicted"])
        self.tokens_seen += int(sums["tokens"])
        self.spikes.add(losses)
        record: dict[str, Any] = {
            "step": self.step,
            "loss": float(seen["loss"][good].double().mean()) if good.any() else None,
            "gradient_norm": float(seen["gradient_norm"][good].mean()) if good.any() else None,
            "learning_rate": self.optimizers.rate(self.step - 1),
            "tokens_per_second": int(sums["tokens"]) / seconds,
            "tokens_seen": self.tokens_seen,
            "predicted": self.predicted,
            "overflow": int(sums["overflow"]),
            "skipped": len(losses) - int(good.sum()),
        }
        for key in [key for key in sums if key.startswith("loss_by")]:
            record[key] = [x / n if n else None for x, n in zip(*sums[key].tolist(), strict=True)]
        return record

    def validate(self) -> float | None:
        """Mean loss over fixed validation batches under fixed noise; None without a validation set."""
        if self.validation is None:
            return None
        losses, capacity = [], self.config.batch_size * self.validation.response_length
        with torch.no_grad(), self.accelerator.autocast():
            for step in range(self.config.validation_batches):
                batch = self.validation.batch(step).to(self.accelerator.device)
                loss, counts = training_loss(self.evaluated, batch, self.config.loss, capacity)
                losses.append(loss * self._share(counts["divisor"]))
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
            "recent_losses": self.spikes.recent,
        }

        def write_state(folder: Path) -> None:
            (folder / "state").mkdir()
            write_tensors(folder / "state" / "optimizer.safetensors", self.optimizers.state_tensors())
            if self.average is not None:
                weights = {name: tensor.detach().cpu() for name, tensor in self.model.state_dict().items()}
                write_tensors(folder / "state" / "weights.safetensors", weights)
            (folder / "state" / "progress.json").write_text(json.dumps(progress) + "\n")

        folder = self.folder / f"step-{self.step:07d}"
        before = [old for old in checkpoints_in(self.folder) if old.name < folder.name]
        try:
            save_checkpoint(folder, self.evaluated, self.tokenizer, self._provenance(), extra=write_state)
        except OSError as error:
            kept = f"{before[-1]} is kept" if before else "there is none before it"
            raise UserError(
                f"{error.filename or folder}: {error.strerror or error}; the checkpoint of step {self.step} is not "
                f"written, {kept}; mend that, then go on with --resume=auto"
            ) from error
        # Those of later steps were passed over when the run was resumed, and count for nothing.
        for old in [*before, folder][: -self.config.keep_checkpoints]:
            shutil.rmtree(old, ignore_errors=True)

    def _provenance(self) -> dict[str, Any]:
        """What made these weights, for `training.json`."""
        commit, changed = self._checkout
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

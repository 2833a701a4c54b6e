"""`python -m train CONFIG [--section.key=value ...]`: from a data file to a checkpoint folder.

`python -m train plot RUN... --out FILE.png`: the curves of runs, on top of each other.
"""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import torch
from accelerate import PartialState
from rich.console import Console

from mdlm.checkpoint import checkpoints_in, load_tokenizer, resolve_checkpoint
from mdlm.config_file import parse_config, write_config
from mdlm.cpu import keep_large_buffers
from mdlm.errors import UserError, run_command
from mdlm.tokenizer import Tokenizer
from train.config import TrainConfig
from train.data import open_dataset, prepare, read_texts
from train.log import check_trackers
from train.loop import Run
from train.plot import plot

TOKENIZER_ROWS = 50_000
"""A new tokenizer is trained on at most so many rows."""


def main(argv: list[str]) -> int:
    if argv[:1] == ["plot"]:
        return plot(argv[1:])
    flags = {"json": "end with one JSON line on stdout"}
    config, options = parse_config(TrainConfig, argv, prog="python -m train", flags=flags)
    if not config.output:
        raise UserError("no output folder: give --output=runs/NAME or an `output:` line in the config")
    if not config.data.train:
        raise UserError("no training data: give --data.train=FILE or a `train:` line in the config's data section")
    check_trackers(config.trackers)
    keep_large_buffers()
    folder, console = Path(config.output), Console(stderr=True)
    if config.resume == "never" and checkpoints_in(folder):
        raise UserError(f"{folder} already holds a run; go on with --resume=auto, or choose another --output")
    # Without `cpu` accelerate takes several processes on a CPU for as many single ones.
    with PartialState(cpu=not torch.cuda.is_available()).main_process_first():
        tokenizer = _tokenizer(config, folder)
        train_set = _dataset(config, config.data.train, folder, "train", tokenizer)
        validation_set = None
        if config.data.validation:
            validation_set = _dataset(config, config.data.validation, folder, "validation", tokenizer)
    torch.set_float32_matmul_precision("high")
    write_config(config, folder / "config.yaml")
    run = Run(config, tokenizer, train_set, validation_set)
    if config.resume == "auto":
        run.resume()
    console.print(
        f"{config.model.objective}: {run.model.num_parameters:,} parameters, {len(train_set):,} rows, "
        f"{config.steps:,} steps of {config.batch_size} rows on {run.accelerator.device.type}"
    )
    finished = run.train()
    if not run.accelerator.is_main_process:  # which alone writes, perhaps still
        return 0 if finished else 130
    last = checkpoints_in(folder)[-1]
    if options.json:
        print(json.dumps({"checkpoint": str(last), "step": run.step, "tokens_seen": run.tokens_seen}))
    else:
        console.print(f"checkpoint: {last}")
    return 0 if finished else 130


def _tokenizer(config: TrainConfig, folder: Path) -> Tokenizer:
    """The tokenizer that the config names, that of the run's start or of the run itself, or a new one."""
    if config.data.tokenizer:
        return Tokenizer.load(Path(config.data.tokenizer))
    if config.init_from:
        started = checkpoints_in(folder)  # a run that goes on needs its start no more
        return load_tokenizer(started[-1] if started else resolve_checkpoint(config.init_from))
    path = folder / "tokenizer.json"
    if not path.is_file():
        texts = islice(read_texts(config.data.train, on_error=config.data.on_error), TOKENIZER_ROWS)
        folder.mkdir(parents=True, exist_ok=True)
        Tokenizer.train(texts, config.data.vocab_size).save(path)
    return Tokenizer.load(path)


def _dataset(config: TrainConfig, source: str, folder: Path, name: str, tokenizer: Tokenizer):
    data = config.data
    target = folder / "data" / name
    manifest = prepare(
        source,
        target,
        tokenizer,
        prompt_length=data.prompt_length,
        response_length=data.response_length,
        too_long=data.too_long,
        on_error=data.on_error,
    )
    Console(stderr=True).print(f"{name}: {manifest.summary()}")
    return open_dataset(target)


if __name__ == "__main__":
    raise SystemExit(run_command(main))

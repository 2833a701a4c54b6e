"""A system is a trained arm with one decoder setting: prompts in, texts and what they cost out."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from evals.records import read_record
from mdlm.checkpoint import load_checkpoint, read_header, resolve_checkpoint
from mdlm.errors import UserError
from mdlm.tokenizer import Tokenizer
from mdlm.transformer import Transformer
from sample import AutoregressiveConfig, DenoiseConfig, Generation, decode, denoise
from sample.generation import canvas
from sample.ledger import RowLedger


@dataclass(frozen=True)
class Setting:
    """One way to decode: `denoise` for the diffusion arms, greedy with a cache for the autoregressive one."""

    name: str
    denoise: DenoiseConfig | None = None


GREEDY = Setting("greedy")


def sweep(objective: str, block_length: int, response_columns: int) -> list[Setting]:
    """The settings of an arm that are compared on the dev split: fixed counts and confidence thresholds.

    Trained blocks for block diffusion, from one token a pass, where only the model gap shows. The full canvas for
    masked diffusion, from two tokens a pass: at one it would take more passes than its twin.
    """
    if objective == "autoregressive":
        return [GREEDY]
    blockwise = objective == "block_diffusion"
    window, per_pass = (block_length, (1, 2, 4, 8)) if blockwise else (response_columns, (2, 4, 8))
    counts = [DenoiseConfig(max_denoising_steps=max(1, window // tokens)) for tokens in per_pass]
    settings = [Setting(f"{tokens} tokens a pass", config) for tokens, config in zip(per_pass, counts, strict=True)]
    for threshold in (0.995, 0.98, 0.9):
        settings.append(Setting(f"threshold {threshold:g}", DenoiseConfig(threshold=threshold)))
    return settings


@dataclass(frozen=True)
class Output:
    """One row's answer and its cost; `ledger` is None for a prompt that does not fit the model."""

    text: str
    ledger: RowLedger | None


def generate(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    setting: Setting,
    prompt_columns: int,
    response_columns: int,
    **changes: Any,
) -> Generation:
    """Decodes token prompts in fixed columns; `changes` go into the decoder's config (`compile=True`)."""
    config = model.config
    if setting.denoise is None:
        greedy = AutoregressiveConfig(response_columns, prompt_columns=prompt_columns, **changes)
        return decode(model, prompts, greedy)
    canvas_BL, valid_BL, start = canvas(
        prompts,
        response_columns,
        pad_id=config.pad_token_id,
        mask_id=config.mask_token_id,
        columns=prompt_columns,
    )
    return denoise(
        model,
        canvas_BL,
        DenoiseConfig(**(vars(setting.denoise) | changes)),
        mask_id=config.mask_token_id,
        end_id=config.end_token_id,
        valid_BL=valid_BL,
        response_start=start,
    )


class Arm:
    """A loaded checkpoint with the columns it was trained on."""

    def __init__(self, folder: Path, *, dtype: torch.dtype, device: str) -> None:
        header = read_header(folder)
        self.model: Transformer
        self.tokenizer: Tokenizer
        self.model, self.tokenizer = load_checkpoint(folder, dtype=dtype, device=device)
        self.folder, self.objective = folder, self.model.config.objective
        if not header["response_length"]:
            raise UserError(f"{folder} does not say its response_length; give a checkpoint that training has written")
        self.tokens_seen: int = header["tokens_seen"]
        self.response_columns: int = header["response_length"]
        self.prompt_columns = self.model.config.max_length - self.response_columns

    def generate(self, prompts: Sequence[Sequence[int]], setting: Setting, **changes: Any) -> Generation:
        """`generate` in the columns it was trained on."""
        return generate(self.model, prompts, setting, self.prompt_columns, self.response_columns, **changes)

    def encode(self, prompts: Sequence[str]) -> list[list[int]]:
        """Prompts as token ids, each behind a begin token."""
        begin = self.model.config.begin_token_id
        return [[begin, *ids] for ids in self.tokenizer.encode_batch(prompts)]

    def answer(self, prompts: Sequence[str], setting: Setting, batch_size: int) -> Iterator[Output]:
        """Texts and costs, in the prompts' order. A prompt that does not fit gets an empty text."""
        rows = self.encode(prompts)
        fitting = [index for index, row in enumerate(rows) if len(row) <= self.prompt_columns]
        outputs = [Output("", None)] * len(rows)
        # Neighbours of equal length waste least; the results do not depend on it.
        for first in range(0, len(fitting), batch_size):
            chosen = fitting[first : first + batch_size]
            made = self.generate([rows[index] for index in chosen], setting)
            for index, tokens, ledger in zip(chosen, made.answers(), made.ledger.rows(), strict=True):
                outputs[index] = Output(self.tokenizer.decode(tokens), ledger)
        yield from outputs

    def one_stream(self, prompts: Sequence[str], setting: Setting, *, repeats: int, compiled: bool) -> dict[str, Any]:
        """Useful tokens per second with one row at a time: seconds end to end, tokens up to the end token.

        The first decode warms up and is left out; then all prompts, `repeats` times.
        """
        rows = [row for row in self.encode(prompts) if len(row) <= self.prompt_columns]
        if not rows:
            raise UserError("no prompt fits the model; speed cannot be measured")
        self.generate(rows[:1], setting, compile=compiled)
        seconds, rates, tokens, passes = [], [], 0, 0
        for _ in range(repeats):
            tokens, passes, spent = 0, 0, 0.0
            for row in rows:
                since = time.perf_counter()
                made = self.generate([row], setting, compile=compiled)
                if self.model.device.type == "cuda":
                    torch.cuda.synchronize()
                seconds.append(time.perf_counter() - since)
                spent += seconds[-1]
                account = made.ledger.row(0)
                tokens, passes = tokens + account.kept, passes + account.total_passes
            rates.append(tokens / spent)
        ordered = sorted(seconds)
        return {
            "useful_tokens_per_second": median(rates),
            "useful_tokens_per_second_of_repeats": rates,
            "seconds_p50": median(ordered),
            "seconds_p90": ordered[int(0.9 * (len(ordered) - 1))],
            "seconds_p99": ordered[int(0.99 * (len(ordered) - 1))],
            "rows": len(rows),
            "repeats": repeats,
            "useful_tokens": tokens,
            "passes": passes,
            "compiled": compiled,
        }


def frozen_arm(
    run: Path, name: str, seed: int, *, dtype: torch.dtype, device: str
) -> tuple[Arm, Setting, list[dict[str, Any]]]:
    """An arm of a finished comparison, its frozen setting, and that setting's results on test, one a task."""
    folder = run / f"{name}-seed{seed}"
    if not folder.is_dir():
        raise UserError(f"{folder}: no such arm; give the output folder of `python -m evals gap`")
    arm = Arm(resolve_checkpoint(folder), dtype=dtype, device=device)
    found = sorted((run / "records" / folder.name).glob("*/test-frozen.json"))
    if not found:
        raise UserError(f"{run} has no record of {folder.name} on test; let `evals gap` finish first")
    of_tasks = [read_record(path)["result"] for path in found]
    frozen = of_tasks[0]["setting"]  # one setting for all tasks
    known = {made.name: made for made in sweep(name, arm.model.config.block_length, arm.response_columns)}
    if frozen not in known:
        raise UserError(f"{folder.name} was frozen at {frozen!r}, which is unknown; run `evals gap` anew")
    return arm, known[frozen], of_tasks

"""`python -m evals memory`: the peak memory of decoding by canvas length, for our decoder and the published loop.

Each length is measured in a process of its own: on a CPU by its largest resident size, on a GPU by
the allocator's peak; what the process held before decoding is subtracted.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from evals.published import published_loop
from evals.records import make_record, save_record
from mdlm.command import CommandParser
from mdlm.config import ModelConfig
from mdlm.errors import UserError
from mdlm.transformer import Transformer
from sample import DenoiseConfig, denoise

SHAPE: dict[str, Any] = {"vocab_size": 32_768, "dim": 256, "layers": 4, "heads": 4, "kv_heads": 4, "hidden_dim": 768}
PROMPT, BLOCK, PASSES = 32, 32, 2
LENGTHS = (128, 256, 512, 1024, 2048, 4096)
LOOPS = ("ours", "published")


def main(argv: list[str]) -> int:
    options = _parse(argv)
    if options.one:
        print(measure(int(options.one[0]), options.one[1], options.device))
        return 0
    work = [(length, loop) for length in options.length for loop in LOOPS]
    peaks: dict[tuple[int, str], int] = {}
    for length, loop in track(work, "decodes", console=Console(stderr=True), transient=True):
        command = [sys.executable, "-m", "evals", "memory", "--device", options.device, "--one", str(length), loop]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise UserError(f"decoding {length} positions failed: {done.stderr.strip().splitlines()[-1:]}")
        peaks[length, loop] = int(done.stdout)
    config = model_config(max(options.length))
    rows = [row(length, peaks, config) for length in options.length]
    settings = {"shape": SHAPE, "prompt": PROMPT, "block_length": BLOCK, "passes_a_block": PASSES, "dtype": "fp32",
                "device": options.device, "rows": 1, "unit": "bytes"}  # fmt: skip
    record = make_record("memory", settings, rows)
    if options.out:
        save_record(options.out, record)
    if options.json:
        print(json.dumps(record))
    else:
        print_result(rows, Console(width=None if sys.stdout.isatty() else 120))
    return 0


def model_config(length: int) -> ModelConfig:
    """A small trunk with a large vocabulary, where a canvas of logits would be felt."""
    return ModelConfig("block_diffusion", **SHAPE, max_length=length, block_length=BLOCK)


def row(length: int, peaks: dict[tuple[int, str], int], config: ModelConfig) -> dict[str, int]:
    """The measured peaks of one length beside what the parts must take, from shapes, in bytes."""
    return {
        "positions": length,
        "cache": 2 * config.layers * length * config.kv_heads * config.head_dim * 4,
        "logits_of_a_block": BLOCK * config.vocab_size * 4,
        "logits_of_the_canvas": length * config.vocab_size * 4,
        "ours": peaks[length, "ours"],
        "published": peaks[length, "published"],
    }


def measure(length: int, loop: str, device: str) -> int:
    """Peak bytes that decoding one row of `length` positions takes beyond what was held before, in this process."""
    model = Transformer(model_config(length)).initialize(0).to(device).eval().requires_grad_(False)
    mask_id = model.config.mask_token_id
    canvas_BL = torch.full((1, length), mask_id, device=device)
    # The published loop evaluates the whole canvas at every pass: its last blocks show its peak.
    canvas_BL[:, : PROMPT if loop == "ours" else length - 2 * BLOCK] = 1
    _decode(model, canvas_BL[:, : PROMPT + BLOCK], loop, mask_id)  # so that kernels have their buffers already
    before = _peak(device, reset=True)
    _decode(model, canvas_BL, loop, mask_id)
    return _peak(device) - before


def _decode(model: Transformer, canvas_BL: torch.Tensor, loop: str, mask_id: int) -> None:
    if loop == "ours":
        config = DenoiseConfig(max_denoising_steps=PASSES)
        denoise(model, canvas_BL, config, mask_id=mask_id, response_start=PROMPT)
        return
    start = max(PROMPT, canvas_BL.shape[1] - 2 * BLOCK)
    with torch.no_grad():
        published_loop(lambda tokens_BL: model(tokens_BL, None, PROMPT), canvas_BL, mask_id=mask_id,
                       response_start=start, block_length=BLOCK, passes=PASSES)  # fmt: skip


def _peak(device: str, reset: bool = False) -> int:
    """Bytes held at most since the last reset; with `reset`, bytes held now, and the count begins anew."""
    if device == "cuda":
        if reset:
            torch.cuda.reset_peak_memory_stats()
            return torch.cuda.memory_allocated()
        return torch.cuda.max_memory_allocated()
    status = Path("/proc/self/status")
    if not status.is_file():
        raise UserError("the peak of a process can be reset on Linux only; measure there, or on a GPU")
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    wanted = "VmRSS:" if reset else "VmHWM:"
    return next(int(line.split()[1]) * 1024 for line in status.read_text().splitlines() if line.startswith(wanted))


def print_result(rows: list[dict[str, int]], console: Console) -> None:
    """The lengths as a table, in MB."""
    table = Table(box=box.SIMPLE_HEAD, title="MB beyond the model", title_justify="left")
    for name in rows[0]:
        table.add_column(name.replace("_", " "), justify="right")
    for entry in rows:
        table.add_row(f"{entry['positions']:,}", *(f"{value / 1e6:,.1f}" for value in list(entry.values())[1:]))
    console.print(table)


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = CommandParser("python -m evals memory", description="Peak memory of decoding by canvas length.")
    parser.add_argument("--length", nargs="+", type=int, default=list(LENGTHS), help="positions of a canvas")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, help="write the record to this file")
    parser.add_argument("--json", action="store_true", help="print the record as one JSON line")
    parser.add_argument("--one", nargs=2, metavar=("LENGTH", "LOOP"), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if min(options.length) < PROMPT + BLOCK:
        raise UserError(f"--length {min(options.length)}: a prompt and a block take {PROMPT + BLOCK} positions")
    return options

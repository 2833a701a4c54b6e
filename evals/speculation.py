"""`python -m evals speculation RUN`: what lossless speculation gives the autoregressive twin, the baseline to beat.

The rows of a comparison's split are decoded plainly and with each drafter at several draft lengths, one row at a time,
in turn within one process. Texts must be equal to the plain ones; how many are not (rounding in bf16) is reported.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from evals.machine import DTYPES
from evals.records import make_record, save_record
from evals.systems import Arm
from evals.timing import synchronize
from mdlm.checkpoint import load_checkpoint, resolve_checkpoint
from mdlm.command import CommandParser
from mdlm.cpu import keep_large_buffers
from mdlm.errors import UserError
from sample import AutoregressiveConfig, Generation, decode
from sample.drafters import DraftModel, PromptLookup
from sample.speculative import Speculation, decode_speculatively

LENGTHS = (1, 3, 7, 15)


class Way:
    """One way to decode: plainly, or with a drafter and a draft length."""

    def __init__(self, name: str, length: int, arm: Arm, draft: Any, compiled: bool) -> None:
        self.name, self.length, self.arm = name, length, arm
        config = AutoregressiveConfig(arm.response_columns, prompt_columns=arm.prompt_columns, compile=compiled)
        self.config = config
        self.drafter = {"plain": None, "prompt lookup": PromptLookup()}.get(name) or (
            draft and DraftModel(draft, config)
        )

    def decode(self, prompt: list[int]) -> Generation:
        """One row."""
        if self.name == "plain":
            return decode(self.arm.model, [prompt], self.config)
        return decode_speculatively(self.arm.model, [prompt], self.config, drafter=self.drafter,
                                    speculation=Speculation(self.length))  # fmt: skip


def main(argv: list[str]) -> int:
    options = _parse(argv)
    keep_large_buffers()
    torch._dynamo.config.recompile_limit = 64
    device = "cuda" if torch.cuda.is_available() else "cpu"
    folder = resolve_checkpoint(options.run / f"autoregressive-seed{options.seed}")
    arm = Arm(folder, dtype=DTYPES[options.dtype], device=device)
    with (options.run / "data" / f"{options.split}.jsonl").open() as lines:
        rows = [json.loads(line)["prompt"] for line, _ in zip(lines, range(options.rows), strict=False)]
    prompts = [prompt for prompt in arm.encode(rows) if len(prompt) <= arm.prompt_columns]
    draft = None
    if options.draft:
        draft, tokenizer = load_checkpoint(
            resolve_checkpoint(options.draft), dtype=DTYPES[options.dtype], device=device
        )
        if tokenizer.fingerprint() != arm.tokenizer.fingerprint():
            raise UserError(f"--draft {options.draft}: its tokenizer is not the model's")
    names = ["prompt lookup"] + (["draft model"] if draft else [])
    ways = [Way("plain", 0, arm, None, options.compile)]
    ways += [Way(name, length, arm, draft, options.compile) for name in names for length in LENGTHS]
    measured = [_measure(way, prompts, ways[0], device) for way in track(ways, "ways", console=Console(stderr=True),
                                                                        transient=True)]  # fmt: skip
    settings = {"run": str(options.run), "split": options.split, "rows": len(prompts), "dtype": options.dtype,
                "device": device, "compiled": options.compile, "draft": str(options.draft or ""),
                "token_rule": "useful tokens: the answer up to and without its end token"}  # fmt: skip
    record = make_record("speculation", settings, measured)
    if options.out:
        save_record(options.out, record)
    if options.json:
        print(json.dumps(record, allow_nan=False))
    else:
        print_result(record, Console(width=None if sys.stdout.isatty() else 140))
    return 0


def _measure(way: Way, prompts: list[list[int]], plain: Way, device: str) -> dict[str, Any]:
    """One way over all rows, each beside a plain decode of the same row."""
    for warm in (way, plain):
        warm.decode(prompts[0])
    ratios, seconds, accounts, different = [], 0.0, [], 0
    for prompt in prompts:
        spent: list[float] = []
        texts: list[list[int]] = []
        for side in (plain, way):
            synchronize(device)
            since = time.perf_counter()
            made = side.decode(prompt)
            synchronize(device)
            spent.append(time.perf_counter() - since)
            texts += made.answers()
        ratios.append(spent[0] / spent[1])
        seconds += spent[1]
        different += texts[0] != texts[1]
        accounts.append(made.ledger.row(0))
    verifies = sum(account.passes["verify"] for account in accounts)
    decoded = sum(account.kept + 1 for account in accounts) - len(accounts)  # the first token comes with the prefill
    return {
        "drafter": way.name,
        "draft_length": way.length,
        "tokens_a_verify_pass": decoded / verifies if verifies else None,
        "passes": fmean(account.total_passes for account in accounts),
        "draft_passes": fmean(account.passes["draft"] for account in accounts),
        "useful_tokens_per_second": sum(account.kept for account in accounts) / seconds,
        "faster_than_plain": median(ratios),
        "different_texts": different / len(prompts),
    }


def print_result(record: dict[str, Any], console: Console) -> None:
    """The ways as a table."""
    settings, table = record["settings"], Table(box=box.SIMPLE_HEAD)
    for column in ("drafter", "guesses", "tokens a verify pass", "passes", "of them drafts", "tokens/s", "× plain",
                   "other texts"):  # fmt: skip
        table.add_column(column, justify="left" if column == "drafter" else "right")
    for way in record["result"]:
        accepted = way["tokens_a_verify_pass"]
        table.add_row(
            way["drafter"],
            str(way["draft_length"] or "—"),
            "—" if accepted is None else f"{accepted:.2f}",
            f"{way['passes']:.1f}",
            f"{way['draft_passes']:.1f}",
            f"{way['useful_tokens_per_second']:,.0f}",
            f"{way['faster_than_plain']:.2f}",
            f"{way['different_texts']:.1%}",
        )
    console.print(table)
    mode = "compiled" if settings["compiled"] else "eager"
    console.print(
        f"{settings['rows']} rows of {settings['run']}, {settings['dtype']}, {mode}, one at a time; × plain is the "
        "median over rows decoded both ways in turn.",
        highlight=False,
    )


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = CommandParser("python -m evals speculation", description="Lossless speculation on a comparison's twin.")
    parser.add_argument("run", type=Path, help="the output folder of `python -m evals gap`")
    parser.add_argument("--draft", type=Path, help="a smaller autoregressive twin with the same tokenizer")
    parser.add_argument("--split", default="test", help="which of its splits (test)")
    parser.add_argument("--rows", type=int, default=30, help="the first rows of it (30)")
    parser.add_argument("--seed", type=int, default=0, help="of the trained arm")
    parser.add_argument("--dtype", choices=list(DTYPES), default="bf16", help="of the weights")
    parser.add_argument("--compile", action="store_true", help="compile the passes")
    parser.add_argument("--out", type=Path, help="write the record to this file")
    parser.add_argument("--json", action="store_true", help="print the record as one JSON line")
    options = parser.parse_args(argv)
    if options.rows < 1:
        raise UserError(f"--rows {options.rows}: it must be at least 1")
    if not (options.run / "data" / f"{options.split}.jsonl").is_file():
        raise UserError(f"{options.run} has no data/{options.split}.jsonl; give the output folder of `evals gap`")
    return options

"""`python -m evals speculation RUN`: what lossless speculation gives the autoregressive twin, the baseline to beat.

On dev rows it is measured what a verify pass costs at each width and how often each drafter's guesses are kept; from
both follows the draft length (`evals.draft_length`). Test rows are then decoded plainly and with each drafter at that
length, and at any others asked for, one row at a time, in turn within one process. Texts must be equal to the plain
ones; how many are not (rounding in bf16) is reported.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from evals.draft_length import (
    WIDTHS,
    CostCurve,
    choose_draft_length,
    expected_speedup,
    measure_acceptance,
    measure_costs,
)
from evals.machine import DTYPES
from evals.records import make_record, save_record
from evals.systems import Arm
from evals.timing import synchronize
from mdlm.checkpoint import resolve_checkpoint
from mdlm.command import CommandParser
from mdlm.cpu import keep_large_buffers
from mdlm.errors import UserError
from mdlm.heads import holds_heads
from sample import AutoregressiveConfig, Generation, decode
from sample.drafters import Drafter, load_drafter
from sample.speculative import Speculation, decode_speculatively


class Way:
    """One way to decode: plainly, or with a drafter and a draft length."""

    def __init__(self, arm: Arm, config: AutoregressiveConfig, drafter: Drafter | None = None, length: int = 0) -> None:
        self.arm, self.config, self.drafter, self.length = arm, config, drafter, length

    def decode(self, prompt: list[int]) -> Generation:
        """One row."""
        if self.drafter is None:
            return decode(self.arm.model, [prompt], self.config)
        speculation = Speculation(self.length)
        return decode_speculatively(
            self.arm.model, [prompt], self.config, drafter=self.drafter, speculation=speculation
        )


def main(argv: list[str]) -> int:
    options = _parse(argv)
    keep_large_buffers()
    device, console = "cuda" if torch.cuda.is_available() else "cpu", Console(stderr=True)
    rows = _rows(options)
    folder = options.run if options.data else options.run / f"autoregressive-seed{options.seed}"
    arm = Arm(resolve_checkpoint(folder), dtype=DTYPES[options.dtype], device=device)
    test, dev = (_fitting(arm, prompts, name) for prompts, name in zip(rows, ("rows", "dev-rows"), strict=True))
    config = AutoregressiveConfig(arm.response_columns, prompt_columns=arm.prompt_columns, compile=options.compile)
    named = _drafters(options, arm, config)
    with console.status("what a verify pass costs"):
        curve = measure_costs(arm.model, dev, config)
    tuned = [
        _tune(name, drafter, arm, dev, config, curve)
        for name, drafter in track(named.items(), "dev rows", console=console, transient=True)
    ]
    plain, cells = Way(arm, config), [{"drafter": "plain", "draft_length": 0}]
    ways = [plain]
    for found in tuned:
        lengths: dict[int, dict[str, Any]] = {length: {} for length in options.lengths}
        chosen = {"chosen": True, "predicted_faster_than_plain": found["predicted_faster_than_plain"]}
        for length, about in sorted((lengths | {found["draft_length"]: chosen}).items()):
            ways.append(Way(arm, config, named[found["drafter"]], length))
            cells.append({"drafter": found["drafter"], "draft_length": length, **about})
    for way, cell in track(list(zip(ways, cells, strict=True)), "test rows", console=console, transient=True):
        cell |= _measure(way, test, plain, device)
    settings = {
        "run": str(options.run),
        "data": str(options.data or options.run / "data" / f"{options.split}.jsonl"),
        "rows": len(test),
        "dev_rows": len(dev),
        "dtype": options.dtype,
        "device": device,
        "compiled": options.compile,
        "draft": str(options.draft or ""),
        "heads": str(options.heads or ""),
        "token_rule": "useful tokens: the answer up to and without its end token",
    }
    record = make_record("speculation", settings, {"costs": asdict(curve), "tuned": tuned, "ways": cells})
    if options.out:
        save_record(options.out, record)
    if options.json:
        print(json.dumps(record, allow_nan=False))
    else:
        print_result(record, Console(width=None if sys.stdout.isatty() else 140))
    return 0


def _rows(options: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Test and dev prompts."""
    if not options.data:
        files = [options.run / "data" / f"{split}.jsonl" for split in (options.split, "dev")]
        if missing := [file for file in files if not file.is_file()]:
            raise UserError(
                f"{options.run} has no data/{missing[0].name}; give the output folder of `evals gap`, or a checkpoint "
                "with rows of your own (--data FILE.jsonl)"
            )
        return _read(files[0], options.rows), _read(files[1], options.dev_rows)
    if options.dev:
        return _read(options.data, options.rows), _read(options.dev, options.dev_rows)
    both = _read(options.data, options.rows + options.dev_rows)
    return both[: options.rows], both[options.rows :]


def _fitting(arm: Arm, prompts: list[str], name: str) -> list[list[int]]:
    """The prompts as tokens, those left out that do not fit the model."""
    fitting = [row for row in arm.encode(prompts) if len(row) <= arm.prompt_columns]
    if not fitting:
        raise UserError(
            f"none of the {len(prompts)} rows for --{name} fits the model's {arm.prompt_columns} columns; give others, "
            "and behind --rows rows of --data some for --dev-rows, or a file of those (--dev)"
        )
    return fitting


def _read(path: Path, rows: int) -> list[str]:
    """The first prompts of a JSON Lines file."""
    if not path.is_file():
        raise UserError(f"{path}: no such file; give JSON Lines with a prompt in each row")
    prompts = []
    with path.open() as lines:
        for number, line in zip(range(1, rows + 1), lines, strict=False):
            try:
                prompts.append(json.loads(line)["prompt"])
            except (ValueError, TypeError, KeyError) as error:
                raise UserError(f'{path}:{number}: no JSON object with a "prompt"; mend or delete the line') from error
    return prompts


def _drafters(options: argparse.Namespace, arm: Arm, config: AutoregressiveConfig) -> dict[str, Drafter]:
    """All drafters that are compared, by name."""
    how = {"prompt lookup": "lookup", "prompt lookup, any length": "lookup:any"}
    for name, folder, wanted in (("draft model", options.draft, False), ("heads", options.heads, True)):
        if folder:
            if holds_heads(resolve_checkpoint(folder)) != wanted:
                raise UserError(
                    f"{folder} does not hold a {name.removesuffix('s')}; --draft takes a model, --heads heads"
                )
            how[name] = str(folder)
    return {name: load_drafter(word, arm.model, arm.tokenizer, config) for name, word in how.items()}


def _tune(
    name: str, drafter: Drafter, arm: Arm, dev: list[list[int]], config: AutoregressiveConfig, curve: CostCurve
) -> dict[str, Any]:
    """A drafter's acceptance and cost on dev rows, the draft length that follows, and what is expected of it."""
    found = measure_acceptance(arm.model, dev, config, drafter, WIDTHS[-1] - 1)
    choice = choose_draft_length(curve.verify, found.shares, found.guess_seconds)
    return {
        "drafter": name,
        **asdict(found),
        **asdict(choice),
        "predicted_faster_than_plain": expected_speedup(choice, curve, found.tokens_a_row),
    }


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
        "tokens_a_verify_pass": decoded / verifies if verifies else None,
        "passes": fmean(account.total_passes for account in accounts),
        "draft_passes": fmean(account.passes["draft"] for account in accounts),
        "useful_tokens_per_second": sum(account.kept for account in accounts) / seconds,
        "faster_than_plain": median(ratios),
        "different_texts": different / len(prompts),
    }


def print_result(record: dict[str, Any], console: Console) -> None:
    """The ways as a table, and what the draft lengths were chosen by."""
    settings, table = record["settings"], Table(box=box.SIMPLE_HEAD)
    for column in ("drafter", "guesses", "tokens a verify pass", "passes", "of them drafts", "tokens/s", "× plain",
                   "predicted", "other texts"):  # fmt: skip
        table.add_column(column, justify="left" if column == "drafter" else "right")
    for way in record["result"]["ways"]:
        accepted, predicted = way["tokens_a_verify_pass"], way.get("predicted_faster_than_plain")
        table.add_row(
            way["drafter"],
            f"{way['draft_length'] or '—'}{' *' if way.get('chosen') else ''}",
            "—" if accepted is None else f"{accepted:.2f}",
            f"{way['passes']:.1f}",
            f"{way['draft_passes']:.1f}",
            f"{way['useful_tokens_per_second']:,.0f}",
            f"{way['faster_than_plain']:.2f}",
            "—" if predicted is None else f"{predicted:.2f}",
            f"{way['different_texts']:.1%}",
        )
    console.print(table)
    mode = "compiled" if settings["compiled"] else "eager"
    costs = record["result"]["costs"]
    verify = ", ".join(f"{width}: {1e3 * seconds:.2f}" for width, seconds in costs["verify"].items())
    console.print(
        f"{settings['rows']} rows of {settings['data']}, {settings['dtype']}, {mode}, one at a time; × plain is the "
        f"median over rows decoded both ways in turn. * chosen on {settings['dev_rows']} dev rows, by the share of "
        f"guesses kept there and the milliseconds of a verify pass by its width ({verify}; a plain step "
        f"{1e3 * costs['plain_step']:.2f}).",
        highlight=False,
    )


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = CommandParser("python -m evals speculation", description="Lossless speculation on an autoregressive twin.")
    parser.add_argument("run", type=Path, help="the output folder of `evals gap`; with --data a checkpoint or a run")
    parser.add_argument("--data", type=Path, help="JSON Lines with a prompt in each row, in place of a comparison's")
    parser.add_argument("--dev", type=Path, help="the same for the choice of draft lengths (the rows behind --rows)")
    parser.add_argument("--draft", type=Path, help="a smaller autoregressive twin with the same tokenizer")
    parser.add_argument("--heads", type=Path, help="draft heads of the twin (python -m train.heads)")
    parser.add_argument("--lengths", type=int, nargs="+", default=[], help="further draft lengths to measure")
    parser.add_argument("--split", default="test", help="which of a comparison's splits (test)")
    parser.add_argument("--rows", type=int, default=30, help="the first rows of it (30)")
    parser.add_argument("--dev-rows", type=int, default=10, help="rows of the dev split (10)")
    parser.add_argument("--seed", type=int, default=0, help="of a comparison's trained arm")
    parser.add_argument("--dtype", choices=list(DTYPES), default="bf16", help="of the weights")
    parser.add_argument("--compile", action="store_true", help="compile the passes")
    parser.add_argument("--out", type=Path, help="write the record to this file")
    parser.add_argument("--json", action="store_true", help="print the record as one JSON line")
    options = parser.parse_args(argv)
    for name in ("rows", "dev_rows"):
        if getattr(options, name) < 1:
            raise UserError(f"--{name.replace('_', '-')} {getattr(options, name)}: it must be at least 1")
    for length in options.lengths:
        Speculation(length)  # refuses what is no draft length
    if options.dev and not options.data:
        raise UserError("--dev goes with --data; a comparison has its own dev rows")
    return options

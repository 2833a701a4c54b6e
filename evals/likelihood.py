"""`python -m evals likelihood`: nats and bits of a file under one or several checkpoints, each with its bound's name.

Rows are scored one after the other into a file beside the record, so that an interrupted run goes on where it was.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from evals.machine import DTYPES
from evals.records import make_record, save_record
from evals.statistics import ratio_difference, ratio_error
from mdlm.certainty import CERTAINTIES
from mdlm.checkpoint import load_checkpoint, resolve_checkpoint
from mdlm.command import CommandParser
from mdlm.corruption import SCHEDULES
from mdlm.cpu import keep_large_buffers
from mdlm.errors import UserError
from mdlm.likelihood import ORDERS, Estimate, autoregressive_nll, deterministic_order_nll, nelbo, order_nll
from mdlm.objectives import Batch
from mdlm.transformer import Transformer
from train.batches import BatchSource
from train.config import DEFAULT_END
from train.data import TokenDataset, open_dataset, prepare

RULE = (
    "nats are of all that a model must predict to state the text: its tokens and, where it ends, the end tokens the "
    "model was trained to fill up with; tokens are the text's and one end token, bytes those of its UTF-8, end tokens "
    "none: the same for every checkpoint"
)
"""How tokens and bytes are counted."""


@dataclass(frozen=True)
class LikelihoodConfig:
    """How rows are scored; the autoregressive likelihood is exact and needs none of it."""

    bound: str = "nelbo"
    """`nelbo`, an order, or a score for the greedy order."""
    samples: int = 128
    schedule: str | None = None
    block_length: int | None = None
    seed: int = 0
    dtype: str = "fp32"


def main(argv: list[str]) -> int:
    options = _parse(argv)
    keep_large_buffers()
    config = LikelihoodConfig(
        options.bound, options.samples, options.schedule, options.block_length, options.seed, options.dtype
    )
    names = _names(options.checkpoint)
    results = {
        name: score_file(folder, options.data, config, rows=options.rows, batch_size=options.batch_size,
                         split=options.split, partial=options.out and _partial(options.out, name))
        for name, folder in names.items()
    }  # fmt: skip
    settings = {"config": asdict(config), "data": str(options.data), "rows": options.rows, "rule": RULE}
    record = make_record("likelihood", settings, compare(results))
    if options.out:
        save_record(options.out, record)
        for name in names:
            _partial(options.out, name).unlink(missing_ok=True)
    if options.json:
        print(json.dumps(record, allow_nan=False))
    else:
        print_result(record, Console(width=None if sys.stdout.isatty() else 140))
    return 0


def _parse(argv: list[str]) -> argparse.Namespace:
    bounds = ["nelbo", *ORDERS, *CERTAINTIES]
    parser = CommandParser("python -m evals likelihood", description="Likelihood of a file under checkpoints.")
    parser.add_argument("--checkpoint", nargs="+", required=True, type=Path, help="folders, compared with the first")
    parser.add_argument("--data", required=True, type=Path, help="what training reads: responses only, or packed text")
    parser.add_argument("--split", help="of a set that has several")
    parser.add_argument("--rows", type=int, help="score the first rows only")
    parser.add_argument("--bound", choices=bounds, default="nelbo", help="for diffusion models")
    parser.add_argument("--samples", type=int, default=128, help="canvases for each row's NELBO")
    parser.add_argument("--schedule", choices=list(SCHEDULES), help="draw times by it; default: draw counts")
    parser.add_argument("--block-length", type=int, help="of the bound; default: the model's own")
    parser.add_argument("--batch-size", type=int, default=8, help="rows at once; changes no result")
    parser.add_argument("--dtype", choices=list(DTYPES), default="fp32", help="of the weights")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the record to this file; resumes what was begun for it")
    parser.add_argument("--json", action="store_true", help="print the record as one JSON line")
    options = parser.parse_args(argv)
    for name in ("samples", "batch_size", "rows", "block_length"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            raise UserError(f"--{name.replace('_', '-')} {getattr(options, name)}: it must be at least 1")
    if options.out and options.out.is_dir():
        raise UserError(f"--out {options.out}: this is a folder; give the name of a file to write")
    return options


def _names(folders: list[Path]) -> dict[str, Path]:
    """Checkpoint folders by the shortest name that tells them apart."""
    resolved = [resolve_checkpoint(folder) for folder in folders]
    for names in ([f.parent.name for f in resolved], [f"{f.parent.name}/{f.name}" for f in resolved]):
        if len(set(names)) == len(resolved):
            return dict(zip(names, resolved, strict=True))
    raise UserError("two --checkpoint folders have the same name; give each once")


def _partial(out: Path, name: str) -> Path:
    return out.with_name(f"{out.name}.{name.replace('/', '-')}.rows.jsonl")


def score_file(
    folder: Path,
    data: str | Path,
    config: LikelihoodConfig,
    *,
    rows: int | None = None,
    batch_size: int = 8,
    split: str | None = None,
    partial: Path | None = None,
) -> dict[str, Any]:
    """Scores the rows of a file under one checkpoint, with the row lengths it was trained with.

    Returns bound, samples, whether it is exact, the manifest's summary, and each row's nats (one for each replicate),
    tokens and bytes. With `partial`, rows are appended to that file as they are done, and those it holds are kept.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, tokenizer = load_checkpoint(folder, dtype=DTYPES[config.dtype], device=device)
    lengths, end = row_layout(folder, model)
    with tempfile.TemporaryDirectory() as temporary:
        manifest = prepare(data, Path(temporary) / "data", tokenizer, split=split, **lengths)
        dataset = open_dataset(Path(temporary) / "data")
        source = BatchSource(dataset, model.config, batch_size=1, seed=0, supervised_end=end)
        bytes_V = torch.tensor(tokenizer.byte_lengths())
        total = min(rows or len(dataset), len(dataset))
        weights = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
        key = {"weights": weights, "data": manifest.fingerprint(), "config": asdict(config)}
        done = _read_partial(partial, key)
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(),
                   TimeRemainingColumn())  # fmt: skip
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task(f"{folder.parent.name}", total=total, completed=len(done))
            estimate = None
            for first in range(len(done), total, batch_size):
                indices = list(range(first, min(first + batch_size, total)))
                estimate = _estimate(model, source, indices, config)
                found = list(_row_results(estimate, dataset, indices, bytes_V))
                if partial:
                    _append(partial, key, estimate, found, new=not done)
                done += found
                progress.update(task, completed=len(done))
    header = _about(estimate) if estimate else _read_header(partial)
    known = sum(row["bytes"] for row in done)
    if total == len(dataset) and known != manifest.response_bytes:
        Console(stderr=True).print(f"the tokens stand for {known} bytes, the text has {manifest.response_bytes}")
    return {**header, "objective": model.config.objective, "checkpoint": str(folder), "weights_sha256": weights,
            "parameters": model.num_parameters, "data": manifest.summary(), **lengths, "supervised_end": end,
            "rows": done[:total]}  # fmt: skip


def row_layout(folder: Path, model: Transformer) -> tuple[dict[str, Any], Any]:
    """The row lengths and the rule for end tokens that a checkpoint was trained with."""
    training = json.loads((folder / "training.json").read_text())
    try:
        data = training["config"]["data"]
        lengths = {name: int(data[name]) for name in ("prompt_length", "response_length")}
    except (KeyError, TypeError) as error:
        raise UserError(
            f"{folder}/training.json does not say how rows were laid out ({error}); train it again"
        ) from error
    return lengths, training.get("supervised_end") or DEFAULT_END[model.config.objective]


def scored_rows(model: Transformer, source: BatchSource, indices: list[int]) -> tuple[torch.Tensor, dict[str, Any]]:
    """Rows of a data set as the likelihoods take them: tokens (B, L), and what is scored, valid and given in them."""
    nothing = torch.zeros(0)
    batch: Batch = source.layout(torch.tensor(indices).numpy(), nothing, nothing)
    prompt_BP = torch.zeros(len(indices), batch.response_start, dtype=torch.bool)
    return batch.tokens_BL, {
        "mask_id": model.config.mask_token_id,
        "scored_BL": torch.cat([prompt_BP, batch.supervised_BR], dim=1),
        "valid_BL": batch.valid_BL,
        "response_start": batch.response_start,
    }


def _estimate(model: Transformer, source: BatchSource, indices: list[int], config: LikelihoodConfig) -> Estimate:
    tokens_BL, rows = scored_rows(model, source, indices)
    if model.config.objective == "autoregressive":
        return autoregressive_nll(model, tokens_BL, **rows)
    rows["block_length"] = config.block_length
    if config.bound in CERTAINTIES:
        return deterministic_order_nll(model, tokens_BL, config.bound, **rows)
    rows |= {"seed": config.seed, "first_row": indices[0]}
    if config.bound in ORDERS:
        return order_nll(model, tokens_BL, config.bound, **rows)
    return nelbo(model, tokens_BL, schedule=config.schedule, num_samples=config.samples, **rows)


def _row_results(
    estimate: Estimate, dataset: TokenDataset, indices: list[int], bytes_V: torch.Tensor
) -> Iterator[dict[str, Any]]:
    for place, index in enumerate(indices):
        _, response, ends = dataset.row(index)
        size = int(bytes_V[torch.from_numpy(response)].sum())
        nats = estimate.nats_KB[:, place].tolist()
        yield {"nats": nats, "tokens": len(response) + int(ends), "bytes": size}


def _about(estimate: Estimate) -> dict[str, Any]:
    return {"bound": estimate.bound, "num_samples": estimate.num_samples, "exact": estimate.exact}


def _append(path: Path, key: dict[str, Any], estimate: Estimate, rows: list[dict[str, Any]], *, new: bool) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w" if new else "a") as file:
        if new:
            file.write(json.dumps(key | {"about": _about(estimate)}) + "\n")
        file.writelines(json.dumps(row) + "\n" for row in rows)


def _read_header(path: Path | None) -> dict[str, Any]:
    assert path is not None  # without a file there is an estimate
    return json.loads(path.read_text().splitlines()[0])["about"]


def _read_partial(path: Path | None, key: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows a file holds; a last line that was cut short is dropped."""
    if path is None or not path.exists():
        return []
    lines = path.read_text().splitlines(keepends=True)
    whole = [line for line in lines if line.endswith("\n")]
    try:
        header, *rows = map(json.loads, whole)
        if {name: header[name] for name in key} != key:
            raise UserError(
                f"{path} was begun with other weights, data or settings; delete it, or choose another --out"
            )
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged ({error}); delete it and start again") from error
    path.write_text("".join(whole))
    return rows


def compare(results: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The summary of each checkpoint, and its difference to the first on the same rows."""
    first = next(iter(results.values()))
    compared = {}
    for name, result in results.items():
        rows = result["rows"]
        if [row["bytes"] for row in rows] != [row["bytes"] for row in first["rows"]]:
            raise UserError(
                f"{name} was not scored on the same bytes as {next(iter(results))}: their tokenizers or row lengths "
                "differ; score them apart"
            )
        compared[name] = result | {"summary": summarise(result)}
        if result is not first:
            ours, theirs = ([sum(r["nats"]) / len(r["nats"]) for r in x["rows"]] for x in (result, first))
            difference, error = ratio_difference(ours, theirs, [row["bytes"] for row in rows])
            compared[name]["difference"] = {
                "to": next(iter(results)),
                "bits_per_byte": difference / math.log(2),
                "standard_error": error and error / math.log(2),
            }
    return compared


def summarise(result: dict[str, Any]) -> dict[str, Any]:
    """Totals and rates. `monte_carlo` is the error of the estimate for these rows, `over_rows` that of the rows as a
    sample of others like them, the Monte-Carlo error included; both are standard errors."""
    rows = result["rows"]
    nats_RK = torch.tensor([row["nats"] for row in rows], dtype=torch.float64)
    tokens, size = (sum(row[name] for row in rows) for name in ("tokens", "bytes"))
    nats_R, replicates = nats_RK.mean(1), nats_RK.shape[1]
    monte_carlo = 0.0 if result["exact"] else None
    if replicates > 1:
        monte_carlo = float(nats_RK.sum(0).std() / replicates**0.5)
    summary: dict[str, Any] = {"rows": len(rows), "tokens": tokens, "bytes": size, "nats": float(nats_R.sum())}
    scales = {"nats_per_token": ("tokens", 1.0), "bits_per_token": ("tokens", math.log(2)),
              "nats_per_byte": ("bytes", 1.0), "bits_per_byte": ("bytes", math.log(2))}  # fmt: skip
    for name, (unit, nats) in scales.items():
        total = summary[unit] * nats
        error = ratio_error(nats_R.tolist(), [row[unit] for row in rows])
        summary[name] = {
            "value": summary["nats"] / total,
            "monte_carlo": None if monte_carlo is None else monte_carlo / total,
            "over_rows": None if error is None else error / nats,
        }
    return summary


def _error(value: float | None) -> str:
    return "—" if value is None else f"{value:.4f}"


def print_result(record: dict[str, Any], console: Console) -> None:
    """The comparison as a table, and the rule by which it counts."""
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("checkpoint", "bound", "samples"):
        table.add_column(column, no_wrap=True)
    for column in (
        "nats/token",
        "bits/token",
        "bits/byte",
        "± Monte Carlo",
        "± over rows",
        "bits/byte above the first",
    ):
        table.add_column(column, justify="right")
    for name, result in record["result"].items():
        rates, difference = result["summary"], result.get("difference")
        table.add_row(
            name,
            result["bound"],
            "exact" if result["exact"] else str(result["num_samples"]),
            *(f"{rates[rate]['value']:.4f}" for rate in ("nats_per_token", "bits_per_token", "bits_per_byte")),
            *(_error(rates["bits_per_byte"][error]) for error in ("monte_carlo", "over_rows")),
            f"{difference['bits_per_byte']:+.4f} ± {_error(difference['standard_error'])}" if difference else "—",
        )
    console.print(table)
    counted: dict[str, list[str]] = {}
    for name, result in record["result"].items():
        units = ", ".join(f"{result['summary'][unit]:,} {unit}" for unit in ("rows", "tokens", "bytes"))
        counted.setdefault(f"{units} of {result['data']}", []).append(name)
    for data, names in counted.items():
        console.print(f"Scored by {', '.join(names)}: {data}.", highlight=False)
    console.print(f"Counted: {record['settings']['rule']}.", highlight=False)
    console.print(
        "nelbo lies above a model's −log p by an unknown gap; exact_autoregressive and order_nll are likelihoods. "
        "Errors are standard errors of bits/byte: of the drawn samples, and of the rows as a sample.",
        highlight=False,
    )

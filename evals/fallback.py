"""`python -m evals fallback RUN`: which outputs of a diffusion arm may go out as they are, and what the others cost.

A confidence is learned on one half of the calibration rows, the threshold for a stated share of errors is tested on the
other, and both are judged on splits that neither has seen. What is rejected goes to the autoregressive twin or to a
priced API.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress

from evals import economics, selective
from evals.comparison import GapConfig, TaskSection
from evals.confidence import Confidence, Features, features
from evals.fallback_report import draw, print_result
from evals.machine import DTYPES
from evals.prices import PRICES, NodePrice, load_prices
from evals.records import make_record, read_record, save_record
from evals.statistics import share_interval
from evals.systems import Arm, Setting, frozen_arm
from mdlm.command import CommandParser, unknown
from mdlm.config_file import parse_config
from mdlm.cpu import keep_large_buffers
from mdlm.errors import UserError

Row = dict[str, Any]
TWIN = "autoregressive"


@dataclass(frozen=True)
class Judged:
    """Outputs of one split: what their traces say, None where the prompt did not fit, and whether they are right."""

    features: list[Features | None]
    right: list[bool]
    kept: int
    """Useful tokens of all."""
    prompt_tokens: int


def main(argv: list[str]) -> int:
    options = _parse(argv)
    keep_large_buffers()
    prices = load_prices(options.prices)
    given = options.node_per_hour
    node = prices.node(options.node) if options.node else NodePrice(given, 1, "given", "--node-per-hour")
    apis = {name: prices.api(name) for name in options.api}
    run: Path = options.run
    if not (run / "config.yaml").is_file():
        raise UserError(f"{run} has no config.yaml; give the output folder of `python -m evals gap`")
    sections = parse_config(GapConfig, [str(run / "config.yaml")], prog="python -m evals fallback")[0].sections
    task = options.task or next(iter(sections))
    if task not in sections:
        raise unknown("task", task, sections)
    where: Row = {"dtype": DTYPES[options.dtype], "device": "cuda" if torch.cuda.is_available() else "cpu"}
    arm, setting, _ = frozen_arm(run, options.arm, options.seed, **where)
    found = {
        path.stem: _read(path, task)[: sections[task].test_rows] for path in sorted((run / "data").glob("*.jsonl"))
    }
    rows = {name: of_split for name, of_split in found.items() if of_split and name not in ("train", "dev")}
    calibrate = options.calibrate or run / "data" / "dev.jsonl"
    calibrating = _read(calibrate, task, named=not options.calibrate)
    if len(calibrating) < 2:
        raise UserError(f"{calibrate} has {len(calibrating)} rows of {task}; give more with --calibrate")
    judged = {name: judge(arm, setting, sections[task], found, name, options.batch_size)
              for name, found in {"calibration": calibrating, **rows}.items()}  # fmt: skip
    result = assess(judged, options.error, options.level)
    twins = {name: read_record(_records(run, TWIN, options.seed) / task / f"{name}-frozen.json") for name in rows}
    add_quality(result, {name: found["result"]["rows_exact"] for name, found in twins.items()})
    tokens = (judged["test"].prompt_tokens / len(rows["test"]), judged["test"].kept / len(rows["test"]))
    asked = {name: price.request(*tokens) for name, price in apis.items()}
    rates = own_rates(run, options.arm, options.seed, task)
    result["costs"] = price_fallbacks(rates, result["splits"]["test"], node, asked, options.utilisation, options.check)
    settings = {
        "run": str(run),
        "arm": options.arm,
        "setting": setting.name,
        "decoder": setting.denoise and asdict(setting.denoise),
        "task": task,
        "seed": options.seed,
        "dtype": options.dtype,
        "device": where["device"],
        "calibrate": str(calibrate),
        "error": options.error,
        "level": options.level,
        "node": vars(node),
        "apis": {name: vars(price) for name, price in apis.items()},
        "utilisation": options.utilisation,
        "check_per_document": options.check,
        "token_rule": "useful tokens: the answer up to and without its end token",
    }
    record = make_record("fallback", settings, result)
    if options.out:
        save_record(options.out / "fallback.json", record)
        draw(record, options.out / "fallback.png")
    if options.json:
        print(json.dumps(record, allow_nan=False))
    else:
        print_result(record, Console(width=None if sys.stdout.isatty() else 120))
    return 0


def _records(run: Path, arm: str, seed: int) -> Path:
    return run / "records" / f"{arm}-seed{seed}"


def _read(path: Path, task: str, *, named: bool = True) -> list[dict[str, str]]:
    """The rows of a JSON Lines file, those of one task where they have names."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UserError(f"{path}, line {number} is not JSON ({error}); mend or remove it") from error
        if not isinstance(row, dict) or not {"prompt", "response"} <= row.keys():
            raise UserError(
                f"{path}, line {number} has no prompt and response; `python -m evals make-data` writes them"
            )
        if not named or row.get("task", task) == task:
            rows.append({"template": "", "split": "", **row})
    return rows


def judge(
    arm: Arm, setting: Setting, section: TaskSection, rows: list[dict[str, str]], split: str, batch_size: int
) -> Judged:
    """Decodes a split with its trace kept."""
    prompts = arm.encode([row["prompt"] for row in rows])
    fitting = [index for index, prompt in enumerate(prompts) if len(prompt) <= arm.prompt_columns]
    found: list[Features | None] = [None] * len(rows)
    right, kept = [False] * len(rows), 0
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(f"{arm.objective}, {setting.name}, {split}", total=len(fitting))
        for first in range(0, len(fitting), batch_size):
            chosen = fitting[first : first + batch_size]
            made = arm.generate([prompts[index] for index in chosen], setting, trace=True)
            traced = features(made, arm.tokenizer)
            for index, answer, of_row in zip(chosen, made.answers(), traced, strict=True):
                found[index], kept = of_row, kept + len(answer)
                right[index] = section.score(arm.tokenizer.decode(answer), rows[index]).exact
            progress.advance(task, len(chosen))
    return Judged(found, right, kept, sum(map(len, prompts)))


def assess(judged: dict[str, Judged], error: float, level: float) -> Row:
    """Learns the confidence, chooses the threshold, and judges both on the other splits.

    Of the calibration rows every other one teaches the confidence, the rest test the thresholds.
    """
    calibration = judged["calibration"]
    teaching = [(row, right) for row, right in list(zip(calibration.features, calibration.right, strict=True))[::2]]
    known = [(row, right) for row, right in teaching if row is not None]
    confidence = Confidence([row for row, _ in known], [right for _, right in known])
    taught = _confidences(confidence, [row for row, _ in teaching])
    tested, tested_right = _confidences(confidence, calibration.features[1::2]), np.array(calibration.right[1::2])
    candidates = selective.candidate_thresholds(taught, len(tested), error, level)
    threshold = selective.choose_threshold(candidates, tested, tested_right, error, level)
    splits: dict[str, Row] = {}
    pool, pool_right = [tested], [tested_right]
    for name, found in judged.items():
        if name == "calibration":
            continue
        values, right = _confidences(confidence, found.features), np.array(found.right)
        if name == "test":
            pool, pool_right = [*pool, values], [*pool_right, right]
        accepted = values >= (np.inf if threshold.value is None else threshold.value)
        wrong = (accepted & ~right).tolist()
        expected, high = selective.perfect_calibration_error(values)
        splits[name] = {
            "n": len(right),
            "exact": float(right.mean()),
            "calibration_error": selective.calibration_error(values, right),
            "calibration_error_if_perfect": {"mean": expected, "q95": high},
            "area_under_risk_coverage": selective.area_under_risk_coverage(values, right),
            "accepted": float(accepted.mean()),
            "accepted_wrong": sum(wrong),
            "risk": sum(wrong) / int(accepted.sum()) if accepted.any() else None,
            "risk_interval": share_interval([bad for bad, taken in zip(wrong, accepted, strict=True) if taken]),
            "rows_confidence": [round(float(value), 6) for value in values],
            "rows_right": [int(flag) for flag in right],
            "rows_accepted": [int(flag) for flag in accepted],
            "rows_features": [None if row is None else asdict(row) for row in found.features],
        }
    resamples = selective.resampled(
        candidates, np.concatenate(pool), np.concatenate(pool_right), len(tested), error, level
    )
    return {
        "coefficients": confidence.coefficients,
        "features": [field.name for field in fields(Features)],
        "rows_learned_from": len(known),
        "rows_tested_on": len(tested),
        "fewest_rows": 2 * selective.fewest_accepted(error, level),
        "candidates": [float(value) for value in candidates],
        "threshold": asdict(threshold),
        "splits": splits,
        "resampled": resamples,
    }


def _confidences(confidence: Confidence, rows: list[Features | None]) -> selective.Values:
    """0 for a prompt that did not fit."""
    values = np.zeros(len(rows))
    fitting = [index for index, row in enumerate(rows) if row is not None]
    if fitting:
        values[fitting] = confidence([row for row in rows if row is not None])
    return values


def add_quality(result: Row, twin_exact: dict[str, list[int]]) -> None:
    """Puts beside each split what is right once rejected rows have the twin's answer."""
    for name, split in result["splits"].items():
        ours, taken, twin = split["rows_right"], split["rows_accepted"], twin_exact[name]
        if len(twin) != len(ours):
            raise UserError(
                f"the twin was measured on {len(twin)} rows of {name}, this arm on {len(ours)}; run `evals gap` anew"
            )
        both = [own if accepted else other for own, accepted, other in zip(ours, taken, twin, strict=True)]
        split |= {
            "twin_exact": sum(twin) / len(twin),
            "with_twin_exact": sum(both) / len(both),
            "with_twin_interval": share_interval([bool(flag) for flag in both]),
        }


def own_rates(run: Path, arm: str, seed: int, task: str) -> dict[str, dict[str, float]]:
    """Seconds a document by basis: `one stream` from the speed records, `fastest batch` where throughput is measured.

    Each basis maps the arm and the twin to seconds of the node.
    """
    folders = {name: _records(run, name, seed) / task for name in (arm, TWIN)}
    modes = [
        mode for mode in ("compiled", "eager") if all((at / f"speed-{mode}.json").is_file() for at in folders.values())
    ]
    if not modes:
        raise UserError(
            f"{run / 'records'} has no speed of {arm} and its twin in one mode; let `evals gap` finish first"
        )
    bases: dict[str, dict[str, float]] = {"one stream": {}}
    for name, folder in folders.items():
        found = read_record(folder / f"speed-{modes[0]}.json")["result"]
        bases["one stream"][name] = found["useful_tokens"] / found["useful_tokens_per_second"] / found["rows"]
    if (run / "throughput.json").is_file():
        throughput = read_record(run / "throughput.json")
        least: dict[str, float] = {}
        of_seed = throughput["settings"]["seed"] == seed  # another seed decodes in other passes
        for cell in throughput["result"]["cells"] if of_seed else ():
            name = cell["way"].partition(",")[0]
            seconds = cell["seconds"]["median"] / throughput["settings"]["prompts"]
            least[name] = min(least.get(name, seconds), seconds)
        if {arm, TWIN} <= least.keys():
            bases["fastest batch"] = {name: least[name] for name in (arm, TWIN)}
    return bases


def price_fallbacks(
    rates: dict[str, dict[str, float]], split: Row, node: NodePrice, asked: dict[str, float], utilisation: float,
    check: float,
) -> list[Row]:  # fmt: skip
    """c = c_own + p · c_fallback + c_check for each basis and each place that rejected rows go to."""
    rejected, rows = 1 - split["accepted"], []
    for basis, seconds in rates.items():
        (own_seconds, twin_seconds) = (value for value in seconds.values())
        own = economics.cost_per_unit(node.per_hour, 1 / own_seconds, utilisation)
        twin = economics.cost_per_unit(node.per_hour, 1 / twin_seconds, utilisation)
        for name, cost in {"twin": twin, **asked}.items():
            row: Row = {
                "basis": basis,
                "to": name,
                "own": own,
                "at_once": cost,
                "rejected": rejected,
                "per_document": economics.with_fallback(own, rejected, cost, check),
                "break_even_rejected": economics.break_even_rejected(own, cost, check),
            }
            if basis == "one stream" and name == "twin":
                row["seconds"] = {
                    "accepted": own_seconds,
                    "mean": economics.with_fallback(own_seconds, rejected, twin_seconds),
                    "rejected": own_seconds + twin_seconds,
                    "at_once": twin_seconds,
                    "break_even_rejected": economics.break_even_rejected(own_seconds, twin_seconds),
                }
            rows.append(row)
    return rows


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = CommandParser(
        "python -m evals fallback", description="Confidence, risk and coverage, and what falls back."
    )
    parser.add_argument("run", type=Path, help="the output folder of `python -m evals gap`")
    parser.add_argument("--arm", choices=["block_diffusion", "masked_diffusion"], default="block_diffusion")
    parser.add_argument("--task", help="of a comparison of several (the first)")
    parser.add_argument("--seed", type=int, default=0, help="of the trained arms (0)")
    parser.add_argument(
        "--calibrate", type=Path, help="rows of prompt and response to calibrate on (the run's dev rows)"
    )
    parser.add_argument("--error", type=float, default=0.05, help="share of wrong answers among accepted ones (0.05)")
    parser.add_argument("--level", type=float, default=0.95, help="confidence in that bound (0.95)")
    parser.add_argument("--node", help="a node of the price file")
    parser.add_argument("--node-per-hour", type=float, help="instead: what the measured machine costs an hour")
    parser.add_argument("--api", nargs="*", default=[], help="APIs of the price file that rejected rows may go to")
    parser.add_argument("--prices", type=Path, default=PRICES, help="the price file (configs/prices.yaml)")
    parser.add_argument("--utilisation", type=float, required=True, help="share of the time the node is busy, (0, 1]")
    parser.add_argument("--check", type=float, default=0.0, help="what checking one document costs (0)")
    parser.add_argument("--batch-size", type=int, default=50, help="rows decoded together (50)")
    parser.add_argument("--dtype", choices=list(DTYPES), default="bf16", help="of the weights (bf16)")
    parser.add_argument("--out", type=Path, help="a folder for record and figure")
    parser.add_argument("--json", action="store_true", help="print the record as one JSON line")
    options = parser.parse_args(argv)
    if (options.node is None) == (options.node_per_hour is None):
        raise UserError("give either --node, of the price file, or --node-per-hour")
    if options.batch_size < 1:
        raise UserError(f"--batch-size {options.batch_size}: it must be at least 1")
    selective.check_bound(options.error, options.level)
    economics.cost_per_unit(options.node_per_hour or 0.0, 1.0, options.utilisation)  # refuses what cannot be priced
    return options

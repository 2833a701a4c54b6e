"""`python -m evals corpus CONFIG`: train the arms on running text, compare their likelihoods, draw both.

The three objectives, block diffusion at as many block lengths as asked for, see the same rows in the same order. As in
`gap`, every station leaves its files in the output folder, and one that finds them there goes on behind them.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import matplotlib
from rich.console import Console

from evals.corpora import MarkovChain, bits, write_markov, write_stdlib
from evals.likelihood import RULE, LikelihoodConfig, compare, print_result, score_file
from evals.records import read_record, write_record
from evals.statistics import ratio_difference
from evals.training import default_workers, train_all
from mdlm.checkpoint import checkpoints_in
from mdlm.config import OBJECTIVES
from mdlm.config_file import claim_folder, parse_config
from mdlm.cpu import keep_large_buffers
from mdlm.errors import UserError
from mdlm.tokenizer import Tokenizer
from train.config import TrainConfig
from train.data import read_texts

matplotlib.use("Agg")
from matplotlib import pyplot


@dataclass(frozen=True)
class CorpusConfig:
    """The corpus, the one training budget for all arms, and how they are scored."""

    output: str = "runs/corpus"
    source: Literal["markov", "stdlib"] = "markov"
    """`markov`: a chain of known entropy. `stdlib`: the running Python's library sources, split by module."""
    markov_seed: int = 0
    markov_symbols: int = 2_000_000
    train: TrainConfig = field(default_factory=TrainConfig)
    arms: tuple[str, ...] = ("autoregressive", "block_diffusion:16", "masked_diffusion")
    """Objectives; block diffusion with its block length."""
    rows: int = 200
    """Test rows that the last checkpoints are scored on."""
    samples: int = 128
    curve_checkpoints: int = 4
    """Checkpoints of each arm whose likelihood on dev the figure draws against training steps."""
    curve_rows: int = 64
    curve_samples: int = 16
    workers: int | None = None
    """Arms trained at once. None: one for each core of a CPU, one on a GPU."""

    def __post_init__(self) -> None:
        for arm in self.arms:
            objective, _, block = arm.partition(":")
            if objective not in OBJECTIVES or (objective == "block_diffusion") != block.isdecimal():
                raise UserError(f"arm {arm!r}: write autoregressive, masked_diffusion or block_diffusion:LENGTH")


def main(argv: list[str]) -> int:
    flags = {"json": "end with one JSON line on stdout"}
    config, options = parse_config(CorpusConfig, argv, prog="python -m evals corpus", flags=flags)
    keep_large_buffers()
    folder = Path(config.output)
    claim_folder(config, folder)
    splits = _write_data(config, folder / "data")
    runs = {arm: _training(config, folder, splits, arm) for arm in config.arms}
    # The dearest arms first, so that none waits for them at the end.
    train_all(sorted(runs.values(), key=lambda run: run.model.objective != "block_diffusion"),
              config.workers or default_workers())  # fmt: skip
    record = _score(config, folder, splits, runs)
    draw(record, folder / "likelihood.png")
    if options.json:
        print(json.dumps(record, allow_nan=False))
    else:
        print_result(record, Console(width=None if sys.stdout.isatty() else 140))
        print_truth(record)
        Console(stderr=True).print(f"figure: {folder / 'likelihood.png'}")
    return 0


def _write_data(config: CorpusConfig, folder: Path) -> dict[str, Path]:
    if config.source == "markov":
        splits = write_markov(folder, config.markov_seed, config.markov_symbols)
    else:
        splits = write_stdlib(folder)
    tokenizer = folder / "tokenizer.json"
    if not tokenizer.exists():
        Tokenizer.train(read_texts(splits["train"]), config.train.data.vocab_size).save(tokenizer)
    return splits


def _training(config: CorpusConfig, folder: Path, splits: dict[str, Path], arm: str) -> TrainConfig:
    objective, _, block = arm.partition(":")
    model: Any = replace(config.train.model, objective=objective)  # type: ignore[arg-type]
    if block:
        model = replace(model, block_length=int(block))
    data = replace(config.train.data, train=str(splits["train"]), validation=str(splits["dev"]),
                   tokenizer=str(folder / "data" / "tokenizer.json"))  # fmt: skip
    return replace(
        config.train,
        output=str(folder / arm.replace(":", "-")),
        resume="auto",
        checkpoint_every=math.ceil(config.train.steps / config.curve_checkpoints),
        keep_checkpoints=config.curve_checkpoints + 1,
        model=model,
        data=data,
    )


def _score(config: CorpusConfig, folder: Path, splits: dict[str, Path], runs: dict[str, TrainConfig]) -> dict[str, Any]:
    """The record of all arms: their likelihood on test, on dev along the way, and the source's entropy if known."""
    path = folder / "likelihood.json"
    if path.exists():
        return read_record(path)
    results: dict[str, Any] = {}
    curves: dict[str, Any] = {}
    training: dict[str, Any] = {}
    for arm, run in runs.items():
        checkpoints = checkpoints_in(run.output)
        partial = folder / f"{run.output.rpartition('/')[2]}.rows.jsonl"
        results[arm] = score_file(checkpoints[-1], splits["test"], LikelihoodConfig(samples=config.samples),
                                  rows=config.rows, partial=partial)  # fmt: skip
        brief = LikelihoodConfig(samples=config.curve_samples)
        curves[arm] = []
        for checkpoint in checkpoints:
            scored = score_file(checkpoint, splits["dev"], brief, rows=config.curve_rows)
            rate = compare({arm: scored})[arm]["summary"]["bits_per_byte"]
            point = {"step": int(checkpoint.name.rpartition("-")[2]), **rate}
            if config.source == "markov":
                point |= _excess(_source_nats(config, splits["dev"], len(scored["rows"])), scored["rows"])
            curves[arm].append(point)
        log = [json.loads(line) for line in (Path(run.output) / "log.jsonl").read_text().splitlines()]
        training[arm] = {
            "losses": [{name: entry[name] for name in ("step", "loss", "tokens_seen")} for entry in log],
            "made": json.loads((checkpoints[-1] / "training.json").read_text()),
        }
    settings = {"config": asdict(config), "rule": RULE, "curves": curves, "training": training}
    if config.source == "markov":
        settings["truth"] = _truth(config, splits["test"], results)
    return write_record(path, "corpus", settings, compare(results))


def _source_nats(config: CorpusConfig, file: Path, rows: int) -> list[float]:
    """The chain's own −log p of a file's first windows."""
    chain, width, text = MarkovChain(config.markov_seed), config.train.data.response_length, file.read_text()
    return [chain.nats(text[start : start + width]) for start in range(0, rows * width, width)]


def _excess(source: list[float], rows: list[dict[str, Any]]) -> dict[str, float]:
    """Bits a byte above the source on the same rows, with the paired standard error."""
    sizes = [row["bytes"] for row in rows]
    if len(set(sizes)) > 1:
        raise UserError("a window of the chain was not one token a symbol; set data.vocab_size to 260")
    ours = [sum(row["nats"]) / len(row["nats"]) for row in rows]
    excess, error = ratio_difference(ours, source, sizes)
    return {"excess": bits(excess), "excess_error": bits(error or 0.0)}


def _truth(config: CorpusConfig, test: Path, results: dict[str, Any]) -> dict[str, Any]:
    """The source's entropy, its −log p of the very rows that were scored, and each arm's excess over it."""
    chain, width = MarkovChain(config.markov_seed), config.train.data.response_length
    source = _source_nats(config, test, len(next(iter(results.values()))["rows"]))
    truth: dict[str, Any] = {
        "bits_per_byte": bits(sum(source) / (len(source) * width)),
        "entropy_of_a_window": bits(chain.entropy(width) / width),
        "entropy_rate": bits(chain.entropy_rate()),
    }
    return truth | {arm: _excess(source, result["rows"]) for arm, result in results.items()}


def print_truth(record: dict[str, Any]) -> None:
    """How far each arm is above the source's own −log p."""
    if truth := record["settings"].get("truth"):
        print(f"The source itself: {truth['bits_per_byte']:.4f} bits/byte on these rows, "
              f"{truth['entropy_of_a_window']:.4f} in the mean of all windows. Above it on the same rows:")  # fmt: skip
        for arm in record["result"]:
            print(f"  {arm:<20} {truth[arm]['excess']:+.4f} ± {truth[arm]['excess_error']:.4f}")


def draw(record: dict[str, Any], path: Path) -> None:
    """Bits a byte of every arm with its error, and the way there."""
    arms, truth = list(record["result"]), record["settings"].get("truth")
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    colors = dict(zip(arms, pyplot.colormaps["viridis"]([i / max(1, len(arms) - 1) * 0.85 for i in range(len(arms))]),
                      strict=True))  # fmt: skip
    for place, arm in enumerate(arms):
        result = record["result"][arm]
        if truth:
            value, error = truth[arm]["excess"], truth[arm]["excess_error"]
        else:
            value, error = (result["summary"]["bits_per_byte"][name] for name in ("value", "over_rows"))
        left.errorbar(place, value, yerr=1.96 * error, color=colors[arm], marker="o", capsize=4)
        left.annotate(f" {value:.4f}" if truth else f" {value:.3f}", (place, value), fontsize=9)
        curve = record["settings"]["curves"][arm]
        names = ("excess", "excess_error") if truth else ("value", "over_rows")
        values, errors = ([point[name] for point in curve] for name in names)
        right.errorbar([point["step"] for point in curve], values, yerr=[1.96 * error for error in errors],
                       color=colors[arm], marker="o", ms=4, capsize=2,
                       label=f"{arm.replace('_', ' ')}: {result['bound'].replace('_', ' ')}")  # fmt: skip
    if truth:
        left.axhline(0, color="black", lw=1, ls="--")
        right.axhline(0, color="black", lw=1, ls="--")
        left.set(ylabel="bits a byte above the source's own −log p")
        left.set_title("Test rows, against the source on the same rows", fontsize=10)
    else:
        left.set(ylabel="bits a byte, test")
        left.set_title("Test rows", fontsize=10)
    left.set_xticks(range(len(arms)), [arm.replace("_", "\n") for arm in arms])
    left.set_xlim(-0.5, len(arms) - 0.3)
    above = " above the source's own" if truth else ""
    right.set(xlabel="training steps", ylabel=f"bits a byte{above}, dev", xlim=(0, None))
    right.set_title("Along the training; bars are 95 % over rows", fontsize=10)
    right.legend(frameon=False, fontsize=8, loc="upper right")
    for axes in (left, right):
        axes.grid(alpha=0.25)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)

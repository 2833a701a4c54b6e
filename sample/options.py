"""The options of `python -m sample`, and the decoder's settings that they ask for."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import get_args

import torch

from mdlm.command import CommandParser, unknown
from mdlm.corruption import SCHEDULES
from mdlm.errors import UserError
from sample.autoregressive import AutoregressiveConfig
from sample.config import Accept, Cache, DenoiseConfig, Ends, Revoke, Score
from sample.infill import MARKER_WORD
from sample.presets import PRESETS, preset

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
CHOICES = (
    "block_length",
    "threshold",
    "max_denoising_steps",
    "score",
    "accept",
    "factor",
    "entropy_bound",
    "kl_threshold",
    "kl_passes",
    "schedule",
    "revoke",
    "eta",
    "revoke_threshold",
    "pipeline",
    "growing",
    "ends",
    "fused_store",
    "measure_drift",
)
"""Fields of `DenoiseConfig` that have an option of their name, None where it was not given."""


def read_options(argv: list[str]) -> argparse.Namespace:
    parser = CommandParser(
        "python -m sample",
        description="Decodes prompts with a trained checkpoint: answers on stdout, what they cost on stderr.",
        epilog="A gap takes the tokens that stand where it stands: most words carry the space before them, so write "
        "`is<|mask:3|>.` rather than `is <|mask:3|>.`",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--checkpoint", type=Path, metavar="DIR", help="a checkpoint or a run; default: newest in ./runs"
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--prompt", action="append", metavar="TEXT", help="may be repeated; default: stdin, whole")
    source.add_argument("--prompts", type=Path, metavar="FILE", help='.jsonl with "prompt", or text, one prompt a line')
    source.add_argument("--unconditional", action="store_true", help="no prompt: only the begin token")
    parser.add_argument("--batch-size", type=_count, default=16, metavar="N", help="prompts decoded at once (16)")
    parser.add_argument("--num-samples", type=_count, default=1, metavar="N", help="answers to each prompt (1)")
    parser.add_argument("--max-new-tokens", type=_count, metavar="N", help="longest answer; default: as trained")
    infill = parser.add_argument_group(
        "gaps (diffusion models): <|mask|> is one token, <|mask:8|> eight, <|mask:..8|> at most eight"
    )
    infill.add_argument("--template", metavar="TEXT", help="the answer with gaps; gaps in a prompt fill that text")
    infill.add_argument("--mask-marker", default=MARKER_WORD, metavar="WORD", help="another word than `mask`")
    denoising = parser.add_argument_group("denoising (diffusion models); docs/presets.md says what each choice does")
    denoising.add_argument("--preset", choices=list(PRESETS), help="a published sampler; single choices go on top")
    denoising.add_argument("--score", choices=get_args(Score), help="what makes a candidate sure (confidence)")
    denoising.add_argument("--accept", choices=get_args(Accept), help="the rule by which a pass commits (count)")
    denoising.add_argument("--max-denoising-steps", type=_count, metavar="N", help="passes for each block or canvas")
    denoising.add_argument("--threshold", type=_number, metavar="X", help="commit all candidates at least this sure")
    denoising.add_argument("--factor", type=_number, metavar="F", help="of --accept factor (1)")
    denoising.add_argument("--entropy-bound", type=_number, metavar="NATS", help="of --accept entropy_bound (0.1)")
    denoising.add_argument("--kl-threshold", type=_number, metavar="NATS", help="of --accept stable (0.01)")
    denoising.add_argument("--kl-passes", type=_count, metavar="N", help="of --accept stable (2)")
    denoising.add_argument("--schedule", choices=list(SCHEDULES), help="of --accept ancestral (linear)")
    denoising.add_argument("--revoke", choices=get_args(Revoke), help="which committed tokens are masked again (none)")
    denoising.add_argument("--eta", type=_number, metavar="X", help="how much --revoke remdm_* masks again (1)")
    denoising.add_argument("--revoke-threshold", type=_number, metavar="P", help="of --revoke verify (0.9)")
    denoising.add_argument("--block-length", type=_count, metavar="N", help="positions denoised together; as trained")
    denoising.add_argument("--pipeline", type=_number, metavar="SHARE", help="decided before the next block joins in")
    denoising.add_argument("--growing", action="store_const", const=True, help="masked diffusion: no canvas ahead")
    denoising.add_argument("--ends", choices=get_args(Ends), help="where end tokens may be committed (anywhere)")
    denoising.add_argument("--fused-store", action="store_const", const=True, help="store a block in the next's pass")
    denoising.add_argument("--measure-drift", action="store_const", const=True, help="of an approximate cache")
    guessing = parser.add_argument_group("lossless speculation (autoregressive models)")
    guessing.add_argument(
        "--speculate",
        metavar="HOW",
        help="`lookup` guesses from the prompt (lookup:N, lookup:any: the longest match); or a folder: a smaller twin, "
        "or draft heads of this one",
    )
    guessing.add_argument("--draft-length", type=_count, metavar="N", help="most guesses a pass (7)")
    drawing = parser.add_argument_group("drawing tokens")
    drawing.add_argument("--temperature", type=_number, default=0.0, metavar="T", help="0 takes the likeliest (0)")
    drawing.add_argument("--top-p", type=_number, default=1.0, metavar="P", help="mass that is sampled from (1)")
    drawing.add_argument("--seed", type=_seed, default=0, metavar="S", help="of all that is drawn (0)")
    machine = parser.add_argument_group("machine")
    machine.add_argument("--cache", choices=get_args(Cache), help="exact where there is one (exact)")
    machine.add_argument("--compile", action="store_true", help="compile the pass; pays off for many prompts")
    machine.add_argument("--dtype", choices=list(DTYPES), default="fp32", help="of weights and activations (fp32)")
    machine.add_argument("--device", metavar="NAME", help="cpu, cuda or cuda:N; default: cuda where there is one")
    output = parser.add_argument_group("output")
    output.add_argument(
        "--show",
        nargs="?",
        type=_number,
        const=0.1,
        metavar="SECONDS",
        help="draw each pass on stderr, on a terminal for that long (0.1)",
    )
    output.add_argument("--trace", type=Path, metavar="FILE", help="write every pass as JSON Lines")
    output.add_argument("--html", type=Path, metavar="FILE", help="write a page that plays the passes")
    output.add_argument("--json", action="store_true", help="one JSON line on stdout in place of the text")
    options, rest = parser.parse_known_args(argv)
    if rest and rest[0].startswith("-"):
        raise unknown(
            "option", rest[0].split("=")[0], [flag for action in parser._actions for flag in action.option_strings]
        )
    if rest:
        raise UserError(f"{rest[0]!r} stands alone; a prompt is given as --prompt TEXT")
    return options


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) < 2**31:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)


def _seed(text: str) -> int:
    if not text.isdecimal() or len(text) > 18:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0 to 10^18 - 1")
    return int(text)


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is no number")
    return value


def decoder_config(options: argparse.Namespace, objective: str) -> AutoregressiveConfig | DenoiseConfig:
    """The decoder's settings; refuses options that the objective has no use for."""
    shared = {name: getattr(options, name) for name in ("temperature", "top_p", "seed", "compile")}
    if options.top_p < 1 and options.temperature == 0:
        raise UserError("--top-p only matters when tokens are sampled; give --temperature above 0 too, or leave it out")
    if options.show is not None and options.show < 0:
        raise UserError(f"--show {options.show:g}: a pass cannot be shown for less than 0 seconds")
    given = {name: getattr(options, name) for name in CHOICES if getattr(options, name) is not None}
    if options.draft_length and not options.speculate:
        raise UserError("--draft-length only matters with --speculate; give that too, or leave it out")
    if options.speculate and objective != "autoregressive":
        raise UserError(f"--speculate is for autoregressive models, this checkpoint is {objective}; leave it out")
    if options.speculate and (options.cache == "none" or options.show is not None):
        raise UserError("--speculate needs its cache and cannot be drawn; leave out --cache none and --show")
    if objective == "autoregressive":
        named = [name for name in ("template", "preset") if getattr(options, name) is not None] + list(given)
        if options.cache in ("prefix", "dual"):
            named.append("cache")
        if named:
            flag = "--" + named[0].replace("_", "-")
            raise UserError(f"{flag} is for diffusion models, this checkpoint is autoregressive; leave it out")
        return AutoregressiveConfig(**shared, cache=options.cache != "none")
    if options.cache is not None:
        given["cache"] = options.cache
    if options.temperature > 0 or not options.preset:
        given |= {"temperature": options.temperature, "top_p": options.top_p}
    given |= {"seed": options.seed, "compile": options.compile, "trace": bool(options.trace or options.html)}
    config = preset(options.preset, **given) if options.preset else DenoiseConfig(**given)
    highest = 0 if config.score == "entropy" else 1
    if config.threshold is not None and config.threshold > highest:
        raise UserError(
            f"--threshold {config.threshold:g} is never reached: the score {config.score!r} is at most {highest}"
        )
    return config


def find_device(name: str | None) -> torch.device:
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise UserError(f"--device {name} is unknown; give cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(f"--device {name}: there are {torch.cuda.device_count()} such devices here; give --device cpu")
    return device

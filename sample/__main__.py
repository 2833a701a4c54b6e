"""`python -m sample`: prompts in, decoded text and what it cost out."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import unicodedata
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress

from mdlm.checkpoint import load_checkpoint, read_header, resolve_checkpoint
from mdlm.command import CommandParser, unknown
from mdlm.cpu import keep_large_buffers
from mdlm.errors import UserError, run_command
from mdlm.tokenizer import Tokenizer
from mdlm.transformer import Transformer
from sample.autoregressive import AutoregressiveConfig, decode
from sample.denoise import DenoiseConfig, denoise
from sample.generation import Generation, pad_left
from sample.infill import MARKER_WORD, Layout, Marker, Request, answer
from sample.ledger import KINDS, RowLedger
from sample.policies import SCORES
from sample.prompts import read_prompts
from sample.show import Show

RUNS = Path("runs")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
BATCH_SETTINGS = ("max_new_tokens", "prompt_columns", "trace")
DIFFUSION_ONLY = ("template", "block_length", "threshold", "max_denoising_steps", "score")


def main(argv: list[str]) -> None:
    options = _options(argv)
    keep_large_buffers()
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    folder = resolve_checkpoint(options.checkpoint) if options.checkpoint else newest_checkpoint(RUNS)
    header = read_header(folder)
    objective = header["model"].objective
    if not options.checkpoint:
        console.print(f"using {folder} ({objective}); --checkpoint DIR takes another")
    config, device = _decoder_config(options, objective), _device(options.device)
    texts = [""] if options.unconditional else read_prompts(options.prompt, options.prompts)
    model, tokenizer = load_checkpoint(folder, dtype=DTYPES[options.dtype], device=device)
    layout = Layout(
        tokenizer,
        replace(header["model"], block_length=options.block_length or header["model"].block_length),
        marker=Marker(options.mask_marker),
        response_length=header.get("response_length"),
        supervised_end=header.get("supervised_end"),
    )
    requests = layout.requests(texts, template=options.template, max_new_tokens=options.max_new_tokens)
    if objective == "block_diffusion" and any(request.is_infill for request in requests):
        console.print("note: block diffusion fills a gap without seeing the text behind the gap's block")
    run = Run(model, tokenizer, config)
    try:
        for result in _results(run, requests, options, console):
            if not options.json:
                print(_for_reading(result["text"]), flush=True)
    finally:  # what is finished is reported even when the rest was interrupted
        if run.results:
            console.print(run.summary())
        if run.results and options.json:
            asked = {name: getattr(options, name) for name in ("max_new_tokens", "template", "mask_marker")}
            record = {
                "checkpoint": str(folder),
                "objective": objective,
                "settings": {**run.settings(), **asked},
                "dtype": options.dtype,
                "device": str(device),
                "torch": torch.__version__,
                "results": run.results,
                "complete": len(run.results) == len(requests),
                "calls": run.calls,
                "seconds": run.seconds,
            }
            print(json.dumps(record), flush=True)


def newest_checkpoint(runs: Path) -> Path:
    """The checkpoint under `runs`, at any depth, that was written last."""
    found = [(path.stat().st_mtime, path.parent) for path in runs.glob("**/step-*/config.json")]
    if not found:
        raise UserError(
            f"there is no checkpoint under ./{runs} yet; `make demo` or `python -m train configs/NAME.yaml` makes one, "
            "--checkpoint DIR takes one from elsewhere"
        )
    return max(found)[1]


@dataclass
class Run:
    """Decodes batches and keeps their results and accounts."""

    model: Transformer
    tokenizer: Tokenizer
    config: AutoregressiveConfig | DenoiseConfig
    results: list[dict[str, Any]] = field(default_factory=list)
    ledgers: list[RowLedger] = field(default_factory=list)
    calls: int = 0
    """How often the trunk ran, for whole batches."""
    seconds: float = 0.0
    """Spent decoding, without loading and drawing."""

    def decode(self, batch: list[Request], show: Show | None = None) -> list[dict[str, Any]]:
        """The results of one batch, which are also kept."""
        # Each batch draws its own noise, so that a prompt given often is answered differently every time.
        config = replace(self.config, seed=self.config.seed + len(self.results))
        began = time.perf_counter()
        with show or nullcontext():
            generation = self._generate(batch, config, show)
        rows = generation.tokens_BL[:, generation.response_start :].tolist()
        self.seconds += time.perf_counter() - began - (show.seconds_spent if show else 0.0)
        results = []
        for request, tokens, ledger in zip(batch, rows, generation.ledger.rows(), strict=True):
            kept = answer(tokens, request.response, mask_id=self.tokenizer.mask_id, end_id=self.tokenizer.end_id)
            text = self.tokenizer.decode(kept)
            results.append({"prompt": request.text, "text": text, "tokens": kept, "ledger": ledger.to_dict()})
            self.ledgers.append(ledger)
        self.calls += generation.ledger.total_calls
        self.results += results
        return results

    def _generate(
        self, batch: list[Request], config: AutoregressiveConfig | DenoiseConfig, show: Show | None
    ) -> Generation:
        prompts, tokenizer = [request.prompt for request in batch], self.tokenizer
        response_BR = torch.tensor([request.response for request in batch])
        # As wide as in training, so that one compiled pass serves all batches.
        columns = self.model.config.max_length - response_BR.shape[1] if config.compile else None
        try:
            if isinstance(config, AutoregressiveConfig):
                config = replace(config, max_new_tokens=response_BR.shape[1], prompt_columns=columns)
                return decode(self.model, prompts, config, on_token=show.decoded if show else None)
            tokens_BP, valid_BP = pad_left(prompts, tokenizer.pad_id, columns)
            return denoise(
                self.model,
                torch.cat([tokens_BP, response_BR], dim=1),
                config,
                mask_id=tokenizer.mask_id,
                end_id=tokenizer.end_id,
                valid_BL=torch.cat([valid_BP, torch.ones_like(response_BR, dtype=torch.bool)], dim=1),
                response_start=tokens_BP.shape[1],
                on_pass=show.denoised if show else None,
            )
        except torch.OutOfMemoryError as error:
            raise UserError(f"{len(batch)} rows do not fit into the device's memory; lower --batch-size") from error

    def settings(self) -> dict[str, Any]:
        """The decoder's settings, without those that a batch decides."""
        return {name: value for name, value in asdict(self.config).items() if name not in BATCH_SETTINGS}

    def summary(self) -> str:
        """One line: answers, tokens, passes by kind (added up over rows), speed."""
        kept, passes = sum(row.kept for row in self.ledgers), sum(row.total_passes for row in self.ledgers)
        kinds = {kind: sum(row.passes[kind] for row in self.ledgers) for kind in KINDS}
        named = ", ".join(f"{n} {kind}" for kind, n in kinds.items() if n)
        return (
            f"{_plural(len(self.results), 'answer')}, {_plural(kept, 'token')} in {_plural(passes, 'pass', 'passes')}"
            f" ({named}): {kept / max(passes, 1):.2f} tokens per forward; {self.seconds:.2f} s, "
            f"{kept / self.seconds:,.0f} tokens/s"
        )


def _options(argv: list[str]) -> argparse.Namespace:
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
    parser.add_argument("--max-new-tokens", type=_count, metavar="N", help="longest answer; default: as trained")
    infill = parser.add_argument_group("gaps (diffusion models): <|mask|> is one token, <|mask:8|> eight")
    infill.add_argument("--template", metavar="TEXT", help="the answer with gaps; gaps in a prompt fill that text")
    infill.add_argument("--mask-marker", default=MARKER_WORD, metavar="WORD", help="another word than `mask`")
    denoising = parser.add_argument_group("denoising (diffusion models)")
    denoising.add_argument("--block-length", type=_count, metavar="N", help="positions denoised together")
    denoising.add_argument("--threshold", type=_number, metavar="X", help="commit all candidates at least this sure")
    denoising.add_argument("--max-denoising-steps", type=_count, metavar="N", help="passes for each block or canvas")
    denoising.add_argument("--score", choices=list(SCORES), help="what makes a candidate sure (confidence)")
    drawing = parser.add_argument_group("drawing tokens")
    drawing.add_argument("--temperature", type=_number, default=0.0, metavar="T", help="0 takes the likeliest (0)")
    drawing.add_argument("--top-p", type=_number, default=1.0, metavar="P", help="mass that is sampled from (1)")
    drawing.add_argument("--seed", type=_seed, default=0, metavar="S", help="of all that is drawn (0)")
    machine = parser.add_argument_group("machine")
    machine.add_argument("--no-cache", dest="cache", action="store_false", help="evaluate whole rows at every pass")
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


def _decoder_config(options: argparse.Namespace, objective: str) -> AutoregressiveConfig | DenoiseConfig:
    """The decoder's settings; refuses options that the objective has no use for."""
    shared = {name: getattr(options, name) for name in ("temperature", "top_p", "seed", "cache", "compile")}
    if options.top_p < 1 and options.temperature == 0:
        raise UserError("--top-p only matters when tokens are sampled; give --temperature above 0 too, or leave it out")
    if options.show is not None and options.show < 0:
        raise UserError(f"--show {options.show:g}: a pass cannot be shown for less than 0 seconds")
    if objective == "autoregressive":
        if given := [name for name in DIFFUSION_ONLY if getattr(options, name) is not None]:
            flag = "--" + given[0].replace("_", "-")
            raise UserError(f"{flag} is for diffusion models, this checkpoint is autoregressive; leave it out")
        return AutoregressiveConfig(**shared)
    wanted = {name: getattr(options, name) for name in DIFFUSION_ONLY[1:] if getattr(options, name) is not None}
    config = DenoiseConfig(**shared, **wanted)
    highest = 0 if config.score == "entropy" else 1
    if config.threshold is not None and config.threshold > highest:
        raise UserError(
            f"--threshold {config.threshold:g} is never reached: the score {config.score!r} is at most {highest}"
        )
    return config


def _device(name: str | None) -> torch.device:
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


def _batches(requests: list[Request], size: int) -> Iterator[list[Request]]:
    """Neighbours with responses of one width, at most `size` at once, in the order given."""
    batch: list[Request] = []
    for request in requests:
        if batch and (len(batch) == size or len(request.response) != len(batch[0].response)):
            yield batch
            batch = []
        batch.append(request)
    yield batch


def _results(
    run: Run, requests: list[Request], options: argparse.Namespace, console: Console
) -> Iterator[dict[str, Any]]:
    """Decodes batch after batch, drawn where that was asked for. A bar is shown where no answer shows the progress."""
    silent = console.is_terminal and options.show is None and (options.json or not sys.stdout.isatty())
    with Progress(
        console=console,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
        disable=not silent or len(requests) <= options.batch_size,
    ) as progress:
        task = progress.add_task("prompts", total=len(requests))
        for batch in _batches(requests, options.batch_size):
            show = Show(batch, run.tokenizer, console, options.show) if options.show is not None else None
            yield from run.decode(batch, show)
            progress.advance(task, len(batch))


def _for_reading(text: str) -> str:
    """The text as it goes to stdout: on a terminal, control characters other than line ends and tabs are escaped."""
    if sys.stdout.isatty():
        is_control = [unicodedata.category(c) == "Cc" and c not in "\n\t" for c in text]
        text = "".join(f"\\x{ord(c):02x}" if bad else c for c, bad in zip(text, is_control, strict=True))
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _plural(count: int, one: str, many: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


if __name__ == "__main__":
    raise SystemExit(run_command(main))

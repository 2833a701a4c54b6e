"""`python -m sample`: prompts in, decoded text and what it cost out."""

from __future__ import annotations

import argparse
import json
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
from mdlm.cpu import keep_large_buffers
from mdlm.errors import UserError, run_command
from mdlm.heads import holds_heads
from mdlm.tokenizer import Tokenizer
from mdlm.transformer import Transformer
from sample.autoregressive import AutoregressiveConfig, decode
from sample.config import DenoiseConfig
from sample.denoise import denoise
from sample.drafters import Drafter, load_drafter
from sample.generation import Generation, pad_left
from sample.infill import Layout, Marker, Request, answer
from sample.ledger import KINDS, RowLedger
from sample.options import DTYPES, decoder_config, find_device, read_options
from sample.page import write_page
from sample.prompts import ask, read_prompts
from sample.show import Show
from sample.speculative import Speculation, decode_speculatively
from sample.trace import TraceWriter, check_target

RUNS = Path("runs")
BATCH_SETTINGS = ("max_new_tokens", "prompt_columns", "trace")


def main(argv: list[str]) -> None:
    options = read_options(argv)
    keep_large_buffers()
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    folder = resolve_checkpoint(options.checkpoint) if options.checkpoint else newest_checkpoint(RUNS)
    header = read_header(folder)
    objective = header["model"].objective
    if not options.checkpoint:
        console.print(f"using {folder} ({objective}); --checkpoint DIR takes another")
    config, device = decoder_config(options, objective), find_device(options.device)
    targets = [check_target(path) for path in (options.trace, options.html) if path]
    texts = [""] if options.unconditional else read_prompts(options.prompt, options.prompts)
    model, tokenizer = load_checkpoint(folder, dtype=DTYPES[options.dtype], device=device)
    trained = header["model"].block_length
    layout = Layout(
        tokenizer,
        replace(header["model"], block_length=options.block_length or trained),
        marker=Marker(options.mask_marker),
        response_length=header.get("response_length"),
        supervised_end=header.get("supervised_end"),
    )
    if objective == "block_diffusion" and options.block_length not in (None, trained):
        console.print(f"note: the model was trained with blocks of {trained}, not of {options.block_length}")
    drafter = None
    if options.speculate and isinstance(config, AutoregressiveConfig):
        drafter = load_drafter(options.speculate, model, tokenizer, config)
    run = Run(model, tokenizer, config, drafter, Speculation(options.draft_length or Speculation.draft_length))
    names = ("speculate", "draft_length", "preset", "num_samples", "max_new_tokens", "template", "mask_marker")
    asked = {name: getattr(options, name) for name in names}
    about = {"checkpoint": str(folder), "settings": run.settings() | asked}
    trace = TraceWriter(tokenizer, about) if targets else None
    try:
        if texts is None:
            _converse(run, layout, options, console, trace)
        else:
            _answer(run, layout, texts, options, console, trace)
    finally:  # what is finished is reported even when the rest was interrupted
        if run.results:
            console.print(run.summary())
        if run.results and options.json:
            record = {
                "checkpoint": str(folder),
                "objective": objective,
                "settings": {**run.settings(), **asked},
                "dtype": options.dtype,
                "device": str(device),
                "torch": torch.__version__,
                "results": run.results,
                "complete": len(run.results) == run.requested,
                "calls": run.calls,
                "seconds": run.seconds,
            }
            print(json.dumps(record), flush=True)
        if run.results and trace and options.trace:
            trace.save(options.trace)
        if run.results and trace and options.html:
            write_page(options.html, trace.lines)


def _answer(
    run: Run, layout: Layout, texts: list[str], options: argparse.Namespace, console: Console, trace: TraceWriter | None
) -> None:
    """Decodes some texts and prints their answers."""
    once = layout.requests(texts, template=options.template, max_new_tokens=options.max_new_tokens)
    if layout.model.objective == "block_diffusion" and any(request.is_infill for request in once):
        console.print("note: block diffusion fills a gap without seeing the text behind the gap's block")
    requests = [request for request in once for _ in range(options.num_samples)]
    run.requested += len(requests)
    for result in _results(run, requests, options, console, trace):
        if not options.json:
            print(_for_reading(result["text"]), flush=True)


def _converse(
    run: Run, layout: Layout, options: argparse.Namespace, console: Console, trace: TraceWriter | None
) -> None:
    """Asks for prompts on the terminal until an empty line or the end of input; a prompt that fails is asked anew."""
    console.print("Prompts, one a line; an empty line ends.")
    while text := ask():
        try:
            _answer(run, layout, [text], options, console, trace)
        except UserError as error:
            console.print(f"error: {error}")


def newest_checkpoint(runs: Path) -> Path:
    """The checkpoint under `runs`, at any depth, that was written last."""
    written = [path for path in runs.glob("**/step-*/config.json") if not holds_heads(path.parent)]
    found = [(path.stat().st_mtime, path.parent) for path in written]
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
    drafter: Drafter | None = None
    speculation: Speculation = field(default_factory=Speculation)
    requested: int = 0
    results: list[dict[str, Any]] = field(default_factory=list)
    ledgers: list[RowLedger] = field(default_factory=list)
    calls: int = 0
    """How often the trunk ran, for whole batches."""
    seconds: float = 0.0
    """Spent decoding, without loading and drawing."""

    def decode(
        self, batch: list[Request], show: Show | None = None, trace: TraceWriter | None = None
    ) -> list[dict[str, Any]]:
        """The results of one batch, which are also kept."""
        began = time.perf_counter()
        with show or nullcontext():
            generation = self._generate(batch, show)
        rows = generation.tokens_BL[:, generation.response_start :].tolist()
        self.seconds += time.perf_counter() - began - (show.seconds_spent if show else 0.0)
        if trace:
            trace.batch(batch, generation)
        results = []
        for request, tokens, ledger in zip(batch, rows, generation.ledger.rows(), strict=True):
            ids = {"mask_id": self.tokenizer.mask_id, "end_id": self.tokenizer.end_id}
            kept = answer(tokens, request.response, **ids, open_gaps=request.open_gaps)
            text = self.tokenizer.decode(kept)
            results.append({"prompt": request.text, "text": text, "tokens": kept, "ledger": ledger.to_dict()})
            self.ledgers.append(ledger)
        self.calls += generation.ledger.total_calls
        self.results += results
        return results

    def _generate(self, batch: list[Request], show: Show | None) -> Generation:
        config = self.config
        # A row draws its noise by its number, so that a prompt given often is answered differently every time.
        rows_B = torch.arange(len(self.results), len(self.results) + len(batch))
        prompts, tokenizer = [request.prompt for request in batch], self.tokenizer
        response_BR = torch.tensor([request.response for request in batch])
        # As wide as in training, so that one compiled pass serves all batches.
        columns = self.model.config.max_length - response_BR.shape[1] if config.compile else None
        try:
            if isinstance(config, AutoregressiveConfig):
                config = replace(config, max_new_tokens=response_BR.shape[1], prompt_columns=columns)
                if self.drafter:
                    return decode_speculatively(
                        self.model, prompts, config, drafter=self.drafter, speculation=self.speculation, rows_B=rows_B
                    )
                return decode(self.model, prompts, config, rows_B=rows_B, on_token=show.decoded if show else None)
            tokens_BP, valid_BP = pad_left(prompts, tokenizer.pad_id, columns)
            return denoise(
                self.model,
                torch.cat([tokens_BP, response_BR], dim=1),
                config,
                mask_id=tokenizer.mask_id,
                end_id=tokenizer.end_id,
                valid_BL=torch.cat([valid_BP, torch.ones_like(response_BR, dtype=torch.bool)], dim=1),
                response_start=tokens_BP.shape[1],
                rows_B=rows_B,
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


def batches(requests: list[Request], size: int) -> Iterator[list[Request]]:
    """Neighbours with responses of one width, at most `size` at once, in the order given."""
    batch: list[Request] = []
    for request in requests:
        if batch and (len(batch) == size or len(request.response) != len(batch[0].response)):
            yield batch
            batch = []
        batch.append(request)
    yield batch


def _results(
    run: Run, requests: list[Request], options: argparse.Namespace, console: Console, trace: TraceWriter | None
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
        for batch in batches(requests, options.batch_size):
            show = Show(batch, run.tokenizer, console, options.show) if options.show is not None else None
            yield from run.decode(batch, show, trace)
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

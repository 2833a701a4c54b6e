"""A checkpoint as a model of lm-eval: `mdlm` in its registry, for all three objectives.

`python -m evals lm-eval` runs it (evals/harness_cli.py). lm-eval has no plugins, so that its own command line needs
this module imported first; all its options then work (its default device is a GPU):

    python -c "import evals.harness, lm_eval.__main__ as m; m.cli_evaluate()" run --model mdlm \
        --model_args checkpoint=runs/demo/block_diffusion-seed0,num_samples=64 --device cpu \
        --tasks NAME --include_path DIR

What is scored: the continuation as the beginning of the response, −log p of its tokens for an autoregressive model, the
NELBO (mdlm/likelihood.py) at or above that for a diffusion model. No end token is scored behind it; a diffusion model
sees masks there, to the end of the block or canvas, as its decoder does.

Where it stands: behind the begin token and the context as a prompt, as a prompt–response checkpoint was trained; for
one that was trained on running text (prompts of the begin token alone) the context is text, the first columns of the
response. Context and continuation are encoded apart: a model whose answers begin without a space wants
`target_delimiter: ""` in its tasks.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from rich.console import Console
from rich.progress import track

from evals.likelihood import row_layout
from mdlm.checkpoint import load_checkpoint, resolve_checkpoint
from mdlm.command import unknown
from mdlm.errors import UserError
from mdlm.likelihood import Estimate, autoregressive_nll, nelbo
from sample.__main__ import Run, batches
from sample.autoregressive import AutoregressiveConfig
from sample.config import DenoiseConfig
from sample.generation import pad_left
from sample.infill import Layout, Marker, Request
from sample.options import CHOICES, DTYPES, decoder_config, find_device, read_options

DECODER_OPTIONS = (*CHOICES, "preset", "temperature", "top_p", "cache", "compile")
"""Options of `python -m sample` that the model takes under the same names."""
IS_GREEDY = "the decoder's answer at temperature 0, with its other settings, begins with the continuation"
_TASK_ROWS = 1 << 20
_SAMPLING = ("do_sample", "temperature", "top_p")


@dataclass(frozen=True)
class Scored:
    """A row to score: the response's tokens from `start` on, given the prompt and those before."""

    number: int
    """What its noise is drawn by."""
    prompt: list[int]
    response: list[int]
    start: int = 0
    tokens: int = 0
    """How many its noise is drawn for: as many as the question's longest choice has, where that is more."""


@register_model("mdlm")
class CheckpointLM(LM):
    """One checkpoint under lm-eval.

    The noise of a bound depends on the seed and the question (task and document), so that it is common to the choices
    of a question: it is drawn for the longest one, and a shorter one has the same positions masked with the same
    weights as far as it goes. Differences between choices then vary less than with noise of their own.

    Args:
        checkpoint: a checkpoint's or a run's folder.
        batch_size: rows at once; changes no likelihood.
        dtype: `fp32` or `bf16`.
        num_samples: canvases for each continuation's bound.
        seed: of the bound's noise and of the decoder.
        greedy: whether `is_greedy` is found out, by one decode for each context; it is False throughout otherwise.
        device: default: cuda where there is one.
        decoder: options of `python -m sample` (`DECODER_OPTIONS`), e.g. `preset` or `threshold`.

    Raises `UserError` for what the command line refuses too, and for a continuation that the model has no room for.
    """

    def __init__(
        self,
        checkpoint: str | Path,
        *,
        batch_size: int | str = 8,
        max_batch_size: int | None = None,  # lm-eval hands it to every model; there is no search for a size here
        dtype: str = "fp32",
        num_samples: int = 128,
        seed: int = 0,
        greedy: bool = True,
        device: str | None = None,
        **decoder: Any,
    ) -> None:
        super().__init__()
        if not str(batch_size).isdecimal() or int(batch_size) < 1:
            raise UserError(f"batch_size {batch_size}: it must be a number of at least 1")
        if dtype not in DTYPES:
            raise unknown("dtype", dtype, DTYPES)
        self.batch_size, self.num_samples, self.seed, self.greedy = int(batch_size), num_samples, seed, greedy
        self.folder, self.dtype, self._device = resolve_checkpoint(checkpoint), dtype, find_device(device)
        self.model, self.tokenizer = load_checkpoint(self.folder, dtype=DTYPES[dtype], device=self._device)
        config = self.model.config
        lengths, end = row_layout(self.folder, self.model)
        self.is_text, self.response_length = lengths["prompt_length"] == 1, lengths["response_length"]
        self.max_length = config.max_length
        self._reserve = min(self.response_length, self.max_length // 2)  # columns that no context may take
        self.decoder = _decoder(config.objective, seed, decoder)
        blocks = replace(config, block_length=decoder.get("block_length") or config.block_length)
        self.layout = Layout(
            self.tokenizer, blocks, marker=Marker(), response_length=self.response_length, supervised_end=end
        )
        self.about: dict[str, Any] = {"bound": None, "exact": None, "num_samples": None}
        self.cut = {"contexts": 0, "tokens": 0}
        self.errors: list[float] = []

    def get_model_info(self) -> dict[str, Any]:
        """What made the results; lm-eval puts it among its own. `monte_carlo` is the mean standard error of a scored
        row in nats, `truncated` what was left out at the left of contexts that did not fit."""
        return {
            **self.about,
            "objective": self.model.config.objective,
            "checkpoint": str(self.folder),
            "weights_sha256": hashlib.sha256((self.folder / "model.safetensors").read_bytes()).hexdigest(),
            "parameters": self.model.num_parameters,
            "noise": "common to the choices of a question",
            "context": "text" if self.is_text else "prompt",
            "is_greedy": IS_GREEDY if self.greedy else "not looked for; False throughout",
            "seed": self.seed,
            "dtype": self.dtype,
            "decoder": asdict(self.decoder),
            "monte_carlo": sum(self.errors) / len(self.errors) if self.errors else None,
            "truncated": self.cut,
        }

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """(−nats, is_greedy) of each continuation given its context; (0, True) for an empty one."""
        pairs = [tuple(map(self.tokenizer.encode, request.args)) for request in requests]
        longest: dict[int, int] = defaultdict(int)
        for request, (_, continuation) in zip(requests, pairs, strict=True):
            number = noise_number(request)
            longest[number] = max(longest[number], len(continuation))
        rows = {
            index: self._row(noise_number(request), context, continuation)
            for index, (request, (context, continuation)) in enumerate(zip(requests, pairs, strict=True))
            if continuation
        }
        rows = {index: replace(row, tokens=longest[row.number]) for index, row in rows.items()}
        nats = dict(zip(rows, self._nats(list(rows.values())), strict=True))
        greedy = self._greedy(pairs) if self.greedy else [False] * len(pairs)
        return [(-nats[index], greedy[index]) if index in rows else (0.0, True) for index in range(len(pairs))]

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        """−nats of whole texts: chunks as long as a response in training, each given the begin token and as much of
        the text before it as fits."""
        size = min(self.response_length, self.max_length - 1)
        rows, owners = [], []
        for index, request in enumerate(requests):
            tokens = self.tokenizer.encode(request.args[0])
            for chunk, start in enumerate(range(0, len(tokens), size)):
                part = tokens[start : start + size]
                kept = len(part) if self.is_text else max(len(part), self._reserve)
                context = tokens[max(0, start + kept - (self.max_length - 1)) : start]
                rows.append(self._row(noise_number(request) + chunk, context, part))
                owners.append(index)
        totals = [0.0] * len(requests)
        for index, nats in zip(owners, self._nats(rows), strict=True):
            totals[index] -= nats
        return totals

    def generate_until(self, requests: list[Instance]) -> list[str]:
        """Answers of the decoder that `python -m sample` runs, up to the first of a task's stop strings.

        Of a task's `generation_kwargs`, `max_gen_toks` bounds the answer where it fits; `temperature` and `top_p` take
        the decoder's place where `do_sample` is true. Another one is a `UserError`.
        """
        groups: dict[AutoregressiveConfig | DenoiseConfig, list[tuple[int, Request]]] = defaultdict(list)
        stops: list[list[str]] = []
        for index, request in enumerate(requests):
            text, given = request.args
            if odd := given.keys() - {"until", "max_gen_toks", *_SAMPLING}:
                raise UserError(
                    f"generation_kwargs: {min(odd)} is unknown here; use until, max_gen_toks, do_sample, ..."
                )
            sampling = {name: given[name] for name in _SAMPLING[1:] if given.get("do_sample") and name in given}
            until = given.get("until") or []
            stops.append([until] if isinstance(until, str) else list(until))
            wanted = self._wanted(self.tokenizer.encode(text), given.get("max_gen_toks"), text=text)
            groups[replace(self.decoder, **sampling)].append((index, wanted))
        answers = [""] * len(requests)
        for config, members in groups.items():
            results = self._decode(config, [wanted for _, wanted in members])
            for (index, _), result in zip(members, results, strict=True):
                ends = [place for stop in stops[index] if stop and (place := result["text"].find(stop)) >= 0]
                answers[index] = result["text"][: min(ends, default=None)]
        return answers

    def _prompt(self, context: list[int], columns: int) -> list[int]:
        """Begin token and context, cut at the left so that so many columns, and room for an answer, are left."""
        columns = max(columns, self._reserve)
        return [self.tokenizer.begin_id, *self._fitting(context, self.max_length - columns - 1)]

    def _fitting(self, context: list[int], room: int) -> list[int]:
        if room < 0:
            raise UserError(
                f"a continuation has {self.max_length - 1 - room} tokens; behind its begin token the model has room "
                f"for {self.max_length - 1}: shorten it"
            )
        over = max(0, len(context) - room)
        self.cut["contexts"] += over > 0
        self.cut["tokens"] += over
        return context[over:]

    def _row(self, number: int, context: list[int], continuation: list[int]) -> Scored:
        if not self.is_text:
            return Scored(number, self._prompt(context, len(continuation)), continuation)
        context = self._fitting(context, self.max_length - 1 - len(continuation))
        return Scored(number, [self.tokenizer.begin_id], context + continuation, len(context))

    def _columns(self, row: Scored) -> int:
        """Response columns as a decoder would see them: masks follow to the end of the block, or of the canvas."""
        length, room, config = len(row.response), self.max_length - len(row.prompt), self.model.config
        if config.objective == "autoregressive":
            return length
        if config.objective == "block_diffusion":
            return min(-(-length // config.block_length) * config.block_length, room)
        return max(length, min(self.response_length, room))

    def _nats(self, rows: list[Scored]) -> list[float]:
        nats: list[float] = []
        starts = range(0, len(rows), self.batch_size)
        for first in track(starts, "likelihoods", console=Console(stderr=True), transient=True):
            estimate = self._estimate(rows[first : first + self.batch_size])
            self.about = {"bound": estimate.bound, "exact": estimate.exact, "num_samples": estimate.num_samples}
            nats += estimate.nats_B.tolist()
            if len(estimate.nats_KB) > 1:
                self.errors += (estimate.nats_KB.std(0) / len(estimate.nats_KB) ** 0.5).tolist()
        return nats

    def _estimate(self, rows: list[Scored]) -> Estimate:
        tokenizer = self.tokenizer
        prompt_BP, prompt_valid_BP = pad_left([row.prompt for row in rows], tokenizer.pad_id)
        columns = [self._columns(row) for row in rows]
        shape = (len(rows), max(columns))
        response_BR = torch.full(shape, tokenizer.pad_id)
        valid_BR, scored_BR = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.bool)
        for index, (row, width) in enumerate(zip(rows, columns, strict=True)):
            response_BR[index, :width] = tokenizer.mask_id
            response_BR[index, : len(row.response)] = torch.tensor(row.response)
            valid_BR[index, :width] = True
            scored_BR[index, row.start : len(row.response)] = True
        tokens_BL = torch.cat([prompt_BP, response_BR], dim=1)
        shared: dict[str, Any] = {
            "mask_id": tokenizer.mask_id,
            "valid_BL": torch.cat([prompt_valid_BP, valid_BR], dim=1),
            "scored_BL": torch.cat([torch.zeros_like(prompt_valid_BP), scored_BR], dim=1),
            "response_start": prompt_BP.shape[1],
        }
        if self.model.config.objective == "autoregressive":
            return autoregressive_nll(self.model, tokens_BL, **shared)
        sizes = [max(row.tokens, len(row.response) - row.start) for row in rows]
        shared |= {"seed": self.seed, "rows_B": [row.number for row in rows], "noise_tokens_B": sizes}
        return nelbo(self.model, tokens_BL, num_samples=self.num_samples, **shared)

    def _wanted(self, context: list[int], max_new_tokens: int | None, *, text: str = "") -> Request:
        prompt = self._prompt(context, 1)
        columns = min(max_new_tokens or self.response_length, self.max_length - len(prompt))
        return self.layout.continuation(text, prompt, columns)

    def _decode(self, config: AutoregressiveConfig | DenoiseConfig, wanted: list[Request]) -> list[dict[str, Any]]:
        """The decoder's results, in the order asked for; requests of one width are decoded together."""
        run = Run(self.model, self.tokenizer, config)
        order = sorted(range(len(wanted)), key=lambda index: len(wanted[index].response))
        groups = list(batches([wanted[index] for index in order], self.batch_size))
        for group in track(groups, "answers", console=Console(stderr=True), transient=True):
            run.decode(group)
        return [result for _, result in sorted(zip(order, run.results, strict=True), key=lambda pair: pair[0])]

    def _greedy(self, pairs: Sequence[tuple[list[int], ...]]) -> list[bool]:
        """Whether each continuation is what the decoder answers its context with; each context is decoded once."""
        longest: dict[tuple[int, ...], int] = defaultdict(int)
        for context, continuation in pairs:
            longest[tuple(context)] = max(longest[tuple(context)], len(continuation), 1)
        # Left to right the first tokens do not depend on how many are asked for; a canvas is decoded as in training.
        exact = self.model.config.objective == "autoregressive"
        cut = dict(self.cut)  # counted already, as these contexts were scored
        wanted = [self._wanted(list(context), most if exact else None) for context, most in longest.items()]
        self.cut = cut
        results = self._decode(replace(self.decoder, temperature=0.0, top_p=1.0), wanted)
        answers = dict(zip(longest, (result["tokens"] for result in results), strict=True))
        return [answers[tuple(context)][: len(continuation)] == continuation for context, continuation in pairs]


def _decoder(objective: str, seed: int, given: dict[str, Any]) -> AutoregressiveConfig | DenoiseConfig:
    """The decoder's settings, read and refused by the parser of `python -m sample`."""
    argv = [f"--seed={seed}"]
    for name, value in given.items():
        if name not in DECODER_OPTIONS:
            raise unknown("option of the model", name, DECODER_OPTIONS)
        flag = "--" + name.replace("_", "-")
        argv.append(flag if value is True else f"{flag}={value}")
    return decoder_config(read_options(argv), objective)


def noise_number(request: Instance) -> int:
    """A number for the question a request belongs to; its choices share it. Without a document it is its context's."""
    asked = request.args[0] if request.doc_id is None else request.task_name or ""
    digest = hashlib.blake2b(asked.encode("utf-8", "replace"), digest_size=4).digest()
    return int.from_bytes(digest, "little") % _TASK_ROWS + (request.doc_id or 0)

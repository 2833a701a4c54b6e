"""How many tokens to guess: from what a verify pass costs at each width, and how often guesses are kept.

Costs are those of the decoding loop as it runs, measured within it: on this model and machine, in this dtype and mode.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

import numpy as np
import torch
from torch import Tensor

from evals.timing import synchronize
from mdlm.errors import UserError
from mdlm.transformer import Transformer
from sample import AutoregressiveConfig, decode
from sample.drafters import Drafter
from sample.ledger import Ledger
from sample.speculative import Speculation, decode_speculatively

WIDTHS = (1, 2, 4, 8, 16, 32)
"""Positions of a verify pass at which its cost is measured."""


@dataclass(frozen=True)
class CostCurve:
    """Median seconds of the parts of one row's decoding."""

    prefill: float
    plain_step: float
    """One token of plain decoding."""
    verify: dict[int, float]
    """One verify pass by its width, with the loop around it."""


@dataclass(frozen=True)
class Acceptance:
    """What a drafter's guesses were worth on some rows."""

    shares: list[float]
    """Share of verify passes in which the i-th guess was kept, i = 1, 2, ... (and so all guesses before it)."""
    guess_seconds: dict[int, float]
    """Median seconds that the drafter took, by the number of guesses."""
    tokens_a_row: float
    """Decoded tokens of a row, the end token included."""


@dataclass(frozen=True)
class Choice:
    """A draft length and what is expected of it."""

    draft_length: int
    tokens_a_pass: float
    seconds_a_pass: float
    """Of drafting and verifying."""

    @property
    def tokens_per_second(self) -> float:
        """Expected, the prefill left out."""
        return self.tokens_a_pass / self.seconds_a_pass


def choose_draft_length(
    verify_seconds: Mapping[int, float], shares: Sequence[float], guess_seconds: Mapping[int, float]
) -> Choice:
    """The draft length n, from 1 to len(shares), with the most expected tokens per second.

    A pass keeps E(n) = 1 + s_1 + ... + s_n tokens, s_i the probability that the i-th guess is kept, and takes
    T(n + 1) + D(n) seconds: T of a verify pass by its width, D of the drafter by its guesses, both linear between
    measured points. The choice is the largest E(n) / (T(n + 1) + D(n)), of equals the shortest: Leviathan et al.
    (2211.17192, section 3.5) with measured costs in place of a constant ratio and measured s_i in place of α^i. The s_i
    are taken as those of one long draft length; shorter drafts start at other tokens.
    """
    if not shares:
        raise UserError("the drafter made no guess on the rows; give rows with longer answers")

    def choice(length: int) -> Choice:
        seconds = _between(verify_seconds, length + 1) + _between(guess_seconds, length)
        return Choice(length, 1 + sum(shares[:length]), seconds)

    return max(map(choice, range(1, len(shares) + 1)), key=lambda chosen: chosen.tokens_per_second)


def expected_speedup(choice: Choice, curve: CostCurve, tokens_a_row: float) -> float:
    """Seconds of a row decoded plainly over those expected with speculation, prefill included in both."""
    steps = tokens_a_row - 1  # the first token comes with the prefill
    return (curve.prefill + steps * curve.plain_step) / (curve.prefill + steps / choice.tokens_per_second)


def measure_costs(
    model: Transformer, prompts: Sequence[list[int]], config: AutoregressiveConfig, widths: Sequence[int] = WIDTHS
) -> CostCurve:
    """The costs over some prompts, one row at a time, all widths in turn; a warm-up on the first is left out."""
    prefills, steps = [], []
    verifies: dict[int, list[float]] = {width: [] for width in widths}
    for prompt in [prompts[0], *prompts]:
        prefill, step = _plain_seconds(model, prompt, config)
        passes = {width: _verify_seconds(model, prompt, config, width) for width in widths}
        if step is not None:
            prefills.append(prefill)
            steps.append(step)
            for width, seconds in passes.items():
                verifies[width].append(seconds)
    if len(steps) < 2:
        raise UserError("no row is longer than one token; costs cannot be measured on such rows")
    return CostCurve(median(prefills[1:]), median(steps[1:]), {w: median(s[1:]) for w, s in verifies.items()})


def measure_acceptance(
    model: Transformer, prompts: Sequence[list[int]], config: AutoregressiveConfig, drafter: Drafter, most: int
) -> Acceptance:
    """A drafter's worth with drafts of `most` guesses, or as many as it makes; its cost for one guess as well."""
    kept, tokens, seconds = [], [], {}
    for length in (1, most):
        watched = _Watched(drafter, model.device.type)
        for prompt in prompts:
            watched.newest.clear()
            made = decode_speculatively(model, [prompt], config, drafter=watched, speculation=Speculation(length))
            account = made.ledger.row(0)
            decoded = min(account.kept + 1, config.max_new_tokens)
            if length == most:
                tokens.append(decoded)
                kept += watched.kept(made.response_start + decoded - 1)
        if watched.seconds:
            seconds[watched.guesses] = median(watched.seconds[1:] or watched.seconds)
    shares = [fmean(many >= i for many in kept) for i in range(1, watched.guesses + 1)] if kept else []
    return Acceptance(shares, seconds, fmean(tokens))


def _between(measured: Mapping[int, float], at: int) -> float:
    points = sorted(measured)
    return float(np.interp(at, points, [measured[point] for point in points]))


class _NeverRight:
    """Guesses the mask token, which is never drawn: each pass keeps one token, whatever its width."""

    def __init__(self, width: int, mask_id: int) -> None:
        self.width, self.mask_id = width, mask_id
        self.since: float | None = None

    def start(
        self, tokens_BL: Tensor, valid_BL: Tensor, prompt_columns: int, rows_B: Tensor | None, ledger: Ledger
    ) -> None:
        self.since = None

    def propose(self, tokens_BL: Tensor, newest_B: Tensor, count: int, working_B: Tensor, hidden_BD: Tensor) -> Tensor:
        if self.since is None:
            synchronize(tokens_BL.device.type)
            self.since = time.perf_counter()
        return torch.full((len(tokens_BL), self.width - 1), self.mask_id, device=tokens_BL.device)

    def keep_rows(self, keep: Tensor) -> None:
        """Nothing is kept."""


def _verify_seconds(model: Transformer, prompt: list[int], config: AutoregressiveConfig, width: int) -> float:
    """Seconds of a verify pass over one row's decoding; 0 where there was none."""
    drafter, speculation = _NeverRight(width, model.config.mask_token_id), Speculation(max(1, width - 1))
    made = decode_speculatively(model, [prompt], config, drafter=drafter, speculation=speculation)
    synchronize(model.device.type)
    if drafter.since is None:
        return 0.0
    return (time.perf_counter() - drafter.since) / made.ledger.calls["verify"]


def _plain_seconds(model: Transformer, prompt: list[int], config: AutoregressiveConfig) -> tuple[float, float | None]:
    """Seconds of the prefill and of one step of plain decoding, None where the row had none."""
    first: list[float] = []

    def on_token(_: Tensor) -> None:
        if not first:
            synchronize(model.device.type)
            first.append(time.perf_counter())

    synchronize(model.device.type)
    since = time.perf_counter()
    made = decode(model, [prompt], config, on_token=on_token)
    synchronize(model.device.type)
    spent, steps = time.perf_counter() - first[0], made.ledger.calls["decode"]
    return first[0] - since, spent / steps if steps else None


class _Watched:
    """A drafter with a clock, whose rows are watched one at a time."""

    def __init__(self, drafter: Drafter, device: str) -> None:
        self.drafter, self.device, self.guesses = drafter, device, 0
        self.newest: list[int] = []
        self.seconds: list[float] = []
        self.start, self.keep_rows = drafter.start, drafter.keep_rows

    def propose(self, tokens_BL: Tensor, newest_B: Tensor, count: int, working_B: Tensor, hidden_BD: Tensor) -> Tensor:
        synchronize(self.device)
        since = time.perf_counter()
        guesses_BW = self.drafter.propose(tokens_BL, newest_B, count, working_B, hidden_BD)
        synchronize(self.device)
        self.seconds.append(time.perf_counter() - since)
        self.newest.append(int(newest_B[0]))
        self.guesses = guesses_BW.shape[1]
        return guesses_BW

    def kept(self, last_column: int) -> list[int]:
        """How many guesses each pass of the row kept, up to the answer's last column."""
        reached = [min(column, last_column) for column in [*self.newest, last_column]]
        return [after - before - 1 for before, after in pairwise(reached) if after > before]

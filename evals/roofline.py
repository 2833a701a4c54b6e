"""FLOPs, bytes and arithmetic intensity of a pass, from shapes, and what a roofline makes of them.

A pass takes at least max(bytes / bandwidth, FLOPs / peak) seconds (Williams, Waterman, Patterson, "Roofline", CACM
2009). Counted are weights, keys and values, logits, and the products that use them; activations between layers, norms
and softmax are not, so that every prediction is a lower bound. Nothing here needs torch.

B rows are evaluated together, each at G positions that see S columns; N is the number of weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from scipy.optimize import brentq

from evals.ceilings import Machine
from mdlm.config import ModelConfig
from mdlm.errors import UserError

LARGEST_BATCH = 1 << 20
"""Up to here a crossover is looked for."""


@dataclass(frozen=True)
class Precision:
    """Bytes of a number."""

    weights: float = 2.0
    activations: float = 2.0
    """Cached keys and values, and logits."""

    def __post_init__(self) -> None:
        for name, value in (("weights", self.weights), ("activations", self.activations)):
            if not 0 < value < math.inf:
                raise UserError(f"bytes of {name} are {value}; they must be above 0")


@dataclass(frozen=True)
class Work:
    """What a pass computes and moves, term by term."""

    flops: Mapping[str, float]
    bytes: Mapping[str, float]

    @property
    def total_flops(self) -> float:
        return sum(self.flops.values())

    @property
    def total_bytes(self) -> float:
        return sum(self.bytes.values())

    @property
    def intensity(self) -> float:
        """FLOPs a byte."""
        return self.total_flops / self.total_bytes

    def seconds(self, machine: Machine, dtype: str) -> float:
        """The roofline's lower bound."""
        return max(self.total_bytes / machine.bandwidth, self.total_flops / machine.flops(dtype))

    def bound_by(self, machine: Machine, dtype: str) -> str:
        """`bandwidth` or `arithmetic`."""
        return "bandwidth" if self.intensity < machine.ridge(dtype) else "arithmetic"


def layer_matrices(config: ModelConfig) -> int:
    """Weights of all layers that take part in products; the head and the embedding are not among them."""
    query, key = config.heads * config.head_dim, config.kv_heads * config.head_dim
    return config.layers * config.dim * (2 * query + 2 * key + 3 * config.hidden_dim)


def norm_weights(config: ModelConfig) -> int:
    """Weights of the norms, the last one's among them."""
    a_layer = 2 * config.dim + (2 * config.head_dim if config.qk_norm else 0)
    return config.layers * a_layer + config.dim


def pass_work(
    config: ModelConfig,
    *,
    batch: float,
    positions: int,
    columns: int,
    head_positions: int,
    cached: bool = True,
    precision: Precision = Precision(),
) -> Work:
    """One pass of B = `batch` rows over G = `positions` that see S = `columns` each, their own among them.

    Every weight is read once, two FLOPs a weight and position; the scores and their use take 4 FLOPs a head, head
    width, position and column, masked or not. With a cache the pass writes its positions' keys and values and reads all
    columns'; without one it has them at hand. The head runs on `head_positions`, and reads its table if that is not 0.
    `batch` may be a fraction, so that curves are continuous.
    """
    least = {"batch": (batch, 0), "positions": (positions, 1), "columns": (columns, positions)}
    for name, (value, bound) in least.items():
        if not value >= bound or value == 0:
            raise UserError(f"{name} of a pass: {value}; it must be at least {bound or 'above 0'}")
    if not 0 <= head_positions <= positions:
        raise UserError(f"the head at {head_positions} of {positions} positions: it must be at 0 to all of them")
    table = config.vocab_size * config.dim
    keys_and_values = 2 * config.layers * config.kv_heads * config.head_dim * precision.activations
    return Work(
        flops={
            "layers": 2 * batch * positions * layer_matrices(config),
            "attention": 4 * batch * positions * columns * config.layers * config.heads * config.head_dim,
            "head": 2 * batch * head_positions * table,
        },
        bytes={
            "layers": (layer_matrices(config) + norm_weights(config)) * precision.weights,
            "head": table * precision.weights if head_positions else 0,
            "embedding": batch * positions * config.dim * precision.weights,
            "cache_read": batch * columns * keys_and_values if cached else 0,
            "cache_write": batch * positions * keys_and_values if cached else 0,
            "logits": batch * head_positions * config.vocab_size * precision.activations,
        },
    )


@dataclass(frozen=True)
class Workload:
    """A prompt and an answer, and how their cache is read.

    A static cache, as ours, has all their columns and every cached pass reads it whole. A `paged` one is read as far as
    a pass sees; passes then count the mean of a decode, half of the answer before them. It reads less, which helps the
    twin more: it reads its cache more often.
    """

    config: ModelConfig
    prompt: int
    answer: int
    block: int
    precision: Precision = Precision()
    paged: bool = False

    def __post_init__(self) -> None:
        for name in ("prompt", "answer", "block"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} {getattr(self, name)}: it must be at least 1")
        if self.block > self.answer:
            raise UserError(f"a block of {self.block} does not fit an answer of {self.answer}; lower --block")

    @property
    def columns(self) -> int:
        return self.prompt + self.answer

    def step(self, batch: float) -> Work:
        """One token of the autoregressive twin."""
        return self._pass(batch, 1, head=1, columns=self._read(1))

    def block_pass(self, batch: float, *, head: bool = True) -> Work:
        """A denoising pass over one block; without the head, storing a finished one."""
        return self._pass(batch, self.block, head=self.block if head else 0, columns=self._read(self.block))

    def prefill(self, batch: float, *, head: bool) -> Work:
        """The prompt into the cache; the twin's also runs the head on the last position. Masked scores are counted:
        a kernel that skips a causal prompt's upper half does half of the attention."""
        return self._pass(batch, self.prompt, int(head), columns=self.prompt)

    def canvas(self, batch: float) -> Work:
        """All columns without a cache, the head on the answer."""
        return self._pass(batch, self.columns, self.answer, columns=self.columns, cached=False)

    def passes(self, batch: float) -> dict[str, Work]:
        """Every kind of pass by its name in a table."""
        return {
            "autoregressive step": self.step(batch),
            "block pass": self.block_pass(batch),
            "full canvas": self.canvas(batch),
            "prefill": self.prefill(batch, head=False),
        }

    def _read(self, width: int) -> int:
        """Columns of the cache that a pass over `width` positions reads, its own among them."""
        return self.prompt + -(-(self.answer + width) // 2) if self.paged else self.columns

    def _pass(self, batch: float, positions: int, head: int, columns: int, cached: bool = True) -> Work:
        return pass_work(
            self.config,
            batch=batch,
            positions=positions,
            columns=columns,
            head_positions=head,
            cached=cached,
            precision=self.precision,
        )


def speedup(work: Workload, batch: float, tokens: float, machine: Machine, dtype: str) -> float:
    """Decoding's tokens/s in block passes that make `tokens` a row, over those of the twin at the same batch."""
    if not 0 < tokens <= work.block:
        raise UserError(f"--tokens-per-forward {tokens}: it must be above 0 and at most the block's {work.block}")
    return tokens * work.step(batch).seconds(machine, dtype) / work.block_pass(batch).seconds(machine, dtype)


def closed_crossover(tokens_per_position: float, ridge: float, weight_bytes: float) -> float:
    """The protocol's b* = tokens_per_forward · R / G, for weights of any size: tokens_per_position · R · bytes / 2.

    `ridge` is R, peak FLOP/s over bandwidth. With N weights, the twin at batch b makes b tokens in N · bytes /
    bandwidth seconds, diffusion a token in 2 N / (peak · tokens_per_position). An approximation: it is exact only where
    weights are all that is read (the twin's keys and values keep it slower, so that diffusion leads for longer),
    attention costs nothing (its FLOPs end the lead sooner), and at b* the twin is still bound by bandwidth and the
    block pass already by arithmetic, which needs tokens_per_forward of 1 to G.
    """
    return tokens_per_position * ridge * weight_bytes / 2


def predicted_crossover(work: Workload, tokens: float, machine: Machine, dtype: str) -> dict[str, Any]:
    """The batch at which the two predicted curves meet, as `batching.crossover` says it of measured ones.

    The predicted speed-up never rises with the batch. It may stay above 1 for ever: where a row's keys and values are
    many, the twin is bound by reading them at any batch.
    """

    def log_lead(log_batch: float) -> float:
        return math.log(speedup(work, math.exp(log_batch), tokens, machine, dtype))

    if log_lead(0) < 0:
        return {"batch": None, "why": "behind from batch 1 on"}
    last = math.log(LARGEST_BATCH)
    if log_lead(last) > 0:
        return {"batch": None, "why": f"ahead up to batch {LARGEST_BATCH:,}"}
    return {"batch": math.exp(brentq(log_lead, 0, last, xtol=1e-12)), "why": "where the two predicted curves meet"}


Clock = Callable[[Work], float]
"""Seconds of a pass."""


def decode_seconds(work: Workload, batch: float, tokens: float, clock: Clock) -> dict[str, float]:
    """Seconds of whole answers, prefill included, by objective.

    The twin's prefill makes the first token. A block takes ⌈G / tokens⌉ passes, and one without the head that stores
    it, which the last block is spared; `tokens` are those of a denoising pass.
    """
    blocks, passes = math.ceil(work.answer / work.block), math.ceil(work.block / tokens)
    denoising = blocks * passes * clock(work.block_pass(batch))
    storing = (blocks - 1) * clock(work.block_pass(batch, head=False))
    return {
        "autoregressive": clock(work.prefill(batch, head=True)) + (work.answer - 1) * clock(work.step(batch)),
        "block_diffusion": clock(work.prefill(batch, head=False)) + denoising + storing,
        "masked_diffusion": math.ceil(work.answer / tokens) * clock(work.canvas(batch)),
    }


RATIOS = (16.0, 8.0, 4.0, 2.0, 1.0, 0.5, 0.25)
"""Prompt to answer."""


def at_ratios(work: Workload, total: int) -> dict[float, Workload]:
    """The workload with `total` columns divided at every ratio, answers in whole blocks and one at least."""
    block = work.block
    if total < 2 * block:
        raise UserError(
            f"--total {total} does not hold a block of {block} and as long a prompt; give {2 * block} or more"
        )
    found = {}
    for ratio in RATIOS:
        blocks = min(max(1, round(total / (1 + ratio) / block)), (total - 1) // block)
        found[ratio] = replace(work, prompt=total - blocks * block, answer=blocks * block)
    return found


def stops_paying(speedups: Mapping[float, float]) -> str:
    """The ratios (prompt to answer) of a sweep at which diffusion is the slower one, in words."""
    slower = [f"{ratio:g}:1" if ratio >= 1 else f"1:{1 / ratio:g}" for ratio, value in speedups.items() if value < 1]
    return f"below 1 at {', '.join(slower)}" if slower else "nowhere in the sweep"

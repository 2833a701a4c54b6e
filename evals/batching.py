"""What `python -m evals throughput` measures: one queue of prompts, decoded by every arm at every batch size.

The autoregressive twin refills its slots as rows end; beside it stand static batches, each of which waits for its
slowest row, and the diffusion arms in batches of the same size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from evals.systems import Setting, generate
from evals.timing import Timing, alternate, distribution
from mdlm.transformer import Transformer
from sample import AutoregressiveConfig
from sample.serving import Serving

TWIN, STATIC = "autoregressive, queue", "autoregressive, static batches"
"""The ways to decode the twin; a diffusion arm's way has its objective's name."""


@dataclass(frozen=True)
class Contender:
    """An arm as it is decoded here."""

    model: Transformer
    setting: Setting
    prompt_columns: int
    response_columns: int


@dataclass(frozen=True)
class Decoded:
    """One decode of the whole queue."""

    answers: list[list[int]]
    kept: int
    """Useful tokens: the answers up to and without their end tokens."""
    calls: dict[str, int]
    """Calls of the trunk by kind, for whole batches."""
    loop_positions: int
    """Positions that the rows' own passes evaluated, prefill left out."""
    idle_share: float | None
    """Share of all evaluated positions in slots without a row; None where batches shrink as rows end."""


def serve(contender: Contender, prompts: Sequence[Sequence[int]], size: int, *, waves: bool, compiled: bool) -> Decoded:
    """The twin over `size` slots, which are refilled one by one, or in waves when all have ended."""
    config = AutoregressiveConfig(contender.response_columns, prompt_columns=contender.prompt_columns, compile=compiled)
    serving = Serving(contender.model, prompts, config, slots=size, waves=waves)
    rows = sorted(serving)
    return Decoded(
        answers=[row.tokens for row in rows],
        kept=sum(row.account.kept for row in rows),
        calls=serving.work.calls,
        loop_positions=sum(row.account.positions["decode"] for row in rows),
        idle_share=serving.work.idle / serving.work.positions,
    )


def in_batches(contender: Contender, prompts: Sequence[Sequence[int]], size: int, *, compiled: bool) -> Decoded:
    """A diffusion arm in batches of `size`, in the queue's order; rows leave a batch at the end of a window."""
    answers, accounts, calls = [], [], dict[str, int]()
    columns = (contender.prompt_columns, contender.response_columns)
    for first in range(0, len(prompts), size):
        batch = prompts[first : first + size]
        made = generate(contender.model, batch, contender.setting, *columns, compile=compiled)
        answers += made.answers()
        accounts += made.ledger.rows()
        calls = {kind: calls.get(kind, 0) + count for kind, count in made.ledger.calls.items()}
    return Decoded(
        answers=answers,
        kept=sum(account.kept for account in accounts),
        calls=calls,
        loop_positions=sum(sum(account.positions.values()) - account.positions["prefill"] for account in accounts),
        idle_share=None,
    )


def ways(contenders: dict[str, Contender], compiled: bool) -> dict[str, Callable[..., Decoded]]:
    """Way -> a function of prompts and batch size, the twin's first."""

    def of_twin(waves: bool) -> Callable[..., Decoded]:
        return lambda prompts, size: serve(contenders["autoregressive"], prompts, size, waves=waves, compiled=compiled)

    def of_diffusion(contender: Contender) -> Callable[..., Decoded]:
        return lambda prompts, size: in_batches(contender, prompts, size, compiled=compiled)

    others = {name: of_diffusion(found) for name, found in contenders.items() if name != "autoregressive"}
    return {TWIN: of_twin(False), STATIC: of_twin(True), **others}


def measure(
    contenders: dict[str, Contender],
    prompts: Sequence[Sequence[int]],
    sizes: Sequence[int],
    *,
    repeats: int,
    compiled: bool,
    device: str,
    advance: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Every way at every size decodes the queue once a round, in turn; a first round warms up and compiles.

    Returns `cells`, `ratios` to the twin's queue at the same size, each way's `best` size, and its `crossover`.
    """
    decoded: dict[tuple[str, int], Decoded] = {}

    def side(way: str, decoder: Callable[..., Decoded], size: int) -> Callable[[], None]:
        return lambda: decoded.__setitem__((way, size), decoder(prompts, size))

    names = ways(contenders, compiled)
    sides = {(way, size): side(way, decoder, size) for size in sizes for way, decoder in names.items()}
    timings = alternate(sides, rounds=repeats, warmup=1, device=device, advance=advance)
    cells = [_cell(way, size, decoded, timings, sizes[0]) for way, size in sides]
    rates = {(cell["way"], cell["batch"]): cell["tokens_per_second"] for cell in cells}
    best = {way: max(sizes, key=lambda size: rates[way, size]) for way in names}
    ratios, summary = [], {}
    for way in [way for way in names if way != TWIN]:
        of_way = [_ratio((way, size), (TWIN, size), decoded, timings) for size in sizes]
        ratios += [
            {"way": way, "batch": size, "to_queue": of_size} for size, of_size in zip(sizes, of_way, strict=True)
        ]
        summary[way] = {
            "crossover": crossover(sizes, [of_size["median"] for of_size in of_way]),
            "best_to_best": _ratio((way, best[way]), (TWIN, best[TWIN]), decoded, timings),
        }
    return {"cells": cells, "ratios": ratios, "best_batch": best, "against_queue": summary}


def _cell(
    way: str,
    size: int,
    decoded: dict[tuple[str, int], Decoded],
    timings: dict[tuple[str, int], Timing],
    first: int,
) -> dict[str, Any]:
    made, seconds = decoded[way, size], timings[way, size].to_dict()
    differ = sum(ours != theirs for ours, theirs in zip(made.answers, decoded[way, first].answers, strict=True))
    return {
        "way": way,
        "batch": size,
        "seconds": seconds,
        "tokens": made.kept,
        "tokens_per_second": made.kept / seconds["median"],
        "calls": {kind: count for kind, count in made.calls.items() if count},
        "tokens_per_loop_position": made.kept / made.loop_positions if made.loop_positions else None,
        "idle_share": made.idle_share,
        "differs_from_first_batch_size": differ / len(made.answers),
    }


def _ratio(
    above: tuple[str, int],
    below: tuple[str, int],
    decoded: dict[tuple[str, int], Decoded],
    timings: dict[tuple[str, int], Timing],
) -> dict[str, Any]:
    """Useful tokens/s of one side over the other's, by round: how much more of them, and in how much less time."""
    tokens = decoded[above].kept / max(1, decoded[below].kept)
    pairs = zip(timings[below].seconds, timings[above].seconds, strict=True)
    return distribution([tokens * slower / faster for slower, faster in pairs])


def crossover(sizes: Sequence[int], ratios: Sequence[float]) -> dict[str, Any]:
    """The batch size from which on a way is slower than the twin, by log-log interpolation between two sizes.

    `batch` is None where there is none within the sweep; `why` then says which side led at its end.
    """
    ahead = [number for number, ratio in enumerate(ratios) if ratio >= 1]
    if not ahead:
        return {"batch": None, "why": f"none within the sweep: behind from batch {sizes[0]} on"}
    last = ahead[-1]
    if last == len(sizes) - 1:
        return {"batch": None, "why": f"none within the sweep: ahead at batch {sizes[last]}"}
    above, below = math.log(ratios[last]), math.log(ratios[last + 1])
    share = above / (above - below)
    batch = math.exp(math.log(sizes[last]) * (1 - share) + math.log(sizes[last + 1]) * share)
    return {"batch": batch, "why": f"between batch {sizes[last]} and {sizes[last + 1]}"}

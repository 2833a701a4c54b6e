"""`list`: copy, reverse, sort or shuffle a list of different items.

`shuffle` takes any permutation of the items for right and teaches a uniform one, so that what independent commitment
costs a perfect model is known in closed form: `permutation_probability`.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from random import Random

from evals.metrics import DocumentScore, plain_score
from evals.tasks.draws import distinct, pick, shuffled
from evals.tasks.splits import SPLITS, draw_for
from evals.tasks.task import Example, Knobs, Task, knob

OPERATIONS = ("copy", "reverse", "sort", "shuffle")
POOLS = {"letters": [*"abcdefghijklmnopqrstuvwxyz"], "numbers": [str(number) for number in range(10, 100)]}


@dataclass(frozen=True)
class ListKnobs(Knobs):
    operation: str = knob("mixed", ("mixed", *OPERATIONS), "what is asked for; mixed: any of the others")
    length: int = knob(8, range(2, 21), "items in the list, all different")
    items: str = knob("letters", tuple(POOLS), "what the items are")


def permutation_probability(items: int, group: int | None = None) -> float:
    """The chance that a perfect model answers `shuffle` right when it commits `group` items a pass (None: all at once).

    Given what is committed without an error, every open place is marginally uniform over the r items that are left.
    So m independent draws are different with probability r!/((r − m)! rᵐ), and what then remains is the same problem
    with r − m items. The factorials telescope over the passes: n! / ∏ rᵢ^mᵢ with rᵢ the items left before pass i.
    All at once that is n!/nⁿ ≈ √(2πn) e⁻ⁿ; one a pass it is 1. The loss is the sampler's: the marginals are exact.
    """
    left, logarithm = items, math.lgamma(items + 1)
    while left:
        committed = min(left, group or left)
        logarithm -= committed * math.log(left)
        left -= committed
    return math.exp(logarithm)


def make(split: str, row: int, seed: int, knobs: ListKnobs) -> Example:
    random = Random(f"list {split} seed {seed} row {row}")
    operation = pick(random, OPERATIONS) if knobs.operation == "mixed" else knobs.operation
    # The set decides the split: a list and its sorted or shuffled twin stand on the same side.
    items = draw_for(
        split,
        random,
        lambda random: distinct(random, POOLS[knobs.items], knobs.length),
        lambda items: " ".join(sorted(items)),
    )
    answer = shuffled(random, items) if operation == "shuffle" else _applied(operation, items)
    return Example(f"{operation}: {' '.join(items)}", " ".join(answer), f"{operation}/{row}", split)


def check(output: str, example: Example) -> DocumentScore:
    """Right: the one answer, or for `shuffle` every permutation. The share counts items, for the others by place."""
    operation, _, listed = example.prompt.partition(": ")
    items, given = output.split(), listed.split()
    if operation == "shuffle":
        found = sum((Counter(items) & Counter(given)).values())
        return plain_score(
            sorted(items) == sorted(given),
            well_formed=len(items) == len(given),
            share=found / max(len(items), len(given)),
            reason="not a permutation of the items",
        )
    wanted = _applied(operation, given)
    right = sum(ours == gold for ours, gold in zip(items, wanted, strict=False))
    return plain_score(
        items == wanted, sorted(items) == sorted(given), right / max(len(items), len(wanted)), f"not the {operation}"
    )


def _applied(operation: str, items: list[str]) -> list[str]:
    return {"copy": items, "reverse": items[::-1], "sort": sorted(items)}[operation]


TASKS = (
    Task(
        name="list",
        description="Copy, reverse, sort or shuffle a list; any permutation is a right shuffle.",
        group="reasoning",
        splits=SPLITS,
        knobs=ListKnobs,
        schema=None,
        make=make,
        check=check,
    ),
)

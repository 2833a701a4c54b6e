"""`latin`: fill a partial Latin square. Most have many completions, and every one is right."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from evals.metrics import DocumentScore
from evals.tasks.draws import shuffled
from evals.tasks.grids import Grid, check_completion, random_grid, shape, text
from evals.tasks.splits import SPLITS, draw_for
from evals.tasks.task import Example, Knobs, Task, knob


@dataclass(frozen=True)
class LatinKnobs(Knobs):
    order: int = knob(5, range(4, 10), "rows and columns")
    blanks: int = knob(60, range(30, 81, 10), "empty cells, in percent")


def make(split: str, row: int, seed: int, knobs: LatinKnobs) -> Example:
    """The puzzle decides the split: it has many answers, so by solved squares it could stand on two sides."""
    random = Random(f"latin {split} seed {seed} row {row}")
    form = shape(knobs.order, boxes=False)

    def puzzle(random: Random) -> tuple[Grid, Grid]:
        solved = random_grid(random, form)
        empty = set(shuffled(random, range(len(solved)))[: len(solved) * knobs.blanks // 100])
        return [0 if cell in empty else value for cell, value in enumerate(solved)], solved

    given, solved = draw_for(split, random, puzzle, lambda drawn: text(drawn[0], form.size))
    return Example(text(given, form.size), text(solved, form.size), f"order-{form.size}/{row}", split)


def check(output: str, example: Example) -> DocumentScore:
    """Right: any square with the givens in place and no number twice in a row or column."""
    return check_completion(output, example.prompt, shape(len(example.prompt.split()), boxes=False))


TASKS = (
    Task(
        name="latin",
        description="Fill a partial Latin square; every completion is right.",
        group="reasoning",
        splits=SPLITS,
        knobs=LatinKnobs,
        schema=None,
        make=make,
        check=check,
    ),
)

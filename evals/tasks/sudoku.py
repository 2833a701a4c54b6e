"""`sudoku`: 4 × 4 or 9 × 9, one solution, rated by the number of givens and by whether singles suffice."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from random import Random

from evals.metrics import DocumentScore
from evals.tasks.draws import shuffled
from evals.tasks.grids import (
    Grid,
    Shape,
    check_completion,
    random_grid,
    shape,
    single,
    singles_suffice,
    solutions,
    text,
)
from evals.tasks.splits import SPLITS, draw_for
from evals.tasks.task import Example, Knobs, Task, knob
from mdlm.errors import UserError

GIVENS = {"few": {4: 5, 9: 26}, "some": {4: 7, 9: 36}, "many": {4: 9, 9: 45}}
MOST_PUZZLES = 200


@dataclass(frozen=True)
class SudokuKnobs(Knobs):
    size: int = knob(4, (4, 9), "rows, columns and boxes")
    difficulty: str = knob("easy", ("easy", "hard"), "easy: naked and hidden singles suffice; hard: they do not")
    givens: str = knob("some", tuple(GIVENS), "of an easy puzzle at least 5, 7, 9 (4 × 4) or 26, 36, 45 (9 × 9)")


def make(split: str, row: int, seed: int, knobs: SudokuKnobs) -> Example:
    """The solved grid decides the split and is the cluster: there are only 288 of 4 × 4."""
    if knobs.size == 4 and knobs.difficulty == "hard":
        raise UserError("size=4 has no hard puzzles, as singles solve them all; choose size=9")
    random = Random(f"sudoku {split} seed {seed} row {row}")
    form = shape(knobs.size, boxes=True)
    solved = draw_for(split, random, lambda random: random_grid(random, form), lambda grid: text(grid, form.size))
    if knobs.difficulty == "easy":
        puzzle = _easy(random, solved, form, GIVENS[knobs.givens][knobs.size])
    else:
        puzzle = _hard(random, solved, form)
    cluster = "".join(map(str, solved))
    return Example(text(puzzle, form.size), text(solved, form.size), f"{knobs.difficulty}/{cluster}", split)


def check(output: str, example: Example) -> DocumentScore:
    """Right: the rules hold and the givens stand, found without the canonical answer."""
    return check_completion(output, example.prompt, shape(len(example.prompt.split()), boxes=True))


def _easy(random: Random, solved: Grid, form: Shape, givens: int) -> Grid:
    """Empties cells as long as singles solve what is left, which is quick to see where one fills the cell again."""
    puzzle, left = solved[:], len(solved)
    for cell in shuffled(random, range(len(solved))):
        if left == givens:
            break
        puzzle[cell] = 0
        if single(puzzle, cell, form) or singles_suffice(puzzle, form):
            left -= 1
        else:
            puzzle[cell] = solved[cell]
    return puzzle


def _hard(random: Random, solved: Grid, form: Shape) -> Grid:
    """Empties cells while the solution stays the only one, until none can go; tried until singles do not suffice."""
    for _ in range(MOST_PUZZLES):
        puzzle = solved[:]
        for cell in shuffled(random, range(len(solved))):
            puzzle[cell] = 0
            if not single(puzzle, cell, form) and len([*islice(solutions(puzzle[:], form), 2)]) > 1:
                puzzle[cell] = solved[cell]
        if not singles_suffice(puzzle, form):
            return puzzle
    raise UserError(f"no hard puzzle in {MOST_PUZZLES} tries; choose difficulty=easy")


TASKS = (
    Task(
        name="sudoku",
        description="Fill a sudoku of 4 × 4 or 9 × 9 cells.",
        group="reasoning",
        splits=SPLITS,
        knobs=SudokuKnobs,
        schema=None,
        make=make,
        check=check,
    ),
)

"""Square grids in which no unit (row, column or box) holds a number twice: text, rules, and an exact solver.

A grid is a list of n² numbers row by row, 0 for an empty cell. Candidates are bit masks: bit v - 1 stands for v.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from random import Random

from evals.metrics import DocumentScore, plain_score
from evals.tasks.draws import shuffled

Grid = list[int]
EMPTY = "."


@dataclass(frozen=True)
class Shape:
    """size: n. units: the cells of each row, column and, if there are any, box. peers: those that share a unit."""

    size: int
    units: tuple[tuple[int, ...], ...]
    peers: tuple[tuple[int, ...], ...]


@cache
def shape(size: int, boxes: bool) -> Shape:
    """Rows and columns of an n × n grid, and with `boxes` its √n × √n boxes."""
    cells = range(size * size)
    side = math.isqrt(size)
    groups = [[(cell // size) for cell in cells], [size + cell % size for cell in cells]]
    if boxes:
        groups.append([2 * size + cell // size // side * side + cell % size // side for cell in cells])
    units = tuple(
        tuple(cell for cell in cells if group[cell] == name) for group in groups for name in dict.fromkeys(group)
    )
    peers = tuple(tuple({peer for unit in units if cell in unit for peer in unit} - {cell}) for cell in cells)
    return Shape(size, units, peers)


def text(grid: Grid, size: int) -> str:
    """One line a row, one character a cell."""
    cells = "".join(str(value) if value else EMPTY for value in grid)
    return "\n".join(cells[start : start + size] for start in range(0, len(cells), size))


def candidates(grid: Grid, cell: int, form: Shape) -> int:
    """What an empty cell may hold by its peers, as a bit mask."""
    taken = 0
    for peer in form.peers[cell]:
        if grid[peer]:
            taken |= 1 << grid[peer] - 1
    return (1 << form.size) - 1 & ~taken


def solutions(grid: Grid, form: Shape, random: Random | None = None) -> Iterator[Grid]:
    """Every completion, by depth-first search on the cell with the fewest candidates; in random order if asked."""
    fewest, where, options = form.size + 1, -1, 0
    for cell, value in enumerate(grid):
        if not value:
            mask = candidates(grid, cell, form)
            if mask.bit_count() < fewest:
                fewest, where, options = mask.bit_count(), cell, mask
                if fewest < 2:
                    break
    if where < 0:
        yield grid[:]
        return
    values = [value for value in range(1, form.size + 1) if options >> value - 1 & 1]
    for value in shuffled(random, values) if random else values:
        grid[where] = value
        yield from solutions(grid, form, random)
    grid[where] = 0


def random_grid(random: Random, form: Shape) -> Grid:
    """A full grid. Every one is possible; they are not exactly equally likely."""
    first = [*shuffled(random, range(1, form.size + 1)), *[0] * (form.size * (form.size - 1))]
    return next(solutions(first, form, random))


def single(grid: Grid, cell: int, form: Shape) -> int:
    """The value of an empty cell if it is the only candidate (naked single), or the cell the only place of a unit for
    it (hidden single); else 0."""
    mask = candidates(grid, cell, form)
    if mask.bit_count() == 1:
        return mask.bit_length()
    for unit in form.units:
        if cell in unit:
            elsewhere = 0
            for other in unit:
                if other != cell and not grid[other]:
                    elsewhere |= candidates(grid, other, form)
            if (mask & ~elsewhere).bit_count() == 1:
                return (mask & ~elsewhere).bit_length()
    return 0


def singles_suffice(grid: Grid, form: Shape) -> bool:
    """Whether naked and hidden singles alone fill the grid."""
    grid = grid[:]
    while True:
        before = grid.count(0)
        for cell in range(len(grid)):
            if not grid[cell]:
                grid[cell] = single(grid, cell, form)
        if not grid.count(0):
            return True
        if grid.count(0) == before:
            return False


def check_completion(output: str, puzzle: str, form: Shape) -> DocumentScore:
    """Any grid that keeps the givens and breaks no rule is right. The share counts units without a fault."""
    rows = output.split()
    cells = "".join(rows)
    well_formed = len(rows) == form.size == len(cells) / form.size and all(
        len(row) == form.size and set(row) <= set("123456789"[: form.size]) for row in rows
    )
    if not well_formed:
        return plain_score(False, well_formed=False, reason=f"not {form.size} rows of {form.size} numbers")
    given = "".join(puzzle.split())
    kept = all(mark in (EMPTY, cell) for mark, cell in zip(given, cells, strict=True))
    full = sum(len({cells[cell] for cell in unit}) == form.size for unit in form.units)
    share = full / len(form.units) if kept else 0.0
    reason = "a number twice in a row, column or box" if kept else "a given was changed"
    return plain_score(kept and full == len(form.units), share=share, reason=reason)

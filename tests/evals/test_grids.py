"""`sudoku` and `latin`: puzzles of the promised kind, judged by the rules alone."""

from __future__ import annotations

from itertools import islice
from random import Random

import pytest

from evals.tasks import get_task
from evals.tasks.grids import random_grid, shape, singles_suffice, solutions, text
from mdlm.errors import UserError

LEVELS = [("few", 26), ("some", 36), ("many", 45)]


def rows(name, count=20, split="train", **knobs):
    task = get_task(name)
    return list(task.generate(split, count, 0, task.read_knobs(knobs)))


def grid(written):
    return [0 if mark == "." else int(mark) for mark in "".join(written.split())]


def test_there_are_288_sudokus_of_4_by_4_and_576_latin_squares():
    for boxes, count in ((True, 288), (False, 576)):
        assert sum(1 for _ in solutions([0] * 16, shape(4, boxes))) == count


@pytest.mark.parametrize("size", [4, 9])
def test_a_puzzle_has_the_answer_as_its_only_solution(size):
    for row in rows("sudoku", 10, size=str(size)):
        found = list(islice(solutions(grid(row.prompt), shape(size, True)), 2))
        assert [text(solved, size) for solved in found] == [row.response]


@pytest.mark.parametrize(("givens", "count"), LEVELS)
def test_an_easy_puzzle_has_its_givens_and_yields_to_singles(givens, count):
    for row in rows("sudoku", 5, size="9", givens=givens):
        assert count <= sum(map(bool, grid(row.prompt))) <= count + 1
        assert singles_suffice(grid(row.prompt), shape(9, True))


def test_a_hard_puzzle_does_not_yield_to_singles_and_has_one_solution():
    for row in rows("sudoku", 2, size="9", difficulty="hard"):
        assert not singles_suffice(grid(row.prompt), shape(9, True))
        assert len(list(islice(solutions(grid(row.prompt), shape(9, True)), 2))) == 1


def test_hard_puzzles_of_4_by_4_are_refused_because_there_are_none():
    """300 puzzles of which no given can go, seed 0: singles solve each."""
    form, random = shape(4, True), Random(0)
    for _ in range(300):
        solved = random_grid(random, form)
        puzzle = solved[:]
        for cell in sorted(range(16), key=lambda _: random.random()):
            puzzle[cell] = 0
            if len(list(islice(solutions(puzzle[:], form), 2))) > 1:
                puzzle[cell] = solved[cell]
        assert singles_suffice(puzzle, form)
    with pytest.raises(UserError, match="choose size=9"):
        rows("sudoku", 1, difficulty="hard")


def test_solved_sudokus_of_dev_and_test_are_new():
    solved = [{row.response for row in rows("sudoku", 1500, split)} for split in ("train", "dev", "test")]
    assert all(solved) and not solved[0] & solved[1] and not solved[0] & solved[2] and not solved[1] & solved[2]
    assert {row.template for row in rows("sudoku", 50)} == {
        f"easy/{row.response.replace(chr(10), '')}" for row in rows("sudoku", 50)
    }


def test_every_completion_of_a_latin_square_is_right():
    task = get_task("latin")
    for row in rows("latin", 5, order="5", blanks="60"):
        found = [text(solved, 5) for solved in islice(solutions(grid(row.prompt), shape(5, False)), 50)]
        assert row.response in found or len(found) == 50
        assert all(task.score(answer, row).exact for answer in found)
    assert any(
        len(list(islice(solutions(grid(row.prompt), shape(5, False)), 2))) == 2
        for row in rows("latin", 20, blanks="60")
    )


@pytest.mark.parametrize("blanks", [30, 50, 80])
def test_blanks_is_the_share_of_empty_cells(blanks):
    assert {row.prompt.count(".") for row in rows("latin", order="6", blanks=str(blanks))} == {36 * blanks // 100}


def test_a_full_grid_that_changes_a_given_is_wrong_though_it_breaks_no_rule():
    task = get_task("sudoku")
    (row,) = rows("sudoku", 1)
    other = row.response.translate(str.maketrans("1234", "2341"))
    score = task.score(other, row)
    assert not score.exact and score.parses
    assert score.reason == "a given was changed"


def test_an_answer_with_a_number_twice_is_wrong_and_credited_by_units():
    task = get_task("latin")
    (row,) = rows("latin", 1, order="4", blanks="80")
    answer, puzzle = row.response.replace("\n", ""), row.prompt.replace("\n", "")
    cell = puzzle.index(".")
    wrong = answer[:cell] + ("1" if answer[cell] != "1" else "2") + answer[cell + 1 :]
    score = task.score("\n".join(wrong[start : start + 4] for start in range(0, 16, 4)), row)
    assert not score.exact and score.leaf_values_right == 6 / 8

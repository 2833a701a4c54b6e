"""What all reasoning controls promise: gold is right, a spoiled answer is not, rows stay, splits share nothing."""

from __future__ import annotations

import hashlib

import pytest

from evals.tasks import get_task
from mdlm.errors import UserError

FIRST_ROWS = {
    "list": "b5a06ca5f42b4246",
    "chain": "2d21a0e1604de276",
    "add": "9339813d653a9401",
    "multiply": "7c0e57c9a9b84f18",
    "path": "d6e2f6b39d083c13",
    "sudoku": "837a38a831c51c9d",
    "latin": "1c83e4c8f5a44ae2",
}
VARIANTS = [
    ("list", {"operation": "shuffle", "items": "numbers", "length": "20"}),
    ("list", {"operation": "sort"}),
    ("chain", {"answer": "result", "order": "ordered", "modulus": "97"}),
    ("add", {"digits": "16", "order": "reversed"}),
    ("add", {"digits": "2", "carry": "0"}),
    ("multiply", {"digits": "4", "order": "reversed"}),
    ("path", {"degree": "8", "length": "9"}),
    ("sudoku", {"size": "9"}),
    ("sudoku", {"givens": "few"}),
    ("latin", {"order": "9", "blanks": "80"}),
    *((name, {}) for name in FIRST_ROWS),
]


def rows(name, split="train", count=30, seed=0, **knobs):
    task = get_task(name)
    return list(task.generate(split, count, seed, task.read_knobs(knobs)))


def spoiled(answer):
    """The answer with its last character that is no white space replaced by another of its kind."""
    last = answer[-1]
    return answer[:-1] + (str((int(last) + 1) % 10) if last.isdecimal() else chr((ord(last) - 96) % 26 + 97))


@pytest.mark.parametrize(("name", "knobs"), VARIANTS)
def test_gold_is_right_and_a_spoiled_or_shortened_answer_is_not(name, knobs):
    task = get_task(name)
    for split in task.splits:
        for row in rows(name, split, 10, **knobs):
            score = task.score(row.response, row)
            assert score.exact and score.leaf_values_right == 1 and not score.reason
            for wrong in (spoiled(row.response), row.response[:-1], "", "?", row.response + " " + row.response):
                score = task.score(wrong, row)
                assert not score.exact and score.reason
                assert 0 <= score.leaf_values_right < 1


@pytest.mark.parametrize("name", FIRST_ROWS)
def test_the_rows_of_a_seed_never_change(name):
    # A data set named in a record must stay what it was. Who changes a generator on purpose changes its line above.
    assert hashlib.sha256("".join(map(repr, rows(name))).encode()).hexdigest()[:16] == FIRST_ROWS[name]


@pytest.mark.parametrize("name", FIRST_ROWS)
def test_fewer_rows_are_a_prefix_and_split_and_seed_change_them(name):
    assert rows(name, count=10) == rows(name)[:10]
    made = [rows(name), rows(name, seed=1), rows(name, "dev"), rows(name, "test")]
    assert len({tuple(row.prompt for row in variant) for variant in made}) == 4


@pytest.mark.parametrize(
    ("name", "knobs"), [("multiply", {"digits": "2"}), ("add", {"digits": "2"}), ("sudoku", {}), ("latin", {})]
)
def test_no_prompt_stands_in_two_splits_even_where_rows_repeat(name, knobs):
    prompts = [{row.prompt for row in rows(name, split, 2000, **knobs)} for split in ("train", "dev", "test")]
    assert all(map(len, prompts))
    assert not prompts[0] & prompts[1] and not prompts[0] & prompts[2] and not prompts[1] & prompts[2]


@pytest.mark.parametrize("name", FIRST_ROWS)
def test_a_small_model_can_read_the_default_rows(name):
    for row in rows(name, count=200):
        assert len(row.prompt) <= 160 and len(row.response) <= 96


def test_a_split_that_the_knobs_leave_empty_is_refused():
    with pytest.raises(UserError, match="choose larger"):
        rows("add", digits="2", carry="16")


# add and multiply


@pytest.mark.parametrize("carry", range(9))
def test_the_longest_carry_of_a_sum_is_what_the_knob_says(carry):
    for row in rows("add", count=100, digits="8", carry=str(carry)):
        a, b = map(int, row.prompt.rstrip("=").split("+"))
        # Column i hands on a carry exactly when the numbers' last i + 1 digits sum to 10^(i + 1) or more.
        carries = "".join(str(int(a % 10**place + b % 10**place >= 10**place)) for place in range(1, 9))
        assert max(map(len, carries.split("0"))) == carry
        assert len(str(a)) == len(str(b)) == 8
        assert int(row.response) == a + b


@pytest.mark.parametrize("carry", ["0", "1", "3"])
def test_the_longest_carry_of_a_product_is_what_the_knob_says(carry):
    for row in rows("multiply", count=50, digits="2", carry=carry):
        a, b = map(int, row.prompt.rstrip("=").split("*"))
        assert int(row.response) == a * b
        units, tens = a % 10 * (b % 10), a // 10 * (b % 10) + a % 10 * (b // 10)
        first = units // 10
        second = (tens + first) // 10
        third = (a // 10 * (b // 10) + second) // 10
        runs = "".join("1" if column else "0" for column in (first, second, third)).split("0")
        assert max(map(len, runs)) == int(carry)


def test_a_reversed_answer_begins_with_the_last_digit():
    (plain,), (turned,) = rows("add", count=1), rows("add", count=1, order="reversed")
    assert turned.response == plain.response[::-1]
    assert turned.prompt == plain.prompt + "<"


# chain


@pytest.mark.parametrize("modulus", ["7", "10", "101"])
def test_the_values_of_a_chain_follow_from_its_definitions(modulus):
    for row in rows("chain", steps="6", modulus=modulus):
        text, asked = row.prompt.removeprefix(f"mod {modulus}: ").rsplit("; ", 1)
        definitions = dict(definition.split("=") for definition in text.split("; "))
        values = {}
        while len(values) < 7:
            for name, expression in definitions.items():
                if all(letter in values for letter in expression if letter.isalpha()):
                    values[name] = eval(expression, {"__builtins__": {}}, values) % int(modulus)
        steps = dict(step.split("=") for step in row.response.split())
        assert {name: int(value) for name, value in steps.items()} == values
        assert [*steps][-1] == asked.rstrip("?")


def test_order_and_answer_of_a_chain_are_knobs():
    ordered, shuffled, result = (
        rows("chain", **knobs) for knobs in ({"order": "ordered"}, {}, {"order": "ordered", "answer": "result"})
    )

    def in_order(row):
        names = [definition[0] for definition in row.prompt.removeprefix("mod 10: ").split("; ")]
        return names[:-1] == [step[0] for step in row.response.split()]

    assert all(map(in_order, ordered))
    assert sum(map(in_order, shuffled)) < 5
    assert [row.response for row in result] == [row.response[-1] for row in ordered]


# path


@pytest.mark.parametrize(("degree", "length"), [(2, 2), (3, 4), (5, 6)])
def test_the_graph_is_a_star_and_the_way_its_only_one(degree, length):
    for row in rows("path", degree=str(degree), length=str(length)):
        graph, question = row.prompt.split(" | ")
        edges = [edge.split("-") for edge in graph.split()]
        start, goal = question.split(" to ")
        assert len(edges) == degree * (length - 1)
        assert sum(a == start for a, _ in edges) == degree
        before = {b: a for a, b in edges}
        assert len(before) == len(edges), "no node is entered twice"
        way = [goal]
        while way[-1] != start:
            way.append(before[way[-1]])
        assert row.response.split() == way[::-1] and len(way) == length


def test_a_way_into_another_arm_or_through_the_air_is_wrong():
    task, (row,) = get_task("path"), rows("path", count=1)
    way = row.response.split()
    assert task.score(" ".join([way[0], way[-1]]), row).reason == "a step that is no edge"
    assert task.score(" ".join(way[:-1]), row).reason == "not from start to goal"

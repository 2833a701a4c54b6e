"""`add` and `multiply`: two whole numbers, by the length of the longest carry."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from evals.metrics import DocumentScore, plain_score
from evals.tasks.draws import pick
from evals.tasks.splits import SPLITS, draw_for
from evals.tasks.task import Example, Knobs, Task, knob

CARRY = "columns of the longest carry; any: all lengths"
ORDER = "plain: most significant digit first; reversed: last"
ORDERS = ("plain", "reversed")


@dataclass(frozen=True)
class AddKnobs(Knobs):
    digits: int = knob(6, range(2, 17), "digits of each number")
    carry: str = knob("any", ("any", *map(str, range(17))), CARRY)
    order: str = knob("plain", ORDERS, ORDER)


@dataclass(frozen=True)
class MultiplyKnobs(Knobs):
    digits: int = knob(3, range(2, 7), "digits of each number")
    carry: str = knob("any", ("any", *map(str, range(12))), CARRY)
    order: str = knob("plain", ORDERS, ORDER)


def longest_carry(columns: list[int]) -> int:
    """The longest run of neighbouring columns that hand a carry on, given each column's sum, the last column first."""
    longest = run = carry = 0
    for column in columns:
        carry = (column + carry) // 10
        run = run + 1 if carry else 0
        longest = max(longest, run)
    return longest


def addition_columns(a: int, b: int) -> list[int]:
    """Column sums of a + b without carries, the last column first."""
    width = max(len(str(a)), len(str(b)))
    return [a // 10**place % 10 + b // 10**place % 10 for place in range(width)]


def product_columns(a: int, b: int) -> list[int]:
    """Column sums of the schoolbook product a × b without carries, the last column first."""
    ours, theirs = ([int(digit) for digit in reversed(str(number))] for number in (a, b))
    columns = [0] * (len(ours) + len(theirs) - 1)
    for place, digit in enumerate(ours):
        for shift, other in enumerate(theirs):
            columns[place + shift] += digit * other
    return columns


def make_add(split: str, row: int, seed: int, knobs: AddKnobs) -> Example:
    random = Random(f"add {split} seed {seed} row {row}")
    longest = pick(random, range(knobs.digits + 1)) if knobs.carry == "any" else int(knobs.carry)
    a, b = draw_for(split, random, lambda random: _summands(random, knobs.digits, longest), _key)
    return _example(f"{a}+{b}=", a + b, f"carry-{longest}/{row}", split, knobs.order)


def make_multiply(split: str, row: int, seed: int, knobs: MultiplyKnobs) -> Example:
    random = Random(f"multiply {split} seed {seed} row {row}")
    longest = pick(random, range(2 * knobs.digits)) if knobs.carry == "any" else int(knobs.carry)

    def factors(random: Random) -> tuple[int, int] | None:
        a, b = (_number(random, knobs.digits, most=pick(random, range(1, 10))) for _ in range(2))
        return (a, b) if longest_carry(product_columns(a, b)) == longest else None

    a, b = draw_for(split, random, factors, _key)
    return _example(f"{a}*{b}=", a * b, f"carry-{longest}/{row}", split, knobs.order)


def check(output: str, example: Example) -> DocumentScore:
    """Right: every digit, in the order that was asked for. The share counts digits by place."""
    answer, gold = output.strip(), example.response
    right = sum(ours == digit for ours, digit in zip(answer, gold, strict=False))
    well_formed = answer.isascii() and answer.isdecimal()
    return plain_score(answer == gold, well_formed, right / max(len(answer), len(gold)), "not the number")


def _summands(random: Random, digits: int, longest: int) -> tuple[int, int] | None:
    """Two numbers whose longest carry is that: first which columns carry, then digits that make them do so."""
    if longest > digits:
        return None
    start = pick(random, range(digits - longest + 1))
    carries: list[bool] = []
    for place in range(digits):
        inside = start <= place < start + longest
        beside = place in (start - 1, start + longest) or (place >= longest and all(carries[place - longest : place]))
        carries.append(inside or (not beside and random.random() < 0.5))
    a = b = incoming = 0
    for place, outgoing in enumerate(carries):
        # Numbers do not begin with 0; two digits of 1 … 9 can still make or avoid a carry.
        ours, theirs = _pair(random, range(int(place == digits - 1), 10), outgoing, incoming)
        a, b, incoming = a + ours * 10**place, b + theirs * 10**place, int(outgoing)
    return a, b


def _pair(random: Random, digits: range, outgoing: bool, incoming: int) -> tuple[int, int]:
    """Two digits that hand a carry on or do not, all such pairs equally likely."""
    while True:
        ours, theirs = pick(random, digits), pick(random, digits)
        if (ours + theirs + incoming > 9) == outgoing:
            return ours, theirs


def _number(random: Random, digits: int, most: int) -> int:
    """A number of small digits, up to `most`: without such numbers there is next to no product without a carry."""
    return int("".join(str(pick(random, range(int(place == 0), most + 1))) for place in range(digits)))


def _key(numbers: tuple[int, int]) -> str:
    return " ".join(map(str, sorted(numbers)))  # a + b and b + a stand on the same side


def _example(prompt: str, answer: int, template: str, split: str, order: str) -> Example:
    digits = str(answer)
    # "<" tells the model that the last digit comes first.
    return Example(
        prompt + ("<" if order == "reversed" else ""), digits[:: -1 if order == "reversed" else 1], template, split
    )


TASKS = (
    Task(
        name="add",
        description="The sum of two numbers, by the length of the longest carry.",
        group="reasoning",
        splits=SPLITS,
        knobs=AddKnobs,
        schema=None,
        make=make_add,
        check=check,
    ),
    Task(
        name="multiply",
        description="The product of two numbers, by the length of the longest carry.",
        group="reasoning",
        splits=SPLITS,
        knobs=MultiplyKnobs,
        schema=None,
        make=make_multiply,
        check=check,
    ),
)

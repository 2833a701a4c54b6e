"""Random draws that stay the same from one Python version to the next.

`Random.random` is the one method whose sequence Python promises to keep, so everything here is built on it alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from random import Random
from typing import TypeVar

T = TypeVar("T")


def pick(random: Random, options: Sequence[T]) -> T:
    """One of the options, all equally likely."""
    return options[int(random.random() * len(options))]


def shuffled(random: Random, items: Sequence[T]) -> list[T]:
    """The items in random order."""
    return sorted(items, key=lambda _: random.random())


def distinct(random: Random, options: Sequence[T], count: int) -> list[T]:
    """`count` different options, in random order. Made for a few out of many."""
    chosen: list[T] = []
    while len(chosen) < count:
        value = pick(random, options)
        if value not in chosen:
            chosen.append(value)
    return chosen


def day(random: Random, first_year: int, last_year: int) -> date:
    """A day from the first of January of one year to the last of December of the other."""
    return date.fromordinal(
        pick(random, range(date(first_year, 1, 1).toordinal(), date(last_year + 1, 1, 1).toordinal()))
    )


def digits(random: Random, count: int) -> str:
    """`count` decimal digits."""
    return "".join(pick(random, "0123456789") for _ in range(count))


def code(random: Random, letters: int, numbers: int) -> str:
    """A document's number: capital letters that no digit looks like, then digits."""
    return "".join(pick(random, "ABCDEFGHKLMNPRSTUVWXYZ") for _ in range(letters)) + digits(random, numbers)

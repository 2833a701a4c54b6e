"""Runs queries that nobody has read: in memory, one SELECT each, without the means to write, wait or grow."""

from __future__ import annotations

import re
import sqlite3
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from evals.metrics import DocumentScore
from evals.tasks.draws import pick, shuffled

CLOCK_LIMIT_S = 1.0
STEP_LIMIT = 1_000_000  # instructions of sqlite's machine; the same verdict on a slow computer as on a fast one
MAX_RESULT_ROWS = 1_000
DATABASES = 12  # beside the one of the prompt
DATABASE_ROWS = 12
_HARMLESS = "abs avg coalesce count ifnull iif instr length like lower max min nullif round substr sum total trim upper"
_FUNCTIONS = frozenset(_HARMLESS.split())
_ALLOWED = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ)

Row = tuple[Any, ...]


@dataclass(frozen=True)
class Table:
    """A table as a prompt shows it: names and types of the columns, and its rows."""

    name: str
    columns: tuple[tuple[str, str], ...]
    rows: tuple[Row, ...]


class RefusedError(Exception):
    """A query that did not run; `parsed` says whether it was SQL at all."""

    def __init__(self, reason: str, parsed: bool) -> None:
        super().__init__(reason)
        self.parsed = parsed


def parse_table(lines: Sequence[str]) -> Table:
    """The table of `name(column TYPE, ...)` and comma-separated rows."""
    name, inside = lines[0].rstrip(")").split("(")
    columns = tuple((column, kind) for column, kind in (part.split(" ") for part in inside.split(", ")))
    rows = tuple(
        tuple(
            int(cell) if kind == "INTEGER" else cell for cell, (_, kind) in zip(line.split(","), columns, strict=True)
        )
        for line in lines[1:]
    )
    return Table(name, columns, rows)


def compare(output: str, gold: str, table: Table) -> DocumentScore:
    """Scores a query by what it returns beside what gold returns.

    parses: it is SQL. fits_schema: it is one SELECT that runs on the table within limits. keys_right: its result has as
    many columns as gold's. leaf_values_right: the share of the databases where the results agree, as multisets, or
    row by row where gold orders them. exact: they agree on all.
    """
    agreed, same_width = [], True
    for rows in _databases(table, gold):
        expected = run(gold, table, rows)
        try:
            found = run(output, table, rows)
        except RefusedError as error:
            return DocumentScore(
                error.parsed, False, False, 0.0, False, reason=str(error).encode("ascii", "replace").decode()
            )
        same_width = same_width and found[0] == expected[0]
        ordered = " ORDER BY " in gold
        agreed.append(found == expected if ordered else Counter(found[1]) == Counter(expected[1]))
    share = sum(agreed) / len(agreed)
    exact = same_width and all(agreed)
    reason = "" if exact else f"another result on {len(agreed) - sum(agreed)} of {len(agreed)} databases"
    return DocumentScore(True, True, same_width, share, exact, reason=reason)


def run(query: str, table: Table, rows: Sequence[Row]) -> tuple[int, list[Row]]:
    """(columns, rows) that a query returns. Raises `RefusedError` when it is not one SELECT or exceeds its limits."""
    if not re.match(r"\s*select\b", query, re.IGNORECASE):
        raise RefusedError("not a SELECT", parsed=False)
    if "\0" in query or re.search("[\ud800-\udfff]", query):
        raise RefusedError("not text", parsed=False)
    connection = sqlite3.connect(":memory:", isolation_level=None)
    try:
        columns = ", ".join(f'"{name}" {kind}' for name, kind in table.columns)
        connection.execute(f'CREATE TABLE "{table.name}" ({columns})')
        connection.executemany(f'INSERT INTO "{table.name}" VALUES ({", ".join("?" * len(table.columns))})', rows)
        _confine(connection)
        try:
            cursor = connection.execute(query)
            found = cursor.fetchmany(MAX_RESULT_ROWS + 1)
        except (sqlite3.Error, sqlite3.Warning, OverflowError) as error:
            syntax = "syntax error" in str(error) or "incomplete input" in str(error) or "unrecognized" in str(error)
            raise RefusedError(f"does not run: {error}", parsed=not syntax) from error
        if len(found) > MAX_RESULT_ROWS:
            raise RefusedError(f"returns more than {MAX_RESULT_ROWS} rows", parsed=True)
        return len(cursor.description), [tuple(map(_rounded, row)) for row in found]
    finally:
        connection.close()


def _confine(connection: sqlite3.Connection) -> None:
    deadline = time.monotonic() + CLOCK_LIMIT_S
    left = STEP_LIMIT // 1_000

    def permit(action: int, argument: str | None, name: str | None, *_: Any) -> int:
        harmless = action in _ALLOWED or (action == sqlite3.SQLITE_FUNCTION and str(name).lower() in _FUNCTIONS)
        return sqlite3.SQLITE_OK if harmless else sqlite3.SQLITE_DENY

    def out_of_time() -> bool:
        nonlocal left
        left -= 1
        return left < 0 or time.monotonic() > deadline

    connection.set_authorizer(permit)
    connection.set_progress_handler(out_of_time, 1_000)
    for limit, value in (
        (sqlite3.SQLITE_LIMIT_LENGTH, 100_000),
        (sqlite3.SQLITE_LIMIT_SQL_LENGTH, 10_000),
        (sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 50),
    ):
        connection.setlimit(limit, value)


def _databases(table: Table, gold: str) -> list[Sequence[Row]]:
    """The rows of the prompt, then rows around what gold names: the values in its conditions, and those next to them.

    Numbers are different within a column, so that no order is left open; all follows from table and gold alone.
    """
    random = Random(f"sql databases {table} {gold}")
    texts = {column: text.replace("''", "'") for column, text in re.findall(r"(\w+)='((?:[^']|'')*)'", gold)}
    bounds = {column: int(number) for column, number in re.findall(r"(\w+)[<>]=?(\d+)", gold)}
    made: list[Sequence[Row]] = [table.rows]
    for _ in range(DATABASES):
        columns = []
        for place, (column, kind) in enumerate(table.columns):
            shown = [row[place] for row in table.rows]
            if kind == "TEXT":
                named = [texts[column]] * len(shown) if column in texts else []
                columns.append([pick(random, named + shown) for _ in range(DATABASE_ROWS)])
            else:
                columns.append(_numbers(random, bounds.get(column), shown))
        made.append(list(zip(*columns, strict=True)))
    return made


def _numbers(random: Random, bound: int | None, shown: Sequence[int]) -> list[int]:
    """Different numbers in random order: most of them the bound, its neighbours, and those of the prompt.

    Often they all lie on one side of the bound: only there do MAX(x) and MAX(x) above the bound part ways.
    """
    near = {*shown, *(range(bound - 2, bound + 4) if bound is not None else ())}
    every = {*near, *range(min(near) - DATABASE_ROWS, max(near) + DATABASE_ROWS)}
    if bound is not None:
        side = pick(random, (0, 1, -1))
        every = {number for number in every if (number - bound) * side >= 0}
    likely = shuffled(random, sorted(near & every))[: DATABASE_ROWS * 2 // 3]
    others = shuffled(random, sorted(every - near))[: DATABASE_ROWS - len(likely)]
    return shuffled(random, likely + others)


def _rounded(value: Any) -> Any:
    """A value for comparison: sums of floats differ in the last bits with the order they are added in."""
    return float(f"{value:.9g}") if isinstance(value, float) else value

"""`sql`: a table with a few of its rows and a question in English, to SQL; what counts is what the query returns.

The checker runs output and canonical answer in sqlite3 on several databases: the rows of the prompt, and rows made from
prompt and answer around the values that the question names. Agreement on one small table may be luck; agreement on
several that differ where conditions and limits bite is the test-suite accuracy of Zhong et al. (arXiv:2010.02840).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from random import Random

from evals.metrics import DocumentScore
from evals.tasks.draws import distinct, pick, shuffled
from evals.tasks.pools import open_values
from evals.tasks.sql_check import compare, parse_table
from evals.tasks.task import Example, Knobs, Task, knob

# Table -> (text columns of surnames, of towns; number columns with the lowest and highest value), then the same for
# `unseen_templates`. A row of the prompt is comma-separated.
TABLES: tuple[dict[str, tuple[str, str, dict[str, tuple[int, int]]]], ...] = (
    {
        "staff": ("name", "city", {"age": (18, 70), "pay": (1500, 9000), "years": (1, 40)}),
        "orders": ("client", "town", {"items": (1, 60), "price": (10, 2000), "weight": (1, 300)}),
        "rooms": ("guest", "city", {"nights": (1, 30), "price": (40, 900), "floor": (1, 40)}),
        "books": ("author", "city", {"pages": (60, 900), "year": (1900, 2025), "copies": (1, 80)}),
        "boats": ("owner", "port", {"length": (4, 60), "seats": (2, 80), "year": (1950, 2025)}),
        "farms": ("farmer", "village", {"cows": (1, 300), "fields": (1, 60), "sheep": (1, 500)}),
    },
    {
        "shops": ("keeper", "place", {"sales": (100, 9000), "clerks": (1, 50), "size": (10, 800)}),
        "races": ("rider", "start", {"rank": (1, 90), "laps": (1, 70), "speed": (20, 90)}),
    },
)
# What is asked for -> (SQL, phrasings). {c} is a number column, {t} a text column, {s} the table.
ASKED = {
    "list": ("SELECT {t} FROM {s}", (("List the {t} of {s}", "Give the {t} of all {s}"), ("Show me the {t} of {s}",))),
    "count": ("SELECT COUNT(*) FROM {s}", (("How many {s} are there", "Number of {s}"), ("Count the {s}",))),
    "highest": (
        "SELECT MAX({c}) FROM {s}",
        (("What is the highest {c} of {s}", "Top {c} of {s}"), ("Greatest {c} of {s}",)),
    ),
    "lowest": (
        "SELECT MIN({c}) FROM {s}",
        (("What is the lowest {c} of {s}", "Least {c} of {s}"), ("Smallest {c} of {s}",)),
    ),
    "total": (
        "SELECT SUM({c}) FROM {s}",
        (("What is the total {c} of {s}", "Sum of {c} of {s}"), ("Add up {c} of {s}",)),
    ),
    "mean": (
        "SELECT AVG({c}) FROM {s}",
        (("What is the average {c} of {s}", "Mean {c} of {s}"), ("Typical {c} of {s}",)),
    ),
}
CONDITIONS = {
    "is": ("{c}='{v}'", (("with {c} {v}", "whose {c} is {v}"), ("where {c} equals {v}",))),
    "above": ("{c}>{v}", (("with {c} above {v}", "with more than {v} {c}"), ("where {c} exceeds {v}",))),
    "below": ("{c}<{v}", (("with {c} below {v}", "with less than {v} {c}"), ("where {c} is under {v}",))),
    "at least": ("{c}>={v}", (("with {c} at least {v}", "with {v} {c} or more"), ("where {c} is no less than {v}",))),
}
ORDERS = {
    "DESC": (("highest {c} first", "by falling {c}"), ("from high to low {c}",)),
    "ASC": (("lowest {c} first", "by rising {c}"), ("from low to high {c}",)),
}
LIMITS = (("only the first {n}", "{n} of them"), ("no more than {n}",))
TEMPLATES = 96
UNSEEN_TEMPLATES = 32


@dataclass(frozen=True)
class SqlKnobs(Knobs):
    """How much a question asks, and how much of the table the prompt shows."""

    conditions: int = knob(1, range(3), "conditions in every question")
    columns: int = knob(3, range(3, 6), "columns of the table")
    rows: int = knob(2, range(1, 9), "rows of the table that the prompt shows")
    order: str = knob("some", ("never", "some", "always"), "whether the answers to a list must be in order")


@dataclass(frozen=True)
class Template:
    """How one person asks about one table."""

    name: str
    table: str
    asked: dict[str, str]
    conditions: dict[str, str]
    orders: dict[str, str]
    limit: str


@cache
def template(unseen: bool, number: int) -> Template:
    name = f"{'unseen' if unseen else 'seen'}-{number:03}"
    random = Random(f"sql template {name}")
    return Template(
        name=name,
        table=pick(random, list(TABLES[unseen])),
        asked={kind: pick(random, phrasings[unseen]) for kind, (_, phrasings) in ASKED.items()},
        conditions={kind: pick(random, phrasings[unseen]) for kind, (_, phrasings) in CONDITIONS.items()},
        orders={kind: pick(random, phrasings[unseen]) for kind, phrasings in ORDERS.items()},
        limit=pick(random, LIMITS[unseen]),
    )


def make(split: str, row: int, seed: int, knobs: SqlKnobs) -> Example:
    """Row `row` of a split. `unseen_templates` has tables and phrasings of its own."""
    random = Random(f"sql {split} seed {seed} row {row}")
    unseen = split == "unseen_templates"
    form = template(unseen, pick(random, range(UNSEEN_TEMPLATES if unseen else TEMPLATES)))
    who, where, ranges = TABLES[unseen][form.table]
    surnames, towns = open_values(split)
    people, places = distinct(random, surnames, 8), distinct(random, surnames + towns, 8)
    numbers = {column: distinct(random, range(low, high + 1), 8) for column, (low, high) in ranges.items()}
    shown = [who, where, *shuffled(random, list(ranges))][: knobs.columns]
    cells = {who: people, where: places, **{column: list(map(str, values)) for column, values in numbers.items()}}
    lines = [",".join(cells[column][n] for column in shown) for n in range(knobs.rows)]
    types = ", ".join(f"{column} {'INTEGER' if column in ranges else 'TEXT'}" for column in shown)

    asked = pick(random, list(ASKED) if knobs.order != "always" else ["list"])
    column = pick(random, shown[2:])
    names = {"c": column, "t": pick(random, shown[:2]), "s": form.table}
    query, question = ASKED[asked][0].format(**names), form.asked[asked].format(**names)
    # Nobody asks for the city of those whose city is Lyon.
    open_columns = [column for column in shuffled(random, shown) if asked != "list" or column != names["t"]]
    conditions = [_condition(random, column, cells, ranges) for column in open_columns[: knobs.conditions]]
    if conditions:
        quoted = [(kind, c, value.replace("'", "''")) for kind, c, value in conditions]
        query += " WHERE " + " AND ".join(CONDITIONS[kind][0].format(c=c, v=value) for kind, c, value in quoted)
        question += " " + " and ".join(form.conditions[kind].format(c=c, v=value) for kind, c, value in conditions)
    ordered = random.random() < 0.5
    if asked == "list" and (knobs.order == "always" or (knobs.order == "some" and ordered)):
        direction, limit = pick(random, list(ORDERS)), pick(random, (0, 1, 2, 3))
        query += f" ORDER BY {column} {direction}" + (f" LIMIT {limit}" if limit else "")
        question += (
            ", " + form.orders[direction].format(c=column) + (", " + form.limit.format(n=limit) if limit else "")
        )
    prompt = "\n".join([f"{form.table}({types})", *lines, question + ("?" if question[0] in "WH" else ".")])
    return Example(prompt, query, form.name, split)


def _condition(
    random: Random, column: str, cells: dict[str, list[str]], ranges: dict[str, tuple[int, int]]
) -> tuple[str, str, str]:
    """(kind of condition, column, value); texts are looked for as they are, numbers by bounds."""
    if column not in ranges:
        return "is", column, pick(random, cells[column][:4])
    low, high = ranges[column]
    return pick(random, ("above", "below", "at least")), column, str(pick(random, range(low + 1, high)))


def check(output: str, example: Example) -> DocumentScore:
    """Stages of a query: it is one SELECT, it runs on the table, its result has as many columns, the results agree."""
    *head, _ = example.prompt.split("\n")
    return compare(output, example.response, parse_table(head))


TASKS = (
    Task(
        name="sql",
        description="A table with some of its rows and a question, to SQL that returns the same in sqlite3",
        group="structured",
        splits=("train", "dev", "test", "unseen_templates"),
        knobs=SqlKnobs,
        schema=None,
        make=make,
        check=check,
    ),
)

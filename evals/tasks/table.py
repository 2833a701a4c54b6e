"""`table`: a CSV table to JSON rows, whole, or filtered and sorted as the first line asks.

CSV is that of RFC 4180: fields with a comma, a quote or a line of their own are quoted, quotes inside are doubled.
Cells of number columns become numbers, empty cells null, everything else text, digits of a text column too.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

from evals.tasks.draws import day, digits, distinct, pick, shuffled
from evals.tasks.pools import FIRST_NAMES, OCCUPATIONS, open_values
from evals.tasks.spellings import number_literal
from evals.tasks.task import Example, Knobs, Task, knob

TEXT = {"type": ["string", "null"]}


@dataclass(frozen=True)
class Column:
    """What one column may be called (and in `unseen_templates`), its schema, and (a cell, its JSON) at random."""

    names: tuple[tuple[str, ...], tuple[str, ...]]
    schema: dict[str, Any]
    draw: Callable[[Random, str], tuple[str, str]]


def _text(cell: str) -> tuple[str, str]:
    return cell, json.dumps(cell, ensure_ascii=False) if cell else "null"


def _person(random: Random, split: str) -> tuple[str, str]:
    first, last = pick(random, FIRST_NAMES), pick(random, open_values(split)[0])
    return _text(pick(random, (f"{last}, {first}", f"{first} {last}", f'{first} "{last[:3]}" {last}', last)))


def _town(random: Random, split: str) -> tuple[str, str]:
    surnames, towns = open_values(split)
    town = pick(random, surnames + towns)
    return _text(pick(random, (town, town, f"{town}, {pick(random, ('north', 'south', 'port'))}", "")))


def _code(random: Random, split: str) -> tuple[str, str]:
    return _text(digits(random, 4))


def _note(random: Random, split: str) -> tuple[str, str]:
    job, other = distinct(random, OCCUPATIONS, 2)
    return _text(pick(random, (job, f"{job}, {other}", f'"{job}"', f'the "{job}", {other}', "")))


def _count(random: Random, split: str) -> tuple[str, str]:
    number = str(pick(random, range(1, 1_000)))
    return number, number


def _price(random: Random, split: str) -> tuple[str, str]:
    price = number_literal(pick(random, range(100, 100_000)))
    return price, price


def _date(random: Random, split: str) -> tuple[str, str]:
    return _text(day(random, 2020, 2027).isoformat())


# The first columns of a table are texts and numbers in turn, so that every table can be filtered and sorted.
TEXTS = (
    Column((("name", "client", "owner"), ("holder",)), TEXT, _person),
    Column((("city", "town", "place"), ("location",)), TEXT, _town),
    Column((("code", "ref"), ("key",)), TEXT, _code),
    Column((("note", "job"), ("remark",)), TEXT, _note),
    Column((("date", "day"), ("on",)), {"type": "string", "format": "date"}, _date),
)
NUMBERS = (
    Column((("count", "items", "age"), ("units",)), {"type": "integer"}, _count),
    Column((("price", "total"), ("cost",)), {"type": "number"}, _price),
    Column((("weight", "length"), ("size",)), {"type": "number"}, _price),
)
FILTERS = {
    "above": (("Only {c} above {v}", "Rows with {c} over {v}"), ("Keep {c} greater than {v}",)),
    "below": (("Only {c} below {v}", "Rows with {c} under {v}"), ("Keep {c} less than {v}",)),
}
SORTS = {
    "ascending": (("sort by {c}", "lowest {c} first"), ("by rising {c}",)),
    "descending": (("sort by {c} down", "highest {c} first"), ("by falling {c}",)),
}
SEPARATORS = (",", ",", ",", ";")
TEMPLATES = 96
UNSEEN_TEMPLATES = 32


@dataclass(frozen=True)
class TableKnobs(Knobs):
    """How large a table is and what is done to it."""

    rows: int = knob(3, range(1, 13), "rows of the table")
    columns: int = knob(3, range(2, 7), "columns of the table")
    filter: str = knob("none", ("none", "above", "below", "some"), "whether only some rows are asked for")
    sort: str = knob("none", ("none", "ascending", "descending", "some"), "whether the rows are to be sorted")
    templates: int = knob(TEMPLATES, range(1, TEMPLATES + 1), "templates of train, dev and test")


@dataclass(frozen=True)
class Template:
    """The tables of one place: which columns under which names, and how it writes and asks."""

    name: str
    columns: tuple[tuple[str, Column], ...]
    separator: str
    quote_all: bool
    filters: dict[str, str]
    sorts: dict[str, str]


@cache
def template(unseen: bool, number: int) -> Template:
    name = f"{'unseen' if unseen else 'seen'}-{number:03}"
    random = Random(f"table template {name}")
    in_turn = zip(distinct(random, TEXTS, 3), shuffled(random, NUMBERS), strict=True)
    return Template(
        name=name,
        columns=tuple((pick(random, column.names[unseen]), column) for pair in in_turn for column in pair),
        separator=pick(random, SEPARATORS),
        quote_all=random.random() < 0.2,
        filters={kind: pick(random, phrasings[unseen]) for kind, phrasings in FILTERS.items()},
        sorts={kind: pick(random, phrasings[unseen]) for kind, phrasings in SORTS.items()},
    )


def make(split: str, row: int, seed: int, knobs: TableKnobs) -> Example:
    """Row `row` of a split: one table."""
    random = Random(f"table {split} seed {seed} row {row}")
    unseen = split == "unseen_templates"
    form = template(unseen, pick(random, range(UNSEEN_TEMPLATES if unseen else knobs.templates)))
    columns = form.columns[: knobs.columns]
    numeric = [place for place, (_, column) in enumerate(columns) if column in NUMBERS]
    filter_by, sort_by = pick(random, numeric), pick(random, numeric)
    filtered = _choice(random, knobs.filter, FILTERS)
    sorted_ = _choice(random, knobs.sort, SORTS)
    place_of_bound = random.random()

    records: list[list[tuple[str, str]]] = []
    while len(records) < knobs.rows:
        record = [column.draw(random, split) for _, column in columns]
        # Equal numbers would leave the order of a sorted table open.
        if all(record[place] != other[place] for other in records for place in numeric):
            records.append(record)
    asked, kept = [], records
    if filtered:
        bound = sorted(float(record[filter_by][0]) for record in records)[int(place_of_bound * len(records))]
        bound_text = f"{bound:.2f}".removesuffix(".00")
        sign = 1 if filtered == "above" else -1
        kept = [record for record in kept if sign * (float(record[filter_by][0]) - bound) > 0]
        asked.append(form.filters[filtered].format(c=columns[filter_by][0], v=bound_text))
    if sorted_:
        kept = sorted(kept, key=lambda record: float(record[sort_by][0]), reverse=sorted_ == "descending")
        asked.append(form.sorts[sorted_].format(c=columns[sort_by][0]))
    instruction = ", ".join(asked)
    lines = [instruction[0].upper() + instruction[1:] + ":"] if instruction else []
    lines.append(_csv(form, [name for name, _ in columns], [[cell for cell, _ in record] for record in records]))
    names = [name for name, _ in columns]
    objects = (
        ",".join(f'"{name}":{answer}' for name, (_, answer) in zip(names, record, strict=True)) for record in kept
    )
    return Example("\n".join(lines), "[" + ",".join(f"{{{inside}}}" for inside in objects) + "]", form.name, split)


def _choice(random: Random, setting: str, options: dict[str, Any]) -> str:
    """One of the options or nothing; as many draws whatever the setting, so that settings compare."""
    wanted, option = random.random() < 0.5, pick(random, list(options))
    if setting == "some":
        return option if wanted else ""
    return "" if setting == "none" else setting


def _csv(form: Template, names: list[str], cells: list[list[str]]) -> str:
    file = io.StringIO()
    quoting: Any = csv.QUOTE_ALL if form.quote_all else csv.QUOTE_MINIMAL
    csv.writer(file, delimiter=form.separator, quoting=quoting, lineterminator="\n").writerows([names, *cells])
    return file.getvalue().removesuffix("\n")


def schema(knobs: TableKnobs) -> dict[str, Any]:
    """JSON Schema (draft 2020-12): rows of named cells, each typed by its column; their order counts."""
    cells = {name: column.schema for column in TEXTS + NUMBERS for names in column.names for name in names}
    row = {"type": "object", "properties": cells, "additionalProperties": False}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "array",
        "items": row | {"minProperties": knobs.columns, "maxProperties": knobs.columns},
        "maxItems": knobs.rows,
    }


TASKS = (
    Task(
        name="table",
        description="A CSV table to JSON rows, filtered and sorted where the first line asks for it",
        group="structured",
        splits=("train", "dev", "test", "unseen_templates"),
        knobs=TableKnobs,
        schema=schema,
        make=make,
    ),
)

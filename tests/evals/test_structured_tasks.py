"""`credit`, `call` and `table`: gold is right by its own rule, rows stay the same, splits share no open value."""

from __future__ import annotations

import csv
import hashlib
import io
import json

import pytest

from evals.tasks import get_task
from evals.tasks.pools import open_values

NAMES = ("credit", "call", "table")
FIRST_ROWS = {
    "credit": "600e774379af400f",
    "call": "e9e25a5b2c989136",
    "table": "c650fd33a315b38a",
}


def rows(name, split="train", count=60, seed=0, **knobs):
    task = get_task(name)
    return list(task.generate(split, count, seed, task.read_knobs(knobs)))


HARDER = {
    "credit": {"fields": "8", "documents": "4", "decoys": "4"},
    "call": {"functions": "6", "arguments": "4", "extras": "2"},
    "table": {"rows": "6", "columns": "5", "filter": "some", "sort": "some"},
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("harder", [False, True])
def test_gold_is_exact_by_its_own_rule_and_a_changed_gold_is_not(name, harder):
    task, knobs = get_task(name), HARDER[name] if harder else {}
    for split in task.splits:
        for row in rows(name, split, **knobs):
            score = task.score(row.response, row, task.read_knobs(knobs))
            assert score.exact and score.fits_schema and score.leaf_values_right == 1.0
            broken = json.loads(row.response)
            if isinstance(broken, list):
                broken = [*broken, {}] if not broken else broken[:-1]
            else:
                broken[next(iter(broken))] = "another"
            assert not task.score(json.dumps(broken), row, task.read_knobs(knobs)).exact


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_a_function_of_split_number_seed_and_knobs(name):
    made = rows(name)
    assert made == rows(name)
    assert made[:10] == rows(name, count=10)
    assert made != rows(name, seed=1)
    assert made != rows(name, "test")
    digest = hashlib.sha256("".join(map(repr, made)).encode()).hexdigest()[:16]
    assert digest == FIRST_ROWS[name], "the rows of this task have changed: results before and after do not compare"


@pytest.mark.parametrize("name", NAMES)
def test_more_of_a_knob_is_a_longer_row(name):
    def length(knobs):
        return sum(len(row.prompt) + len(row.response) for row in rows(name, **knobs))

    assert length(HARDER[name]) > length({})


@pytest.mark.parametrize("name", NAMES)
def test_templates_of_the_unseen_split_are_no_training_templates(name):
    task = get_task(name)
    unseen = next(split for split in task.splits if split.startswith("unseen"))
    seen = {row.template for split in ("train", "dev", "test") for row in rows(name, split, 200)}
    assert seen.isdisjoint(row.template for row in rows(name, unseen, 200))


def test_no_open_value_of_a_table_stands_in_two_splits():
    """Surnames and towns; a table's cells of other splits are looked for in its rows."""
    of_split = {split: {value for pool in open_values(split) for value in pool} for split in ("train", "dev", "test")}
    for split in of_split:
        others = set().union(*(values for other, values in of_split.items() if other != split))
        for row in rows("table", split, 100):
            cells = {str(cell) for line in json.loads(row.response) for cell in line.values()}
            assert cells.isdisjoint(others)


def test_a_table_is_what_a_csv_reader_reads():
    for row in rows("table", count=200, rows="4", columns="4"):
        header, *lines = row.prompt.splitlines() if "\n" in row.prompt else [row.prompt]
        for separator in ",;":
            found = list(csv.reader(io.StringIO("\n".join([header, *lines])), delimiter=separator))
            if len(found[0]) == 4:
                break
        names, *cells = found
        gold = json.loads(row.response)
        assert [list(line) for line in gold] == [names] * len(cells)
        for line, texts in zip(gold, cells, strict=True):
            for value, text in zip(line.values(), texts, strict=True):
                assert (value is None and text == "") or value == text or float(text) == value


@pytest.mark.parametrize(("order", "falling"), [("ascending", False), ("descending", True)])
def test_a_sorted_table_is_sorted_and_a_filtered_one_has_fewer_rows(order, falling):
    kept = total = 0
    for row in rows("table", rows="6", sort=order, filter="above"):
        gold = json.loads(row.response)
        kept, total = kept + len(gold), total + 6
        numbers = [[v for v in line.values() if isinstance(v, int | float)] for line in gold]
        columns = list(zip(*numbers, strict=True))
        assert not gold or any(list(column) == sorted(column, reverse=falling) for column in columns)
    assert 0 < kept < total


def test_a_request_that_no_function_grants_is_answered_with_none():
    made = rows("call", count=200, none_percent="50")
    names = [json.loads(row.response)["name"] for row in made]
    assert 60 < names.count(None) < 140
    for row, name in zip(made, names, strict=True):
        signatures = [line.split("(")[0] for line in row.prompt.splitlines() if line.endswith(")")]
        assert name is None or name in signatures
    assert all(json.loads(row.response)["name"] for row in rows("call", none_percent="0"))


def test_a_letters_documents_are_listed_with_their_copies():
    for row in rows("credit", documents="3"):
        gold = json.loads(row.response)
        documents = next(value for value in gold.values() if isinstance(value, list))
        assert len(documents) == 3 and all(document["name"] in row.prompt for document in documents)
        for document in documents:
            assert set(map(type, document.values())) == {str, int}
    assert all("[]" in row.response for row in rows("credit", documents="0"))

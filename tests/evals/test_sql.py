"""The SQL checker: what counts is the result, and no query can write, hang, grow or reach outside."""

from __future__ import annotations

import re
import time

import pytest

from evals.tasks import get_task
from evals.tasks.sql_check import RefusedError, Table, compare, run

SQL = get_task("sql")
STAFF = Table(
    "staff",
    (("name", "TEXT"), ("city", "TEXT"), ("age", "INTEGER")),
    (("Holm", "Lyon", 34), ("O'Neil", "Graz", 51), ("Berg", "Lyon", 28)),
)
GOLD = "SELECT name FROM staff WHERE city='Lyon' AND age>30"


def rows(split="train", count=150, seed=0, **knobs):
    return list(SQL.generate(split, count, seed, SQL.knobs(**knobs)))


def exact(query, gold=GOLD):
    return compare(query, gold, STAFF).exact


@pytest.mark.parametrize(
    "query",
    [
        "select Name from STAFF where 30 < age and city = 'Lyon';",
        "SELECT s.name FROM staff AS s WHERE s.age>=31 AND s.city IN ('Lyon')",
        "SELECT name FROM (SELECT * FROM staff WHERE age > 30) WHERE city='Lyon' ORDER BY age",
        "  SELECT name -- those of Lyon\n FROM staff WHERE NOT (city<>'Lyon' OR age<=30)",
    ],
)
def test_a_query_that_returns_the_same_is_exact_however_it_is_written(query):
    assert exact(query)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT name FROM staff WHERE city='Lyon' AND age>=30",  # differs only at the bound
        "SELECT name FROM staff WHERE city='Lyon' AND age>31",
        "SELECT name FROM staff WHERE city='Lyon'",
        "SELECT name FROM staff WHERE city='Lyon' OR age>30",
        "SELECT DISTINCT name FROM staff WHERE city='Lyon' AND age>30",
        "SELECT name FROM staff WHERE name='Holm'",  # right on the rows of the prompt alone
        "SELECT 'Holm'",
    ],
)
def test_a_query_that_is_right_by_luck_is_not_exact(query):
    score = compare(query, GOLD, STAFF)
    assert (score.parses, score.fits_schema, score.keys_right, score.exact) == (True, True, True, False)
    assert 0 <= score.leaf_values_right < 1
    assert "another result" in score.reason


def test_another_width_is_another_stage():
    score = compare("SELECT name, age FROM staff WHERE city='Lyon' AND age>30", GOLD, STAFF)
    assert (score.fits_schema, score.keys_right, score.exact) == (True, False, False)


def test_order_counts_where_the_question_asks_for_it():
    ordered = "SELECT name FROM staff ORDER BY age DESC"
    assert not exact("SELECT name FROM staff", ordered)
    assert not exact("SELECT name FROM staff ORDER BY age", ordered)
    assert exact("SELECT name FROM staff ORDER BY -age", ordered)
    assert exact("SELECT name FROM staff ORDER BY age", "SELECT name FROM staff")
    assert not exact("SELECT name FROM staff ORDER BY age DESC LIMIT 1", ordered)


def test_rows_are_counted():
    assert not exact("SELECT DISTINCT city FROM staff", "SELECT city FROM staff")


def test_numbers_are_compared_by_value_and_texts_by_type():
    assert exact("SELECT COUNT(*)*1.0 FROM staff", "SELECT COUNT(*) FROM staff")
    assert exact("SELECT SUM(age)*1.0/COUNT(*) FROM staff", "SELECT AVG(age) FROM staff")
    assert not exact("SELECT upper(COUNT(*)) FROM staff", "SELECT COUNT(*) FROM staff")
    assert exact("SELECT MAX(age) FROM staff WHERE age IS NULL", "SELECT MIN(age) FROM staff WHERE age IS NULL")


def test_quotes_in_values_are_no_way_out():
    gold = "SELECT age FROM staff WHERE name='O''Neil'"
    assert exact(gold, gold)
    assert not compare("SELECT age FROM staff WHERE name='O'Neil'", gold, STAFF).parses


@pytest.mark.parametrize(
    "query", ["", "no idea", "SELECT name FROM", "SELECT name FROM staff WHERE", "SELECT 'x", "{}"]
)
def test_what_is_no_sql_does_not_parse(query):
    assert not compare(query, GOLD, STAFF).parses


@pytest.mark.parametrize("query", ["SELECT pay FROM staff", "SELECT name FROM boats", "SELECT foo(age) FROM staff"])
def test_sql_about_another_table_parses_and_does_not_fit(query):
    score = compare(query, GOLD, STAFF)
    assert (score.parses, score.fits_schema, score.exact) == (True, False, False)


@pytest.mark.parametrize(
    "query",
    [
        "DROP TABLE staff",
        "DELETE FROM staff",
        "UPDATE staff SET age=1",
        "INSERT INTO staff VALUES ('x','y',1)",
        "PRAGMA table_info(staff)",
        "ATTACH DATABASE 'x.db' AS x",
        "VACUUM INTO 'x.db'",
        "EXPLAIN SELECT name FROM staff",
        "WITH x AS (SELECT 1) SELECT * FROM x",
        "VALUES (1)",
        "SELECT name FROM staff; DROP TABLE staff",
        "SELECT name FROM staff; SELECT name FROM staff",
        "SELECT load_extension('x')",
        "SELECT readfile('/etc/hostname')",
        "SELECT random()",
        "SELECT * FROM pragma_database_list",
        "SELECT zeroblob(1000000)",
        "SELECT name FROM staff WHERE age > ?",
        "SELECT \0",
        "SELECT '\ud800'",
    ],
)
def test_anything_but_one_select_on_the_table_is_refused(tmp_path, monkeypatch, query):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RefusedError):
        run(query, STAFF, STAFF.rows)
    assert not compare(query, GOLD, STAFF).fits_schema
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "query",
    [
        "SELECT COUNT(*) FROM " + ",".join(f"staff s{n}" for n in range(24)),
        "SELECT * FROM (WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM n) SELECT x FROM n)",
        "SELECT * FROM " + ",".join(f"staff s{n}" for n in range(9)),
        "SELECT " + "(" * 5000 + "1" + ")" * 5000,
        "SELECT " + "name||" * 900 + "name FROM staff",
        "SELECT name FROM staff WHERE " + " OR ".join(["age>1"] * 5000),
        f"SELECT name FROM staff WHERE name LIKE '{'%a' * 100}'",
    ],
)
def test_no_query_runs_long(query):
    started = time.monotonic()
    assert not exact(query)
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("split", SQL.splits)
@pytest.mark.parametrize("knobs", [{}, {"conditions": 2, "columns": 5, "order": "always"}, {"conditions": 0}])
def test_the_answer_asks_what_the_question_asks(split, knobs):
    for row in rows(split, 100, **knobs):
        *_, question = row.prompt.split("\n")
        where = re.search(r" WHERE (.*?)(?: ORDER| LIMIT|$)", row.response)
        parts = where[1].split(" AND ") if where else []
        assert len(parts) == SQL.knobs(**knobs).conditions
        for part in parts:
            column, value = re.fullmatch(r"(\w+)(?:=|>=|>|<)'?(.*?)'?", part).groups()
            assert column in question
            assert value.replace("''", "'") in question
        ordered = any(word in question for word in (" first", "by falling", "by rising", "from high", "from low"))
        assert ordered == (" ORDER BY " in row.response)
        assert ordered or knobs.get("order") != "always"


def test_most_answers_return_something_on_the_databases_they_are_tried_on():
    # Queries that return nothing everywhere would agree with any other such query.
    told_apart = 0
    for row in rows(count=100, conditions=2):
        without = re.sub(r" AND .*?(?= ORDER|$)", "", row.response)
        told_apart += not SQL.score(without, row).exact
    assert told_apart >= 98


def test_knobs_make_prompts_and_answers_longer():
    def length(part, **knobs):
        return sum(len(getattr(row, part)) for row in rows(**knobs))

    assert length("prompt", rows=2) < length("prompt", rows=4)
    assert length("prompt", columns=3) < length("prompt", columns=5)
    assert length("response", conditions=0) < length("response", conditions=1) < length("response", conditions=2)
    assert not any("ORDER" in row.response for row in rows(order="never"))

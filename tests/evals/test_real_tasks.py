"""Tasks that read: from a file, from a table, from the Hub's columns; split by what repeats."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evals.__main__ import main
from evals.execution import passes_tests
from evals.tasks import get_task, source
from evals.tasks.infill import sides
from mdlm.errors import UserError, run_command

REAL = Path(__file__).parents[3] / "shared" / "data"
NAMES = ("addresses", "restaurants", "receipts")
SPLITS = ("train", "dev", "test")
EXERCISE = {
    "task_id": "SingleLineInfilling/one",
    "prompt": "def twice(x):\n    y = x\n",
    "suffix": "    return y\n",
    "canonical_solution": "    y = y + x\n",
    "test": "def check(candidate):\n    assert candidate(3) == 6\n",
    "entry_point": "twice",
}


def lines(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def rows(name, place, split="train", count=10**6, seed=0):
    task = get_task(name)
    return list(task.generate(split, count, seed, task.read_knobs({"source": str(place)})))


@pytest.fixture
def menu(tmp_path):
    """40 restaurants with three sentences each."""
    return lines(
        tmp_path / "menu.jsonl",
        [
            {"prompt": f"{text} Rosa{number}.", "response": json.dumps({"name": f"Rosa{number}"})}
            for number in range(40)
            for text in ("Eat at", "Try", "There is")
        ],
    )


@pytest.mark.skipif(not REAL.is_dir(), reason="the shared data is not here")
@pytest.mark.parametrize("name", NAMES)
def test_real_rows_are_all_there_once_and_gold_is_right(name):
    task, place = get_task(name), REAL / f"{name}.jsonl"
    knobs = task.read_knobs({"source": str(place)})
    made = [rows(name, place, split) for split in SPLITS]
    records = [json.loads(line) for line in place.read_text(encoding="utf-8").splitlines()]
    assert {(row.prompt, row.response) for part in made for row in part} == {
        (record["prompt"], record["response"]) for record in records
    }
    total = sum(map(len, made))
    assert 0.7 < len(made[0]) / total < 0.9 and min(map(len, made)) > 0.04 * total
    for row in made[2]:
        assert task.score(row.response, row).exact
        assert not task.score('{"name":"x"}', row).exact
    assert rows(name, place, "test", 5) == made[2][:5] == [task.make("test", number, 0, knobs) for number in range(5)]


@pytest.mark.skipif(not REAL.is_dir(), reason="the shared data is not here")
@pytest.mark.parametrize("name", NAMES)
def test_every_real_answer_fulfils_the_schema(name):
    jsonschema = pytest.importorskip("jsonschema")
    task = get_task(name)
    validator = jsonschema.Draft202012Validator(task.schema(None))
    for split in SPLITS:
        for row in rows(name, REAL / f"{name}.jsonl", split):
            assert validator.is_valid(json.loads(row.response)), row


@pytest.mark.skipif(not REAL.is_dir(), reason="the shared data is not here")
@pytest.mark.parametrize("name", NAMES)
def test_what_repeats_stands_in_one_split(name):
    clusters = [{row.template for row in rows(name, REAL / f"{name}.jsonl", split)} for split in SPLITS]
    assert not clusters[0] & clusters[1] and not clusters[0] & clusters[2] and not clusters[1] & clusters[2]


def test_all_sentences_about_a_restaurant_are_on_one_side(menu):
    made = [rows("restaurants", menu, split) for split in SPLITS]
    names = [{row.response for row in part} for part in made]
    assert sum(map(len, made)) == 120 and sum(map(len, names)) == 40


def test_the_order_depends_on_the_seed_and_not_on_the_file(menu, tmp_path):
    turned = tmp_path / "turned.jsonl"
    turned.write_text("".join(reversed(menu.read_text().splitlines(keepends=True))))
    assert rows("restaurants", menu) == rows("restaurants", turned)
    other = rows("restaurants", menu, seed=1)
    assert rows("restaurants", menu) != other and set(rows("restaurants", menu)) == set(other)


def test_parquet_is_read_like_json_lines(menu, tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    table = datasets.Dataset.from_list([json.loads(line) for line in menu.read_text().splitlines()])
    table.to_parquet(tmp_path / "menu.parquet")
    assert rows("restaurants", tmp_path / "menu.parquet") == rows("restaurants", menu)


@pytest.fixture
def forgetful():
    """What stands in for the Hub in one test is not remembered in the next."""
    yield
    source._rows.cache_clear()


HUB = [
    (
        "restaurants",
        {"meaning_representation": "name[Rosa{}], near[The Bakers, Bank]", "human_reference": "Rosa{} is near it."},
        {"name": "Rosa{}", "near": "The Bakers, Bank"},
        ("tuetschek/e2e_nlg", {"revision": "refs/convert/parquet", "data_dir": "default"}),
    ),
    (
        "addresses",
        {
            "tokens": ["{}", "Elm", "Park", "Rd,"],
            "tags": ["AddressNumber", "StreetName", "StreetName", "StreetNamePostType"],
        },
        {"AddressNumber": "{}", "StreetName": "Elm Park", "StreetNamePostType": "Rd"},
        ("jxu9001/tagged_addresses", {"name": None}),
    ),
    (
        "receipts",
        {
            "words": ["SHOP{}", "TOTAL 1.20"],
            "entities": {"company": "SHOP{}", "date": "1", "address": "2", "total": "1.20"},
        },
        {"company": "SHOP{}", "date": "1", "address": "2", "total": "1.20"},
        ("jsdnrs/ICDAR2019-SROIE", {"name": None}),
    ),
]


@pytest.mark.parametrize(("name", "record", "answer", "asked"), HUB, ids=[case[0] for case in HUB])
def test_by_default_the_hubs_columns_are_read_through_datasets(monkeypatch, forgetful, name, record, answer, asked):
    datasets = pytest.importorskip("datasets")
    calls = []

    def load(path, **options):
        calls.append((path, options))
        made = [json.loads(json.dumps(record).replace("{}", str(number))) for number in range(60)]
        return datasets.DatasetDict(published=datasets.Dataset.from_list(made))

    monkeypatch.setattr(datasets, "load_dataset", load)
    task = get_task(name)
    got = [json.loads(row.response) for split in SPLITS for row in task.rows_of(split, 0, task.knobs())]
    assert calls[0] == asked
    assert len(got) == 60 and json.loads(json.dumps(answer).replace("{}", "7")) in got


def test_humaneval_is_only_tested_on_and_parsed_but_not_run(tmp_path):
    task = get_task("humaneval-infilling")
    (row,) = rows("humaneval-infilling", lines(tmp_path / "h.jsonl", [EXERCISE]), "test")
    assert sides(row.prompt) == (EXERCISE["prompt"], EXERCISE["suffix"])
    assert row.template == "twice"
    assert task.score(EXERCISE["canonical_solution"], row).exact
    other = task.score("    y *= 2\n", row)
    assert other.parses and not other.exact
    assert not task.score("    y = (\n", row).parses
    with pytest.raises(UserError, match="valid: test"):
        rows("humaneval-infilling", "h.jsonl", "train")


def test_the_tests_of_an_exercise_run_only_where_that_is_allowed():
    with pytest.raises(UserError, match="allow_untrusted_code"):
        passes_tests(EXERCISE, EXERCISE["canonical_solution"])
    allowed = {"allow_untrusted_code": True}
    assert passes_tests(EXERCISE, "    y *= 2\n", **allowed)
    assert not passes_tests(EXERCISE, "    y *= 3\n", **allowed)
    assert not passes_tests(EXERCISE, "    y = (\n", **allowed)
    assert not passes_tests(EXERCISE, "    while True: pass\n", seconds=1, **allowed)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"prompt": "a"\n', ":1: broken JSON"),
        ('{"text": "a"}\n', "its columns are text"),
        ("[1]\n", ":1: not a JSON object"),
        (b"\xff\n", ":1: broken JSON"),
        ("", "holds no row for the split"),
    ],
)
def test_a_file_that_holds_no_such_rows_is_refused_by_line(tmp_path, content, words):
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=words):
        rows("restaurants", path)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError, match=r"there is no file nowhere\.jsonl; set source to"):
        rows("addresses", "nowhere.jsonl")


def test_make_data_writes_what_the_file_has_and_says_how_many(menu, tmp_path, capsys):
    out = tmp_path / "train.jsonl"
    words = ["make-data", "--task", "restaurants", "--rows", "5000", "--set", f"source={menu}", "--out", str(out)]
    assert run_command(main, words) == 0
    count = len(rows("restaurants", menu))
    assert capsys.readouterr().out == f"wrote {count} rows to {out}\n"
    assert len(out.read_text().splitlines()) == count < 120


def test_the_listing_needs_no_network(monkeypatch, capsys):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: pytest.fail("the listing loads a data set"))
    assert run_command(main, ["tasks", *NAMES, "humaneval-infilling"]) == 0
    out = capsys.readouterr().out
    assert all(get_task(name).sample.response in out for name in NAMES)
    assert "--set source=hub:tuetschek/e2e_nlg" in out

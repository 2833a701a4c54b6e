"""What a `kyc` document promises: it can be made again, its answer stands in its text, and test people are new."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import subprocess
import sys
import unicodedata
from collections import Counter
from contextlib import suppress
from datetime import date, datetime
from decimal import Decimal

import jsonschema
import pytest

from evals.metrics import parse_strictly
from evals.tasks import TASKS, get_task
from evals.tasks.kyc import DECOY_PHRASINGS, FIELD_PHRASINGS, LAYOUTS, KycKnobs
from evals.tasks.pools import CITIES, COUNTRIES, FIRST_NAMES
from mdlm.errors import UserError

KYC = get_task("kyc")
KEYS = ["name", "born", "id", "city", "income", "job", "country", "email", "issued", "expires"]
SIZES = list(itertools.product((6, 8, 10), (0, 2, 4)))


def rows(split="train", count=200, seed=0, **knobs):
    return list(KYC.generate(split, count, seed, KycKnobs(**knobs)))


def answers(*args, **knobs):
    return [json.loads(row.response) for row in rows(*args, **knobs)]


def digest(examples):
    return hashlib.sha256("".join(map(repr, examples)).encode("utf-8")).hexdigest()


def test_fewer_rows_are_a_prefix_of_more_rows():
    assert rows(count=100) == rows(count=300)[:100]


def test_seed_split_and_knobs_each_change_the_rows():
    variants = [rows(), rows(seed=1), rows("dev"), rows("test"), rows(fields=7), rows(decoys=1), rows(templates=3)]
    assert len({digest(variant) for variant in variants}) == len(variants)


def test_another_process_with_other_hash_seeds_makes_the_same_rows():
    code = (
        "from evals.tasks import get_task; print(*map(repr, get_task('kyc').generate('test', 50, 3)), sep='', end='')"
    )
    for hash_seed in ("1", "2"):
        made = subprocess.run(
            [sys.executable, "-X", "utf8", "-c", code],
            capture_output=True,
            check=True,
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": ":".join(filter(None, sys.path)) or "."},
        ).stdout
        assert hashlib.sha256(made).hexdigest() == digest(rows("test", 50, 3))


def test_the_rows_of_a_seed_never_change():
    # A data set named in a record must stay what it was. Who changes the generator on purpose changes this line.
    assert digest(rows(count=50)) == "7d04cfc94ac5fe32704bc44fd8517d7b016389104fcbf5aa67e99ca53e899cea"


@pytest.mark.parametrize("split", KYC.splits)
@pytest.mark.parametrize(("fields", "decoys"), SIZES)
def test_the_answer_is_compact_canonical_json_that_fulfils_the_schema(split, fields, decoys):
    knobs = KycKnobs(fields=fields, decoys=decoys)
    schema = KYC.schema(knobs)
    jsonschema.Draft202012Validator.check_schema(schema)
    for row in KYC.generate(split, 40, 0, knobs):
        answer = json.loads(row.response)
        jsonschema.validate(answer, schema)
        assert list(answer) == KEYS[:fields]
        assert all(date.fromisoformat(answer[key]) for key in ("born", "issued", "expires") if key in answer)
        income = re.search(r'"income":(\d+\.\d\d)[,}]', row.response)[1]
        compact = json.dumps({**answer, "income": "?"}, ensure_ascii=False, separators=(",", ":"))
        assert row.response == compact.replace('"?"', income)
        assert parse_strictly(row.response)["income"] == Decimal(income)
        assert unicodedata.is_normalized("NFC", row.prompt + row.response)


WORD = r"[^\W\d_]+(?:['’-][^\W\d_]+)*"
DATE = r"\d{1,2} [A-Z][a-z]+ \d{4}|[A-Z][a-z]+ \d{1,2}, \d{4}|\d\d/\d\d/\d{4}|\d\d\.\d\d\.\d{4}|\d{4}-\d\d-\d\d"
AMOUNT = r"(?:EUR |€)?\d[\d.,]*[.,]\d\d(?: EUR| €| euros)?"
NUMBER = r"[A-Z]{1,2}\d{6,7}"
LOOKS_LIKE = {
    **dict.fromkeys(("name", "officer", "referee"), f"{WORD} {WORD}"),
    **dict.fromkeys(("born", "issued", "expires", "visit"), DATE),
    **dict.fromkeys(("id", "file"), NUMBER),
    **dict.fromkeys(("income", "payment"), AMOUNT),
    **dict.fromkeys(("city", "branch", "country", "job"), WORD),
    "email": r"[a-z.]+@example\.(?:com|org|net)",
}
STATEMENTS = [
    (key, re.compile(re.escape(phrase).replace(r"\{\}", f"({LOOKS_LIKE[key]})")))
    for key, both in (FIELD_PHRASINGS | DECOY_PHRASINGS).items()
    for phrase in (*both[0], *both[1])
]


def read_in_layout(prompt, between, end):
    """[(what is stated, its text), ...], or None when the document is not written in this layout."""
    stated, position = [], 0
    stop = len(prompt) - len(end)
    while position <= stop:
        found = []
        for key, statement in STATEMENTS:
            match = statement.match(prompt, position)
            if match and (match.end() == stop or prompt.startswith(between, match.end())):
                found.append((key, match))
        if len(found) != 1:
            return None
        stated.append((found[0][0], found[0][1][1]))
        position = found[0][1].end() + len(between)
    return stated


def canonical(key, text):
    """What a European reader takes a date or an amount for, without the generator's help."""
    if LOOKS_LIKE[key] is DATE:
        for spelling in ("%d %B %Y", "%d %b %Y", "%B %d, %Y", "%d/%m/%Y", "%d.%m.%Y", "%Y-%m-%d"):
            with suppress(ValueError):
                return datetime.strptime(text, spelling).date().isoformat()
    if LOOKS_LIKE[key] is AMOUNT:
        return Decimal(re.sub(r"\D", "", text)) / 100
    return text


@pytest.mark.parametrize("split", KYC.splits)
@pytest.mark.parametrize(("fields", "decoys"), SIZES)
def test_the_text_alone_decides_the_answer(split, fields, decoys):
    """A reader who knows only what phrasings mean finds one reading of each document, and it is the answer."""
    for row in rows(split, 60, fields=fields, decoys=decoys):
        readings = [reading for layout in LAYOUTS if (reading := read_in_layout(row.prompt, *layout))]
        assert len(readings) == 1, row
        assert len(readings[0]) == fields + decoys
        assert len(dict(readings[0])) == fields + decoys, "nothing is stated twice"
        answer = {key: canonical(key, text) for key, text in readings[0] if key in KEYS}
        assert answer == parse_strictly(row.response)


def test_no_phrasing_means_two_things_or_stands_on_both_sides_of_the_split():
    every = [p for both in (FIELD_PHRASINGS | DECOY_PHRASINGS).values() for side in both for p in side]
    assert [p for p, n in Counter(map(str.casefold, every)).items() if n > 1] == []


def test_fields_stand_in_every_order():
    def order(row):
        answer = json.loads(row.response)
        return sorted(("name", "id", "city"), key=lambda key: row.prompt.index(answer[key]))

    assert len({tuple(order(row)) for row in rows(count=100, fields=6)}) == 6


def test_decoys_add_statements_and_are_never_the_answer():
    plain, confusing = rows(decoys=0), rows(decoys=4)
    assert [row.response for row in plain] == [row.response for row in confusing]
    assert all(len(more.prompt) > len(less.prompt) + 20 for less, more in zip(plain, confusing, strict=True))


def test_people_and_places_of_dev_and_test_are_new():
    seen, *others = (answers(split, 3000) for split in ("train", "dev", "test"))
    unseen = answers("unseen_templates", 500)
    for key, word in (("name", 1), ("city", 0), ("id", 0)):
        train, dev, test = ({answer[key].split()[word] for answer in some} for some in (seen, *others))
        assert not train & dev
        assert not train & test
        assert not dev & test
        assert not train & {answer[key].split()[word] for answer in unseen}


def test_decoy_names_of_test_are_new_too():
    seen = {answer["name"].split()[1] for answer in answers("train", 3000)}
    for row in rows("test", 300, decoys=4):
        words = set(re.findall(r"[^\W\d_]+(?:['-][^\W\d_]+)?", row.prompt))
        assert not words & (seen - {*FIRST_NAMES, *COUNTRIES, *CITIES}), row


def test_templates_of_the_held_out_slice_are_new_and_clusters_are_named():
    known = {row.template for split in ("train", "dev", "test") for row in rows(split, 2000)}
    held_out = {row.template for row in rows("unseen_templates", 1000)}
    assert (len(known), len(held_out)) == (128, 32)
    assert not known & held_out
    assert {row.template for row in rows(count=500, templates=4)} < known
    assert len({row.template for row in rows(count=500, templates=4)}) == 4


def test_a_small_document_is_short():
    small = rows(count=1000, fields=6, decoys=1)
    assert max(len(row.prompt) for row in small) <= 280
    assert max(len(row.response) for row in small) <= 140


@pytest.mark.parametrize("wrong", [{"fields": 5}, {"fields": 11}, {"decoys": -1}, {"fields": "6"}, {"fields": True}])
def test_a_knob_out_of_range_is_refused_with_the_valid_values(wrong):
    with pytest.raises(UserError, match=r"valid: \d\.\.\d"):
        KycKnobs(**wrong)


def test_an_unknown_task_or_split_is_refused_with_the_nearest_name():
    with pytest.raises(UserError, match="did you mean 'kyc'"):
        get_task("kcy")
    with pytest.raises(UserError, match="did you mean 'train'"):
        KYC.generate("trian", 1, 0)


def test_the_registry_names_every_task_once():
    assert TASKS["kyc"] is KYC
    assert all(name == task.name for name, task in TASKS.items())

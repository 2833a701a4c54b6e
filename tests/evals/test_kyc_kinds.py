"""Identity cards, passports, bills and e-mails: the text alone decides the answer, and the knobs do what they say."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from contextlib import suppress
from datetime import date
from decimal import Decimal

import pytest

from evals.documents import parse_strictly
from evals.tasks import get_task
from evals.tasks.kyc_phrasings import KINDS
from evals.tasks.mrz import STATE_CODES, is_valid, zone

KYC = get_task("kyc")
WORD = r"[^\W\d_]+(?:['’-][^\W\d_]+)*"
DAY = r"[^|;]*\d{4}|\d{4}-\d\d-\d\d|[A-Z][a-z]+ \d{1,2}, \d{4}"
MONEY = r"(?:EUR |CHF |€|£|US\$)?\d[\d., ']*[.,]\d\d(?: EUR| €| euros| zł)?"
LOOKS_LIKE = {
    **dict.fromkeys(("name", "officer", "guardian"), f"{WORD} {WORD}"),
    **dict.fromkeys(("born", "issued", "expires", "due", "printed"), DAY),
    **dict.fromkeys(("number", "id", "replaced"), r"[A-Z]{2}\d{7}"),
    **dict.fromkeys(("amount", "income", "paid"), MONEY),
    **dict.fromkeys(("surname", "given", "city", "birthplace", "authority", "job", "country"), WORD),
    "nationality": "[A-Z]{1,3}",
    "sex": "[FM]",
    "street": rf"{WORD}(?: Street| Road)? \d+",
    "postcode": r"(?:[DL]-)?\d{5}",
    "account": r"\d{3} \d{4}",
    "supplier": rf"{WORD} {WORD}",
    "employer": rf"{WORD} (?:Ltd|GmbH|& Co|SA|AB)",
    "usage": r"\d+",
    "phone": r"\+\d+ \d\d.\d{3}.\d{3}",
    "email": r"[a-z.]+@example\.(?:com|org|net)",
}
CURRENCIES = {"€": "EUR", "EUR": "EUR", "euros": "EUR", "£": "GBP", "CHF": "CHF", "zł": "PLN", "US$": "USD"}
MONTHS = [  # the beginnings that tell the months of six languages apart
    *(("ja", "en", "ge"), ("f",), ("mar", "mär", "maa"), ("ap", "av", "ab"), ("may", "mai", "mag", "mei")),
    *(("jun", "juin", "giu"), ("jul", "juil", "lug"), ("au", "ao", "ag"), ("s",), ("o",), ("n",), ("d",)),
]


def rows(kind, split="train", count=100, seed=0, **knobs):
    return list(KYC.generate(split, count, seed, KYC.knobs(kind=kind, **knobs)))


def read_day(text):
    with suppress(ValueError):
        return date.fromisoformat(text)
    (year,), days = re.findall(r"\d{4}", text), re.findall(r"(?<!\d)\d{1,2}(?!\d)", text)
    words = [word for word in re.findall(r"[^\W\d_]+", text.casefold()) if word != "de"]
    if words:
        starts = [(number, start) for number, starts in enumerate(MONTHS, 1) for start in starts]
        month = max((len(start), number) for number, start in starts if words[0].startswith(start))[1]
    else:
        month = int(days[1])
    return date(int(year), month, int(days[0]))


def canonical(key, text):
    if LOOKS_LIKE[key] is DAY:
        return read_day(text).isoformat()
    if LOOKS_LIKE[key] is MONEY:
        currency = next(code for sign, code in CURRENCIES.items() if sign in text)
        return {"value": Decimal(re.sub(r"\D", "", text)) / 100, "currency": currency}
    if key == "phone":
        return re.sub(r"[^+\d]", "", text)
    return Decimal(text) if key == "usage" else text


def read(kind, statements):
    """{key: value} of statements of which each can mean one thing only."""
    facts = {}
    tables = {**KINDS[kind].fields, **KINDS[kind].decoys}
    for statement in statements:
        meanings = []
        for key, phrase in ((key, phrase) for key, both in tables.items() for phrase in (*both[0], *both[1])):
            pattern = re.escape(phrase).replace(r"\{\}", f"({LOOKS_LIKE[key]})")
            if match := re.fullmatch(pattern, statement):
                meanings.append((key, match[1]))
        assert len(meanings) == 1, (statement, meanings)
        assert meanings[0][0] not in facts
        facts[meanings[0][0]] = canonical(*meanings[0])
    return facts


def page(row, kind):
    """(heading, statements, lines of the zone) of a document."""
    heading, *lines = row.prompt.split("\n")
    zone_lines = [line for line in lines if re.fullmatch("[A-Z0-9<]{44}", line)]
    body = "\n".join(line for line in lines if line not in zone_lines)
    between = next((mark for mark in (" | ", "; ", "\n- ") if mark in body), "\n")
    return heading, body.removeprefix("- ").split(between), zone_lines


def read_zone(second):
    return {"number": second[:9].rstrip("<"), "nationality": second[10:13].rstrip("<"), "sex": second[20]}


@pytest.mark.parametrize("split", KYC.splits)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("fields", "decoys"), [(6, 0), (8, 2), (10, 4)])
def test_the_text_alone_decides_the_answer(kind, split, fields, decoys):
    for row in rows(kind, split, 40, fields=fields, decoys=decoys):
        heading, statements, zone_lines = page(row, kind)
        assert [name for name in KINDS if heading in {*KINDS[name].headings[0], *KINDS[name].headings[1]}] == [kind]
        facts = read(kind, statements)
        if zone_lines:
            facts = read_zone(zone_lines[1]) | facts
        keys = list(KINDS[kind].fields)[:fields]
        answer = parse_strictly(row.response)
        assert list(answer) == ["document", *keys]
        assert answer == {"document": kind} | {key: facts[key] for key in keys}
        assert len(facts.keys() & KINDS[kind].decoys.keys()) == decoys


@pytest.mark.parametrize("kind", KINDS)
def test_no_phrasing_means_two_things_or_stands_on_both_sides_of_the_split(kind):
    tables = (*KINDS[kind].fields.values(), *KINDS[kind].decoys.values(), KINDS[kind].headings)
    every = [phrase.casefold() for both in tables for side in both for phrase in side]
    assert [phrase for phrase, count in Counter(every).items() if count > 1] == []


def test_a_passport_states_one_field_in_its_zone_alone():
    for row in rows("passport"):
        _, statements, (first, second) = page(row, "passport")
        assert is_valid(second)
        answer = json.loads(row.response)
        missing = {"number", "nationality", "sex"} - read("passport", statements).keys()
        assert len(missing) == 1
        assert read_zone(second)[missing.pop()] in answer.values()
        assert first.startswith(f"P<{answer['nationality']:<<3}")


def test_a_zone_to_verify_is_wrong_half_of_the_time_and_the_answer_says_so():
    valid = []
    for row in rows("passport", count=400, mrz="verify"):
        _, statements, (_, second) = page(row, "passport")
        assert {"number", "nationality", "sex"} <= read("passport", statements).keys()
        valid.append(is_valid(second))
        assert json.loads(row.response)["mrz_valid"] is valid[-1]
    assert 0.4 < sum(valid) / len(valid) < 0.6


@pytest.mark.parametrize("fields", [6, 10])
def test_a_zone_to_write_follows_from_the_page(fields):
    for row in rows("passport", mrz="write", fields=fields):
        _, statements, none = page(row, "passport")
        assert none == []
        facts = read("passport", statements)
        born, expires = (date.fromisoformat(facts[key]) for key in ("born", "expires"))
        page_of = {key: facts[key] for key in ("surname", "given", "number", "nationality", "sex")}
        lines = zone(**page_of, state=facts["nationality"], born=born, expires=expires, personal="")
        assert json.loads(row.response)["mrz"] == list(lines)


def test_mixed_rows_are_the_rows_of_their_kinds():
    mixed = rows("mixed", count=200)
    of_kind = {kind: rows(kind, count=200) for kind in ("form", *KINDS)}
    found = [next(kind for kind in of_kind if of_kind[kind][n] == row) for n, row in enumerate(mixed)]
    assert min(Counter(found).values()) > 20
    assert len(Counter(found)) == 5
    assert all(KYC.score(row.response, row, KYC.knobs(kind="mixed")).exact for row in mixed)


@pytest.mark.parametrize("kind", KINDS)
def test_people_and_places_of_dev_and_test_are_new_and_so_are_held_out_templates(kind):
    open_keys = ("surname", "name", "birthplace", "city", "supplier", "employer")

    def seen(split):
        answers = [json.loads(row.response) for row in rows(kind, split, 800, fields=10)]
        return {
            answer[key].split()[-1 if key == "name" else 0] for answer in answers for key in open_keys if key in answer
        }

    for one, other in itertools.combinations(("train", "dev", "test"), 2):
        assert not seen(one) & seen(other)
    assert not seen("train") & seen("unseen_templates")
    known = {row.template for row in rows(kind, count=800)}
    assert not known & {row.template for row in rows(kind, "unseen_templates", 300)}
    assert len({row.template for row in rows(kind, count=100, templates=3)}) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_decoys_make_the_text_longer_and_leave_the_answer(kind):
    plain, confusing = rows(kind, decoys=0), rows(kind, decoys=4)
    assert [row.response for row in plain] == [row.response for row in confusing]
    assert all(len(more.prompt) > len(less.prompt) + 30 for less, more in zip(plain, confusing, strict=True))


def test_every_state_code_of_the_pages_is_one_of_the_zone():
    codes = {json.loads(row.response)["nationality"] for row in rows("identity_card", count=400)}
    assert codes <= set(STATE_CODES.values())

"""`kyc`: a generated onboarding document (know your customer) to compact JSON.

A template fixes the layout, the phrasing of every field and the spelling of dates and amounts, as one clerk would
write; a row draws the person, the order of the fields and the decoys. The answer is fixed by the text alone: numeric
dates put the day first, every amount has two decimals, and every date, name, amount and number says what it is.
"""

from __future__ import annotations

import dataclasses
import json
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from functools import cache
from random import Random
from typing import Any

from evals.tasks import kyc_kinds
from evals.tasks.draws import day, distinct, pick, shuffled
from evals.tasks.pools import COUNTRIES, FIRST_NAMES, OCCUPATIONS, open_values
from evals.tasks.spellings import AMOUNT_SPELLINGS, DATE_SPELLINGS, number_literal
from evals.tasks.task import Example, Knobs, Task, knob

# Key -> (phrasings a template of train, dev and test may use; phrasings kept for the split `unseen_templates`).
# The order of the keys is their order in the answer; `fields` of them, from the top, are asked for.
FIELD_PHRASINGS = {
    "name": (
        ("Name: {}", "Applicant {}", "Client: {}", "Full name {}", "The customer is {}", "{} wants an account"),
        ("Customer name: {}", "Name of the client: {}", "The applicant is {}", "{} is the client"),
    ),
    "born": (
        ("Born {}", "DOB {}", "Date of birth: {}", "Birth date {}", "Was born on {}", "D.O.B.: {}"),
        ("Birth: {}", "Born on {}", "Date born: {}", "Birthday {}"),
    ),
    "id": (
        ("ID {}", "ID card: {}", "Passport {}", "Passport no. {}", "Identity card {}", "Holds ID number {}"),
        ("ID no. {}", "Passport number: {}", "Identity: {}", "Holds passport {}"),
    ),
    "city": (
        ("City: {}", "Lives in {}", "Resident of {}", "Home city {}", "Residence: {}", "Has a home in {}"),
        ("Home: {}", "Living in {}", "City of residence {}", "Resides in {}"),
    ),
    "income": (
        ("Income {}", "Earns {} a month", "Salary: {}", "Monthly income {}", "Net pay {}", "Is paid {} a month"),
        ("Monthly salary {}", "Earning {} a month", "Pay: {}", "Net income {}"),
    ),
    "job": (
        ("Job: {}", "Occupation {}", "Works as a {}", "Profession: {}", "Employed as a {}", "A {} by trade"),
        ("Trade: {}", "Working as a {}", "Employment: {}", "By profession a {}"),
    ),
    "country": (
        ("Citizen of {}", "Nationality: {}", "Citizenship {}", "Passport from {}", "National of {}"),
        ("Is a citizen of {}", "Country of nationality {}", "Citizenship of {}"),
    ),
    "email": (
        ("Email {}", "E-mail: {}", "Mail to {}", "Contact: {}", "Write to {}"),
        ("Email address {}", "Contact by mail: {}", "E-mails go to {}"),
    ),
    "issued": (
        ("ID issued {}", "Issued on {}", "Date of issue: {}", "Issue date {}", "Card was issued {}"),
        ("Issued: {}", "ID issue date {}", "ID was issued on {}"),
    ),
    "expires": (
        ("ID expires {}", "Valid until {}", "Expiry date: {}", "Expires on {}", "Valid to {}"),
        ("Expires: {}", "ID valid until {}", "Date of expiry {}"),
    ),
}

# What stands in the text and belongs to somebody or something else.
DECOY_PHRASINGS = {
    "officer": (
        ("Officer: {}", "Handled by {}", "Checked by {}", "Account manager {}", "Clerk: {}"),
        ("Officer in charge {}", "File handled by {}", "Manager: {}"),
    ),
    "referee": (
        ("Referred by {}", "Reference given by {}", "Emergency contact {}", "Spouse: {}"),
        ("Was referred by {}", "Referee {}", "In emergency call {}"),
    ),
    "file": (
        ("Ref. {}", "Case no. {}", "File number: {}", "Ticket {}", "Our reference {}"),
        ("Case {}", "Reference no. {}", "Ticket number: {}"),
    ),
    "visit": (
        ("Form received {}", "Visited us on {}", "Next review: {}", "Form signed {}", "Client since {}"),
        ("Received on {}", "Date of next review {}", "Signed: {}"),
    ),
    "payment": (
        ("Fee {}", "First deposit: {}", "Pays {} in rent", "Card limit {}", "Owes {}"),
        ("Rent: {}", "Fee paid {}", "Deposit of {}"),
    ),
    "branch": (
        ("Branch: {}", "Filed in {}", "Account held at our {} office", "Sent from {}"),
        ("Our branch in {}", "Office: {}", "Filed at our {} branch"),
    ),
}

# A town is a stem (a real town or a surname) and an ending. Real towns alone would be so few that a model learns to
# recite those of train instead of copying what it reads.
TOWN_ENDINGS = ("", "", "", "", "by", "dorf", "field", "ford", "ham", "holm", "ton", "ville")

LAYOUTS = (("\n", ""), ("; ", ""), (". ", "."), (" | ", ""), (", ", ""))  # (between two phrases, after the last one)
TRAIN_TEMPLATES = 128
UNSEEN_TEMPLATES = 32
KIND_NAMES = ("form", *kyc_kinds.KINDS)


@dataclass(frozen=True)
class KycKnobs(Knobs):
    """How long and how confusing a document is."""

    fields: int = knob(8, range(6, 11), "fields in every document and answer")
    decoys: int = knob(2, range(5), "statements in every document that must not be extracted")
    templates: int = knob(TRAIN_TEMPLATES, range(1, TRAIN_TEMPLATES + 1), "templates of train, dev and test")
    kind: str = knob("form", (*KIND_NAMES, "mixed"), "the kind of document; in `mixed` any of them, row by row")
    mrz: str = knob("read", ("read", "verify", "write"), "what to do with a passport's machine-readable zone")


@dataclass(frozen=True)
class Template:
    """What one clerk always does alike."""

    name: str
    layout: tuple[str, str]
    field_phrasing: dict[str, str]
    decoy_phrasing: dict[str, str]
    spell_date: Callable[[date], str]
    spell_amount: Callable[[int], str]


@cache
def template(unseen: bool, number: int) -> Template:
    name = f"{'unseen' if unseen else 'seen'}-{number:03}"
    random = Random(f"kyc template {name}")
    return Template(
        name=name,
        layout=pick(random, LAYOUTS),
        field_phrasing={key: pick(random, phrasings[unseen]) for key, phrasings in FIELD_PHRASINGS.items()},
        decoy_phrasing={kind: pick(random, phrasings[unseen]) for kind, phrasings in DECOY_PHRASINGS.items()},
        spell_date=pick(random, DATE_SPELLINGS),
        spell_amount=pick(random, AMOUNT_SPELLINGS),
    )


def make(split: str, row: int, seed: int, knobs: KycKnobs) -> Example:
    """Row `row` of a split. At one seed it is about the same person whatever the knobs, so that settings compare."""
    kind = pick(Random(f"kyc mixed {split} seed {seed} row {row}"), KIND_NAMES) if knobs.kind == "mixed" else knobs.kind
    if kind != "form":
        options = {"fields": knobs.fields, "decoys": knobs.decoys, "templates": knobs.templates}
        prompt, response, template_name = kyc_kinds.write(kind, split, row, seed, **options, zone=knobs.mrz)
        return Example(prompt, response, template_name, split)
    return _make_form(split, row, seed, knobs)


def _make_form(split: str, row: int, seed: int, knobs: KycKnobs) -> Example:
    random = Random(f"kyc {split} seed {seed} row {row}")
    unseen = split == "unseen_templates"
    form = template(unseen, pick(random, range(UNSEEN_TEMPLATES if unseen else knobs.templates)))
    surnames, cities = open_values(split)
    first_name, *other_first_names = distinct(random, FIRST_NAMES, 3)
    surname, *other_surnames = distinct(random, surnames, 3)
    city, other_city = (town + pick(random, TOWN_ENDINGS) for town in distinct(random, cities + surnames, 2))
    officer, referee = map(" ".join, zip(other_first_names, other_surnames, strict=True))
    born, issued, expires = day(random, 1940, 2006), day(random, 2016, 2024), day(random, 2027, 2036)
    income = _cents(random, 800, 20_000)

    texts = {
        "name": f"{first_name} {surname}",
        "born": form.spell_date(born),
        "id": _document_number(random),
        "city": city,
        "income": form.spell_amount(income),
        "job": pick(random, OCCUPATIONS),
        "country": pick(random, COUNTRIES),
        "email": _email(random, first_name, surname),
        "issued": form.spell_date(issued),
        "expires": form.spell_date(expires),
    }
    dates = {"born": born.isoformat(), "issued": issued.isoformat(), "expires": expires.isoformat()}
    answers = {key: json.dumps(text, ensure_ascii=False) for key, text in (texts | dates).items()}
    answers["income"] = number_literal(income)
    decoys = {
        "officer": officer,
        "referee": referee,
        "file": _document_number(random),
        "visit": form.spell_date(day(random, 2023, 2026)),
        "payment": form.spell_amount(_cents(random, 10, 3_000)),
        "branch": other_city,
    }

    keys = _keys(knobs)
    kinds = shuffled(random, list(DECOY_PHRASINGS))[: knobs.decoys]
    statements = [form.field_phrasing[key].format(texts[key]) for key in keys]
    statements += [form.decoy_phrasing[kind].format(decoys[kind]) for kind in kinds]
    between, end = form.layout
    prompt = between.join(shuffled(random, statements)) + end
    response = "{" + ",".join(f'"{key}":{answers[key]}' for key in keys) + "}"
    return Example(prompt, response, form.name, split)


def schema(knobs: KycKnobs) -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of the answer."""
    if knobs.kind == "mixed":
        return {"anyOf": [schema(dataclasses.replace(knobs, kind=kind)) for kind in KIND_NAMES]}
    if knobs.kind != "form":
        return kyc_kinds.schema(knobs.kind, knobs.fields, knobs.mrz)
    text = {"type": "string", "minLength": 1}
    date_text = {"type": "string", "format": "date", "pattern": r"^\d{4}-\d{2}-\d{2}$"}
    special = {
        "born": date_text,
        "id": {"type": "string", "pattern": "^[A-Z0-9]{8}$"},
        "income": {"type": "number", "minimum": 0},
        "issued": date_text,
        "expires": date_text,
    }
    keys = _keys(knobs)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {key: special.get(key, text) for key in keys},
        "required": keys,
        "additionalProperties": False,
    }


def _keys(knobs: KycKnobs) -> list[str]:
    return list(FIELD_PHRASINGS)[: knobs.fields]


def _cents(random: Random, lowest_euros: int, highest_euros: int) -> int:
    return pick(random, range(lowest_euros * 100, highest_euros * 100))


def _document_number(random: Random) -> str:
    """Eight characters: one or two letters, then digits. File numbers look the same, so that only words tell them."""
    letters = "".join(pick(random, "ABCDEFGHKLMNPRSTUVWXYZ") for _ in range(pick(random, (1, 2))))
    return letters + "".join(pick(random, "0123456789") for _ in range(8 - len(letters)))


def _email(random: Random, first_name: str, surname: str) -> str:
    user = unicodedata.normalize("NFKD", pick(random, (first_name, first_name[0])) + "." + surname).lower()
    user = "".join(letter for letter in user if letter.isascii() and (letter.isalnum() or letter == "."))
    return f"{user}@{pick(random, ('example.com', 'example.org', 'example.net'))}"


TASKS = (
    Task(
        name="kyc",
        description="An onboarding document, its statements in any order with decoys among them, to compact JSON",
        group="structured",
        splits=("train", "dev", "test", "unseen_templates"),
        knobs=KycKnobs,
        schema=schema,
        make=make,
    ),
)

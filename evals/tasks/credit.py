"""`credit`: a letter of credit in tagged text, in the manner of SWIFT MT 700, to nested JSON.

Tags carry what the message carries: 31C and 44C dates as YYMMDD, 32B a currency and an amount with a decimal comma, 46A
the documents to present. How many originals and copies "in triplicate" means is fixed by UCP 600, article 17 e: one
original, the rest copies. Documents are a set: the order of the list in the answer is free.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cache
from random import Random
from typing import Any

from evals.tasks.draws import code, day, digits, distinct, pick, shuffled
from evals.tasks.mrz import letters
from evals.tasks.pools import open_values
from evals.tasks.spellings import number_literal
from evals.tasks.task import Example, Knobs, Task, knob

FIELDS = ("number", "issued", "amount", "ship_by", "beneficiary", "applicant", "expires", "goods")
CURRENCIES = ("EUR", "USD", "GBP", "CHF", "PLN", "SEK")
DOCUMENT_NAMES = (
    *("COMMERCIAL INVOICE", "PACKING LIST", "BILL OF LADING", "CERTIFICATE OF ORIGIN", "INSURANCE POLICY"),
    *("INSPECTION CERTIFICATE", "WEIGHT CERTIFICATE", "AIR WAYBILL", "QUALITY CERTIFICATE", "HEALTH CERTIFICATE"),
    *("DRAFT", "BENEFICIARY CERTIFICATE", "DELIVERY NOTE", "EXPORT LICENCE", "FUMIGATION CERTIFICATE"),
    *("SHIPPING ADVICE", "ANALYSIS REPORT", "WARRANTY"),
)
GOODS = ("OLIVES", "TIMBER", "STEEL PIPES", "COFFEE", "COTTON YARN", "FLOUR", "TILES", "WINE", "COPPER WIRE", "SALT")
UNITS = ("KG", "MT", "BAGS", "PALLETS", "BOXES")
FOLDS = ("", "", "DUPLICATE", "TRIPLICATE", "QUADRUPLICATE")

# {n} originals and {c} copies of {d}; each side serves the splits as the phrasings of `kyc` do.
COUNTED = (
    ("{n} ORIGINAL(S) AND {c} COPIES OF {d}", "{d}, {n} ORIGINAL, {c} COPY", "{d} ({n} ORIG. + {c} COP.)"),
    ("{d}: ORIGINALS {n}, COPIES {c}", "{n}O/{c}C {d}"),
)
ORIGINALS_ONLY = (("{n} ORIGINAL(S) OF {d}", "FULL SET {n}/{n} {d}", "{d}, {n} ORIGINAL"), ("ALL {n} ORIGINALS, {d}",))
FOLDED = (("{d} IN {f}", "SIGNED {d} IN {f}"), ("{f} OF {d}",))  # the fold's word says how many in all
BULLETS = (("+ ", "- ", "+"), ("* ", "/"))

# Tags whose content is not asked for, some of it close to what is.
DECOYS = {
    "23": (("PREADV/{code}", "PREADV {code}"), ("/{code}/",)),
    "39A": (("{tolerance}/{tolerance}",), ("TOL {tolerance}/{tolerance}",)),
    "47A": (("{n} COPIES OF {d} SENT BY APPLICANT", "LATE {d} REFUSED"), ("{d} IN {n} COPIES IS WAIVED",)),
    "48": (("{n} DAYS", "WITHIN {n} DAYS"), ("{n}/DAYS AFTER SHIPMENT",)),
    "71D": (("CHARGES {currency}{tolerance}, FOR BENEFICIARY",), ("FEES {currency}{tolerance},",)),
}
TEMPLATES = 96
UNSEEN_TEMPLATES = 32


@dataclass(frozen=True)
class CreditKnobs(Knobs):
    """How long and how confusing a letter is."""

    fields: int = knob(5, range(3, 9), "fields in every letter and answer, beside the documents")
    documents: int = knob(2, range(5), "documents to present; with 0 the list is empty")
    decoys: int = knob(1, range(5), "tags in every letter that must not be extracted")
    templates: int = knob(TEMPLATES, range(1, TEMPLATES + 1), "templates of train, dev and test")


@dataclass(frozen=True)
class Template:
    """What one bank always does alike."""

    name: str
    spaced: str  # after the tag
    bullet: str
    counted: str
    originals_only: str
    folded: str
    decoys: dict[str, str]


@cache
def template(unseen: bool, number: int) -> Template:
    name = f"{'unseen' if unseen else 'seen'}-{number:03}"
    random = Random(f"credit template {name}")
    return Template(
        name=name,
        spaced=pick(random, ("", " ")),
        bullet=pick(random, BULLETS[unseen]),
        counted=pick(random, COUNTED[unseen]),
        originals_only=pick(random, ORIGINALS_ONLY[unseen]),
        folded=pick(random, FOLDED[unseen]),
        decoys={tag: pick(random, phrasings[unseen]) for tag, phrasings in DECOYS.items()},
    )


def make(split: str, row: int, seed: int, knobs: CreditKnobs) -> Example:
    """Row `row` of a split; its letter is the same whatever the knobs show of it."""
    random = Random(f"credit {split} seed {seed} row {row}")
    unseen = split == "unseen_templates"
    bank = template(unseen, pick(random, range(UNSEEN_TEMPLATES if unseen else knobs.templates)))
    surnames, towns = open_values(split)
    beneficiary, applicant = (_party(random, surname) for surname in distinct(random, surnames, 2))
    place = letters(pick(random, towns)).replace("<", " ")
    issued = day(random, 2023, 2027)
    ship_by = issued + timedelta(days=pick(random, range(20, 120)))
    expires = ship_by + timedelta(days=pick(random, range(5, 40)))
    currency = pick(random, CURRENCIES)
    cents = pick(random, range(1_000, 200_000)) * 100 + pick(random, (0, 0, 50, pick(random, range(100))))
    number = code(random, 2, 6)
    quantity, unit, item = pick(random, range(10, 5_000)), pick(random, UNITS), pick(random, GOODS)

    # Field -> (tag, its content, its JSON).
    stated = {
        "number": ("20", number, json.dumps(number)),
        "issued": ("31C", _yymmdd(issued), json.dumps(issued.isoformat())),
        "amount": (
            "32B",
            currency + _swift_amount(cents),
            f'{{"value":{number_literal(cents)},"currency":"{currency}"}}',
        ),
        "ship_by": ("44C", _yymmdd(ship_by), json.dumps(ship_by.isoformat())),
        "beneficiary": ("59", beneficiary, json.dumps(beneficiary)),
        "applicant": ("50", applicant, json.dumps(applicant)),
        "expires": ("31D", _yymmdd(expires) + place, f'{{"date":"{expires.isoformat()}","place":"{place}"}}'),
        "goods": ("45A", f"{quantity} {unit} {item}", f'{{"item":"{item}","quantity":{quantity},"unit":"{unit}"}}'),
    }
    names = distinct(random, DOCUMENT_NAMES, 5)
    papers = [_paper(random, bank, name) for name in names[:4]][: knobs.documents]
    filler = {"code": code(random, 2, 6), "tolerance": pick(random, ("05", "10")), "d": names[4], "currency": currency}
    filler["n"] = digits(random, 1).replace("0", "7")
    tags = {tag: content for tag, content, _ in (stated[field] for field in FIELDS[: knobs.fields])}
    tags |= {tag: bank.decoys[tag].format(**filler) for tag in shuffled(random, list(DECOYS))[: knobs.decoys]}
    tags["40A"] = "IRREVOCABLE"
    tags["46A"] = "\n".join(bank.bullet + text for text, _ in papers) or "NONE"
    prompt = "\n".join(f":{tag}:{bank.spaced}{tags[tag]}" for tag in sorted(tags, key=_message_order))
    answers = [f'"{field}":{stated[field][2]}' for field in FIELDS[: knobs.fields]]
    answers.append('"documents":[' + ",".join(answer for _, answer in papers) + "]")
    return Example(prompt, "{" + ",".join(answers) + "}", bank.name, split)


def schema(knobs: CreditKnobs) -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of the answer."""
    text = {"type": "string", "minLength": 1}
    day_text = {"type": "string", "format": "date"}
    count = {"type": "integer", "minimum": 0}
    special = {
        **dict.fromkeys(("issued", "ship_by"), day_text),
        "amount": _closed(value={"type": "number", "exclusiveMinimum": 0}, currency={"enum": list(CURRENCIES)}),
        "expires": _closed(date=day_text, place=text),
        "goods": _closed(item=text, quantity=count, unit={"enum": list(UNITS)}),
    }
    papers = {"type": "array", "x-order": "set", "items": _closed(name=text, originals=count, copies=count)}
    fields = {field: special.get(field, text) for field in FIELDS[: knobs.fields]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **_closed(**fields, documents=papers)}


def _closed(**properties: Any) -> dict[str, Any]:
    """The schema of an object with these members, no more and no fewer."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _paper(random: Random, bank: Template, name: str) -> tuple[str, str]:
    """(the clause of a document, its JSON)."""
    manner, originals, copies = pick(random, range(3)), pick(random, range(1, 4)), pick(random, range(1, 5))
    if manner == 0:
        text = bank.counted.format(n=originals, c=copies, d=name)
    elif manner == 1:
        text, copies = bank.originals_only.format(n=originals, d=name), 0
    else:
        total = pick(random, range(2, len(FOLDS)))
        text, originals, copies = bank.folded.format(d=name, f=FOLDS[total]), 1, total - 1  # UCP 600, article 17 e
    return text, f'{{"name":"{name}","originals":{originals},"copies":{copies}}}'


def _party(random: Random, surname: str) -> str:
    return letters(surname) + " " + pick(random, ("TRADING", "AND SONS", "EXPORT", "LTD", "SA"))


def _yymmdd(on: date) -> str:
    return f"{on:%y%m%d}"


def _swift_amount(cents: int) -> str:
    """The comma is always there, decimals only where they say something: `1200,`, `1200,5`, `1200,05`."""
    return f"{cents // 100}," + f"{cents % 100:02}".rstrip("0")


def _message_order(tag: str) -> int:
    return ("40A", "20", "23", "31C", "31D", "50", "59", "32B", "39A", "44C", "45A", "46A", "47A", "71D", "48").index(
        tag
    )


TASKS = (
    Task(
        name="credit",
        description="A letter of credit in SWIFT tags, to nested JSON with the documents to present",
        group="structured",
        splits=("train", "dev", "test", "unseen_templates"),
        knobs=CreditKnobs,
        schema=schema,
        make=make,
    ),
)

"""The other documents of `kyc`: identity card, passport, utility bill, onboarding e-mail.

A template draws from the headings and phrasings of its kind as one office would; a row draws the person. As with the
form, the text alone decides the answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache
from random import Random
from typing import Any

from evals.tasks import mrz
from evals.tasks.draws import code, day, digits, distinct, pick, shuffled
from evals.tasks.kyc_phrasings import KINDS
from evals.tasks.pools import COUNTRIES, FIRST_NAMES, OCCUPATIONS, open_values
from evals.tasks.spellings import LOCAL_AMOUNTS, LOCAL_DATES, number_literal

UNSEEN_TEMPLATES = 32


@dataclass(frozen=True)
class Template:
    """What one office always does alike."""

    name: str
    heading: str
    between: str
    phrasing: dict[str, str]
    order: list[str]
    spell_date: Callable[[date], str]
    currency: str
    spell_amount: Callable[[int], str]
    only_in_zone: str  # a field that a passport of this office states in the machine-readable zone alone


@cache
def template(kind_name: str, unseen: bool, number: int) -> Template:
    kind = KINDS[kind_name]
    name = f"{kind_name}-{'unseen' if unseen else 'seen'}-{number:03}"
    random = Random(f"kyc template {name}")
    phrasings = {**kind.fields, **kind.decoys}
    currency, spell_amount = pick(random, LOCAL_AMOUNTS)
    return Template(
        name=name,
        heading=pick(random, kind.headings[unseen]),
        between=pick(random, kind.layouts),
        phrasing={key: pick(random, options[unseen]) for key, options in phrasings.items()},
        order=shuffled(random, list(phrasings)),
        spell_date=pick(random, LOCAL_DATES),
        currency=currency,
        spell_amount=spell_amount,
        only_in_zone=pick(random, ("number", "nationality", "sex")),
    )


def keys_of(kind_name: str, fields: int) -> list[str]:
    return list(KINDS[kind_name].fields)[:fields]


def write(
    kind_name: str, split: str, row: int, seed: int, *, fields: int, decoys: int, templates: int, zone: str
) -> tuple[str, str, str]:
    """(prompt, answer, template's name) of a row; `zone` is the knob `mrz` of passports."""
    random = Random(f"kyc {kind_name} {split} seed {seed} row {row}")
    unseen = split == "unseen_templates"
    form = template(kind_name, unseen, pick(random, range(UNSEEN_TEMPLATES if unseen else templates)))
    values = _draw(random, split, form)
    keys = keys_of(kind_name, fields)
    answers = {"document": json.dumps(kind_name)} | {key: values[key][1] for key in keys}
    stated = {*keys, *shuffled(random, list(KINDS[kind_name].decoys))[:decoys]}
    lines: list[str] = []
    if kind_name == "passport":
        # A zone to be read holds what the page leaves out; a zone to be written needs all of its parts on the page.
        stated = stated - {form.only_in_zone} if zone == "read" else stated | {"nationality", "sex"}
        lines, more = _zone_lines(random, values, zone)
        answers |= more
    statements = [form.phrasing[key].format(values[key][0]) for key in form.order if key in stated]
    bullet = "- " if form.between == "\n- " else ""
    prompt = "\n".join([form.heading, bullet + form.between.join(statements), *lines])
    return prompt, "{" + ",".join(f'"{key}":{answer}' for key, answer in answers.items()) + "}", form.name


def _zone_lines(random: Random, values: Mapping[str, tuple[str, str]], zone: str) -> tuple[list[str], dict[str, str]]:
    """(the lines of the zone in the prompt, what the answer says of the zone)."""
    read = {key: json.loads(values[key][1]) for key in ("surname", "given", "number", "nationality", "sex")}
    born, expires = (date.fromisoformat(json.loads(values[key][1])) for key in ("born", "expires"))
    state = read.pop("nationality")
    personal = "" if zone == "write" else values["personal"][0]
    first, second = mrz.zone(**read, state=state, nationality=state, born=born, expires=expires, personal=personal)
    if zone == "write":
        return [], {"mrz": json.dumps([first, second], separators=(",", ":"))}
    if zone == "read":
        return [first, second], {}
    valid = random.random() < 0.5
    if not valid:
        place = pick(random, [place for place, character in enumerate(second) if character.isdigit()])
        second = second[:place] + pick(random, [d for d in "0123456789" if d != second[place]]) + second[place + 1 :]
    return [first, second], {"mrz_valid": json.dumps(valid)}


def _draw(random: Random, split: str, form: Template) -> dict[str, tuple[str, str]]:
    """What a document may state: key -> (its text, its JSON). Surnames and towns are those of the split."""
    surnames, towns = open_values(split)
    given, other_given, third_given = distinct(random, FIRST_NAMES, 3)
    surname, other_surname, third_surname, firm, works, road = distinct(random, surnames, 6)
    city, birthplace, authority = distinct(random, towns + surnames, 3)
    country = pick(random, COUNTRIES)
    state = mrz.STATE_CODES[country]
    texts = {
        "surname": surname,
        "given": given,
        "name": f"{given} {surname}",
        "number": code(random, 2, 7),
        "id": code(random, 2, 7),
        "nationality": state,
        "country": country,
        "sex": pick(random, "FM"),
        "birthplace": birthplace,
        "authority": authority,
        "city": city,
        "personal": code(random, 1, 8),
        "street": road + pick(random, ("straße ", " Street ", "gata ", " Road ", "laan ", "vej ")) + _house(random),
        "postcode": pick(random, ("{}", "{}", "D-{}", "L-{}")).format(digits(random, 5)),
        "account": digits(random, 3) + " " + digits(random, 4),
        "supplier": f"{firm} {pick(random, ('Energy', 'Stadtwerke', 'Water', 'Gaz', 'Power'))}",
        "employer": f"{works} {pick(random, ('Ltd', 'GmbH', '& Co', 'SA', 'AB'))}",
        "job": pick(random, OCCUPATIONS),
        "email": f"{_plain(given)[:1]}.{_plain(surname)}@example.{pick(random, ('com', 'org', 'net'))}",
        "replaced": code(random, 2, 7),
        "officer": f"{other_given} {other_surname}",
        "guardian": f"{third_given} {third_surname}",
    }
    values = {key: (text, json.dumps(text, ensure_ascii=False)) for key, text in texts.items()}
    usage = pick(random, range(50, 900))
    values["usage"] = (str(usage), str(usage))
    prefix, local = (
        pick(random, ("+49", "+33", "+44", "+358")),
        (digits(random, 2), digits(random, 3), digits(random, 3)),
    )
    gap = pick(random, (" ", "-", "/", "."))
    values["phone"] = (f"{prefix} {gap.join(local)}", json.dumps(prefix + "".join(local)))
    years = {"born": (1940, 2006), "issued": (2016, 2024), "expires": (2027, 2036), "due": (2024, 2026)}
    for key, (first, last) in (years | {"printed": (2023, 2026)}).items():
        on = day(random, first, last)
        values[key] = (form.spell_date(on), json.dumps(on.isoformat()))
    for key, (lowest, highest) in {"amount": (20, 900), "income": (800, 20_000), "paid": (20, 900)}.items():
        cents = pick(random, range(lowest * 100, highest * 100))
        money = f'{{"value":{number_literal(cents)},"currency":"{form.currency}"}}'
        values[key] = (form.spell_amount(cents), money)
    return values


def schema(kind_name: str, fields: int, zone: str) -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of the answer to one kind of document."""
    text = {"type": "string", "minLength": 1}
    day_text = {"type": "string", "format": "date"}
    money = {
        "type": "object",
        "properties": {
            "value": {"type": "number", "minimum": 0},
            "currency": {"type": "string", "pattern": "^[A-Z]{3}$"},
        },
        "required": ["value", "currency"],
        "additionalProperties": False,
    }
    special: dict[str, Any] = {
        **dict.fromkeys(("born", "issued", "expires", "due"), day_text),
        **dict.fromkeys(("amount", "income"), money),
        "usage": {"type": "integer", "minimum": 0},
        "sex": {"enum": ["F", "M"]},
        "phone": {"type": "string", "pattern": r"^\+[0-9]+$"},
    }
    properties = {"document": {"const": kind_name}} | {
        key: special.get(key, text) for key in keys_of(kind_name, fields)
    }
    if kind_name == "passport" and zone == "write":
        line = {"type": "string", "pattern": "^[A-Z0-9<]{44}$"}
        properties["mrz"] = {"type": "array", "items": line, "minItems": 2, "maxItems": 2}
    if kind_name == "passport" and zone == "verify":
        properties["mrz_valid"] = {"type": "boolean"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _house(random: Random) -> str:
    return f"{pick(random, range(1, 200))}"


def _plain(name: str) -> str:
    """A name in the letters of an e-mail address."""
    return mrz.letters(name).replace("<", "").lower()

"""`call`: a request in English and k function signatures, to the call that grants it, or to `{"name":null}`.

A function is a verb and a thing, its parameters are drawn for the row and listed in any order under any of their names,
so a signature must be read, not remembered. The functions beside the right one share its verb or its thing. Where none
fits, the right one is missing from the list.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

from evals.tasks.draws import day, digits, distinct, pick, shuffled
from evals.tasks.pools import FIRST_NAMES, open_values
from evals.tasks.spellings import AMOUNT_SPELLINGS, DATE_SPELLINGS, number_literal
from evals.tasks.task import Example, Knobs, Task, knob

# (of train, dev and test; of `unseen_functions`). Things carry their article.
VERBS = (
    ("book", "cancel", "order", "move", "reserve", "rent", "check", "confirm", "change", "buy"),
    ("extend", "renew", "request", "swap"),
)
THINGS = (
    (
        *("a table", "a room", "a taxi", "a flight", "a meeting", "a car", "a ticket", "a parcel", "a visit"),
        *("a haircut", "a boat", "a course", "a dinner", "a desk", "a bike", "a tent"),
    ),
    ("a lesson", "a piano", "a stall", "a cabin", "a guide", "a van"),
)
OPENINGS = (
    ("Please {}", "I want to {}", "Can you {}?", "{}", "I would like to {}", "Help me {}"),
    ("Could you {}?", "I need to {}", "Kindly {}"),
)
TEMPLATES = 96
UNSEEN_TEMPLATES = 32


@dataclass(frozen=True)
class Slot:
    """Something a request can say: what a parameter may be called, its type, and (its text, its JSON) at random."""

    names: tuple[tuple[str, ...], tuple[str, ...]]
    type: str
    schema: dict[str, Any]
    draw: Callable[[Random, str], tuple[str, str]]


def _place(random: Random, split: str) -> tuple[str, str]:
    surnames, towns = open_values(split)
    town = pick(random, surnames + towns)
    return f"in {town}", json.dumps(town, ensure_ascii=False)


def _person(random: Random, split: str) -> tuple[str, str]:
    name = f"{pick(random, FIRST_NAMES)} {pick(random, open_values(split)[0])}"
    return f"{pick(random, ('under the name', 'in the name of'))} {name}", json.dumps(name, ensure_ascii=False)


def _date(random: Random, split: str) -> tuple[str, str]:
    on = day(random, 2025, 2028)
    return f"on {pick(random, DATE_SPELLINGS)(on)}", json.dumps(on.isoformat())


def _time(random: Random, split: str) -> tuple[str, str]:
    hour, minute = pick(random, range(1, 24)), pick(random, ("00", "15", "30", "45"))
    spelled = f"{hour % 12 or 12}:{minute} {'am' if hour < 12 else 'pm'}"
    return f"at {pick(random, (f'{hour}:{minute}', spelled))}", json.dumps(f"{hour:02}:{minute}")


def _count(random: Random, split: str) -> tuple[str, str]:
    words = "one two three four five six seven eight nine ten eleven twelve"
    number = pick(random, range(2, 13))
    return f"for {pick(random, (str(number), words.split()[number - 1]))} people", str(number)


def _price(random: Random, split: str) -> tuple[str, str]:
    cents = pick(random, range(1_000, 150_000))
    return f"for at most {pick(random, AMOUNT_SPELLINGS)(cents)}", number_literal(cents)


def _flag(random: Random, split: str) -> tuple[str, str]:
    return pick(random, (("with insurance", "true"), ("without insurance", "false")))


def _reference(random: Random, split: str) -> tuple[str, str]:
    reference = digits(random, 6)
    return f"with reference {reference}", f'"{reference}"'  # a string of digits: its type is the signature's


DATE_SCHEMA = {"type": "string", "format": "date"}
TEXT_SCHEMA = {"type": "string", "minLength": 1}
SLOTS = {
    "place": Slot((("city", "town", "place"), ("location",)), "str", TEXT_SCHEMA, _place),
    "person": Slot((("name", "guest", "client"), ("holder",)), "str", TEXT_SCHEMA, _person),
    "date": Slot((("date", "day"), ("on_date",)), "date", DATE_SCHEMA, _date),
    "time": Slot((("time", "hour"), ("at_time",)), "time", {"type": "string", "pattern": "^[0-9]{2}:[0-9]{2}$"}, _time),
    "count": Slot((("people", "persons", "guests"), ("heads",)), "int", {"type": "integer", "minimum": 1}, _count),
    "price": Slot((("max_price", "budget"), ("limit",)), "float", {"type": "number", "minimum": 0}, _price),
    "insured": Slot((("insurance", "insured"), ("insure",)), "bool", {"type": "boolean"}, _flag),
    "reference": Slot((("reference", "ref"), ("reference_no",)), "str", TEXT_SCHEMA, _reference),
}


@dataclass(frozen=True)
class CallKnobs(Knobs):
    """How much there is to choose from and to fill in."""

    functions: int = knob(3, range(1, 9), "signatures in every prompt")
    arguments: int = knob(2, range(1, 6), "parameters of every function")
    extras: int = knob(1, range(4), "things the request says that no parameter asks for")
    none_percent: int = knob(20, (0, 10, 20, 33, 50), "requests in a hundred that no function grants")


@dataclass(frozen=True)
class Template:
    """How one client asks: the opening, and whether the request comes before the functions."""

    name: str
    opening: str
    request_first: bool
    comma: str


@cache
def template(unseen: bool, number: int) -> Template:
    name = f"{'unseen' if unseen else 'seen'}-{number:03}"
    random = Random(f"call template {name}")
    return Template(name, pick(random, OPENINGS[unseen]), random.random() < 0.5, pick(random, (" ", ", ")))


def make(split: str, row: int, seed: int, knobs: CallKnobs) -> Example:
    """Row `row` of a split. `unseen_functions` has verbs, things and parameter names of its own."""
    random = Random(f"call {split} seed {seed} row {row}")
    unseen = split == "unseen_functions"
    client = template(unseen, pick(random, range(UNSEEN_TEMPLATES if unseen else TEMPLATES)))
    fits = pick(random, range(100)) >= knobs.none_percent
    right, *others = _functions(random, unseen)
    said = {kind: slot.draw(random, split) for kind, slot in SLOTS.items()}
    kinds = shuffled(random, list(SLOTS))
    parameters = {kind: pick(random, SLOTS[kind].names[unseen]) for kind in kinds[: knobs.arguments]}

    verb, thing = right
    phrases = [said[kind][0] for kind in shuffled(random, kinds[: knobs.arguments + knobs.extras])]
    wish = client.comma.join([f"{verb} {thing}", *phrases])
    request = client.opening.format(wish)
    request = request[0].upper() + request[1:] + ("" if request.endswith("?") else ".")
    signatures = [_signature(*right, parameters)] if fits else []
    for other in others[: knobs.functions - len(signatures)]:
        chosen = distinct(random, list(SLOTS), knobs.arguments)
        signatures.append(_signature(*other, {kind: pick(random, SLOTS[kind].names[unseen]) for kind in chosen}))
    parts = [request, *shuffled(random, signatures)]
    prompt = "\n".join(parts if client.request_first else [*parts[1:], request])
    response = '{"name":null}'
    if fits:
        arguments = ",".join(f'"{name}":{said[kind][1]}' for kind, name in parameters.items())
        response = f'{{"name":"{_name(*right)}","arguments":{{{arguments}}}}}'
    return Example(prompt, response, client.name, split)


def _functions(random: Random, unseen: bool) -> list[tuple[str, str]]:
    """Nine different functions or more, as (verb, thing); each but the first shares its verb or its thing."""
    verb, *verbs = shuffled(random, VERBS[unseen])
    thing, *things = shuffled(random, THINGS[unseen])
    near = [(other, thing) for other in verbs[:4]] + [(verb, other) for other in things[:5]]
    return [(verb, thing), *shuffled(random, near)]


def _name(verb: str, thing: str) -> str:
    return f"{verb}_{thing.split()[-1]}"


def _signature(verb: str, thing: str, parameters: dict[str, str]) -> str:
    typed = ", ".join(f"{name}: {SLOTS[kind].type}" for kind, name in parameters.items())
    return f"{_name(verb, thing)}({typed})"


def schema(knobs: CallKnobs) -> dict[str, Any]:
    """JSON Schema (draft 2020-12): a call of as many arguments as the functions have, or no call."""
    arguments = {
        "type": "object",
        "properties": {name: slot.schema for slot in SLOTS.values() for names in slot.names for name in names},
        "minProperties": knobs.arguments,
        "maxProperties": knobs.arguments,
        "additionalProperties": False,
    }
    call = {"properties": {"name": {"type": "string"}, "arguments": arguments}, "required": ["name", "arguments"]}
    none = {"properties": {"name": {"type": "null"}}, "required": ["name"]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "anyOf": [{"type": "object", **kind, "additionalProperties": False} for kind in (call, none)],
    }


TASKS = (
    Task(
        name="call",
        description="A request and function signatures, to one call with typed arguments, or to none",
        group="structured",
        splits=("train", "dev", "test", "unseen_functions"),
        knobs=CallKnobs,
        schema=schema,
        make=make,
    ),
)

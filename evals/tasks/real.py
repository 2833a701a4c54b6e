"""Real documents: `addresses`, `restaurants`, `receipts`, and the benchmark `humaneval-infilling`.

Each reads records with `prompt` and `response`, or in the columns of the set on the Hub. What decides the split is
what repeats: the restaurant of several sentences, the shop of several receipts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from evals.tasks.infill import check, gap_prompt
from evals.tasks.source import AnyText, HubSet, Record, SourceTask, compact, make_from, pair
from evals.tasks.splits import SPLITS
from evals.tasks.task import Example, Knobs, knob

ADDRESSES = HubSet("jxu9001/tagged_addresses")
RESTAURANTS = HubSet("tuetschek/e2e_nlg", revision="refs/convert/parquet", data_dir="default")
RECEIPTS = HubSet("jsdnrs/ICDAR2019-SROIE")
HUMANEVAL = HubSet(
    "loubnabnl/humaneval_infilling",
    "HumanEval-SingleLineInfilling",
    revision="refs/convert/parquet",
    data_dir="HumanEval-SingleLineInfilling",
)
SLOT = re.compile(r"([^,\[]+)\[([^\]]*)\]")
RECEIPT_KEYS = ("company", "date", "address", "total")


def source_knobs(hub: HubSet) -> type[Knobs]:
    """The knobs of a task that reads: where from."""
    default = f"hub:{hub.name}" + (f":{hub.config}" if hub.config else "")

    @dataclass(frozen=True)
    class SourceKnobs(Knobs):
        source: str = knob(default, AnyText(), "where the rows are")  # type: ignore[arg-type]

    return SourceKnobs


def read_address(record: Record) -> tuple[str, str, str]:
    """An address line; the same line in other letters or punctuation stands on the same side."""
    found = pair(record)
    if not found:
        parts: dict[str, list[str]] = {}
        for token, tag in zip(record["tokens"], record["tags"], strict=True):
            parts.setdefault(tag, []).append(token.rstrip(","))
        found = " ".join(record["tokens"]), compact({tag: " ".join(tokens) for tag, tokens in parts.items()})
    return *found, " ".join(re.findall(r"\w+", found[0].casefold()))


def read_restaurant(record: Record) -> tuple[str, str, str]:
    """A sentence; all sentences about the same slots stand on the same side."""
    found = pair(record)
    if not found:
        slots = {name.strip(): value for name, value in SLOT.findall(record["meaning_representation"])}
        found = record["human_reference"], compact(slots)
    return *found, found[1]


def read_receipt(record: Record) -> tuple[str, str, str]:
    """A receipt's text; all receipts of a shop stand on the same side."""
    found = pair(record)
    if not found:
        entities = record["entities"]
        found = "\n".join(record["words"]), compact({key: entities[key] for key in RECEIPT_KEYS})
    return *found, " ".join(re.findall(r"\w+", json.loads(found[1])["company"].casefold()))


def read_humaneval(record: Record) -> tuple[str, str, str]:
    """A gap in a solved exercise; the gaps of one exercise are one cluster."""
    prompt = gap_prompt(record["prompt"], record["suffix"])
    return prompt, record["canonical_solution"], record.get("entry_point") or record["task_id"]


def texts(keys: tuple[str, ...] = (), required: tuple[str, ...] = ()) -> Callable[[Any], dict[str, Any]]:
    """The schema of one object of texts with these keys; without keys, with any."""

    def schema(knobs: Any) -> dict[str, Any]:
        text = {"type": "string"}
        return {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": dict.fromkeys(keys, text),
            "required": list(required),
            "additionalProperties": False if keys else text,
        }

    return schema


SLOTS = ("name", "eatType", "food", "priceRange", "customer rating", "area", "familyFriendly", "near")

TASKS = (
    SourceTask(
        name="addresses",
        description="A United States address line to its components.",
        group="real",
        splits=SPLITS,
        knobs=source_knobs(ADDRESSES),
        schema=texts(),
        make=make_from("addresses"),
        read=read_address,
        hub=ADDRESSES,
        sample=Example(
            "12 Elm St, Springfield, IL",
            '{"AddressNumber":"12","StreetName":"Elm","StreetNamePostType":"St","PlaceName":"Springfield","StateName":"IL"}',
            "12 elm st springfield il",
            "train",
        ),
    ),
    SourceTask(
        name="restaurants",
        description="A sentence about a restaurant to its slots.",
        group="real",
        splits=SPLITS,
        knobs=source_knobs(RESTAURANTS),
        schema=texts(SLOTS, required=("name",)),
        make=make_from("restaurants"),
        read=read_restaurant,
        hub=RESTAURANTS,
        sample=Example(
            "Rosa is a cheap pub by the river.",
            '{"name":"Rosa","eatType":"pub","priceRange":"cheap","area":"riverside"}',
            "Rosa",
            "train",
        ),
    ),
    SourceTask(
        name="receipts",
        description="The scanned text of a shop's receipt to company, date, address and total.",
        group="real",
        splits=SPLITS,
        knobs=source_knobs(RECEIPTS),
        schema=texts(RECEIPT_KEYS, required=RECEIPT_KEYS),
        make=make_from("receipts"),
        read=read_receipt,
        hub=RECEIPTS,
        sample=Example(
            "CORNER SHOP\n5 HIGH ROAD\n02/03/2019\nTEA 1.20\nTOTAL 1.20",
            '{"company":"CORNER SHOP","date":"02/03/2019","address":"5 HIGH ROAD","total":"1.20"}',
            "corner shop",
            "train",
        ),
    ),
    SourceTask(
        name="humaneval-infilling",
        description="The gap in a solved exercise in Python; a benchmark, so only for test.",
        group="real",
        splits=("test",),
        knobs=source_knobs(HUMANEVAL),
        schema=None,
        make=make_from("humaneval-infilling"),
        check=check,
        read=read_humaneval,
        hub=HUMANEVAL,
        sample=Example(gap_prompt("def twice(x):\n", "\n"), "    return 2 * x", "twice", "test"),
    ),
)

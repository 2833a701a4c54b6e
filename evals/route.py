"""`python -m evals route --workload FILE`: where each kind of work should run, why, and what would change the answer.

The file holds kinds of work and places; a place's rates come from a throughput record, from a roofline record, or are
stated. See `configs/workloads/bank.yaml`.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from evals.prices import PRICES, Prices, load_prices, made, read_yaml
from evals.records import make_record, read_record, save_record
from evals.routing import Decision, Market, Place, Work, route, sensitivities
from mdlm.command import CommandParser, unknown
from mdlm.errors import UserError

PASSES = {"twin": "autoregressive step", "block_diffusion": "block pass"}
"""Which pass of a roofline record a place's rates come from."""


@dataclass(frozen=True)
class PlaceEntry:
    """One place of a workload file. Exactly one of `tokens_per_second`, `throughput`, `roofline` and `api` is given."""

    quality: dict[str, float]
    """Share of answers that are right, by group of work."""
    source: str
    """Where the quality comes from, and the rates where they are stated."""
    tokens_per_second: dict[int, float] | None = None
    """Useful tokens/s of a node by batch size."""
    prefill_tokens_per_second: float | None = None
    throughput: str = ""
    """A record of `python -m evals throughput`; its rates have the prefill in them."""
    roofline: str = ""
    """A record of `python -m evals roofline`: rates and prefill as predicted, times `reached`."""
    way: str = ""
    """Of the record: a way of the throughput record; `twin` or `block_diffusion` of the roofline."""
    reached: float = 1.0
    """Share of the predicted rate that is reached."""
    api: str = ""
    """An API of the price file."""
    latency_seconds: float = 0.0
    """Of an API's answer."""
    refines: bool = False
    """Whether its rates fall as passes are added."""


def main(argv: list[str]) -> int:
    options = _parse(argv)
    works, places, market = read_workload(options.workload, load_prices(options.prices))
    changes = {name: getattr(options, name) for name in ("utilisation", "nodes") if getattr(options, name) is not None}
    market = checked(replace(market, **changes))
    decisions = route(works, places, market)
    turns = {work.name: sensitivities(work, places, market) for work in works}
    rows = [_row(decision, turns[decision.work.name]) for decision in decisions]
    settings = {
        "workload": str(options.workload),
        "market": asdict(market),
        "places": {place.name: asdict(place) for place in places},
    }
    record = make_record("route", settings, {"work": rows})
    if options.out:
        save_record(options.out, record)
    if options.json:
        print(json.dumps(record, allow_nan=False))
    else:
        print_result(record, Console(width=None if sys.stdout.isatty() else 120))
    return 0


def read_workload(path: Path, prices: Prices) -> tuple[list[Work], list[Place], Market]:
    """The kinds of work, the places and the market of a file; `UserError` names what is wrong, and where."""
    file = read_yaml(path)
    tables = ("node", "nodes", "utilisation", "work", "places")
    if not isinstance(file, dict):
        raise UserError(f"{path}: a table is expected, with {', '.join(tables)}")
    if strange := file.keys() - set(tables):
        raise UserError(f"{path}: {unknown('key', str(min(strange, key=str)), tables)}")
    for name in tables:
        if not file.get(name) and file.get(name) != 0:
            raise UserError(f"{path}: {name} is missing or empty")
    market = checked(Market(prices.node(file["node"]).per_hour, file["nodes"], file["utilisation"]))
    if not isinstance(file["work"], dict) or not isinstance(file["places"], dict):
        raise UserError(f"{path}: work and places must be tables of names")
    works = [
        made(Work, {"name": str(name), **_table(entry)}, f"{path}: work {name}") for name, entry in file["work"].items()
    ]
    places = []
    for name, entry in file["places"].items():
        found = made(PlaceEntry, entry, f"{path}: place {name}")
        try:
            places.append(_place(str(name), found, prices))
        except UserError as error:
            raise UserError(f"{path}: place {name}: {error}") from None
    return works, places, market


def checked(market: Market) -> Market:
    """The market, or `UserError` where a number of it is unusable."""
    for name, value in asdict(market).items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
            raise UserError(f"{name} is {value!r}; it must be a number above 0")
    if market.utilisation > 1:
        raise UserError(f"utilisation is {market.utilisation:g}; it is a share, at most 1")
    return market


def _table(entry: Any) -> dict[str, Any]:
    return entry if isinstance(entry, dict) else {"": entry}


def _place(name: str, entry: PlaceEntry, prices: Prices) -> Place:
    given = [key for key in ("tokens_per_second", "throughput", "roofline", "api") if getattr(entry, key)]
    if len(given) != 1:
        raise UserError("exactly one of tokens_per_second, throughput, roofline and api must be given")
    if not isinstance(entry.quality, dict) or not all(
        isinstance(share, (int, float)) and 0 <= share <= 1 for share in entry.quality.values()
    ):
        raise UserError(f"quality is {entry.quality!r}; it must be shares from 0 to 1 by group")
    if not 0 < entry.reached <= 1:
        raise UserError(f"reached is {entry.reached:g}; it must be above 0 and at most 1")
    place = Place(name, entry.quality, entry.source, refines=entry.refines)
    if entry.api:
        return replace(place, price=prices.api(entry.api), api_latency=entry.latency_seconds)
    if entry.throughput:
        return replace(place, rates=_rates_of_throughput(Path(entry.throughput), entry.way))
    if entry.roofline:
        rates, prefill = _rates_of_roofline(Path(entry.roofline), entry.way, entry.reached)
        return replace(place, rates=rates, prefill_rate=prefill)
    rates = entry.tokens_per_second or {}
    if not all(isinstance(batch, int) and batch > 0 and rate > 0 for batch, rate in rates.items()):
        raise UserError(f"tokens_per_second is {rates}; it must be rates above 0 by batch size")
    return replace(place, rates=rates, prefill_rate=entry.prefill_tokens_per_second)


def _rates_of_throughput(path: Path, way: str) -> dict[int, float]:
    cells = read_record(path)["result"]["cells"]
    known = list(dict.fromkeys(cell["way"] for cell in cells))
    if way not in known:
        raise unknown("way", way, known)
    return {cell["batch"]: cell["tokens_per_second"] for cell in cells if cell["way"] == way}


def _rates_of_roofline(path: Path, way: str, reached: float) -> tuple[dict[int, float], float]:
    if way not in PASSES:
        raise unknown("way", way, PASSES)
    record = read_record(path)
    (shape,) = record["result"].values() if len(record["result"]) == 1 else (None,)
    if shape is None:
        raise UserError(f"{path} holds several shapes; make a record of one")
    tokens = record["settings"]["tokens_per_forward"] if way != "twin" else 1.0
    of_pass = [found for found in shape["passes"] if found["pass"] == PASSES[way]]
    rates = {found["batch"]: reached * tokens * found["batch"] / found["predicted_seconds"] for found in of_pass}
    prefill = next(found for found in shape["passes"] if found["pass"] == "prefill" and found["batch"] == 1)
    return rates, reached * record["settings"]["prompt"] / prefill["predicted_seconds"]


def _row(decision: Decision, turns: dict[str, Any]) -> dict[str, Any]:
    work, chosen = decision.work, decision.chosen
    row: dict[str, Any] = {"work": asdict(work), "place": chosen and chosen.place, "moved_from": decision.moved}
    if chosen:
        row |= {"cost_per_document": chosen.cost, "cost_per_hour": chosen.cost * work.rate, "batch": chosen.batch,
                "latency_seconds": chosen.latency, "nodes": chosen.nodes}  # fmt: skip
        if work.value_per_token is not None:
            row["worth_per_hour"] = (work.value_per_token * work.tokens_out - chosen.cost) * work.rate
    row["others"] = [
        {"place": found.place, "cost_per_document": found.cost, "nodes": found.nodes, "reasons": list(found.reasons)}
        for found in decision.offers
        if chosen is None or found.place != chosen.place
    ]
    return row | {"sensitivity": turns}


def print_result(record: dict[str, Any], console: Console) -> None:
    """A table of decisions, then for each why not elsewhere, and what would turn it."""
    market = record["settings"]["market"]
    title = f"{market['nodes']:g} nodes at {market['node_per_hour']:g} an hour, {market['utilisation']:.0%} busy"
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    for column in ("work", "place", "batch", "seconds", "nodes", "per 1,000 documents", "per hour", "worth per hour"):
        table.add_column(column, justify="left" if column in ("work", "place") else "right")
    rows = record["result"]["work"]
    for row in rows:
        if row["place"] is None:
            table.add_row(row["work"]["name"], "nowhere", *[""] * 6)
            continue
        worth = f"{row['worth_per_hour']:.3g}" if "worth_per_hour" in row else "—"
        table.add_row(row["work"]["name"], row["place"], str(row["batch"]), f"{row['latency_seconds']:.3g}",
                      f"{row['nodes']:.3g}", f"{1000 * row['cost_per_document']:.3g}", f"{row['cost_per_hour']:.3g}",
                      worth)  # fmt: skip
    console.print(table)
    for row in rows:
        console.print(f"{row['work']['name']}: {_why(row)}", highlight=False, soft_wrap=True)
        turns = "; ".join(
            f"{name}: {'none from 0.1 to 10 times' if turn is None else _turn(turn)}"
            for name, turn in row["sensitivity"].items()
        )
        console.print(f"  would change it: {turns}", highlight=False, soft_wrap=True)


def _turn(turn: dict[str, Any]) -> str:
    return f"{turn['factor']:.2f} times, then {turn['then'] or 'nowhere'}"


def _why(row: dict[str, Any]) -> str:
    others = []
    for other in row["others"]:
        costs = f"{1000 * other['cost_per_document']:.3g} per 1,000"
        others.append(f"{other['place']} {', '.join(other['reasons']) or costs}")
    first = "nothing is admissible" if row["place"] is None else "cheapest that is admissible"
    if row["moved_from"]:
        first = f"{row['moved_from']} would be cheaper, but has no node left"
    return f"{first}; {'; '.join(others)}"


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = CommandParser("python -m evals route", description="Where each kind of work should run, and why.")
    parser.add_argument("--workload", type=Path, required=True, help="YAML of work and places; see configs/workloads")
    parser.add_argument("--prices", type=Path, default=PRICES, help="the price file (configs/prices.yaml)")
    parser.add_argument("--utilisation", type=float, help="instead of the file's")
    parser.add_argument("--nodes", type=float, help="instead of the file's")
    parser.add_argument("--out", type=Path, help="a file for the record")
    parser.add_argument("--json", action="store_true", help="print the record as one JSON line")
    return parser.parse_args(argv)

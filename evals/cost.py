"""`python -m evals cost RECORD`: what a useful token and an accepted document cost, from a throughput record.

Prices are inputs with a date and a source (`configs/prices.yaml`, or on the command line). Each way to decode is shown
at its smallest batch and at its fastest.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

import matplotlib
from rich import box
from rich.console import Console
from rich.table import Table

from evals import economics
from evals.batching import TWIN
from evals.prices import PRICES, ApiPrice, NodePrice, load_prices
from evals.records import make_record, read_record, save_record
from evals.report_figures import COLORS
from mdlm.command import CommandParser
from mdlm.errors import UserError

matplotlib.use("Agg")
from matplotlib import pyplot

Row = dict[str, Any]


def main(argv: list[str]) -> int:
    options = _parse(argv)
    prices = load_prices(options.prices)
    node = prices.node(options.node) if options.node else _own_node(options.node_per_hour)
    apis = {name: prices.api(name) for name in options.api}
    throughput = read_record(options.record)
    if throughput["kind"] != "throughput":
        raise UserError(
            f"{options.record} is a record of {throughput['kind']}; give one of `python -m evals throughput`"
        )
    rows = [
        price_way(cell, throughput["settings"], node, apis, options.utilisation, options.check)
        for cell in chosen_cells(throughput["result"])
    ]
    add_fallback(rows, apis, options.rejected, options.check)
    settings = {
        "record": str(options.record),
        "measured": {name: throughput[name] for name in ("date", "commit", "machine")},
        "node": vars(node),
        "apis": {name: vars(price) for name, price in apis.items()},
        "utilisation": options.utilisation,
        "check_per_document": options.check,
        "rejected": options.rejected,
        "token_rule": throughput["settings"]["token_rule"],
        "accepted": "exact on test: in production the right answer is not known, and a check decides",
    }
    record = make_record("cost", settings, {"ways": rows})
    if options.out:
        save_record(options.out / "cost.json", record)
        draw(record, options.out / "cost.png")
    if options.json:
        print(json.dumps(record, allow_nan=False))
    else:
        print_result(record, Console(width=None if sys.stdout.isatty() else 120))
    return 0


def chosen_cells(result: Row) -> list[Row]:
    """Of each way the cell of its smallest batch, and that of its fastest where it is another."""
    cells = []
    for way in dict.fromkeys(cell["way"] for cell in result["cells"]):
        of_way = sorted((cell for cell in result["cells"] if cell["way"] == way), key=lambda cell: cell["batch"])
        fastest = max(of_way, key=lambda cell: cell["tokens_per_second"])
        cells += [of_way[0]] if fastest is of_way[0] else [of_way[0], fastest]
    return cells


def price_way(
    cell: Row, settings: Row, node: NodePrice, apis: dict[str, ApiPrice], utilisation: float, check: float
) -> Row:
    """What one way costs at one batch size, beside the APIs' price for the same documents."""
    documents = settings["prompts"]
    tokens_in, tokens_out = settings["prompt_tokens"] / documents, cell["tokens"] / documents
    if not cell["tokens"]:
        raise UserError(f"{cell['way']} gave no useful token at batch {cell['batch']}; it has no cost per token")
    per_second = documents / cell["seconds"]["median"]
    document = economics.cost_per_unit(node.per_hour, per_second, utilisation)
    arm = cell["way"].partition(",")[0]
    accepted = settings["quality_on_test"].get(arm, {}).get("exact")
    per_accepted = None if not accepted else economics.per_accepted(document + check, accepted)
    asked = {name: price.request(tokens_in, tokens_out) for name, price in apis.items()}
    return {
        "way": cell["way"],
        "batch": cell["batch"],
        "tokens_per_second": cell["tokens_per_second"],
        "documents_per_second": per_second,
        "tokens_in": tokens_in,
        "tokens_out": tokens_out,
        "per_million_tokens": economics.cost_per_unit(node.per_hour, cell["tokens_per_second"], utilisation)
        * economics.MILLION,
        "per_document": document,
        "accepted": accepted,
        "per_accepted_document": per_accepted,
        "api_per_document": asked,
        "break_even_utilisation": {
            name: economics.break_even_utilisation(node.per_hour, per_second, price) for name, price in asked.items()
        },
    }


def add_fallback(rows: list[Row], apis: dict[str, ApiPrice], rejected: float | None, check: float) -> None:
    """Puts beside each way what a document costs once rejected ones go to the twin's fastest way, or to an API.

    The rejected share is given, or 1 − exact: what a check that knows every error would send back.
    """
    twin = min((row["per_document"] for row in rows if row["way"] == TWIN), default=None)
    for row in rows:
        share = rejected if rejected is not None else None if row["accepted"] is None else 1 - row["accepted"]
        row["fallback"] = []
        targets = {} if twin is None or row["way"].startswith("autoregressive") else {"twin": twin}
        for name, cost in (targets | row["api_per_document"]).items():
            own = row["per_document"]
            row["fallback"].append(
                {
                    "to": name,
                    "rejected": share,
                    "per_document": None if share is None else economics.with_fallback(own, share, cost, check),
                    "break_even_rejected": economics.break_even_rejected(own, cost, check),
                    "at_once": cost,
                }
            )


def _own_node(per_hour: float) -> NodePrice:
    return NodePrice(per_hour, 1, "given", "--node-per-hour")


def print_result(record: Row, console: Console) -> None:
    settings, rows = record["settings"], record["result"]["ways"]
    node, apis = settings["node"], settings["apis"]
    title = f"cost at {node['per_hour']:g} an hour, busy {settings['utilisation']:.0%} of the time"
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    columns = ["tokens/s", "per million tokens", "per 1,000 documents", "accepted", "per 1,000 accepted"]
    for column in ("way", "batch", *columns):
        table.add_column(column, justify="left" if column == "way" else "right")
    for name in apis:
        table.add_column(f"break-even use, {name}", justify="right")
    for row in rows:
        accepted = "—" if row["accepted"] is None else f"{row['accepted']:.1%}"
        of_accepted = "—" if row["per_accepted_document"] is None else f"{1000 * row['per_accepted_document']:.3g}"
        ends = [f"{row['break_even_utilisation'][name]:.1%}" for name in apis]
        table.add_row(row["way"].replace("_", " "), str(row["batch"]), f"{row['tokens_per_second']:,.0f}",
                      f"{row['per_million_tokens']:.3g}", f"{1000 * row['per_document']:.3g}", accepted, of_accepted,
                      *ends)  # fmt: skip
    console.print(table)
    for row in rows:
        for way in row["fallback"]:
            if way["per_document"] is not None:
                console.print(
                    f"{row['way'].replace('_', ' ')}, batch {row['batch']}, {way['rejected']:.1%} rejected and sent to "
                    f"{way['to']}: {1000 * way['per_document']:.3g} per 1,000 documents; {1000 * way['at_once']:.3g} "
                    f"sent there at once; pays below {way['break_even_rejected']:.1%} rejected",
                    highlight=False, soft_wrap=True,
                )  # fmt: skip
    sources = [f"node: {node['source']} ({node['read']})"]
    sources += [f"{name}: {price['source']} ({price['read']})" for name, price in apis.items()]
    console.print("; ".join(sources), highlight=False, soft_wrap=True)
    console.print(f"accepted: {settings['accepted']}", highlight=False, soft_wrap=True)


def draw(record: Row, path: Path) -> None:
    """Cost per million useful tokens against utilisation, with what the APIs ask for the same documents."""
    rows, per_hour = record["result"]["ways"], record["settings"]["node"]["per_hour"]
    shares = [share / 100 for share in range(2, 101)]
    figure, axis = pyplot.subplots(figsize=(8, 5), layout="constrained")
    smallest = min(row["batch"] for row in rows)
    for row in rows:
        costs = [
            economics.cost_per_unit(per_hour, row["tokens_per_second"], share) * economics.MILLION for share in shares
        ]
        style, color = "--" if row["batch"] == smallest else "-", COLORS[row["way"].partition(",")[0]]
        axis.plot(shares, costs, style, color=color, label=f"{row['way'].replace('_', ' ')}, batch {row['batch']}")
    for name, cost in rows[0]["api_per_document"].items():
        axis.axhline(cost / rows[0]["tokens_out"] * economics.MILLION, color="gray", ls=":", lw=1)
        axis.annotate(
            name, (1.0, cost / rows[0]["tokens_out"] * economics.MILLION), ha="right", va="bottom", fontsize=8
        )
    axis.set(yscale="log", xlabel="utilisation", ylabel="cost per million useful tokens", xlim=(0, 1))
    axis.grid(alpha=0.25)
    axis.legend(frameon=False, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = CommandParser("python -m evals cost", description="Cost per useful token and per accepted document.")
    parser.add_argument("record", type=Path, help="throughput.json of `python -m evals throughput`")
    parser.add_argument("--node", help="a node of the price file")
    parser.add_argument("--node-per-hour", type=float, help="instead: what the measured machine costs an hour")
    parser.add_argument("--api", nargs="*", default=[], help="APIs of the price file to compare with")
    parser.add_argument("--prices", type=Path, default=PRICES, help="the price file (configs/prices.yaml)")
    parser.add_argument("--utilisation", type=float, required=True, help="share of the time the node is busy, (0, 1]")
    parser.add_argument("--check", type=float, default=0.0, help="what checking one document costs (0)")
    parser.add_argument("--rejected", type=float, help="share of documents sent to the fallback (1 - exact)")
    parser.add_argument("--out", type=Path, help="a folder for record and figure")
    parser.add_argument("--json", action="store_true", help="print the record as one JSON line")
    options = parser.parse_args(argv)
    if (options.node is None) == (options.node_per_hour is None):
        raise UserError("give either --node, of the price file, or --node-per-hour")
    for name in ("utilisation", "node_per_hour", "check", "rejected"):
        value = getattr(options, name)
        if value is not None and not math.isfinite(value):
            raise UserError(f"--{name.replace('_', '-')} {value}: it must be a number")
    return options

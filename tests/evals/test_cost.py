"""`python -m evals cost` on a small throughput record made by hand."""

from __future__ import annotations

import json

import pytest

from evals.__main__ import main
from evals.prices import PRICES, load_prices
from evals.records import write_record
from mdlm.errors import UserError

QUEUE, BLOCK = "autoregressive, queue", "block_diffusion"


def cell(way: str, batch: int, tokens: int, seconds: float) -> dict:
    return {"way": way, "batch": batch, "tokens": tokens, "seconds": {"median": seconds},
            "tokens_per_second": tokens / seconds}  # fmt: skip


@pytest.fixture
def throughput(tmp_path):
    """Ten documents of 100 + 50 tokens: one row takes the twin 10 s and diffusion 5 s, eight rows 2 s and 2.5 s."""
    cells = [cell(QUEUE, 1, 500, 10.0), cell(QUEUE, 8, 500, 2.0), cell(BLOCK, 1, 500, 5.0), cell(BLOCK, 8, 500, 2.5)]
    settings = {
        "prompts": 10,
        "prompt_tokens": 1000,
        "token_rule": "useful",
        "quality_on_test": {"autoregressive": {"exact": 0.9}, "block_diffusion": {"exact": 0.8}},
    }
    write_record(tmp_path / "throughput.json", kind="throughput", settings=settings, result={"cells": cells})
    return tmp_path / "throughput.json"


@pytest.fixture
def prices(tmp_path):
    path = tmp_path / "prices.yaml"
    path.write_text(
        "nodes:\n  ours: {per_hour: 7.2, devices: 1, read: '2026-01', source: a table}\n"
        "apis:\n  theirs: {per_million_in: 1.0, per_million_out: 10.0, read: '2026-01', source: a list}\n"
    )
    return path


def test_costs_are_those_worked_out_by_hand(throughput, prices, tmp_path, capsys):
    words = ["cost", throughput, "--node", "ours", "--api", "theirs", "--prices", prices, "--utilisation", "0.5"]
    assert main([*map(str, words), "--check", "0.001", "--json", "--out", str(tmp_path / "out")]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record == json.loads((tmp_path / "out" / "cost.json").read_text())
    assert (tmp_path / "out" / "cost.png").stat().st_size > 1000
    found = {(row["way"], row["batch"]): row for row in record["result"]["ways"]}
    assert set(found) == {(QUEUE, 1), (QUEUE, 8), (BLOCK, 1), (BLOCK, 8)}
    # 7.2 an hour is 0.002 a second, 0.004 a busy second at half use; a document takes the twin one second.
    one = found[QUEUE, 1]
    assert one["per_document"] == pytest.approx(0.004)
    assert one["per_million_tokens"] == pytest.approx(80.0)
    assert one["per_accepted_document"] == pytest.approx(0.005 / 0.9)
    # The API takes 100 tokens at 1 and 50 at 10 a million: 0.0006 a document, less than the node at full use.
    assert one["api_per_document"]["theirs"] == pytest.approx(0.0006)
    assert one["break_even_utilisation"]["theirs"] == pytest.approx(0.002 / 0.0006)
    # Diffusion at 8 rows: 0.25 s a document, 0.001; a fifth goes to the twin's 8 rows at 0.0008.
    to = {way["to"]: way for way in found[BLOCK, 8]["fallback"]}
    assert to["twin"]["per_document"] == pytest.approx(0.001 + 0.2 * 0.0008 + 0.001)
    assert to["twin"]["break_even_rejected"] == pytest.approx(1 - 0.002 / 0.0008)
    assert not [way for way in one["fallback"] if way["to"] == "twin"]


def test_the_table_names_prices_and_their_dates(throughput, prices, capsys):
    words = ["cost", throughput, "--node", "ours", "--api", "theirs", "--prices", prices, "--utilisation", "1"]
    assert main([*map(str, words)]) == 0
    printed = capsys.readouterr().out
    assert "a table (2026-01)" in printed and "a list (2026-01)" in printed
    assert "20.0% rejected and sent to twin" in printed


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--node", "ours"], "--utilisation"),
        (["--node", "ours", "--utilisation", "1.5"], "utilisation is 1.5"),
        (["--node", "ours", "--utilisation", "0"], "utilisation is 0"),
        (["--node-per-hour", "-3", "--utilisation", "1"], "-3"),
        (["--node", "our", "--utilisation", "1"], "did you mean 'ours'"),
        (["--utilisation", "1"], "either --node"),
        (["--node", "ours", "--utilisation", "1", "--api", "their"], "did you mean 'theirs'"),
        (["--node", "ours", "--utilisation", "1", "--rejected", "2"], "rejected share is 2"),
    ],
)
def test_unusable_input_is_one_line(throughput, prices, words, complaint):
    with pytest.raises(UserError, match=complaint) as caught:
        main(["cost", str(throughput), "--prices", str(prices), *words])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("nodes: {a: {per_hour: -1, devices: 1, read: x, source: y}}", "node a: per_hour is -1"),
        ("nodes: {a: {per_hour: 1, devices: 1, read: x}}", "source must be given"),
        ("nodes: {a: {per_hour: 1, device: 1, read: x, source: y}}", "unknown field 'device'"),
        ("apis: {a: 3}", "a table is expected"),
        ("- 1", "two tables"),
        ("{", "cannot be read"),
    ],
)
def test_a_price_without_its_source_is_refused(tmp_path, text, complaint):
    (tmp_path / "prices.yaml").write_text(text)
    with pytest.raises(UserError, match=complaint):
        load_prices(tmp_path / "prices.yaml")


def test_every_shipped_price_names_where_it_was_read():
    shipped = load_prices(PRICES)
    assert all("https://" in price.source and price.read for price in [*shipped.nodes.values(), *shipped.apis.values()])

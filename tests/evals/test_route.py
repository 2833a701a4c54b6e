"""`python -m evals route`: workload files, records as sources of rates, and what is printed."""

from __future__ import annotations

import json

import pytest
import yaml

from evals.__main__ import main
from evals.records import write_record
from mdlm.errors import UserError

WORK = {"queue": {"group": "extraction", "batchable": True, "tokens_in": 100, "tokens_out": 50, "rate": 3600,
                  "quality_floor": 0.5, "value_per_token": 0.001}}  # fmt: skip
PLACE = {"tokens_per_second": {1: 100.0, 4: 200.0}, "quality": {"extraction": 0.9}, "source": "stated"}
FILE = {"node": "h100", "nodes": 8, "utilisation": 0.5, "work": WORK, "places": {"twin": PLACE}}


@pytest.fixture
def decide(tmp_path, capsys):
    """`decide(file, *words)` runs the command on a workload and returns its record."""

    def run(file, *words):
        (tmp_path / "work.yaml").write_text(yaml.safe_dump(file))
        assert main(["route", "--workload", str(tmp_path / "work.yaml"), "--json", *words]) == 0
        return json.loads(capsys.readouterr().out)

    return run


def test_a_decision_has_its_cost_and_its_nodes(decide):
    (row,) = decide(FILE, "--utilisation", "0.25")["result"]["work"]
    # 200 tokens a second at four rows: a quarter of a second a document; one comes a second, a node is a quarter busy.
    assert (row["place"], row["batch"]) == ("twin", 4)
    assert row["nodes"] == pytest.approx(1.0)
    assert row["worth_per_hour"] == pytest.approx(0.05 * 3600 - row["cost_per_hour"])


def test_rates_come_from_records(decide, tmp_path):
    cells = [
        {"way": "block_diffusion", "batch": batch, "tokens_per_second": rate} for batch, rate in ((1, 10.0), (2, 80.0))
    ]
    write_record(tmp_path / "throughput.json", kind="throughput", settings={}, result={"cells": cells})
    passes = [
        {"pass": "autoregressive step", "batch": 4, "predicted_seconds": 0.01},
        {"pass": "block pass", "batch": 4, "predicted_seconds": 0.02},
        {"pass": "prefill", "batch": 1, "predicted_seconds": 0.1},
    ]
    settings = {"tokens_per_forward": 8.0, "prompt": 1000}
    write_record(tmp_path / "roof.json", kind="roofline", settings=settings, result={"30m": {"passes": passes}})
    other = {"quality": PLACE["quality"], "source": "x"}
    places = {
        "measured": {"throughput": str(tmp_path / "throughput.json"), "way": "block_diffusion", **other},
        "twin": {"roofline": str(tmp_path / "roof.json"), "way": "twin", "reached": 0.5, **other},
        "block": {"roofline": str(tmp_path / "roof.json"), "way": "block_diffusion", "reached": 0.5, **other},
    }
    found = decide(FILE | {"places": places})["settings"]["places"]
    assert found["measured"]["rates"] == {"1": 10.0, "2": 80.0} and found["measured"]["prefill_rate"] is None
    assert found["twin"]["rates"] == {"4": pytest.approx(200.0)}
    assert found["block"]["rates"] == {"4": pytest.approx(800.0)}
    assert found["block"]["prefill_rate"] == pytest.approx(5000.0)


def test_the_table_says_why_and_what_would_change_it(tmp_path, capsys):
    api = {"api": "mercury-2", "quality": {"extraction": 0.4}, "source": "x", "latency_seconds": 1}
    (tmp_path / "work.yaml").write_text(yaml.safe_dump(FILE | {"places": {"twin": PLACE, "api": api}}))
    assert main(["route", "--workload", str(tmp_path / "work.yaml")]) == 0
    printed = capsys.readouterr().out
    assert "api quality 0.400 under 0.5" in printed and "node price: none from 0.1 to 10 times" in printed


def test_the_shipped_workload_is_decided(capsys):
    assert main(["route", "--workload", "configs/workloads/bank.yaml"]) == 0
    assert "onboarding" in capsys.readouterr().out


def with_work(**change):
    return FILE | {"work": {"queue": {**WORK["queue"], **change}}}


def with_place(**change):
    return FILE | {"places": {"twin": {**PLACE, **change}}}


@pytest.mark.parametrize(
    ("file", "complaint"),
    [
        (FILE | {"work": {}}, "work is missing or empty"),
        (FILE | {"utilisation": 1.5}, "utilisation is 1.5"),
        (FILE | {"utilisation": 0}, "utilisation is 0"),
        (FILE | {"nodes": -1}, "nodes is -1"),
        (FILE | {"node": "h1000"}, "did you mean 'h100'"),
        (FILE | {"price": 1}, "unknown key 'price'"),
        ({"node": "h100"}, "nodes is missing"),
        ([1], "a table is expected"),
        (with_work(rate=-5), "work queue: rate is -5"),
        (with_work(rate=1e9), "nodes and there are 8"),
        (with_work(speed=1), "unknown field 'speed'"),
        (with_place(tokens_per_second={1: -1.0}), "rates above 0"),
        (with_place(api="mercury-2"), "exactly one of"),
        (with_place(quality={"extraction": 2}), "shares from 0 to 1"),
        (with_place(tokens_per_second=None, throughput="none.json", way="x"), "no such record"),
        (FILE | {"places": {"twin": {"quality": {}}}}, "source must be given"),
    ],
)
def test_an_unusable_workload_is_one_line(decide, file, complaint):
    with pytest.raises(UserError, match=complaint) as caught:
        decide(file)
    assert "\n" not in str(caught.value)

"""`python -m evals fleet`: its record, its figure, and what it refuses."""

from __future__ import annotations

import json

import pytest

from evals.__main__ import main
from evals.fleet_cli import read_log
from mdlm.errors import UserError

EXAMPLE = "configs/fleet/example.yaml"
SMALL = ["--requests", "400", "--seeds", "2", "--steps", "2"]


def test_the_shipped_example_shows_what_is_saved_at_every_split(tmp_path, capsys):
    assert main(["fleet", EXAMPLE, *SMALL, "--output", str(tmp_path), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    rows = record["result"]["splits"]
    assert [row["batchable"] for row in rows] == [0.0, 0.5, 1.0]
    assert rows[0]["twin"]["queue"] == 0 and rows[-1]["twin"]["latency_bound"] is None
    for row in rows:
        assert row["saved"]["diffusion"] == pytest.approx(1 - row["diffusion"]["total"] / row["twin"]["total"])
    assert record == json.loads((tmp_path / "fleet.json").read_text())
    assert (tmp_path / "fleet.png").stat().st_size > 10_000


def test_a_log_is_read_in_seconds_or_dates_and_scaled(tmp_path):
    log = tmp_path / "log.txt"
    log.write_text("2026-01-01T00:00:00\n2026-01-01T00:00:30\n2026-01-01T00:00:10\n")
    assert read_log(log, 0).tolist() == [0, 10, 30]
    log.write_text("5\n15\n35\n")
    assert read_log(log, 240).tolist() == [0, 10, 30]  # two gaps in 30 s are 240 an hour already
    assert read_log(log, 480).tolist() == [0, 5, 15]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "two different times"),
        ("3\n3\n", "two different times"),
        ("1\nsoon\n", "line 2: 'soon'"),
        ("1\nnan\n2\n", "two"),
    ],
)
def test_a_log_that_is_none_is_refused(tmp_path, text, named):
    (tmp_path / "log.txt").write_text(text)
    with pytest.raises(UserError, match=named):
        read_log(tmp_path / "log.txt", 0)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--utilisation", "1.5"], "utilisation is 1.5"),
        (["--batchable", "-0.1"], "batchable is -0.1"),
        (["--arrivals.per_hour", "-5"], "arrivals.per_hour is -5"),
        (["--target_seconds", "0"], "seconds is 0"),
        (["--target_seconds", "0.5"], "no number of nodes meets it"),
        (["--max_nodes", "1"], "1 nodes do not meet"),
        (["--arrivals.kind", "log", "--arrivals.file", "none.txt"], "none.txt cannot be read"),
        (["--arrivals.rate", "3"], "rate"),
    ],
)
def test_what_no_fleet_can_serve_is_named(tmp_path, arguments, named):
    with pytest.raises(UserError, match=named) as raised:
        main(["fleet", EXAMPLE, *SMALL, "--output", str(tmp_path), *arguments])
    assert "\n" not in str(raised.value)

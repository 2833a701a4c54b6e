"""`python -m evals fallback`: its arithmetic by hand, and the command on a comparison at toy size."""

from __future__ import annotations

import numpy as np
import pytest

from evals.confidence import Features
from evals.fallback import Judged, add_quality, assess, own_rates, price_fallbacks
from evals.fallback_report import resamples_line, threshold_line
from evals.prices import NodePrice
from evals.records import write_record
from mdlm.errors import UserError

NODE = NodePrice(3.6, 1, "2026-01", "a table")  # 0.001 a second


def outputs(count: int, seed: int, doubt: float = 0.0) -> Judged:
    """Outputs that are right by chance, less often where the margin is small."""
    random = np.random.default_rng(seed)
    log_doubt = random.normal(-4 + doubt, 2, count)
    right = random.random(count) < 1 / (1 + np.exp(2 * (log_doubt + 2)))
    rows = [Features(1 - min(1.0, float(np.exp(value))), 0.1, 0.5) for value in log_doubt]
    return Judged(list(rows), right.tolist(), 10 * count, 20 * count)


@pytest.fixture(scope="module")
def assessed():
    judged = {"calibration": outputs(800, 0), "test": outputs(600, 1), "unseen_templates": outputs(300, 2, doubt=2.0)}
    return assess(judged, 0.05, 0.95)


def test_the_confidence_is_judged_on_rows_it_has_not_seen(assessed):
    test, unseen = assessed["splits"]["test"], assessed["splits"]["unseen_templates"]
    assert (assessed["rows_learned_from"], assessed["rows_tested_on"]) == (400, 400)
    assert assessed["threshold"]["upper"] <= 0.05
    assert test["calibration_error"] <= 1.5 * test["calibration_error_if_perfect"]["q95"]
    assert test["accepted_wrong"] == sum(
        taken and not right for taken, right in zip(test["rows_accepted"], test["rows_right"], strict=True)
    )
    assert test["risk"] == test["accepted_wrong"] / sum(test["rows_accepted"]) <= 0.06
    assert test["area_under_risk_coverage"] < 0.5 * (1 - test["exact"])
    assert 0.3 < test["accepted"] < 1 and unseen["accepted"] < test["accepted"]
    assert assessed["resampled"]["tested"]["bound_kept"] >= 0.93


def test_a_prompt_that_did_not_fit_is_never_accepted():
    found = outputs(400, 1)
    broken = Judged([None, *found.features[1:]], [False, *found.right[1:]], found.kept, found.prompt_tokens)
    result = assess({"calibration": outputs(800, 0), "test": broken}, 0.05, 0.95)
    assert (result["splits"]["test"]["rows_confidence"][0], result["splits"]["test"]["rows_accepted"][0]) == (0.0, 0)


def test_rejected_rows_get_the_twins_answer():
    result = {"splits": {"test": {"rows_right": [1, 0, 0, 1], "rows_accepted": [1, 1, 0, 0]}}}
    add_quality(result, {"test": [0, 1, 1, 0]})
    found = result["splits"]["test"]
    assert (found["twin_exact"], found["with_twin_exact"]) == (0.5, 0.5)  # right, wrong | the twin: right, wrong
    with pytest.raises(UserError, match="run `evals gap` anew"):
        add_quality(result, {"test": [0, 1, 1]})


def test_costs_by_hand():
    seconds = {"one stream": {"block_diffusion": 1.0, "autoregressive": 4.0}, "fastest batch": {"a": 0.5, "b": 0.4}}
    rows = price_fallbacks(seconds, {"accepted": 0.75}, NODE, {"theirs": 0.02}, 0.5, 0.0005)
    found = {(row["basis"], row["to"]): row for row in rows}
    assert len(found) == 4
    one = found["one stream", "twin"]  # a busy second costs 0.002
    assert (one["own"], one["at_once"]) == pytest.approx((0.002, 0.008))
    assert one["per_document"] == pytest.approx(0.002 + 0.25 * 0.008 + 0.0005)
    assert one["break_even_rejected"] == pytest.approx(1 - 0.0025 / 0.008)
    assert one["seconds"] == pytest.approx(
        {"accepted": 1.0, "mean": 2.0, "rejected": 5.0, "at_once": 4.0, "break_even_rejected": 0.75}
    )
    assert found["one stream", "theirs"]["per_document"] == pytest.approx(0.002 + 0.25 * 0.02 + 0.0005)
    assert "seconds" not in found["one stream", "theirs"]
    assert found["fastest batch", "twin"]["break_even_rejected"] < 0  # the own try costs more: it never pays


def test_rates_come_from_speed_records_and_from_throughput(tmp_path):
    for arm, rate, mode in (("block_diffusion", 50.0, "eager"), ("autoregressive", 20.0, "eager"),
                            ("autoregressive", 40.0, "compiled")):  # fmt: skip
        speed = {"useful_tokens": 400, "useful_tokens_per_second": rate, "rows": 4}
        write_record(tmp_path / "records" / f"{arm}-seed0" / "kyc" / f"speed-{mode}.json", "speed", {}, speed)
    # The compiled twin has no compiled arm beside it, so both are taken eagerly.
    assert own_rates(tmp_path, "block_diffusion", 0, "kyc") == {
        "one stream": {"block_diffusion": 2.0, "autoregressive": 5.0}
    }
    ways = [("autoregressive, queue", 20.0), ("autoregressive, queue", 5.0), ("block_diffusion", 8.0)]
    cells = [{"way": way, "seconds": {"median": seconds}} for way, seconds in ways]
    write_record(tmp_path / "throughput.json", "throughput", {"prompts": 10, "seed": 1}, {"cells": cells})
    assert "fastest batch" not in own_rates(tmp_path, "block_diffusion", 0, "kyc")  # measured on another seed's arms
    write_record(tmp_path / "throughput.json", "throughput", {"prompts": 10, "seed": 0}, {"cells": cells})
    assert own_rates(tmp_path, "block_diffusion", 0, "kyc")["fastest batch"] == {
        "block_diffusion": 0.8,
        "autoregressive": 0.5,
    }
    (tmp_path / "records" / "autoregressive-seed0" / "kyc" / "speed-eager.json").unlink()
    with pytest.raises(UserError, match="in one mode"):
        own_rates(tmp_path, "block_diffusion", 0, "kyc")


def test_what_was_chosen_is_said_in_words(assessed):
    settings = {"error": 0.05, "level": 0.95}
    chosen = threshold_line(settings, assessed)
    threshold = assessed["threshold"]
    assert f"{threshold['wrong']} of {threshold['accepted']} accepted calibration rows wrong" in chosen
    few = assess({"calibration": outputs(100, 0), "test": outputs(50, 1)}, 0.05, 0.95)
    assert "118 are needed; nothing is accepted" in threshold_line(settings, few)
    assert few["splits"]["test"]["risk"] is None and few["splits"]["test"]["accepted"] == 0
    hard = assess({"calibration": outputs(400, 0), "test": outputs(50, 1)}, 0.0101, 0.99)
    assert hard["threshold"]["value"] is None and "nothing is accepted" in threshold_line(settings, hard)
    assert "200 resamples of 400 rows" in resamples_line(settings, assessed)

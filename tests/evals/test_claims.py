"""Claims are judged only where the twin has learned its task, quality is comparable and seeds are enough."""

from __future__ import annotations

import pytest

from evals.claims import judge
from evals.records import write_record

NOTHING: dict = {"groups": [], "quality": {"test": []}, "speed": []}


@pytest.mark.parametrize(
    ("twin", "ratio", "speed", "verdict"),
    [
        (0.80, 0.90, 3.0, "refuted"),
        (0.80, 0.90, 12.0, "confirmed"),
        (0.80, 0.80, 3.0, "not shown"),  # the quality is not comparable
        (0.01, 2.00, 3.0, "not shown"),  # the twin itself has not learned it
        (0.00, None, 3.0, "not shown"),
    ],
)
def test_ten_times_the_speed(tmp_path, twin, ratio, speed, verdict):
    found = {"arm": "block_diffusion", "task": "kyc", "to_twin": {"reference": twin, "ratio": ratio}}
    timed = {"arm": "block_diffusion", "task": "kyc", "eager": {"to_twin": 2.0}, "compiled": {"to_twin": speed}}
    summary = {"groups": [], "quality": {"test": [found]}, "speed": [timed]}
    claim = next(row for row in judge(summary, tmp_path) if row["claim"].startswith("ten times"))
    assert claim["verdict"] == verdict


@pytest.mark.parametrize(
    ("interval", "seeds", "verdict"),
    [
        ([0.86, 0.99], 3, "confirmed"),
        ([0.60, 0.80], 3, "refuted"),
        ([0.80, 0.90], 3, "not shown"),
        ([0.86, 0.99], 1, "not shown"),  # training noise is not known
        ([0.60, 0.80], 2, "not shown"),
    ],
)
def test_quality_on_structured_output_is_judged_from_three_seeds_on(tmp_path, interval, seeds, verdict):
    found = {"reference": 0.8, "ratio": sum(interval) / 2, "interval": interval, "seeds": seeds}
    group = {"group": "structured", "arm": "block_diffusion", "to_twin": found}
    claim = judge({"groups": [group], "quality": {"test": []}, "speed": []}, tmp_path)[0]
    assert claim["verdict"] == verdict
    assert ("of 3 seeds" in claim["evidence"]) == (seeds < 3)


@pytest.mark.parametrize(
    ("shares", "verdict"), [((0.4, 0.9), "confirmed"), ((1.2, 2.0), "refuted"), ((0.4, 1.3), "not shown")]
)
def test_cost_is_judged_by_every_way_to_run_the_node(tmp_path, shares, verdict):
    costs = [{"basis": basis, "to": "twin", "per_document": share * 0.5, "at_once": 0.5, "rejected": 0.25}
             for basis, share in zip(("one stream", "fastest batch"), shares, strict=True)]  # fmt: skip
    costs.append({"basis": "one stream", "to": "an API", "per_document": 1.0, "at_once": 0.5, "rejected": 0.25})
    write_record(tmp_path / "fallback.json", "fallback", {"error": 0.05}, {"costs": costs})
    claim = judge(NOTHING, tmp_path)[-2]
    assert claim["verdict"] == verdict and claim["record"] == "fallback.json"
    assert f"one stream: {shares[0]:.2f} of its cost" in claim["evidence"] and "25% rejected" in claim["evidence"]


@pytest.mark.parametrize(
    ("short", "long", "verdict"),
    [
        (2.0, 1.1, "confirmed"),
        (2.0, 2.1, "refuted"),
        (2.0, 1.8, "not shown"),  # a fifth of the gain is eaten
        (0.9, 0.8, "not shown"),  # no gain to eat
    ],
)
def test_prefill_is_judged_by_what_it_takes_of_the_gain(tmp_path, short, long, verdict):
    ratios = [{"ratio": ratio, "measured": {"speedup": {"block_diffusion": {"median": value}}}}
              for ratio, value in ((16.0, long), (1.0, 1.5), (0.25, short))]  # fmt: skip
    write_record(tmp_path / "roofline.json", "roofline", {}, {"30m": {"ratios": ratios}})
    claim = judge(NOTHING, tmp_path)[-1]
    assert claim["verdict"] == verdict
    assert f"{short:.2f} at 1:4, {long:.2f} at 16:1" in claim["evidence"]
    # Predictions alone decide nothing.
    write_record(tmp_path / "roofline.json", "roofline", {}, {"30m": {"ratios": [{"ratio": 16.0}]}})
    assert judge(NOTHING, tmp_path)[-1]["record"] == "—"

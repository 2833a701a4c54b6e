"""Claims are judged only where the twin has learned its task, quality is comparable and seeds are enough."""

from __future__ import annotations

import pytest

from evals.claims import judge


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

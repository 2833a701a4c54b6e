"""The claim of ten times the speed is judged only where the twin has learned the task and quality is comparable."""

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

"""The report's numbers, from records written by hand."""

from __future__ import annotations

import pytest

from evals.records import write_record
from evals.report import tables
from evals.report_data import MOST_KINDS, Records, summarise


@pytest.fixture
def folder(tmp_path):
    """Two seeds of the twin and one arm on six rows of three kinds; every other row right in seed 0, all in seed 1."""

    def write(clusters):
        for arm, shift in (("autoregressive", 0), ("block_diffusion", 1)):
            for seed in (0, 1):
                exact = [int(seed or number % 2 == shift) for number in range(len(clusters))]
                training = {"config": {"batch_size": 2, "loss": {}, "data": {"prompt_length": 4, "response_length": 4}},
                            "parameters": 10, "step": 5, "tokens_seen": 9, "predicted": 9}  # fmt: skip
                settings = {"config": {"tasks": {}, "seeds": [0, 1]}, "group": "reasoning", "training": training,
                            "dtype": "fp32", "device": "cpu"}  # fmt: skip
                values = ("parses", "fits_schema", "keys_right", "leaf_values_right", "total_passes", "thrown_away",
                          "tokens_per_forward", "kept")  # fmt: skip
                result = dict.fromkeys(values, 1.0) | {
                    "n": len(exact), "exact": sum(exact) / len(exact), "exact_interval": [0.0, 1.0],
                    "setting": "greedy", "rows_exact": exact, "rows_cluster": clusters,
                }  # fmt: skip
                path = tmp_path / "records" / f"{arm}-seed{seed}" / "list" / "test-frozen.json"
                write_record(path, "quality", settings, result)
        return tmp_path

    return write


def test_a_task_of_several_kinds_is_split_by_them(folder):
    summary = summarise(Records(folder(["copy/0", "copy/1", "sort/2", "sort/3", "sort/4", "x"])))
    found = {row["arm"]: row["kinds"] for row in summary["kinds"]}
    # Right in seed 0: rows 0, 2, 4 of the twin and 1, 3, 5 of the arm; in seed 1 all. A row without a kind is one.
    assert found["autoregressive"]["copy"] == {"n": 4, "exact": 0.75}
    assert found["autoregressive"]["sort"] == {"n": 6, "exact": pytest.approx(5 / 6)}
    assert found["block_diffusion"]["sort"] == {"n": 6, "exact": pytest.approx(4 / 6)}
    assert found["block_diffusion"][""] == {"n": 2, "exact": 1.0}
    shown = dict(tables(summary | {"claims": []}))
    assert shown["list by kind, exact on test (rows, all seeds)"][0]["sort"] == "0.833 (6)"


@pytest.mark.parametrize("clusters", [["a/0", "a/1"], ["one", "two"], [f"{n}/0" for n in range(MOST_KINDS + 1)]])
def test_one_kind_and_too_many_have_no_table(folder, clusters):
    assert summarise(Records(folder(clusters)))["kinds"] == []

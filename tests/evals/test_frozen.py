"""Which decoder setting a comparison freezes on dev."""

from __future__ import annotations

from evals.gap import frozen_index


def result(leaves: float, exact: float, passes: float) -> dict[str, float]:
    return {"leaf_values_right": leaves, "exact": exact, "total_passes": passes}


def test_the_fewest_passes_near_the_best_are_taken():
    assert frozen_index([result(0.99, 0.95, 99), result(0.99, 0.945, 20), result(0.95, 0.80, 10)]) == 1


def test_where_no_document_is_exact_leaf_values_decide():
    assert frozen_index([result(0.60, 0.0, 99), result(0.595, 0.0, 50), result(0.01, 0.0, 10)]) == 1

"""Staged scores of one structured output: parses, fits the schema, keys right, leaf values right, document exact."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evals.documents import (
    MISSING,
    Path,
    count_right,
    flatten,
    holds_document,
    parse_strictly,
    path_text,
    same,
    value_text,
)
from mdlm.errors import UserError

_FENCE = re.compile(r"```[^\n`]*\n(.*?)```", re.DOTALL)


@dataclass(frozen=True)
class DocumentScore:
    """`exact` implies `keys_right`, which implies `fits_schema`, which implies `parses`.

    parses: the output is one strict JSON document and white space.
    fits_schema: it is valid under the task's JSON Schema, where one was given.
    keys_right: it fits, and has the same names at every level as gold, no more and no fewer.
    leaf_values_right: the share of gold's leaves that stand at the same path with the same type and value. A scalar is
        a leaf, and so is an empty array or object. 0 when the output does not parse; otherwise it is part credit, given
        whether or not schema and keys are right.
    exact: the output is gold, typed; spelling (`1e3`, `\\u00e9`, spaces, order of names) does not count.
    fenced, surrounded: the output does not parse, but it holds a document in a code fence, or amid other text.
    reason: what is wrong at the first stage that fails, in ASCII; empty when exact.
    """

    parses: bool
    fits_schema: bool
    keys_right: bool
    leaf_values_right: float
    exact: bool
    fenced: bool = False
    surrounded: bool = False
    reason: str = ""


def score_document(output: str, gold: str, schema: Mapping[str, Any] | None = None) -> DocumentScore:
    """Scores an output against the gold document, which must fulfil the schema if there is one.

    The order of an array counts, unless the schema marks it `"x-order": "set"`: then the items are paired with gold's
    so that most leaves are right. Raises `UserError` when gold itself is no strict JSON.
    """
    try:
        gold_document = parse_strictly(gold)
    except ValueError as error:
        raise UserError(f"a gold answer is not strict JSON: {error}") from error
    try:
        document = parse_strictly(output)
    except ValueError as error:
        fenced = any(_parses(inside) for inside in _FENCE.findall(output))
        surrounded = not fenced and _document_amid_text(output)
        return DocumentScore(False, False, False, 0.0, False, fenced, surrounded, f"does not parse: {error}")

    paired = document if schema is None else _schemas().pair_sets(document, gold_document, schema)
    keys, leaves = flatten(paired)
    gold_keys, gold_leaves = flatten(gold_document)
    right = count_right(leaves, gold_leaves)
    same_keys = keys == gold_keys
    exact = same_keys and right == len(gold_leaves) == len(leaves)
    # What equals gold fits because gold does; to ask again would let a slow machine's clock decide over a right answer.
    misfit = "" if schema is None or exact else _schemas().misfit(document, schema)
    return DocumentScore(
        parses=True,
        fits_schema=not misfit,
        keys_right=same_keys and not misfit,
        leaf_values_right=right / len(gold_leaves),
        exact=exact,
        reason=misfit or _first_difference(keys, leaves, gold_keys, gold_leaves),
    )


def plain_score(exact: bool, well_formed: bool = True, share: float | None = None, reason: str = "") -> DocumentScore:
    """The score of an answer that is no JSON, from a task's own checker.

    exact: the answer is right. well_formed: it has the form asked for, which stands for the stages up to the keys.
    share: the part of it that is right, 0 … 1 (by default all or nothing). reason: the first thing that is wrong.
    """
    well_formed = well_formed or exact
    part = float(exact) if share is None else share
    return DocumentScore(well_formed, well_formed, well_formed, part, exact, reason="" if exact else reason or "wrong")


def summarize(scores: Sequence[DocumentScore]) -> dict[str, float]:
    """`n` and the mean of every stage and flag. Raises `ValueError` when there is nothing to summarize."""
    if not scores:
        raise ValueError("no scores to summarize")
    stages = ("parses", "fits_schema", "keys_right", "leaf_values_right", "exact", "fenced", "surrounded")
    means = {stage: sum(getattr(score, stage) for score in scores) / len(scores) for stage in stages}
    return {"n": len(scores), **means}


def _schemas() -> Any:
    # Not at the top: training reads the tasks, and has neither jsonschema nor scipy.
    from evals import schemas

    return schemas


def _parses(text: str) -> bool:
    try:
        parse_strictly(text)
    except ValueError:
        return False
    return True


def _document_amid_text(text: str) -> bool:
    start = re.search(r"[\[{]", text)
    return start is not None and holds_document(text, start.start())


def _first_difference(
    keys: set[Path], leaves: dict[Path, Any], gold_keys: set[Path], gold_leaves: dict[Path, Any]
) -> str:
    if keys != gold_keys:
        path = min(keys ^ gold_keys, key=lambda path: (len(path), path not in gold_keys, path_text(path)))
        return f"{'missing' if path in gold_keys else 'unexpected'} {path_text(path)}"
    for path in sorted(gold_leaves.keys() | leaves.keys(), key=path_text):
        ours, gold = leaves.get(path, MISSING), gold_leaves.get(path, MISSING)
        if not same(ours, gold):
            return f"{path_text(path)} is {value_text(ours)}, not {value_text(gold)}"
    return ""

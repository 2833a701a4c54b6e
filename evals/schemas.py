"""What a JSON Schema says of a document: whether it fits, and which of its arrays are sets.

`jsonschema` validates by draft 2020-12 with format checks. An array whose schema has `"x-order": "set"` is compared
without regard to order. `uniqueItems` does not say so: the rows of a sorted table are unique too.
"""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from functools import lru_cache
from typing import Any

import numpy as np
from jsonschema import Draft202012Validator
from jsonschema.validators import extend
from scipy.optimize import linear_sum_assignment

from evals.documents import MISSING, count_right, flatten, path_text, short

CLOCK_LIMIT_S = 1.0


def misfit(document: Any, schema: Mapping[str, Any], limit_s: float = CLOCK_LIMIT_S) -> str:
    """Why a document (from `parse_strictly`) does not fit the schema; empty when it fits.

    A check that takes longer than `limit_s` seconds, or that never ends, counts as a misfit: the pattern of a schema
    can take exponential time on a string that a model wrote. Only the main thread of a POSIX process can interrupt
    itself in the middle of a regular expression; elsewhere this raises `RuntimeError` rather than check without limit.
    """
    text = json.dumps(schema, sort_keys=True)
    try:
        with _clock_limit(limit_s):
            error = next(_validator(text).iter_errors(document), None)
    except _OutOfTimeError:
        return f"does not fit the schema: not checked within {limit_s:g} s"
    except (RecursionError, ArithmeticError) as failure:
        return f"does not fit the schema: cannot be checked ({type(failure).__name__})"
    if error is None:
        return ""
    rule = short(json.dumps(error.validator_value, default=str))
    return f'does not fit the schema: {path_text(tuple(error.absolute_path))} breaks "{error.validator}": {rule}'


def pair_sets(document: Any, gold: Any, schema: Any) -> Any:
    """The document with the items of its sets moved to where most leaves agree with gold (an optimal assignment).

    `MISSING` stands where a set of gold has an item without a partner; items too many follow at the end. Sets are found
    through `properties` and `items`, nested ones too.
    """
    if not isinstance(schema, Mapping):
        return document
    if isinstance(document, dict) and isinstance(gold, dict):
        inner = schema.get("properties", {})
        return {
            name: pair_sets(value, gold[name], inner.get(name)) if name in gold else value
            for name, value in document.items()
        }
    if isinstance(document, list) and isinstance(gold, list):
        item_schema = schema.get("items")
        if schema.get("x-order") == "set":
            return _paired(document, gold, item_schema)
        both = zip(document, gold, strict=False)
        return [pair_sets(ours, theirs, item_schema) for ours, theirs in both] + document[len(gold) :]
    return document


def _paired(items: list[Any], gold_items: list[Any], item_schema: Any) -> list[Any]:
    candidates = [[pair_sets(item, gold, item_schema) for gold in gold_items] for item in items]
    gold_leaves = [flatten(gold)[1] for gold in gold_items]
    right_IG = np.zeros((len(items), len(gold_items)))  # leaves right when item i stands for gold's item g
    for i, row in enumerate(candidates):
        for g, candidate in enumerate(row):
            right_IG[i, g] = count_right(flatten(candidate)[1], gold_leaves[g])
    chosen = dict(zip(*(side.tolist() for side in linear_sum_assignment(right_IG, maximize=True)), strict=True))
    result = [MISSING] * len(gold_items)
    for i, g in chosen.items():
        result[g] = candidates[i][g]
    return result + [item for i, item in enumerate(items) if i not in chosen]


@lru_cache(maxsize=256)
def _validator(schema_text: str) -> Any:
    # Numbers of the document are exact decimals, so those of the schema must be as well: 0.3 is a multiple of 0.1.
    schema = json.loads(schema_text, parse_float=Decimal)
    Draft202012Validator.check_schema(json.loads(schema_text))
    return _VALIDATOR(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)


def _is_integer(_: Any, value: Any) -> bool:
    return isinstance(value, Decimal) and value == value.to_integral_value()  # 1.0 and 1e3 are integers (6.1.1)


_VALIDATOR = extend(
    Draft202012Validator, type_checker=Draft202012Validator.TYPE_CHECKER.redefine("integer", _is_integer)
)


class _OutOfTimeError(Exception):
    """Raised in the middle of whatever runs when its time is up."""


@contextmanager
def _clock_limit(seconds: float) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("a schema is checked under a clock limit, which only the main thread can keep")

    def ring(*_: Any) -> None:
        raise _OutOfTimeError

    # Python's regular expressions look for signals while they run, so the alarm stops those as well.
    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before or signal.SIG_DFL)

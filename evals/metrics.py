"""Staged scores of one structured output: parses, keys right, leaf values right, whole document exact.

JSON is read strictly by RFC 8259, with what it leaves open decided: names are unique, numbers are exact decimals,
strings and names are compared in Unicode NFC, and documents nested deeper than `MAX_DEPTH` do not parse.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from mdlm.errors import UserError

MAX_DEPTH = 100
_STRING = re.compile(r'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
_FENCE = re.compile(r"```[^\n`]*\n(.*?)```", re.DOTALL)
_MISSING = object()

Path = tuple[str | int, ...]  # names of objects and indices of arrays, from the root


@dataclass(frozen=True)
class DocumentScore:
    """`exact` implies `keys_right`, which implies `fits_schema`, which implies `parses`.

    parses: the output is one strict JSON document and white space.
    fits_schema: it is valid under the task's JSON Schema.
    keys_right: the same names at every level, no more and no fewer.
    leaf_values_right: the share of gold's leaves that stand at the same path with the same type and value. A scalar is
        a leaf, and so is an empty array or object.
    exact: the output is gold, typed; spelling (`1e3`, `\\u00e9`, spaces, order of names) does not count.
    fenced, surrounded: the output does not parse, but it holds a document in a code fence, or amid other text.
    reason: the first thing that is wrong, in ASCII; empty when exact.
    """

    parses: bool
    fits_schema: bool
    keys_right: bool
    leaf_values_right: float
    exact: bool
    fenced: bool = False
    surrounded: bool = False
    reason: str = ""


def score_document(output: str, gold: str) -> DocumentScore:
    """Scores an output against the gold document. Raises `UserError` when gold itself is no strict JSON."""
    try:
        gold_keys, gold_leaves = _flatten(parse_strictly(gold))
    except ValueError as error:
        raise UserError(f"a gold answer is not strict JSON: {error}") from error
    try:
        keys, leaves = _flatten(parse_strictly(output))
    except ValueError as error:
        fenced = any(_parses(inside) for inside in _FENCE.findall(output))
        surrounded = not fenced and _document_amid_text(output)
        return DocumentScore(False, False, False, 0.0, False, fenced, surrounded, f"does not parse: {error}")

    right = sum(_same(leaves.get(path, _MISSING), value) for path, value in gold_leaves.items())
    return DocumentScore(
        parses=True,
        fits_schema=True,
        keys_right=keys == gold_keys,
        leaf_values_right=right / len(gold_leaves),
        exact=keys == gold_keys and right == len(gold_leaves) == len(leaves),
        reason=_first_difference(keys, leaves, gold_keys, gold_leaves),
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


def parse_strictly(text: str) -> Any:
    """The document as dict, list, str, `Decimal`, bool or None, names in NFC. Raises `ValueError` that says why not."""
    _check_depth(text)
    return _DECODER.decode(text)


def _check_depth(text: str) -> None:
    depth = 0
    for mark in re.findall(r"[\[{}\]]", _STRING.sub("", text)):
        depth += 1 if mark in "[{" else -1
        if depth > MAX_DEPTH:
            raise ValueError(f"nested deeper than {MAX_DEPTH} levels")


def _parses(text: str) -> bool:
    try:
        parse_strictly(text)
    except ValueError:
        return False
    return True


def _document_amid_text(text: str) -> bool:
    start = re.search(r"[\[{]", text)
    if not start:
        return False
    try:
        _check_depth(text[start.start() :])
        _DECODER.raw_decode(text, start.start())
    except ValueError:
        return False
    return True


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, value in pairs:
        name = unicodedata.normalize("NFC", name)
        if name in result:
            raise ValueError(f"duplicate name {name!a}")
        result[name] = value
    return result


def _number(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation as error:
        raise ValueError(f"number out of range: {_short(text)}") from error


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is no JSON value")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_number, parse_float=_number, parse_constant=_no_constant
)


def _flatten(document: Any) -> tuple[set[Path], dict[Path, Any]]:
    """(the path of every name, path -> value of every leaf)."""
    keys: set[Path] = set()
    leaves: dict[Path, Any] = {}
    waiting: list[tuple[Path, Any]] = [((), document)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, dict) and value:
            keys.update((*path, name) for name in value)
            waiting.extend(((*path, name), inner) for name, inner in value.items())
        elif isinstance(value, list) and value:
            waiting.extend(((*path, index), inner) for index, inner in enumerate(value))
        else:
            leaves[path] = unicodedata.normalize("NFC", value) if isinstance(value, str) else value
    return keys, leaves


def _same(ours: Any, gold: Any) -> bool:
    return type(ours) is type(gold) and ours == gold


def _first_difference(
    keys: set[Path], leaves: dict[Path, Any], gold_keys: set[Path], gold_leaves: dict[Path, Any]
) -> str:
    if keys != gold_keys:
        path = min(keys ^ gold_keys, key=lambda path: (len(path), path not in gold_keys, _name(path)))
        return f"{'missing' if path in gold_keys else 'unexpected'} {_name(path)}"
    for path in sorted(gold_leaves.keys() | leaves.keys(), key=_name):
        ours, gold = leaves.get(path, _MISSING), gold_leaves.get(path, _MISSING)
        if not _same(ours, gold):
            return f"{_name(path)} is {_value(ours)}, not {_value(gold)}"
    return ""


def _name(path: Path) -> str:
    return "$" + "".join(f".{part}" if _plain(part) else f"[{part!a}]" for part in path)


def _plain(part: str | int) -> bool:
    return isinstance(part, str) and part.isascii() and part.isidentifier()


def _value(value: Any) -> str:
    if value is _MISSING:
        return "missing"
    return _short(str(value) if isinstance(value, Decimal) else json.dumps(value))


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."

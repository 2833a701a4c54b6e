"""JSON documents as the scores see them: read strictly, in Unicode NFC, taken apart into keys and typed leaf values.

JSON is read by RFC 8259, with what it leaves open decided: names are unique, numbers are exact decimals, strings and
names are in Unicode NFC, and documents nested deeper than `MAX_DEPTH` do not parse.
"""

from __future__ import annotations

import json
import re
import unicodedata
from decimal import Decimal, InvalidOperation
from typing import Any

MAX_DEPTH = 100
MISSING = object()  # stands where a document has nothing; null is something
_STRING = re.compile(r'"(?:[^"\\]|\\.)*+"?', re.DOTALL)

Path = tuple[str | int, ...]  # names of objects and indices of arrays, from the root


def parse_strictly(text: str) -> Any:
    """The document as dict, list, str, `Decimal`, bool or None, in NFC. Raises `ValueError` that says why not."""
    _check_depth(text)
    return _in_nfc(_DECODER.decode(text))


def holds_document(text: str, start: int) -> bool:
    """Whether a document begins at position `start` of the text, whatever follows it."""
    try:
        _check_depth(text[start:])
        _DECODER.raw_decode(text, start)
    except ValueError:
        return False
    return True


def flatten(document: Any) -> tuple[set[Path], dict[Path, Any]]:
    """(the path of every name, path -> value of every leaf). What is `MISSING` is neither."""
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
        elif value is not MISSING:
            leaves[path] = value
    return keys, leaves


def same(ours: Any, gold: Any) -> bool:
    """Whether two leaves are one value of one type."""
    return type(ours) is type(gold) and ours == gold


def count_right(leaves: dict[Path, Any], gold_leaves: dict[Path, Any]) -> int:
    """How many of gold's leaves stand at the same path of ours with the same type and value."""
    return sum(same(leaves.get(path, MISSING), value) for path, value in gold_leaves.items())


def path_text(path: Path) -> str:
    """A path for people, in ASCII: `$.papers[1].type`."""
    return "$" + "".join(f".{part}" if _plain(part) else f"[{part!a}]" for part in path)


def value_text(value: Any) -> str:
    """A leaf for people, in ASCII and shortened."""
    if value is MISSING:
        return "missing"
    return short(str(value) if isinstance(value, Decimal) else json.dumps(value))


def short(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."


def _check_depth(text: str) -> None:
    depth = 0
    for mark in re.findall(r"[\[{}\]]", _STRING.sub("", text)):
        depth += 1 if mark in "[{" else -1
        if depth > MAX_DEPTH:
            raise ValueError(f"nested deeper than {MAX_DEPTH} levels")


def _in_nfc(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _in_nfc(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_in_nfc(inner) for inner in value]
    return unicodedata.normalize("NFC", value) if isinstance(value, str) else value


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
        raise ValueError(f"number out of range: {short(text)}") from error


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is no JSON value")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_number, parse_float=_number, parse_constant=_no_constant
)


def _plain(part: str | int) -> bool:
    return isinstance(part, str) and part.isascii() and part.isidentifier()

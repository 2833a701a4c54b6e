"""Which split a row belongs to, where that is decided by what the row is about."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from random import Random
from typing import TypeVar

from mdlm.errors import UserError

T = TypeVar("T")

SPLITS = ("train", "dev", "test")
MOST_DRAWS = 20_000


def owner(key: str) -> str:
    """The one split that may show what `key` names: 80 % train, 10 % dev, 10 % test, by its SHA-256."""
    position = int.from_bytes(hashlib.sha256(key.encode("utf-8")).digest()[:8], "big") / 2**64
    return "train" if position < 0.8 else "dev" if position < 0.9 else "test"


def draw_for(split: str, random: Random, draw: Callable[[Random], T | None], key: Callable[[T], str]) -> T:
    """Draws until the split owns the key of what was drawn; a draw of None is a failed one.

    No two splits can then share a key, whatever the seeds. Raises `UserError` after `MOST_DRAWS` draws in vain.
    """
    for _ in range(MOST_DRAWS):
        drawn = draw(random)
        if drawn is not None and owner(key(drawn)) == split:
            return drawn
    raise UserError(f"the knobs leave the split {split!r} next to nothing to draw; choose larger or less special ones")

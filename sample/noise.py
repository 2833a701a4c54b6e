"""Uniform draws that belong to a row: a function of seed, row number, pass, purpose and place, and of nothing else.

A row's noise therefore does not depend on the batch it stands in. SplitMix64 (Steele, Lea & Flood, OOPSLA 2014) as a
counter-based generator, in wrapping 64-bit integers.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

PURPOSES = {"token": 1, "score": 2, "accept": 3, "revoke": 4, "order": 5}
"""Draws of one pass that must not be the same numbers."""


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_FIRST = _signed(0xBF58476D1CE4E5B9)
_SECOND = _signed(0x94D049BB133111EB)


def _shifted(z: Tensor, bits: int) -> Tensor:
    """z >> bits without the sign."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _mix(z: Tensor) -> Tensor:
    z = (z ^ _shifted(z, 30)) * _FIRST
    z = (z ^ _shifted(z, 27)) * _SECOND
    return z ^ _shifted(z, 31)


def _step(purpose: str) -> int:
    return _signed(PURPOSES[purpose] * _GOLDEN % (1 << 64))


def row_keys(seed: int, rows_B: Tensor) -> Tensor:
    """One key (B,) int64 for each row number."""
    start = _mix(torch.tensor(_signed(seed % (1 << 64)), device=rows_B.device) + _GOLDEN)
    return _mix(start + (rows_B.long() + 1) * _GOLDEN)


def uniform(keys_B: Tensor, moment: Tensor, purpose: str, shape: tuple[int, ...]) -> Tensor:
    """Float64 in [0, 1), (B, *shape).

    Args:
        keys_B: from `row_keys`.
        moment: which pass, () int64; a tensor, so that a compiled step serves all passes.
        purpose: what the numbers are for, a key of `PURPOSES`.
    """
    places = torch.arange(1, math.prod(shape) + 1, device=keys_B.device) * _GOLDEN
    stream_B = _mix(_mix(keys_B + (moment + 1) * _GOLDEN) + _step(purpose))
    return (_shifted(_mix(stream_B[:, None] + places), 11).double() * 2.0**-53).view(-1, *shape)


def uniform_at(keys_B: Tensor, moments_BW: Tensor, purpose: str, count: int) -> Tensor:
    """`uniform` at a moment of each row's own: float64, (B, W, count)."""
    places = torch.arange(1, count + 1, device=keys_B.device) * _GOLDEN
    stream_BW = _mix(
        _mix(keys_B[:, None] + (moments_BW + 1) * _GOLDEN) + _signed(PURPOSES[purpose] * _GOLDEN % (1 << 64))
    )
    return _shifted(_mix(stream_BW[..., None] + places), 11).double() * 2.0**-53

"""What each row's output cost: forward passes by kind, positions evaluated, keys read, tokens kept and thrown away."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

KINDS = ("prefill", "denoise", "store", "refresh", "draft", "verify", "decode")
"""`prefill` a prompt, `denoise` a window, `store` a finished block, `decode` one autoregressive token; `refresh` an
approximate cache, `draft` and `verify` belong to speculation."""


@dataclass(frozen=True)
class RowLedger:
    """The account of one row."""

    passes: dict[str, int]
    """Forward passes this row took part in, by kind."""
    positions: dict[str, int]
    """Positions evaluated, by kind."""
    kv_positions: int
    """Key/value positions the passes could read, summed over passes."""
    kept: int
    """Tokens of the answer, up to and without its end token."""
    thrown_away: int
    """Tokens decoded and not kept: the end token and all after it, revoked tokens, rejected drafts."""

    @property
    def total_passes(self) -> int:
        """Passes of every kind."""
        return sum(self.passes.values())

    @property
    def tokens_per_forward(self) -> float:
        """Kept tokens divided by passes of every kind; 0 when there was none."""
        return self.kept / self.total_passes if self.total_passes else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a record; kinds that did not occur are left out."""
        return {
            "passes": {kind: n for kind, n in self.passes.items() if n},
            "total_passes": self.total_passes,
            "positions": {kind: n for kind, n in self.positions.items() if n},
            "kv_positions": self.kv_positions,
            "kept": self.kept,
            "thrown_away": self.thrown_away,
            "tokens_per_forward": self.tokens_per_forward,
        }


class Ledger:
    """Accounts of all rows of a decode. Counting stays on the device: it never waits for it.

    `calls` counts how often the trunk ran, for the whole batch: it equals what a forward hook counts. A row's own
    passes are those in which it still had something to decode, so they do not depend on its neighbours.
    """

    def __init__(self, rows: int, device: torch.device | str = "cpu") -> None:
        self.calls = dict.fromkeys(KINDS, 0)
        self._passes = {kind: torch.zeros(rows, dtype=torch.int64, device=device) for kind in KINDS}
        self._positions = {kind: torch.zeros(rows, dtype=torch.int64, device=device) for kind in KINDS}
        self._kv = torch.zeros(rows, dtype=torch.int64, device=device)
        self.kept = torch.zeros(rows, dtype=torch.int64, device=device)
        self.thrown_away = torch.zeros(rows, dtype=torch.int64, device=device)

    def count(self, kind: str, rows: Tensor, working: Tensor, positions: Tensor | int, kv_positions: Tensor) -> None:
        """Books one call of the trunk.

        Args:
            kind: one of `KINDS`.
            rows: which rows of the decode stand in this call's batch, (B,) indices.
            working: which of them still need it, (B,) bool.
            positions: positions evaluated for each row, (B,) or one number.
            kv_positions: keys each row could see, (B,).
        """
        self.calls[kind] += 1
        share = working.long()
        self._passes[kind].index_add_(0, rows, share)
        self._positions[kind].index_add_(0, rows, share * positions)
        self._kv.index_add_(0, rows, share * kv_positions)

    @property
    def total_calls(self) -> int:
        """Calls of the trunk, all kinds."""
        return sum(self.calls.values())

    def row(self, index: int) -> RowLedger:
        """The account of one row, as plain numbers."""
        return RowLedger(
            passes={kind: int(self._passes[kind][index]) for kind in KINDS},
            positions={kind: int(self._positions[kind][index]) for kind in KINDS},
            kv_positions=int(self._kv[index]),
            kept=int(self.kept[index]),
            thrown_away=int(self.thrown_away[index]),
        )

    def rows(self) -> list[RowLedger]:
        """The accounts of all rows."""
        return [self.row(index) for index in range(len(self.kept))]

"""Where a run's first weights come from when they are not drawn: another checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mdlm.checkpoint import load_checkpoint, read_header, resolve_checkpoint
from mdlm.errors import UserError
from mdlm.tokenizer import Tokenizer
from mdlm.transformer import Transformer

FREE = ("objective", "block_length", "causal_prompt", "max_length")
"""What a start may have otherwise: no tensor and no position depends on it."""


def start_from(folder: str | Path, model: Transformer, tokenizer: Tokenizer) -> dict[str, Any]:
    """Copies the weights of a checkpoint of the same shape into `model`; returns what `training.json` says of it.

    Raises:
        UserError: no checkpoint, another tokenizer, or a field of the shape that differs; all are named.
    """
    folder = resolve_checkpoint(folder)
    saved, theirs = load_checkpoint(folder)
    if theirs.fingerprint() != tokenizer.fingerprint():
        raise UserError(f"{folder} has another tokenizer than this run; leave data.tokenizer empty to take it along")
    wanted, found = model.config.to_dict(), saved.config.to_dict()
    if other := [name for name in wanted if name not in FREE and wanted[name] != found[name]]:
        differs = ", ".join(f"{name} {found[name]!r} where the config says {wanted[name]!r}" for name in other)
        fixes = " ".join(f"--model.{name}={found[name]}" for name in other)
        raise UserError(f"{folder} has {differs}; train with {fixes}")
    model.load_state_dict(saved.state_dict())
    tokens_seen = read_header(folder).get("tokens_seen")
    return {"folder": str(folder), "objective": saved.config.objective, "tokens_seen": tokens_seen}

"""The shape of a model: one frozen dataclass for all three objectives."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

from mdlm.errors import UserError

Objective = Literal["autoregressive", "masked_diffusion", "block_diffusion"]
OBJECTIVES: tuple[str, ...] = get_args(Objective)


@dataclass(frozen=True)
class ModelConfig:
    """Everything that decides the tensors of a `Transformer` and which positions may see which.

    The tensor layout is that of the Qwen3 family. Two configs that differ only in `objective` and `block_length`
    describe twins: same parameters, same initial weights from one seed.
    """

    objective: Objective
    vocab_size: int
    dim: int = 256
    layers: int = 6
    heads: int = 4
    kv_heads: int = 4
    head_dim: int = 64
    hidden_dim: int = 768
    max_length: int = 512
    """Longest row in positions: prompt (with its begin token) and response together."""
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-6
    qk_norm: bool = True
    tie_embeddings: bool = True
    block_length: int = 16
    """Positions of one response block; only `block_diffusion` attends by it."""
    causal_prompt: bool = False
    """`block_diffusion` only: make the prompt causal instead of one bidirectional block."""
    mask_token_id: int = -1
    """The four special ids; −1 takes the last four of the vocabulary, in the order mask, end, pad, begin."""
    end_token_id: int = -1
    pad_token_id: int = -1
    begin_token_id: int = -1

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise UserError(f"objective {self.objective!r} is unknown; choose one of {', '.join(OBJECTIVES)}")
        sizes = [
            "vocab_size",
            "dim",
            "layers",
            "heads",
            "kv_heads",
            "head_dim",
            "hidden_dim",
            "max_length",
            "block_length",
        ]
        for name in sizes:
            if type(getattr(self, name)) is not int or getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)!r}; it must be a whole number of at least 1")
        for name in ("rope_theta", "norm_eps"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
                raise UserError(f"{name} is {value!r}; it must be a number above 0")
        for name in ("qk_norm", "tie_embeddings", "causal_prompt"):
            if not isinstance(getattr(self, name), bool):
                raise UserError(f"{name} is {getattr(self, name)!r}; it must be true or false")
        if self.heads % self.kv_heads:
            raise UserError(f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})")
        if self.head_dim % 2:
            raise UserError(f"head_dim is {self.head_dim}; rotary positions need an even one")
        specials = ["mask_token_id", "end_token_id", "pad_token_id", "begin_token_id"]
        for offset, name in enumerate(specials):
            if getattr(self, name) == -1:
                object.__setattr__(self, name, self.vocab_size - 4 + offset)
            if not isinstance(getattr(self, name), int) or not 0 <= getattr(self, name) < self.vocab_size:
                raise UserError(f"{name} is {getattr(self, name)}, outside the vocabulary of {self.vocab_size} tokens")
        if len({getattr(self, name) for name in specials}) < len(specials):
            raise UserError("mask, end, pad and begin must be four different token ids")

    def replace(self, **changes: Any) -> ModelConfig:
        """A copy with some fields changed."""
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as written to a checkpoint's `config.json`."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any], source: str = "config") -> ModelConfig:
        """The inverse of `to_dict`. An unknown or missing field is a `UserError` that names it and `source`."""
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(values) - known):
            raise UserError(f"{source}: unknown model field {unknown[0]!r}; known are {', '.join(sorted(known))}")
        if missing := sorted(known - set(values)):
            raise UserError(f"{source}: model field {missing[0]!r} is missing; the file is damaged, take another one")
        try:
            return cls(**values)
        except UserError as error:
            raise UserError(f"{source}: {error}") from error

"""Draft heads: guesses of the tokens behind the next one, from the trunk's last hidden state.

In the manner of Medusa-1 (2401.10774, sections 2.1.1 and 2.2.1), on a frozen model: head i turns the state that
predicts a token into the state that predicts the i-th token behind it, by one residual block, and the model's own
output head reads both. Medusa's block h + silu(W h) has an output head of its own to train; a frozen one cannot undo
that silu adds hardly anything but positive numbers, so the block here is h + V silu(W h). Heads only guess: what is
kept is decided by the model (`sample.speculative`).

Shapes: B rows, R response columns, D width, K heads, V vocabulary.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mdlm.checkpoint import FORMAT_VERSION, read_config, read_tensors, whole_folder, write_tensors
from mdlm.errors import UserError
from mdlm.objectives import Batch, cross_entropy, next_token_states
from mdlm.transformer import Transformer

HEADS_TYPE = "mdlm-draft-heads"
_TENSORS = "heads.safetensors"


class _Block(nn.Module):
    """h + V silu(W h)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.up_proj = nn.Linear(dim, dim, bias=False)
        self.down_proj = nn.Linear(dim, dim, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.down_proj(F.silu(self.up_proj(hidden)))


class DraftHeads(nn.Module):
    """K residual blocks over a trunk of width D."""

    def __init__(self, dim: int, count: int) -> None:
        super().__init__()
        if count < 1:
            raise UserError(f"heads is {count}; it must be at least 1")
        self.layers = nn.ModuleList(_Block(dim) for _ in range(count))

    def initialize(self, seed: int) -> DraftHeads:
        """W normal with variance 1 / D, V zero: new heads guess what the model predicts next."""
        generator = torch.Generator().manual_seed(seed)
        for name, weight in self.named_parameters():
            if "down_proj" in name:
                nn.init.zeros_(weight)
            else:
                drawn = torch.empty(weight.shape).normal_(std=weight.shape[1] ** -0.5, generator=generator)
                weight.data.copy_(drawn)
        return self

    def __len__(self) -> int:
        return len(self.layers)

    def forward(self, hidden: Tensor, count: int | None = None) -> Tensor:
        """States (..., K, D) for the model's output head, of the first `count` heads; `hidden` (..., D).

        Where `hidden` predicts the token at some column, state i = 0, 1, ... predicts the one i + 1 columns further.
        """
        return torch.stack([layer(hidden) for layer in list(self.layers)[:count]], dim=-2)


def heads_loss(model: Transformer, heads: DraftHeads, batch: Batch, capacity: int) -> tuple[Tensor, Tensor]:
    """The loss of heads on a frozen autoregressive model: the sum over heads, and each head's own (K,), in nats.

    Each head's is the mean −log p over the supervised tokens that have a state so far before them within the response
    or at the prompt's last column, from where decoding starts. No gradient goes into the trunk.
    """
    with torch.no_grad():
        hidden_BRD = next_token_states(model, batch)
    targets_BR, losses = batch.tokens_BL[:, batch.response_start :], []
    for ahead, state_BRD in enumerate(heads(hidden_BRD).unbind(-2), start=1):
        scored = cross_entropy(
            model,
            state_BRD[:, :-ahead],
            targets_BR[:, ahead:],
            batch.supervised_BR[:, ahead:],
            torch.ones_like(batch.noise_BR[:, ahead:]),
            capacity,
            {},
        )
        losses.append(scored.total / scored.counted.clamp(min=1))
    losses_K = torch.stack(losses)
    return losses_K.sum(), losses_K.detach()


def weights_fingerprint(model: Transformer) -> str:
    """SHA-256 (hex) of a model's weights rounded to bf16, hence the same one whether it was loaded in fp32 or bf16."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().to("cpu", torch.bfloat16).contiguous().view(torch.int16).numpy().tobytes())
    return digest.hexdigest()


def save_heads(
    folder: str | Path, heads: DraftHeads, model: Transformer, training: dict[str, Any] | None = None
) -> None:
    """Writes heads as a folder, whole or not at all: `config.json`, `heads.safetensors`, `training.json`.

    Args:
        model: what they were trained for; its fingerprint goes along.
        training: what made them.
    """
    header = {
        "model_type": HEADS_TYPE,
        "format_version": FORMAT_VERSION,
        "dim": model.config.dim,
        "heads": len(heads),
        "weights_sha256": weights_fingerprint(model),
    }
    with whole_folder(Path(folder)) as temporary:
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in heads.state_dict().items()}
        write_tensors(temporary / _TENSORS, tensors)
        (temporary / "config.json").write_text(json.dumps(header, indent=2) + "\n")
        (temporary / "training.json").write_text(json.dumps(training or {}, indent=2) + "\n")


def holds_heads(folder: str | Path) -> bool:
    """Whether a folder is one that `save_heads` wrote."""
    try:
        found = json.loads((Path(folder) / "config.json").read_text())
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and found.get("model_type") == HEADS_TYPE


def load_heads(folder: str | Path, model: Transformer) -> DraftHeads:
    """Heads for a model, in its dtype and on its device. `UserError` for those of another model or a damaged folder."""
    folder = Path(folder)
    header = read_config(folder, HEADS_TYPE)
    if header.get("weights_sha256") != weights_fingerprint(model):
        raise UserError(
            f"{folder}: these heads were trained for other weights than the model's; give the checkpoint they were "
            "trained on, or train heads for this one (python -m train.heads)"
        )
    if header.get("dim") != model.config.dim or not isinstance(header.get("heads"), int):
        raise UserError(f"{folder}/config.json: 'dim' or 'heads' is damaged; train the heads again")
    heads = DraftHeads(model.config.dim, header["heads"])
    expected = {name: tensor.shape for name, tensor in heads.state_dict().items()}
    heads.load_state_dict(read_tensors(folder / _TENSORS, expected))
    return heads.to(device=model.device, dtype=model.dtype).eval().requires_grad_(False)

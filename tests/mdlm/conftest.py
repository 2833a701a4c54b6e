"""Random Qwen3 folders as transformers writes them, and random checkpoints of our own."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from mdlm import ModelConfig, Transformer
from mdlm.tokenizer import Tokenizer

TEXTS = ["the cat sat on the mat", '{"name":"Ada","born":1815}', "é and ü"]
SMALL = {"dim": 32, "layers": 2, "heads": 2, "kv_heads": 2, "head_dim": 16, "hidden_dim": 48, "max_length": 96}


@torch.no_grad()
def spread(model: torch.nn.Module, seed: int) -> None:
    """Random weights whose logits are decided and whose norms are not all one."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        noise = torch.empty(parameter.shape).normal_(std=0.25, generator=generator)
        parameter.copy_(1 + noise if parameter.ndim < 2 else noise)


@pytest.fixture(scope="session")
def qwen_tokenizer() -> Tokenizer:
    return Tokenizer.train(TEXTS * 4, 290)


@pytest.fixture(scope="session")
def random_model(qwen_tokenizer):
    """`random_model(objective, **fields of ModelConfig)` for the tokenizer of these tests."""

    def make(objective: str = "autoregressive", seed: int = 0, **changes) -> Transformer:
        ids = {f"{role}_token_id": getattr(qwen_tokenizer, f"{role}_id") for role in ("mask", "end", "pad", "begin")}
        model = Transformer(ModelConfig(objective, qwen_tokenizer.vocab_size, **{**SMALL, **ids, **changes}))
        spread(model, seed)
        return model.eval().requires_grad_(False)

    return make


@pytest.fixture(scope="session")
def public_folder(qwen_tokenizer):
    """`public_folder(folder, ...)`: a random Qwen3 folder, written by transformers; its model and folder.

    `rows` are the rows of the vocabulary, `specials` what config.json names; further fields are those of Qwen3Config.
    """

    from transformers import Qwen3Config, Qwen3ForCausalLM  # here, for the tests beside these do without it

    def make(folder, *, rows=None, shard_size="5GB", dtype=torch.float32, **changes) -> SimpleNamespace:
        values = {
            "vocab_size": rows or qwen_tokenizer.vocab_size,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 16,
            "intermediate_size": 48,
            "max_position_embeddings": 96,
            "tie_word_embeddings": True,
            "bos_token_id": None,
            "eos_token_id": qwen_tokenizer.end_id,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
        }
        model = Qwen3ForCausalLM(Qwen3Config(**{**values, **changes}))
        spread(model, seed=3)
        model = model.to(dtype).eval()
        model.save_pretrained(folder, max_shard_size=shard_size)
        qwen_tokenizer.save(folder / "tokenizer.json")
        return SimpleNamespace(folder=folder, model=model)

    return make

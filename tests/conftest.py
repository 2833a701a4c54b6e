"""Tiny random models and batches that all tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

from mdlm.config import ModelConfig
from mdlm.objectives import Batch, blocks_in_response
from mdlm.transformer import Transformer

TINY = {"vocab_size": 12, "dim": 16, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 8, "hidden_dim": 24}
"""Eight real tokens (0 to 7), then mask 8, end 9, pad 10, begin 11."""


def _model(objective: str, seed: int = 0, *, gain: float = 20.0, **changes) -> Transformer:
    config = ModelConfig(objective, **{**TINY, "max_length": 64, "block_length": 4, **changes})
    model = Transformer(config).initialize(seed).eval().requires_grad_(False)
    for parameter in model.parameters():
        if parameter.ndim == 2:
            parameter.mul_(gain)  # the initial weights give nearly uniform logits, whose arg-max is rounding error
    return model


def _batch(
    config: ModelConfig, prompt_lengths: list[int], response_lengths: list[int], *, seed: int = 0, columns: int = 0
) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    rows, start, width = len(prompt_lengths), max(prompt_lengths), max(*response_lengths, columns)
    response_BR = torch.arange(width) < torch.tensor(response_lengths)[:, None]
    prompt_BP = torch.arange(start) >= start - torch.tensor(prompt_lengths)[:, None]
    valid_BL = torch.cat([prompt_BP, response_BR], dim=1)
    tokens_BL = torch.randint(0, config.vocab_size - 4, valid_BL.shape, generator=generator)
    return Batch(
        tokens_BL=torch.where(valid_BL, tokens_BL, config.pad_token_id),
        valid_BL=valid_BL,
        supervised_BR=response_BR,
        times_BJ=1 - torch.rand(rows, blocks_in_response(config, width), generator=generator),
        noise_BR=torch.rand(rows, width, generator=generator),
    )


PROMPTS = [[11, 1, 2, 3, 4, 5], [11, 6], [11, 7, 0, 2], [11, 3, 3]]
ENDING_SEEDS = {"autoregressive": 22, "masked_diffusion": 25, "block_diffusion": 1}


@contextmanager
def _trunk_calls(model: Transformer) -> Iterator[list[int]]:
    calls: list[int] = []
    handle = model.layers[0].register_forward_hook(lambda _module, inputs, _output: calls.append(len(inputs[0])))
    try:
        yield calls
    finally:
        handle.remove()


@pytest.fixture(scope="session")
def tiny_model() -> Callable[..., Transformer]:
    """`tiny_model(objective, seed, **config changes)`: random weights large enough for decided predictions."""
    return _model


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    """Four prompts of different lengths, each with its begin token."""
    return PROMPTS


@pytest.fixture(scope="session")
def ending_model() -> Callable[..., Transformer]:
    """`ending_model(objective, **config changes)`: of ten tokens it ends some answers to `prompts` early."""
    return lambda objective, **changes: _model(objective, ENDING_SEEDS[objective], tie_embeddings=False, **changes)


@pytest.fixture(scope="session")
def random_batch() -> Callable[..., Batch]:
    """`random_batch(config, prompt lengths, response lengths)`: real tokens, prompts padded left, responses right."""
    return _batch


@pytest.fixture(scope="session")
def trunk_calls() -> Callable:
    """`with trunk_calls(model) as calls`: one entry for each call of the trunk, its number of rows."""
    return _trunk_calls

"""Oracle 20: on a source of known entropy, autoregressive nats and the diffusion bounds come down to it from above."""

from __future__ import annotations

import math

import pytest
import torch

from evals.corpora import MarkovChain
from mdlm.config import ModelConfig
from mdlm.corruption import stratified_times
from mdlm.likelihood import autoregressive_nll, nelbo
from mdlm.objectives import Batch, LossConfig, blocks_in_response, training_loss
from mdlm.transformer import Transformer

LENGTH, ROWS = 16, 64
SHAPE = {"vocab_size": 14, "dim": 32, "layers": 2, "heads": 2, "kv_heads": 2, "head_dim": 16, "hidden_dim": 64}
BEGIN = 13
CLOSE = 0.06
"""Nats a token above the source after training."""


@pytest.fixture(scope="module")
def chain():
    return MarkovChain(seed=0)


def rows_of(chain, count, seed):
    """Windows of one run behind a begin token, (count, 1 + LENGTH), and the source's own nats of each."""
    text = chain.text(count * LENGTH, seed)
    windows = [text[start : start + LENGTH] for start in range(0, len(text), LENGTH)]
    tokens_BL = torch.tensor([[BEGIN, *map(int, window)] for window in windows])
    return tokens_BL, torch.tensor([chain.nats(window) for window in windows], dtype=torch.float64)


def trained(config, tokens_BL, steps):
    model = Transformer(config).initialize(seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(1.0, 4 * (1 - step / steps))
        generator = torch.Generator().manual_seed(step)
        chosen_BL = tokens_BL[torch.randint(len(tokens_BL), (ROWS,), generator=generator)]
        supervised_BR = torch.ones(ROWS, LENGTH, dtype=torch.bool)
        times_BJ = stratified_times((ROWS, blocks_in_response(config, LENGTH)), generator).float()
        noise_BR = torch.rand(ROWS, LENGTH, generator=generator)
        batch = Batch(chosen_BL, torch.ones_like(chosen_BL, dtype=torch.bool), supervised_BR, times_BJ, noise_BR)
        training_loss(model, batch, LossConfig(), ROWS * LENGTH)[0].backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval().requires_grad_(False)


def excess(model, tokens_BL, source_B):
    """Nats a token above the source on the same rows, and the standard error of that over rows."""
    options = {"mask_id": model.config.mask_token_id, "response_start": 1}
    if model.config.objective == "autoregressive":
        estimate = autoregressive_nll(model, tokens_BL, **options)
    else:
        estimate = nelbo(model, tokens_BL, num_samples=32, **options)
    above_B = (estimate.nats_B - source_B) / LENGTH
    return float(above_B.mean()), float(above_B.std() / math.sqrt(len(above_B)))


@pytest.mark.parametrize(
    ("objective", "block_length", "steps"),
    [("autoregressive", 16, 400), ("block_diffusion", 4, 400), ("masked_diffusion", 16, 1000)],
)
def test_the_nats_of_a_trained_model_approach_the_entropy_from_above(chain, objective, block_length, steps):
    """Never below it by more than four standard errors, on rows that were not trained on."""
    tokens_BL, _ = rows_of(chain, 20_000, seed=1)
    test_BL, source_B = rows_of(chain, 400, seed=2)
    config = ModelConfig(objective, **SHAPE, max_length=LENGTH + 1, block_length=block_length)
    way = [excess(trained(config, tokens_BL, n), test_BL, source_B) for n in (1, steps // 4, steps)]
    above = [value for value, _ in way]
    assert above[0] > 0.3
    assert above[0] > above[1] > above[2]
    assert all(value > -4 * error for value, error in way)
    assert above[2] < CLOSE

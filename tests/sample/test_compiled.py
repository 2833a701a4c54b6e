"""Compiled passes are the eager ones: one position, packed weights, weights that change, models side by side."""

import pytest
import torch

from mdlm.attention import KVCache
from mdlm.config import ModelConfig
from mdlm.cpu import compile_static
from mdlm.transformer import Transformer
from sample import AutoregressiveConfig, DenoiseConfig, decode, denoise
from sample.autoregressive import last_logits
from sample.compiled import maybe_compiled

MASK = 60
PROMPTS = [[5, 6, 7, 8, 9], [10, 11, 12]]


def model(objective="autoregressive", seed=0, dtype=torch.float32, **changes):
    shape = {"vocab_size": 64, "dim": 48, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 16, "hidden_dim": 96}
    config = ModelConfig(objective, **(shape | changes), max_length=48, block_length=4)
    made = Transformer(config).initialize(seed)
    with torch.no_grad():
        for weight in made.parameters():  # so far from zero that an arg max is no matter of rounding
            weight.mul_(4 if weight.ndim > 1 else 1)
    return made.to(dtype).eval().requires_grad_(False)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"kv_heads": 4, "tie_embeddings": False}, {"qk_norm": False, "dim": 2048}])
def test_one_compiled_position_has_the_eager_logits(changes):
    """The one-position products and attention against torch's kernels; a width of 2048 takes the four streams."""
    one = model(**changes)
    columns = torch.arange(6)
    logits = []
    for compiled in (False, True):
        cache = KVCache(one.config, 1, 12, dtype=one.dtype)
        step = maybe_compiled(last_logits, compiled, one)
        with torch.no_grad():
            for column in columns:
                tokens = torch.tensor([[7 * int(column) % 60]])
                out = step(one, tokens, column.view(1, 1), column.view(1, 1).int(), column.view(1), cache)
        logits.append(out)
    torch.testing.assert_close(*logits, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("prompts", [PROMPTS[:1], PROMPTS])
def test_compiled_decoding_follows_weights_that_change_and_keeps_models_apart(prompts):
    config = AutoregressiveConfig(max_new_tokens=12)
    compiled = AutoregressiveConfig(max_new_tokens=12, compile=True)
    first, second = model(seed=1), model(seed=2)
    for one in (first, second, first):
        assert torch.equal(decode(one, prompts, compiled).tokens_BL, decode(one, prompts, config).tokens_BL)
    before = decode(first, prompts, config).tokens_BL
    with torch.no_grad():
        for ours, other in zip(first.parameters(), model(seed=3).parameters(), strict=True):
            ours.copy_(other)
    after = decode(first, prompts, config).tokens_BL
    assert not torch.equal(before, after)
    assert torch.equal(decode(first, prompts, compiled).tokens_BL, after)


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["masked_diffusion", "block_diffusion"])
def test_compiled_denoising_is_the_eager_one(objective):
    one = model(objective, tie_embeddings=False)
    canvas_BL = torch.tensor([[5, 6, 7, *[MASK] * 12], [9, 8, 7, *[MASK] * 12]])
    made = [
        denoise(one, canvas_BL, DenoiseConfig(threshold=0.5, compile=compiled), mask_id=MASK, response_start=3)
        for compiled in (False, True)
    ]
    assert torch.equal(made[0].tokens_BL, made[1].tokens_BL)


def test_a_function_stays_compiled_for_every_size_of_a_shrinking_batch():
    """torch's own limit of eight shapes would leave the rest, and all later ones, eager without an error."""
    function = compile_static(lambda x_B: x_B + int(torch.compiler.is_compiling()), backend="eager")
    assert [int(function(torch.zeros(size)).sum()) for size in range(20, 0, -1)] == list(range(20, 0, -1))

"""Who sees whom."""

from __future__ import annotations

import pytest
import torch

from mdlm.attention import PADDING_BLOCK, KVCache, attend, block_indices, logical_positions, side_by_side, visible
from mdlm.config import ModelConfig


def config(objective, **changes):
    return ModelConfig(objective, vocab_size=12, **changes)


def validity(*rows):
    return torch.tensor([[cell != "." for cell in row] for row in rows])


def seen(config, valid_BL, response_start):
    """The mask between real positions of the first row, as text: one line a query, x where it sees a key."""
    blocks_BL = block_indices(config, valid_BL, response_start)
    mask_LS = visible(blocks_BL, blocks_BL)[0, 0]
    return ["".join("x" if cell else "-" for cell in row) for row in mask_LS[valid_BL[0]].tolist()]


def test_positions_count_from_a_rows_first_real_token():
    positions_BL = logical_positions(validity("..abc", "abcd.", "abcde"))
    assert positions_BL.tolist() == [[0, 0, 0, 1, 2], [0, 1, 2, 3, 3], [0, 1, 2, 3, 4]]


def test_autoregressive_positions_see_what_came_before():
    assert seen(config("autoregressive"), validity("abcd"), 2) == ["x---", "xx--", "xxx-", "xxxx"]


def test_masked_diffusion_positions_see_everything_but_padding():
    assert seen(config("masked_diffusion"), validity(".abc."), 2) == ["-xxx-"] * 3


def test_blocks_see_the_prompt_earlier_blocks_and_themselves():
    blocks = config("block_diffusion", block_length=2)
    assert seen(blocks, validity("ppaabbc"), 2) == ["xx-----"] * 2 + ["xxxx---"] * 2 + ["xxxxxx-"] * 2 + ["xxxxxxx"]


def test_a_causal_prompt_does_not_look_ahead():
    blocks = config("block_diffusion", block_length=2, causal_prompt=True)
    assert seen(blocks, validity("pppaab"), 3) == ["x-----", "xx----", "xxx---", "xxxxx-", "xxxxx-", "xxxxxx"]


@pytest.mark.parametrize("causal_prompt", [False, True])
def test_padding_moves_no_border_of_a_block(causal_prompt):
    blocks = config("block_diffusion", block_length=3, causal_prompt=causal_prompt)
    alone = block_indices(blocks, validity("ppppaaabbb"), 4)[0]
    padded = block_indices(blocks, validity("...ppppaaabbb.", "pppppppaaabbb."), 7)
    assert padded[0, 3:13].equal(alone)
    assert (padded[0, [0, 1, 2, 13]] == PADDING_BLOCK).all()
    assert padded[0, 7:].equal(padded[1, 7:])


def test_the_training_mask_by_hand():
    """One prompt token, blocks of two: columns p a b c | A B C, capitals noisy."""
    blocks_BL = block_indices(config("block_diffusion", block_length=2), validity("pabc"), 1)
    mask = side_by_side(blocks_BL, 1)
    assert mask.shape == (1, 1, 7, 7)
    lines = ["".join("x" if cell else "-" for cell in row) for row in mask[0, 0].tolist()]
    assert lines == ["x------", "xxx----", "xxx----", "xxxx---", "x---xx-", "x---xx-", "xxx---x"]


def test_noisy_copies_do_not_see_each_other():
    """As above with two noisy copies: columns p a b c | A B C | A B C."""
    blocks_BL = block_indices(config("block_diffusion", block_length=2), validity("pabc"), 1)
    lines = ["".join("x" if cell else "-" for cell in row) for row in side_by_side(blocks_BL, 1, 2)[0, 0].tolist()]
    clean = ["x---------", "xxx-------", "xxx-------", "xxxx------"]
    first = ["x---xx----", "x---xx----", "xxx---x---"]
    assert lines == [*clean, *first, "x------xx-", "x------xx-", "xxx------x"]


def reference_attention(q, k, v, mask):
    """Softmax of q·k / √N over visible keys, head by head in float64."""
    out = torch.empty_like(q, dtype=torch.float64)
    group = q.shape[1] // k.shape[1]
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            scores = q[b, h].double() @ k[b, h // group].double().T / q.shape[-1] ** 0.5
            scores[~mask[b, 0]] = -torch.inf
            out[b, h] = torch.softmax(scores, -1) @ v[b, h // group].double()
    return out.float()


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_attention_is_scaled_dot_product_attention(kv_heads, gradients):
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 4, 5, 8, generator=generator)
    k, v = (torch.randn(2, kv_heads, 7, 8, generator=generator) for _ in range(2))
    mask = torch.rand(2, 1, 5, 7, generator=generator) < 0.6
    mask[..., 0] = True
    with torch.set_grad_enabled(gradients):
        torch.testing.assert_close(attend(q, k, v, mask), reference_attention(q, k, v, mask), rtol=0, atol=1e-5)
        everything = torch.ones_like(mask)
        torch.testing.assert_close(attend(q, k, v, None), attend(q, k, v, everything), rtol=0, atol=1e-6)


def test_rotary_positions_make_attention_depend_on_distances_alone(tiny_model):
    model = tiny_model("masked_diffusion")
    tokens_BL = torch.tensor([[1, 5, 3, 2]])
    near = model.hidden(tokens_BL, torch.tensor([[0, 1, 3, 7]]), None)
    far = model.hidden(tokens_BL, torch.tensor([[20, 21, 23, 27]]), None)
    other = model.hidden(tokens_BL, torch.tensor([[0, 1, 3, 8]]), None)
    torch.testing.assert_close(near, far, rtol=0, atol=1e-4)
    assert (near - other).abs().max() > 1e-2


def test_a_fresh_cache_shows_nothing():
    cache = KVCache(config("block_diffusion"), rows=2, columns=5, dtype=torch.float32)
    assert cache.exact
    assert cache.columns == 5
    assert not visible(torch.tensor([[3], [0]]), cache.blocks_BS).any()

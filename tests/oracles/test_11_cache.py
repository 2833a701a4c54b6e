"""Oracle 11, and 18 for the autoregressive twin: an exact cache, the training mask and a plain pass over the row give
the same logits."""

from __future__ import annotations

import pytest
import torch

from mdlm.attention import KVCache, block_indices, logical_positions, side_by_side
from mdlm.config import OBJECTIVES

CLOSE = {"rtol": 0, "atol": 1e-5}
PROMPTS, RESPONSE = [5, 3, 1], 10


def noisy_copy(batch, mask_id, seed=1):
    """The response with about half of its tokens masked, at least one in every row."""
    clean_BR = batch.tokens_BL[:, batch.response_start :]
    masked_BR = torch.rand(clean_BR.shape, generator=torch.Generator().manual_seed(seed)) < 0.5
    masked_BR[:, -1] = True
    return torch.where(masked_BR, mask_id, clean_BR)


def training_mask_logits(model, batch, noisy_BR):
    """Logits of the noisy half from the one pass that block diffusion trains with."""
    start, positions_BL = batch.response_start, logical_positions(batch.valid_BL)
    hidden = model.hidden(
        torch.cat([batch.tokens_BL, noisy_BR], dim=1),
        torch.cat([positions_BL, positions_BL[:, start:]], dim=1),
        side_by_side(block_indices(model.config, batch.valid_BL, start), start),
    )
    return model.head(hidden[:, batch.tokens_BL.shape[1] :])


class Columns:
    """Cached passes over ranges of columns of one batch."""

    def __init__(self, model, batch):
        self.model, valid_BL = model, batch.valid_BL
        self.positions_BL = logical_positions(valid_BL)
        self.blocks_BL = block_indices(model.config, valid_BL, batch.response_start)
        self.cache = KVCache(model.config, *valid_BL.shape, dtype=torch.float32)

    @torch.no_grad()
    def logits(self, tokens_BG, start):
        stop = start + tokens_BG.shape[1]
        window = slice(start, stop)
        columns_G = torch.arange(start, stop)
        hidden = self.model.step(
            tokens_BG, self.positions_BL[:, window], self.blocks_BL[:, window], columns_G, self.cache
        )
        return self.model.head(hidden)


@pytest.mark.parametrize("causal_prompt", [False, True])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("block_length", [1, 3, 4, 10, 16])
def test_cached_blocks_give_the_training_masks_logits(tiny_model, random_batch, block_length, kv_heads, causal_prompt):
    changes = {"block_length": block_length, "kv_heads": kv_heads, "causal_prompt": causal_prompt}
    model = tiny_model("block_diffusion", **changes)
    batch = random_batch(model.config, PROMPTS, [RESPONSE] * 3)
    noisy_BR = noisy_copy(batch, model.config.mask_token_id)
    wanted_BRV = training_mask_logits(model, batch, noisy_BR)
    first, cached = batch.response_start, Columns(model, batch)
    cached.logits(batch.tokens_BL[:, :first], 0)
    for start in range(0, RESPONSE, block_length):
        stop = min(start + block_length, RESPONSE)
        clean_BG = batch.tokens_BL[:, first + start : first + stop]
        # What the block held before, nearer to clean or quite another guess, leaves nothing behind.
        cached.logits(clean_BG.flip(0), first + start)
        logits_BGV = cached.logits(noisy_BR[:, start:stop], first + start)
        torch.testing.assert_close(logits_BGV, wanted_BRV[:, start:stop], **CLOSE)
        cached.logits(clean_BG, first + start)


@pytest.mark.parametrize("causal_prompt", [False, True])
@pytest.mark.parametrize("block_length", [1, 3, 16])
def test_the_training_mask_gives_the_logits_of_a_plain_pass(tiny_model, random_batch, block_length, causal_prompt):
    model = tiny_model("block_diffusion", block_length=block_length, causal_prompt=causal_prompt)
    batch = random_batch(model.config, PROMPTS, [RESPONSE] * 3)
    noisy_BR = noisy_copy(batch, model.config.mask_token_id)
    wanted_BRV, first = training_mask_logits(model, batch, noisy_BR), batch.response_start
    for start in range(0, RESPONSE, block_length):
        columns = slice(first + start, first + start + block_length)
        tokens_BL = batch.tokens_BL.clone()
        tokens_BL[:, columns] = noisy_BR[:, start : start + block_length]
        logits_BLV = model(tokens_BL, batch.valid_BL, first)  # later blocks hold clean tokens: nobody may see them
        torch.testing.assert_close(logits_BLV[:, columns], wanted_BRV[:, start : start + block_length], **CLOSE)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("chunk", [1, 2, 7])
def test_the_causal_cache_gives_the_logits_of_a_plain_pass(tiny_model, random_batch, kv_heads, chunk):
    model = tiny_model("autoregressive", kv_heads=kv_heads)
    batch = random_batch(model.config, PROMPTS, [RESPONSE] * 3)
    wanted_BLV, cached = model(batch.tokens_BL, batch.valid_BL, batch.response_start), Columns(model, batch)
    for start in range(0, wanted_BLV.shape[1], chunk):
        logits_BGV = cached.logits(batch.tokens_BL[:, start : start + chunk], start)
        real_BG = batch.valid_BL[:, start : start + chunk]
        torch.testing.assert_close(logits_BGV[real_BG], wanted_BLV[:, start : start + chunk][real_BG], **CLOSE)


def test_dropping_rows_of_a_cache_leaves_the_others_as_they_were(tiny_model, random_batch):
    model = tiny_model("block_diffusion")
    batch = random_batch(model.config, PROMPTS, [RESPONSE] * 3)
    first, cached, smaller = batch.response_start, Columns(model, batch), Columns(model, batch)
    window_BG = batch.tokens_BL[:, first : first + 4]
    for columns in (cached, smaller):
        columns.logits(batch.tokens_BL[:, :first], 0)
    keep = torch.tensor([2, 0])
    smaller.cache.keep_rows(keep)
    smaller.positions_BL, smaller.blocks_BL = smaller.positions_BL[keep], smaller.blocks_BL[keep]
    torch.testing.assert_close(smaller.logits(window_BG[keep], first), cached.logits(window_BG, first)[keep], **CLOSE)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_training_and_inference_attention_agree(tiny_model, random_batch, objective):
    """With gradients a CPU goes through plain matrix products, without them through torch's kernel."""
    model = tiny_model(objective)
    batch = random_batch(model.config, PROMPTS, [7, 4, 6])
    arguments = (batch.tokens_BL, batch.valid_BL, batch.response_start)
    with torch.no_grad():
        inference_BLV = model(*arguments)
    training_BLV = model(*arguments)
    torch.testing.assert_close(training_BLV[batch.valid_BL], inference_BLV[batch.valid_BL], **CLOSE)

"""Oracle 17: padding on either side changes no real token's logits and no row's nats; nor do the rows beside it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from mdlm.config import OBJECTIVES
from mdlm.likelihood import autoregressive_nll, deterministic_order_nll, exact_nelbo, nelbo, order_nll

CLOSE = {"rtol": 0, "atol": 1e-5}
NATS_CLOSE = {"rtol": 1e-5, "atol": 1e-5}
DIFFUSION = [("masked_diffusion", None), ("masked_diffusion", 3), ("block_diffusion", None)]
PADDINGS = [(1, 0), (6, 0), (0, 5), (3, 2)]
PROMPT, RESPONSE = 5, 7

DRAWING = {
    "nelbo": lambda *row, **options: nelbo(*row, num_samples=16, seed=1, **options),
    "nelbo linear": lambda *row, **options: nelbo(*row, num_samples=16, schedule="linear", seed=1, **options),
    "random order": lambda *row, **options: order_nll(*row, "random", seed=1, **options),
}
LIKELIHOODS = {
    **DRAWING,
    "left to right": lambda *row, **options: order_nll(*row, "left_to_right", **options),
    "by confidence": lambda *row, **options: deterministic_order_nll(*row, "confidence", **options),
    "by entropy": lambda *row, **options: deterministic_order_nll(*row, "entropy", **options),
}


@pytest.fixture(params=LIKELIHOODS.values(), ids=LIKELIHOODS)
def likelihood(request):
    return request.param


@pytest.fixture(params=DIFFUSION, ids=lambda case: f"{case[0]} in blocks of {case[1]}")
def denoiser(request, tiny_model):
    """A model, and the options that name its mask and its blocks."""
    objective, block_length = request.param
    model = tiny_model(objective)
    return model, {"mask_id": model.config.mask_token_id, "block_length": block_length}


def padded(batch, left, right, pad):
    """Rows and what is valid in them, with columns of padding added."""
    return F.pad(batch.tokens_BL, (left, right), value=pad), F.pad(batch.valid_BL, (left, right), value=False)


# Logits


@pytest.mark.parametrize("causal_prompt", [False, True])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_padding_on_either_side_changes_no_real_tokens_logits(tiny_model, random_batch, objective, causal_prompt):
    model = tiny_model(objective, causal_prompt=causal_prompt)
    pad = model.config.pad_token_id
    batch = random_batch(model.config, [5, 5], [7, 7])
    plain_BLV = model(batch.tokens_BL, batch.valid_BL, 5)
    assert batch.valid_BL.all()
    for left, right in [(1, 0), (6, 0), (0, 5), (3, 2)]:
        tokens_BL = torch.nn.functional.pad(batch.tokens_BL, (left, right), value=pad)
        valid_BL = torch.nn.functional.pad(batch.valid_BL, (left, right), value=False)
        padded_BLV = model(tokens_BL, valid_BL, left + 5)
        torch.testing.assert_close(padded_BLV[:, left : left + 12], plain_BLV, **CLOSE)
        assert padded_BLV.isfinite().all()


# Likelihoods


@pytest.mark.parametrize(("left", "right"), PADDINGS)
def test_padding_on_either_side_changes_no_rows_nats(denoiser, likelihood, random_batch, left, right):
    model, options = denoiser
    batch = random_batch(model.config, [PROMPT, 2, 3], [RESPONSE, 4, 6])
    plain = likelihood(model, batch.tokens_BL, valid_BL=batch.valid_BL, response_start=PROMPT, **options)
    tokens_BL, valid_BL = padded(batch, left, right, model.config.pad_token_id)
    more = likelihood(model, tokens_BL, valid_BL=valid_BL, response_start=left + PROMPT, **options)
    torch.testing.assert_close(more.nats_B, plain.nats_B, **NATS_CLOSE)
    assert more.tokens_B.tolist() == plain.tokens_B.tolist() == [RESPONSE, 4, 6]
    assert (plain.nats_B > 0).all()


@pytest.mark.parametrize(("left", "right"), PADDINGS)
def test_padding_moves_a_given_order_along(denoiser, random_batch, left, right):
    model, options = denoiser
    batch = random_batch(model.config, [PROMPT], [RESPONSE])
    # Block after block, where there are blocks, each from its right end.
    width = options["block_length"] or 4
    response = [c for start in range(0, RESPONSE, width) for c in reversed(range(RESPONSE)[start : start + width])]
    order_L = torch.tensor([*range(PROMPT), *(PROMPT + column for column in response)])
    tokens_BL, valid_BL = padded(batch, left, right, model.config.pad_token_id)
    outer = [*range(left), *range(left + len(order_L), tokens_BL.shape[1])]
    moved_L = torch.cat([torch.tensor(outer, dtype=torch.long), left + order_L])
    plain = order_nll(model, batch.tokens_BL, order_L, response_start=PROMPT, **options)
    more = order_nll(model, tokens_BL, moved_L, valid_BL=valid_BL, response_start=left + PROMPT, **options)
    torch.testing.assert_close(more.nats_B, plain.nats_B, **NATS_CLOSE)


@pytest.mark.parametrize(("left", "right"), PADDINGS)
def test_padding_changes_no_enumerated_bound(denoiser, random_batch, left, right):
    model, options = denoiser
    batch = random_batch(model.config, [PROMPT], [RESPONSE])
    plain = exact_nelbo(model, batch.tokens_BL[0], response_start=PROMPT, **options)
    tokens_BL, valid_BL = padded(batch, left, right, model.config.pad_token_id)
    more = exact_nelbo(model, tokens_BL[0], valid_L=valid_BL[0], response_start=left + PROMPT, **options)
    torch.testing.assert_close(more.nats_B, plain.nats_B, **NATS_CLOSE)


@pytest.mark.parametrize(("left", "right"), PADDINGS)
def test_padding_changes_no_autoregressive_nats(tiny_model, random_batch, left, right):
    model = tiny_model("autoregressive")
    batch = random_batch(model.config, [PROMPT, 2, 3], [RESPONSE, 4, 6])
    options = {"mask_id": model.config.mask_token_id}
    plain = autoregressive_nll(model, batch.tokens_BL, valid_BL=batch.valid_BL, response_start=PROMPT, **options)
    tokens_BL, valid_BL = padded(batch, left, right, model.config.pad_token_id)
    more = autoregressive_nll(model, tokens_BL, valid_BL=valid_BL, response_start=left + PROMPT, **options)
    torch.testing.assert_close(more.nats_B, plain.nats_B, **NATS_CLOSE)
    assert more.tokens_B.tolist() == [RESPONSE, 4, 6]


def test_a_row_alone_without_padding_has_the_nats_it_has_in_a_batch(denoiser, likelihood, random_batch):
    """Prompts and responses of several lengths; `first_row` says which row it was."""
    model, options = denoiser
    prompts, responses = [PROMPT, 2, 3], [RESPONSE, 4, 6]
    batch = random_batch(model.config, prompts, responses)
    together = likelihood(model, batch.tokens_BL, valid_BL=batch.valid_BL, response_start=PROMPT, **options)
    for row, prompt in enumerate(prompts):
        alone_BL = batch.tokens_BL[row : row + 1, batch.valid_BL[row]]
        first_row = {"first_row": row} if likelihood in DRAWING.values() else {}
        alone = likelihood(model, alone_BL, response_start=prompt, **options, **first_row)
        torch.testing.assert_close(alone.nats_B, together.nats_B[row : row + 1], **NATS_CLOSE)


@pytest.mark.parametrize("sizes", [[1, 1, 1, 1], [3, 1], [2, 2]], ids=str)
def test_rows_in_several_batches_have_the_nats_they_have_in_one(denoiser, likelihood, random_batch, sizes):
    model, options = denoiser
    rows_BL = random_batch(model.config, [PROMPT] * 4, [RESPONSE] * 4).tokens_BL
    together = likelihood(model, rows_BL, response_start=PROMPT, **options)
    parts, first = [], 0
    for part_BL in rows_BL.split(sizes):
        first_row = {"first_row": first} if likelihood in DRAWING.values() else {}
        parts.append(likelihood(model, part_BL, response_start=PROMPT, **options, **first_row).nats_B)
        first += len(part_BL)
    torch.testing.assert_close(torch.cat(parts), together.nats_B, **NATS_CLOSE)


def test_what_padding_holds_does_not_matter(denoiser, likelihood, random_batch):
    """Not even a mask."""
    model, options = denoiser
    batch = random_batch(model.config, [PROMPT, 2, 3], [RESPONSE, 4, 6])
    options = {**options, "valid_BL": batch.valid_BL, "response_start": PROMPT}
    plain = likelihood(model, batch.tokens_BL, **options)
    for token in (0, model.config.mask_token_id):
        other_BL = torch.where(batch.valid_BL, batch.tokens_BL, token)
        torch.testing.assert_close(likelihood(model, other_BL, **options).nats_B, plain.nats_B, rtol=0, atol=0)

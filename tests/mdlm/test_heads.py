"""Draft heads: what they start as, what they are trained on, and for whose weights they are."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F

from mdlm.checkpoint import write_tensors
from mdlm.errors import UserError
from mdlm.heads import DraftHeads, heads_loss, holds_heads, load_heads, save_heads, weights_fingerprint


def drawn(model, count=3):
    heads = DraftHeads(model.config.dim, count)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in heads.parameters():
            weight.normal_(generator=generator)
    return heads


def test_new_heads_guess_what_the_model_predicts_next(tiny_model):
    model, tokens_BL = tiny_model("autoregressive"), torch.tensor([[11, 1, 2, 3]])
    hidden_BLD = model.hidden(tokens_BL, torch.arange(4)[None], None)
    states_BLKD = DraftHeads(model.config.dim, 3).initialize(0)(hidden_BLD)
    assert states_BLKD.shape == (1, 4, 3, model.config.dim)
    assert all(state_BLD.equal(hidden_BLD) for state_BLD in states_BLKD.unbind(-2))


def test_the_loss_is_that_of_the_answers_tokens_so_many_ahead(tiny_model, random_batch):
    """Recomputed row by row and head by head; what the prompt and the padding hold as targets plays no part."""
    model = tiny_model("autoregressive", gain=5.0)
    heads, batch = drawn(model), random_batch(model.config, [5, 2, 3], [6, 1, 4])
    loss, losses_K = heads_loss(model, heads, batch, capacity=100)
    wanted = []
    for index, layer in enumerate(heads.layers):
        terms = []
        for row, (prompt, response) in enumerate(((5, 6), (2, 1), (3, 4))):
            tokens_L = batch.tokens_BL[row][batch.valid_BL[row]]
            causal = torch.ones(len(tokens_L), len(tokens_L), dtype=torch.bool).tril()[None, None]
            hidden_LD = model.hidden(tokens_L[None], torch.arange(len(tokens_L))[None], causal)[0]
            logits_LV = model.head(hidden_LD + F.silu(hidden_LD @ layer.up_proj.weight.T) @ layer.down_proj.weight.T)
            logits_LV[:, model.config.mask_token_id] = -torch.inf
            for target in range(prompt + index + 1, prompt + response):
                terms.append(F.cross_entropy(logits_LV[target - 2 - index], tokens_L[target]))
        wanted.append(torch.stack(terms).mean())
    torch.testing.assert_close(losses_K, torch.stack(wanted), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(loss, sum(wanted), rtol=1e-5, atol=1e-5)


def test_no_gradient_goes_into_the_trunk(tiny_model, random_batch):
    model = tiny_model("autoregressive").requires_grad_(True)
    heads = drawn(model)
    heads_loss(model, heads, random_batch(model.config, [3], [6]), capacity=10)[0].backward()
    assert all(weight.grad is not None and weight.grad.any() for weight in heads.parameters())
    assert all(weight.grad is None for weight in [*model.layers.parameters(), *model.norm.parameters()])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_folder_gives_the_same_heads_back_in_the_models_dtype(tiny_model, tmp_path, dtype):
    model = tiny_model("autoregressive")
    heads = drawn(model)
    save_heads(tmp_path / "heads", heads, model, {"steps": 3})
    assert holds_heads(tmp_path / "heads")
    again = load_heads(tmp_path / "heads", tiny_model("autoregressive").to(dtype))
    for one, two in zip(heads.parameters(), again.parameters(), strict=True):
        assert two.dtype == dtype
        assert two.equal(one.detach().to(dtype))
        assert not two.requires_grad


def test_the_fingerprint_is_of_the_weights_and_not_of_their_dtype(tiny_model):
    model = tiny_model("autoregressive")
    fingerprint = weights_fingerprint(model)
    assert weights_fingerprint(tiny_model("autoregressive").to(torch.bfloat16)) == fingerprint
    model.layers[1].mlp.up_proj.weight[3, 2] += 1
    assert weights_fingerprint(model) != fingerprint


def test_heads_of_another_twin_are_refused(tiny_model, tmp_path):
    model = tiny_model("autoregressive")
    save_heads(tmp_path / "heads", drawn(model), model)
    with pytest.raises(UserError, match="other weights"):
        load_heads(tmp_path / "heads", tiny_model("autoregressive", seed=1))


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda folder: (folder / "heads.safetensors").unlink(), "heads.safetensors is missing"),
        (lambda folder: (folder / "heads.safetensors").write_bytes(b"x"), "cannot be read"),
        (lambda folder: write_tensors(folder / "heads.safetensors", {"other": torch.ones(1)}), "is missing"),
        (lambda folder: change(folder, heads=4), "layers.3.down_proj.weight is missing"),
        (lambda folder: change(folder, heads="three"), "'heads' is damaged"),
        (lambda folder: change(folder, dim=3), "'dim'"),
        (lambda folder: change(folder, model_type="mdlm"), "another kind"),
        (lambda folder: change(folder, format_version=9), "format_version"),
        (lambda folder: (folder / "config.json").write_text("{"), "not valid JSON"),
        (lambda folder: (folder / "config.json").unlink(), "no config.json"),
    ],
)
def test_a_damaged_folder_is_refused_by_name(tiny_model, tmp_path, damage, named):
    model, folder = tiny_model("autoregressive"), tmp_path / "heads"
    save_heads(folder, drawn(model), model)
    damage(folder)
    with pytest.raises(UserError, match=named):
        load_heads(folder, model)


def change(folder, **entries):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


def test_there_is_at_least_one_head():
    with pytest.raises(UserError, match="at least 1"):
        DraftHeads(16, 0)

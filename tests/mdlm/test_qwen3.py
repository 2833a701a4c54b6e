"""A Qwen3 folder that transformers wrote, in our trunk: the same logits, and one line for whatever does not fit."""

from __future__ import annotations

import json
import shutil

import pytest
import tokenizers
import torch
from safetensors.torch import load_file, save_file
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer

from mdlm import UserError
from mdlm.qwen3 import load_qwen3

PUBLIC_SHAPES = {
    "tied": {},
    "untied": {"tie_word_embeddings": False},
    "grouped heads": {"num_attention_heads": 6, "num_key_value_heads": 2},
    "wide heads": {"head_dim": 24},
    "no grouping": {"num_key_value_heads": 2, "rms_norm_eps": 1e-5},
}


@pytest.fixture(scope="module")
def written(public_folder, tmp_path_factory):
    return public_folder(tmp_path_factory.mktemp("public") / "qwen3").folder


@pytest.fixture
def folder(written, tmp_path):
    """A copy that may be damaged."""
    return shutil.copytree(written, tmp_path / "qwen3")


def tokens(model, columns=40):
    return torch.randint(0, model.config.vocab_size, (2, columns), generator=torch.Generator().manual_seed(1))


def refusal(folder, **options) -> str:
    with pytest.raises(UserError) as refused:
        load_qwen3(folder, **options)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def edit(path, **changes) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("shard_size", ["5GB", "8KB"])
@pytest.mark.parametrize("shape", PUBLIC_SHAPES)
@torch.no_grad()
def test_logits_are_those_of_transformers(public_folder, tmp_path, shape, shard_size):
    public = public_folder(tmp_path / "qwen3", shard_size=shard_size, **PUBLIC_SHAPES[shape])
    assert (len(list(public.folder.glob("*.safetensors"))) > 1) == (shard_size == "8KB")
    model, _ = load_qwen3(public.folder)
    tokens_BL = tokens(public.model)
    theirs_BLV = public.model(tokens_BL).logits
    assert theirs_BLV.std() > 0.5, "decided logits, or equality says little"
    torch.testing.assert_close(model(tokens_BL)[..., : theirs_BLV.shape[-1]], theirs_BLV, atol=1e-4, rtol=0)


@torch.no_grad()
def test_logits_far_along_a_row_are_those_of_transformers(public_folder, tmp_path):
    public = public_folder(tmp_path / "qwen3", max_position_embeddings=40_960)
    model, _ = load_qwen3(public.folder)
    tokens_BL = tokens(public.model, 64)
    starts = torch.tensor([[4_096], [40_896]])
    positions_BL = starts + torch.arange(64)
    causal_BLS = torch.ones(64, 64, dtype=torch.bool).tril().expand(2, 1, 64, 64)
    ours_BLV = model.head(model.hidden(tokens_BL, positions_BL, causal_BLS))
    theirs_BLV = public.model(tokens_BL, position_ids=positions_BL).logits
    torch.testing.assert_close(ours_BLV[..., : theirs_BLV.shape[-1]], theirs_BLV, atol=1e-4, rtol=0)


@torch.no_grad()
def test_logits_of_a_long_row_are_those_of_transformers(public_folder, tmp_path):
    public = public_folder(tmp_path / "qwen3", max_position_embeddings=4_200, num_hidden_layers=1)
    tokens_BL = tokens(public.model, 4_200)[:1]
    theirs_BLV = public.model(tokens_BL).logits
    ours_BLV = load_qwen3(public.folder)[0](tokens_BL)
    torch.testing.assert_close(ours_BLV[..., : theirs_BLV.shape[-1]], theirs_BLV, atol=1e-4, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights_come_in_unchanged(public_folder, tmp_path, dtype):
    public = public_folder(tmp_path / "qwen3", dtype=dtype)
    model, _ = load_qwen3(public.folder)
    theirs = public.model.model.layers[1].mlp.up_proj.weight
    assert model.dtype == torch.float32
    assert model.layers[1].mlp.up_proj.weight.equal(theirs.float())
    assert load_qwen3(public.folder, dtype=dtype)[0].layers[1].mlp.up_proj.weight.equal(theirs)


@pytest.fixture
def unnamed(folder):
    """A folder without a mask, begin or pad token, as the public ones."""
    content = json.loads((folder / "tokenizer.json").read_text())
    kept = [token for token in content["added_tokens"] if token["content"] == "<|end|>"]
    vocab = [name for name in content["model"]["vocab"] if name not in ("<|mask|>", "<|pad|>", "<|begin|>")]
    content["added_tokens"] = [kept[0] | {"id": vocab.index("<|end|>")}]
    content["model"]["vocab"] = {name: number for number, name in enumerate(vocab)}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    edit(folder / "config.json", eos_token_id=vocab.index("<|end|>"))
    return folder, len(vocab)


def test_a_mask_token_takes_a_row_that_no_token_uses(unnamed):
    folder, used = unnamed
    model, tokenizer = load_qwen3(folder, "masked_diffusion")
    rows_VD = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    assert {tokenizer.mask_id, tokenizer.pad_id, tokenizer.begin_id} == {used, used + 1, used + 2}
    assert model.config.mask_token_id == tokenizer.mask_id
    assert model.embed_tokens.weight.equal(rows_VD[: used + 3])


@pytest.mark.parametrize("tied", [True, False])
@torch.no_grad()
def test_a_mask_token_without_a_row_gets_the_mean_of_all(unnamed, public_folder, tmp_path, tied):
    folder, used = unnamed
    public = public_folder(tmp_path / "tight", rows=used, tie_word_embeddings=tied, eos_token_id=0)
    shutil.copy(folder / "tokenizer.json", public.folder)
    edit(public.folder / "config.json", eos_token_id=json.loads((folder / "config.json").read_text())["eos_token_id"])
    model, tokenizer = load_qwen3(public.folder, "masked_diffusion")
    theirs_VD = public.model.get_input_embeddings().weight
    assert tokenizer.mask_id >= used
    assert model.embed_tokens.weight[:used].equal(theirs_VD)
    torch.testing.assert_close(model.embed_tokens.weight[tokenizer.mask_id], theirs_VD.mean(0))
    logits_BLV = load_qwen3(public.folder)[0](tokens(public.model))
    assert (logits_BLV.argmax(-1) < used).all()


def test_rows_behind_the_last_token_are_left_out(public_folder, qwen_tokenizer, tmp_path):
    public = public_folder(tmp_path / "qwen3", rows=qwen_tokenizer.vocab_size + 30)
    model, tokenizer = load_qwen3(public.folder)
    assert model.config.vocab_size == tokenizer.vocab_size == qwen_tokenizer.vocab_size
    tokens_BL = tokens(model)
    theirs_BLV = public.model(tokens_BL).logits[..., : tokenizer.vocab_size]
    torch.testing.assert_close(model(tokens_BL), theirs_BLV, atol=1e-4, rtol=0)


def public_tokenizer(path) -> None:
    """A tokenizer.json with the parts that Qwen's has: NFC, digits alone, named special tokens, offsets trimmed."""
    inner = tokenizers.Tokenizer(models.BPE())
    inner.normalizer = normalizers.NFC()
    digits = pre_tokenizers.Split(tokenizers.Regex(r"\p{N}| ?\p{L}+|\s+"), behavior="isolated")
    inner.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(False, use_regex=False)])
    inner.decoder, inner.post_processor = decoders.ByteLevel(), processors.ByteLevel(trim_offsets=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=270, initial_alphabet=alphabet, show_progress=False)
    inner.train_from_iterator(["the cat sat on the mat"] * 4, trainer)
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    inner.add_special_tokens([tokenizers.AddedToken(name, special=True, normalized=False) for name in names])
    inner.save(str(path))


@pytest.mark.parametrize("end", ["<|im_end|>", "<|endoftext|>"])
def test_a_tokenizer_as_public_models_have_it_gives_the_same_ids(public_folder, tmp_path, end):
    folder = public_folder(tmp_path / "qwen3", rows=300).folder
    public_tokenizer(folder / "tokenizer.json")
    inner = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    edit(folder / "config.json", eos_token_id=inner.token_to_id(end), bos_token_id=inner.token_to_id("<|endoftext|>"))
    named = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end, "pad_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    _, ours = load_qwen3(folder, "masked_diffusion")
    theirs = AutoTokenizer.from_pretrained(folder)
    for text in ("the cat 123", "é e\u0301", ""):
        assert ours.encode(text) == theirs.encode(text)
    begin = "<|endoftext|>" if end == "<|im_end|>" else "<|begin|>"
    assert ours.specials == {"mask": "<|mask|>", "end": end, "pad": "<|pad|>", "begin": begin}


@pytest.mark.parametrize("mask", ["<|pad|>", "id"])
def test_special_tokens_may_be_named(folder, qwen_tokenizer, mask):
    specials = {"mask": qwen_tokenizer.pad_id if mask == "id" else mask, "pad": "<|mask|>"}
    tokenizer = load_qwen3(folder, specials=specials)[1]
    assert tokenizer.mask_id == qwen_tokenizer.pad_id
    assert tokenizer.pad_id == qwen_tokenizer.mask_id


def test_the_longest_row_may_be_shortened(folder):
    assert load_qwen3(folder, max_length=20)[0].config.max_length == 20
    assert "max_position_embeddings" in refusal(folder, max_length=97)
    assert "max_length" in refusal(folder, max_length=0)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "llama"}, ["model_type", "llama"]),
        ({"auto_map": {"AutoModel": "code.Model"}}, ["auto_map"]),
        ({"quantization_config": {"bits": 4}}, ["quantization_config"]),
        ({"attention_bias": True}, ["attention_bias"]),
        ({"use_sliding_window": True, "sliding_window": 8}, ["use_sliding_window"]),
        ({"layer_types": ["full_attention", "sliding_attention"]}, ["layer_types", "sliding_attention"]),
        ({"hidden_act": "gelu"}, ["hidden_act", "gelu"]),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, ["rope_scaling", "yarn"]),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, ["rope_scaling", "linear"]),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "factor": 2}}, ["rope_parameters", "factor"]),
        ({"rope_parameters": "yarn"}, ["rope_parameters", "yarn"]),
        ({"rope_theta": 5.0}, ["rope_theta", "5.0", "1000000.0"]),
        ({"rope_parameters": None}, ["rope_theta", "missing"]),
        ({"hidden_size": None}, ["hidden_size", "None"]),
        ({"num_key_value_heads": 0}, ["num_key_value_heads", "0"]),
        ({"num_key_value_heads": 3}, ["config.json", "kv_heads"]),
        ({"eos_token_id": 100_000}, ["eos_token_id", "100000"]),
        ({"vocab_size": 100}, ["tokenizer.json", "100 rows"]),
        ({"hidden_size": 64}, ["model.", "shape", "64"]),
        ({"num_hidden_layers": 3}, ["model.layers.2", "missing"]),
        ({"num_hidden_layers": 1}, ["model.layers.1", "unexpected"]),
        ({"tie_word_embeddings": False}, ["lm_head.weight", "missing"]),
    ],
)
def test_a_config_that_the_trunk_cannot_follow_is_refused_by_name(folder, changes, named):
    edit(folder / "config.json", **changes)
    message = refusal(folder)
    assert str(folder) in message
    assert all(word in message for word in named), message


def test_a_window_that_is_not_in_use_is_no_obstacle(folder):
    edit(folder / "config.json", use_sliding_window=False, sliding_window=4096, max_window_layers=2)
    load_qwen3(folder)


def change_tensors(folder, change):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda t: t.pop("model.norm.weight"), ["model.norm.weight", "missing"]),
        (lambda t: t.update({"model.bias": torch.zeros(2)}), ["model.bias", "unexpected"]),
        (lambda t: t.update({"model.norm.weight": torch.zeros(2)}), ["model.norm.weight", "(2,)", "(32,)"]),
        (lambda t: t.update({"model.norm.weight": torch.zeros(32).long()}), ["model.norm.weight", "I64"]),
        (lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"] + 1}), ["lm_head.weight", "ties"]),
    ],
)
def test_tensors_that_do_not_fit_are_named(folder, change, named):
    change_tensors(folder, change)
    message = refusal(folder)
    assert all(word in message for word in named), message


def test_a_tied_head_may_be_held_twice(folder):
    change_tensors(folder, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))
    assert load_qwen3(folder)[0].lm_head is None


@pytest.mark.parametrize("kept", [0, 7, 0.5, 0.99])
def test_a_truncated_file_is_named(folder, kept):
    path = folder / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content)) if isinstance(kept, float) else kept])
    assert "truncated" in refusal(folder)


def test_pickled_weights_are_never_read(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "pickled" in refusal(folder)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    assert name in refusal(folder)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
@pytest.mark.parametrize("content", ["", "{", "[]"])
def test_a_broken_file_is_named(folder, name, content):
    (folder / name).write_text(content)
    assert name in refusal(folder)


def test_a_missing_folder_is_named(tmp_path):
    assert "no such folder" in refusal(tmp_path / "gone")


@pytest.fixture
def sharded(public_folder, tmp_path):
    return public_folder(tmp_path / "shards", shard_size="8KB").folder


def test_a_missing_shard_is_named(sharded):
    shard = sorted(sharded.glob("*.safetensors"))[1]
    shard.unlink()
    assert shard.name in refusal(sharded)


@pytest.mark.parametrize("shard", ["../model.safetensors", "/etc/passwd"])
def test_an_index_may_not_lead_out_of_its_folder(sharded, shard):
    edit(sharded / "model.safetensors.index.json", weight_map={"model.norm.weight": shard})
    assert shard in refusal(sharded)


@pytest.mark.parametrize("weight_map", [None, [], {}, {"model.norm.weight": 1}])
def test_a_broken_index_is_named(sharded, weight_map):
    edit(sharded / "model.safetensors.index.json", weight_map=weight_map)
    assert "weight_map" in refusal(sharded)

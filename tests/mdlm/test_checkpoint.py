"""A checkpoint folder: what is written comes back bit for bit, and any damage is named in one line."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from mdlm import ModelConfig, Transformer, UserError, load_checkpoint, save_checkpoint
from mdlm.checkpoint import checkpoints_in, read_header, resolve_checkpoint, whole_folder
from mdlm.config import OBJECTIVES
from mdlm.tokenizer import Tokenizer

SHAPE = {"dim": 16, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 8, "hidden_dim": 24, "max_length": 32}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train([], 260)


def make(tokenizer, objective="masked_diffusion", **changes) -> Transformer:
    roles = {f"{role}_token_id": getattr(tokenizer, f"{role}_id") for role in ("mask", "end", "pad", "begin")}
    config = ModelConfig(objective, vocab_size=tokenizer.vocab_size, **{**SHAPE, **roles, **changes})
    return Transformer(config).initialize(seed=1)


@pytest.fixture(scope="module")
def written(tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("written") / "checkpoint"
    save_checkpoint(folder, make(tokenizer, tie_embeddings=False), tokenizer, {"tokens_seen": 7, "commit": "abc"})
    return folder


@pytest.fixture
def folder(written, tmp_path):
    """A copy that may be damaged."""
    return shutil.copytree(written, tmp_path / "checkpoint")


def refusal(folder, **options) -> str:
    with pytest.raises(UserError) as refused:
        load_checkpoint(folder, **options)
    message = str(refused.value)
    assert "\n" not in message
    assert str(folder) in message
    return message


def edit(folder, change) -> None:
    path = folder / "config.json"
    header = json.loads(path.read_text())
    change(header)
    path.write_text(json.dumps(header))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_model_comes_back_bit_for_bit(tokenizer, tmp_path, objective, tied):
    model = make(tokenizer, objective, tie_embeddings=tied, qk_norm=tied, block_length=5, rope_theta=123.0)
    save_checkpoint(tmp_path / "model", model, tokenizer)
    loaded, its_tokenizer = load_checkpoint(tmp_path / "model")
    assert loaded.config == model.config
    weights, loaded_weights = model.state_dict(), loaded.state_dict()
    assert weights.keys() == loaded_weights.keys()
    assert all(weights[name].equal(loaded_weights[name]) for name in weights)
    tokens = torch.randint(0, 256, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert loaded(tokens).equal(model(tokens))
    assert its_tokenizer.fingerprint() == tokenizer.fingerprint()
    assert not loaded.training
    assert not any(parameter.requires_grad for parameter in loaded.parameters())


def test_a_model_can_be_loaded_in_another_dtype(written):
    model, _ = load_checkpoint(written, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert model(torch.tensor([[1, 2, 3]])).isfinite().all()


@pytest.mark.parametrize("tied", [True, False])
def test_tensors_on_disk_bear_the_names_of_the_qwen3_family(tokenizer, tmp_path, tied):
    save_checkpoint(tmp_path / "model", make(tokenizer, tie_embeddings=tied), tokenizer)
    attention = {"q_proj": (32, 16), "k_proj": (16, 16), "v_proj": (16, 16), "o_proj": (16, 32)}
    expected = {"model.embed_tokens.weight": (260, 16), "model.norm.weight": (16,)}
    for layer in ("model.layers.0", "model.layers.1"):
        expected |= {f"{layer}.self_attn.{name}.weight": shape for name, shape in attention.items()}
        expected |= {f"{layer}.self_attn.{name}.weight": (8,) for name in ("q_norm", "k_norm")}
        expected |= {f"{layer}.{name}.weight": (16,) for name in ("input_layernorm", "post_attention_layernorm")}
        expected |= {f"{layer}.mlp.{name}.weight": (24, 16) for name in ("gate_proj", "up_proj")}
        expected[f"{layer}.mlp.down_proj.weight"] = (16, 24)
    if not tied:
        expected["lm_head.weight"] = (260, 16)
    found = load_file(tmp_path / "model" / "model.safetensors")
    assert {name: tuple(tensor.shape) for name, tensor in found.items()} == expected


def test_the_folder_says_what_it_holds(written):
    assert {path.name for path in written.iterdir()} == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "training.json",
        "checksums.json",
    }
    header = json.loads((written / "config.json").read_text())
    assert header["model_type"] == "mdlm"
    assert header["tokens_seen"] == 7
    assert header["model"]["mask_token_id"] == make(Tokenizer.load(written / "tokenizer.json")).config.mask_token_id
    assert json.loads((written / "training.json").read_text()) == {"tokens_seen": 7, "commit": "abc"}


# Damage


def test_a_missing_tensor_is_named(folder):
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors")
    assert "model.layers.1.mlp.up_proj.weight is missing" in refusal(folder)


def test_an_unexpected_tensor_is_named(folder):
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, "model.layers.7.bias": torch.zeros(2)}, folder / "model.safetensors")
    assert "model.layers.7.bias is unexpected" in refusal(folder)


def test_a_tensor_of_another_shape_is_named_with_both_shapes(folder):
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] = torch.ones(17)
    save_file(tensors, folder / "model.safetensors")
    message = refusal(folder)
    assert "model.norm.weight" in message
    assert "(17,)" in message
    assert "(16,)" in message


def test_weights_without_their_head_are_told_from_tied_ones(folder):
    edit(folder, lambda header: header["model"].update(tie_embeddings=True))
    assert "lm_head.weight is unexpected" in refusal(folder)


@pytest.mark.parametrize("kept", [0, 7, 100, 0.5, 0.999])
def test_a_truncated_weight_file_is_named(folder, kept):
    path = folder / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[: kept if isinstance(kept, int) else int(kept * len(content))])
    assert "model.safetensors cannot be read" in refusal(folder)


def test_weights_that_are_no_safetensors_are_never_unpickled(folder):
    torch.save({"model.norm.weight": torch.ones(16)}, folder / "model.safetensors")
    assert "model.safetensors cannot be read" in refusal(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    assert name in refusal(folder)


def test_a_swapped_tokenizer_is_noticed(folder):
    Tokenizer.train(["the cat sat on the mat " * 9], 262).save(folder / "tokenizer.json")
    assert "tokenizer.json is not the tokenizer" in refusal(folder)


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '"text"', "{}", '{"model_type": "llama"}', "\udcff"])
def test_a_broken_config_is_named(folder, content):
    (folder / "config.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    assert "config.json" in refusal(folder)


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_another_version_is_named(folder, version):
    edit(folder, lambda header: header.update(format_version=version))
    assert f"format_version is {version!r}" in refusal(folder)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"objective": "diffusion"}, "'diffusion'"),
        ({"dim": 0}, "dim"),
        ({"dim": "16"}, "dim"),
        ({"heads": 3}, "heads"),
        ({"mask_token_id": 260}, "mask_token_id"),
        ({"mask_token_id": "3"}, "config.json"),
        ({"pad_token_id": 0}, "four different"),
        ({"colour": 1}, "'colour'"),
    ],
)
def test_an_unusable_model_config_is_named(folder, changes, named):
    edit(folder, lambda header: header["model"].update(changes))
    with pytest.raises(UserError, match=named) as refused:
        load_checkpoint(folder)
    assert "\n" not in str(refused.value)


def test_an_unusable_model_config_is_named_with_its_file(folder):
    edit(folder, lambda header: header["model"].update(dim=0))
    assert "config.json" in refusal(folder)


@pytest.mark.parametrize("name", ["objective", "vocab_size"])
def test_a_model_config_without_a_field_that_has_no_default_is_refused(folder, name):
    edit(folder, lambda header: header["model"].pop(name))
    assert name in refusal(folder)


@pytest.mark.parametrize("name", ["rope_theta", "norm_eps", "block_length", "causal_prompt", "mask_token_id"])
def test_a_model_config_without_one_of_its_fields_is_refused(folder, name):
    edit(folder, lambda header: header["model"].pop(name))
    assert name in refusal(folder)


@pytest.mark.parametrize(
    ("name", "value"), [("rope_theta", "fast"), ("norm_eps", None), ("tie_embeddings", "no"), ("qk_norm", 3)]
)
def test_a_field_of_another_type_is_refused(folder, name, value):
    edit(folder, lambda header: header["model"].update({name: value}))
    assert name in refusal(folder)


# Writing and finding


def test_a_folder_that_could_not_be_finished_is_not_there(tokenizer, tmp_path):
    def disk_full(_folder):
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        save_checkpoint(tmp_path / "model", make(tokenizer), tokenizer, extra=disk_full)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_rewrite_leaves_the_old_checkpoint(folder, tokenizer):
    before = load_file(folder / "model.safetensors")["model.norm.weight"]

    def disk_full(_folder):
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        save_checkpoint(folder, make(tokenizer), tokenizer, extra=disk_full)
    assert load_file(folder / "model.safetensors")["model.norm.weight"].equal(before)
    assert [path.name for path in folder.parent.iterdir()] == ["checkpoint"]


def test_a_rewrite_replaces_the_old_checkpoint_whole(folder, tokenizer):
    (folder / "leftover").write_text("old")
    save_checkpoint(folder, make(tokenizer, layers=1), tokenizer)
    assert load_checkpoint(folder)[0].config.layers == 1
    assert not (folder / "leftover").exists()
    assert [path.name for path in folder.parent.iterdir()] == ["checkpoint"]


def test_whole_folder_makes_the_folders_above(tmp_path):
    with whole_folder(tmp_path / "a" / "b") as temporary:
        (temporary / "file").write_text("x")
    assert (tmp_path / "a" / "b" / "file").read_text() == "x"


def test_a_runs_folder_stands_for_its_last_checkpoint(written, tmp_path):
    for step in (2, 10):
        shutil.copytree(written, tmp_path / f"step-{step:07d}")
    (tmp_path / "step-0000011").mkdir()  # not one: it holds nothing
    assert [path.name for path in checkpoints_in(tmp_path)] == ["step-0000002", "step-0000010"]
    assert resolve_checkpoint(tmp_path) == tmp_path / "step-0000010"
    assert resolve_checkpoint(written) == written


@pytest.mark.parametrize("name", ["nowhere", "empty"])
def test_a_path_without_a_checkpoint_is_named(tmp_path, name):
    (tmp_path / "empty").mkdir()
    for read in (resolve_checkpoint, read_header, load_checkpoint):
        with pytest.raises(UserError, match=name) as refused:
            read(tmp_path / name)
        assert "\n" not in str(refused.value)


def test_the_weight_file_says_it_holds_torch_tensors(written):
    with safe_open(written / "model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}

"""`python -m mdlm.export`: what transformers reads is what we have, and what comes back is bit-equal."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3ForCausalLM

from mdlm import load_checkpoint, save_checkpoint
from mdlm.errors import run_command
from mdlm.export import main, save_qwen3
from mdlm.qwen3 import load_qwen3
from sample import AutoregressiveConfig, decode

SHAPES = {
    "tied": {},
    "untied": {"tie_embeddings": False},
    "grouped heads": {"heads": 6, "kv_heads": 2},
    "wide heads": {"head_dim": 24},
    "deep": {"layers": 4, "norm_eps": 1e-5, "rope_theta": 1_000_000.0},
}
TEXTS = ["the cat", '{"name":"Ada"}', "é <|mask|> <|end|>", ""]


@pytest.fixture
def export(random_model, qwen_tokenizer, tmp_path):
    """`export(**fields of the model)`: our model and the folder that the command wrote of it."""

    def run(objective="autoregressive", *options, **changes):
        model = random_model(objective, **changes)
        save_checkpoint(tmp_path / "checkpoint", model, qwen_tokenizer, {"response_length": 20})
        words = ["--checkpoint", str(tmp_path / "checkpoint"), "--to", "qwen3", str(tmp_path / "out"), *options]
        assert run_command(main, words) == 0
        return model, tmp_path / "out"

    return run


def complaint(capsys, *words) -> str:
    assert run_command(main, [str(word) for word in words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1
    return error


@pytest.mark.parametrize("shape", SHAPES)
@torch.no_grad()
def test_logits_in_transformers_are_ours(export, shape):
    model, folder = export(**SHAPES[shape])
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert type(theirs) is Qwen3ForCausalLM
    tokens_BL = torch.randint(0, model.config.vocab_size, (2, 60), generator=torch.Generator().manual_seed(2))
    assert model(tokens_BL).std() > 0.5, "decided logits, or equality says little"
    torch.testing.assert_close(theirs(tokens_BL).logits, model(tokens_BL), atol=1e-4, rtol=0)


@torch.no_grad()
def test_logits_of_a_long_row_in_transformers_are_ours(export):
    model, folder = export(max_length=4_200, rope_theta=1_000_000.0, layers=1)
    tokens_BL = torch.randint(0, model.config.vocab_size, (1, 4_200), generator=torch.Generator().manual_seed(2))
    theirs_BLV = Qwen3ForCausalLM.from_pretrained(folder)(tokens_BL).logits
    torch.testing.assert_close(theirs_BLV, model(tokens_BL), atol=1e-4, rtol=0)


@pytest.mark.parametrize("shape", ["tied", "untied", "grouped heads"])
def test_greedy_text_is_the_same(export, qwen_tokenizer, shape):
    model, folder = export(**SHAPES[shape])
    theirs, their_tokenizer = Qwen3ForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    prompts = [[qwen_tokenizer.begin_id, *qwen_tokenizer.encode(text)] for text in TEXTS]
    ours = decode(model, prompts, AutoregressiveConfig(max_new_tokens=30))
    batch = their_tokenizer(TEXTS, return_tensors="pt", padding=True)
    tokens_BL = theirs.generate(**batch, max_new_tokens=30)
    written = tokens_BL[:, batch["input_ids"].shape[1] :].tolist()
    mine = ours.tokens_BL[:, ours.response_start :].tolist()
    for one, other in zip(mine, written, strict=True):
        length = one.index(model.config.end_token_id) + 1 if model.config.end_token_id in one else len(one)
        assert one[:length] == other[:length]
        text = their_tokenizer.decode(other[:length], skip_special_tokens=True)
        assert qwen_tokenizer.decode(one[:length]) == text


@torch.no_grad()
def test_greedy_text_holds_no_mask_token_however_likely(random_model, qwen_tokenizer, tmp_path):
    model, prompt = random_model(tie_embeddings=False), [qwen_tokenizer.begin_id, *qwen_tokenizer.encode("the cat")]
    prompt_BL, rows_VD = torch.tensor([prompt]), model.lm_head.weight
    rows_VD[qwen_tokenizer.mask_id] = 2 * rows_VD[model(prompt_BL)[0, -1].argmax()]
    save_qwen3(tmp_path / "out", model, qwen_tokenizer)
    theirs = Qwen3ForCausalLM.from_pretrained(tmp_path / "out")
    assert theirs(prompt_BL).logits[0, -1].argmax() == qwen_tokenizer.mask_id
    ours = decode(model, [prompt], AutoregressiveConfig(max_new_tokens=8)).tokens_BL[0].tolist()
    assert theirs.generate(prompt_BL, max_new_tokens=8)[0].tolist() == ours
    assert qwen_tokenizer.mask_id not in ours


def test_the_tokenizer_in_transformers_gives_our_ids(export, qwen_tokenizer):
    _, folder = export()
    theirs = AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        ids = qwen_tokenizer.encode(text)
        assert theirs.encode(text, add_special_tokens=False) == ids
        assert theirs.encode(text) == [qwen_tokenizer.begin_id, *ids]
        assert theirs.decode(ids) == text
    roles = {"mask": "mask", "end": "eos", "pad": "pad", "begin": "bos"}
    for role, name in roles.items():
        assert getattr(theirs, f"{name}_token_id") == getattr(qwen_tokenizer, f"{role}_id")


@pytest.mark.parametrize("shape", SHAPES)
def test_out_and_in_again_is_bit_equal(export, qwen_tokenizer, tmp_path, shape):
    model, folder = export(**SHAPES[shape])
    assert run_command(main, ["--from", "qwen3", str(folder), str(tmp_path / "back")]) == 0
    back, tokenizer = load_checkpoint(tmp_path / "back")
    assert back.config == model.config
    assert all(tensor.equal(back.state_dict()[name]) for name, tensor in model.state_dict().items())
    assert tokenizer.fingerprint() == qwen_tokenizer.fingerprint()
    origin = json.loads((tmp_path / "back" / "training.json").read_text())["origin"]
    assert origin == {"folder": str(folder), "kind": "qwen3"}


def test_weights_may_be_written_in_bf16(export):
    model, folder = export("autoregressive", "--dtype", "bf16")
    theirs = Qwen3ForCausalLM.from_pretrained(folder)
    assert theirs.dtype == torch.bfloat16
    assert load_qwen3(folder, dtype=torch.bfloat16)[0].norm.weight.equal(model.norm.weight.bfloat16())


@pytest.mark.parametrize("objective", ["masked_diffusion", "block_diffusion"])
def test_a_model_that_is_not_causal_is_not_exported(random_model, qwen_tokenizer, tmp_path, capsys, objective):
    save_checkpoint(tmp_path / "checkpoint", random_model(objective), qwen_tokenizer)
    words = ["--checkpoint", tmp_path / "checkpoint", "--to", "qwen3", tmp_path / "out"]
    assert objective in complaint(capsys, *words)
    assert not (tmp_path / "out").exists()


def test_a_model_without_normalised_queries_is_not_exported(random_model, qwen_tokenizer, tmp_path, capsys):
    save_checkpoint(tmp_path / "checkpoint", random_model(qk_norm=False), qwen_tokenizer)
    assert "qk_norm" in complaint(capsys, "--checkpoint", tmp_path / "checkpoint", "--to", "qwen3", tmp_path / "out")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([], "OUT"),
        (["out"], "--to"),
        (["--to", "llama", "out"], "llama"),
        (["--to", "qwen3", "out"], "--checkpoint DIR"),
        (["--to", "qwen3", "--from", "qwen3", "out"], "--from"),
        (["--from", "qwen3", "out"], "FOLDER OUT"),
        (["--from", "qwen3", "gone", "out"], "gone"),
        (["--to", "qwen3", "--checkpoint", "gone", "out"], "gone"),
    ],
)
def test_wrong_words_are_answered_in_one_line(tmp_path, monkeypatch, capsys, words, named):
    monkeypatch.chdir(tmp_path)
    assert named in complaint(capsys, *words)


def test_a_folder_that_holds_something_is_not_written_over(export, tmp_path, capsys):
    _, folder = export()
    words = ["--checkpoint", tmp_path / "checkpoint", "--to", "qwen3", folder]
    assert "exists already" in complaint(capsys, *words)


def test_neither_direction_imports_transformers():
    code = "import sys, mdlm.export, mdlm.qwen3, train.loop; sys.exit('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0

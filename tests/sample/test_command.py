"""`python -m sample` as a user meets it."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import sys

import pytest
import torch

from mdlm.checkpoint import load_checkpoint, save_checkpoint
from mdlm.errors import run_command
from mdlm.heads import DraftHeads, save_heads
from mdlm.transformer import Transformer
from sample import DenoiseConfig, denoise
from sample.__main__ import main
from sample.trace import read_trace, replay

ARMS = ("autoregressive", "masked_diffusion", "block_diffusion")
DIFFUSION = ARMS[1:]
RESPONSE_LENGTH = 20
PROMPTS = ["the cat", "Ada", "sat on the mat", "[red]é[/red]"]


def each(flag, values):
    return [word for value in values for word in (flag, value)]


def texts(record):
    return [result["text"] for result in record["results"]]


# What comes out


@pytest.mark.parametrize("arm", ARMS)
def test_answers_go_to_stdout_and_what_they_cost_to_stderr(sample, record, arm):
    out, err = sample(arm, "--prompt", "the cat")
    made = record(arm, "--prompt", "the cat")
    (result,) = made["results"]
    assert out == result["text"] + "\n"
    ledger = result["ledger"]
    assert re.fullmatch(r"1 answer, \d+ tokens? in \d+ passes \(.*\): \d+\.\d\d tokens per forward; .* tokens/s\n", err)
    assert f"{ledger['kept']} token" in err
    assert f"in {ledger['total_passes']} passes" in err
    assert all(f"{n} {kind}" in err for kind, n in ledger["passes"].items())


@pytest.mark.parametrize("arm", ARMS)
def test_a_record_says_what_made_it_and_counts_every_pass(record, monkeypatch, checkpoints, tokenizer, arm):
    ran = []
    hidden = Transformer.hidden
    monkeypatch.setattr(Transformer, "hidden", lambda *args, **more: ran.append(1) or hidden(*args, **more))
    made = record(arm, *each("--prompt", PROMPTS), "--temperature", 0.5, "--seed", 3, "--batch-size", 3)
    assert made["calls"] == len(ran)
    assert made["checkpoint"] == str(checkpoints[arm])
    assert made["objective"] == arm
    assert made["complete"] is True
    assert made["seconds"] > 0
    assert (made["dtype"], made["torch"]) == ("fp32", torch.__version__)
    assert made["settings"]["temperature"] == 0.5
    assert made["settings"]["seed"] == 3
    assert [result["prompt"] for result in made["results"]] == PROMPTS
    for result in made["results"]:
        assert result["text"] == tokenizer.decode(result["tokens"])
        assert result["ledger"]["kept"] == len(result["tokens"]) <= RESPONSE_LENGTH + 4
        assert sum(result["ledger"]["passes"].values()) == result["ledger"]["total_passes"]


@pytest.mark.parametrize("arm", ARMS)
def test_a_prompt_is_answered_alike_alone_and_in_a_batch(record, arm):
    together = texts(record(arm, *each("--prompt", PROMPTS)))
    assert together == [texts(record(arm, "--prompt", prompt))[0] for prompt in PROMPTS]
    assert together == texts(record(arm, *each("--prompt", PROMPTS), "--batch-size", 3))


@pytest.mark.parametrize("arm", ARMS)
def test_without_a_cache_the_answers_are_the_same(record, arm):
    assert texts(record(arm, "--prompt", "the cat")) == texts(record(arm, "--prompt", "the cat", "--cache", "none"))


@pytest.mark.parametrize("arm", ARMS)
def test_samples_repeat_with_their_seed_and_differ_between_batches(record, arm):
    options = (*each("--prompt", ["the cat"] * 4), "--temperature", 2, "--batch-size", 1)
    first = texts(record(arm, *options))
    assert len(set(first)) == 4
    assert texts(record(arm, *options)) == first
    assert texts(record(arm, *options, "--seed", 100)) != first


def test_unconditional_is_the_begin_token_and_a_canvas(record, checkpoints):
    made = record("masked_diffusion", "--unconditional")
    model, tokenizer = load_checkpoint(checkpoints["masked_diffusion"])
    row = torch.tensor([[tokenizer.begin_id] + [tokenizer.mask_id] * RESPONSE_LENGTH])
    ids = {"mask_id": tokenizer.mask_id, "end_id": tokenizer.end_id}
    expected = denoise(model, row, DenoiseConfig(), **ids, response_start=1)
    assert made["results"][0]["tokens"] == expected.answer(0)
    assert made["results"][0]["prompt"] == ""


def test_masked_diffusion_fills_the_canvas_it_was_trained_with(record):
    (result,) = record("masked_diffusion", "--prompt", "the cat", "--max-denoising-steps", 1)["results"]
    prompt = 1 + 2  # begin, " the", " cat"
    assert result["ledger"]["positions"] == {"denoise": prompt + RESPONSE_LENGTH}


@pytest.mark.parametrize("arm", ARMS)
def test_an_answer_is_no_longer_than_asked_for(record, arm):
    (result,) = record(arm, "--prompt", "the cat", "--max-new-tokens", 8)["results"]
    assert len(result["tokens"]) <= 8


@pytest.mark.parametrize("arm", DIFFUSION)
def test_options_of_the_denoiser_reach_it(record, arm):
    one_each = record(arm, "--prompt", "the cat")["results"][0]["ledger"]["passes"]["denoise"]
    at_once = record(arm, "--prompt", "the cat", "--threshold", 0)["results"][0]["ledger"]["passes"]["denoise"]
    in_halves = record(arm, "--prompt", "the cat", "--max-denoising-steps", 2, "--block-length", 4)
    assert at_once < in_halves["results"][0]["ledger"]["passes"]["denoise"] < one_each
    assert in_halves["settings"]["block_length"] == 4
    assert record(arm, "--prompt", "the cat", "--score", "entropy")["settings"]["score"] == "entropy"


def test_half_precision_is_said_in_the_record(record):
    assert record("block_diffusion", "--prompt", "the cat", "--dtype", "bf16")["dtype"] == "bf16"


# Where prompts come from


def test_stdin_is_one_prompt(record, stdin_of):
    stdin_of(b"the cat\nsat \xc3\xa9\n")
    (result,) = record("masked_diffusion")["results"]
    assert result["prompt"] == "the cat\nsat é"


def test_a_terminal_is_asked_for_prompts_until_an_empty_line(sample, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    too_long = "the cat sat " * 40
    monkeypatch.setattr(sys, "stdin", Terminal(f"the cat\n{too_long}\nAda\n\nnever read\n"))
    asked = sample("autoregressive")
    assert asked.err.count("prompt: ") == 4
    assert asked.err.count("error: ") == 1, "the long one; the conversation goes on"
    assert asked.out == sample("autoregressive", "--prompt", "the cat", "--prompt", "Ada").out


@pytest.mark.parametrize("arm", ARMS)
def test_several_answers_to_a_prompt_are_drawn_each_by_its_number(record, arm):
    drawing = ("--temperature", 2, "--seed", 1)
    four = texts(record(arm, "--prompt", "the cat", "--num-samples", 4, *drawing))
    assert len(set(four)) > 1
    assert four == texts(record(arm, "--prompt", "the cat", "--num-samples", 4, "--batch-size", 3, *drawing))
    assert four[:2] == texts(record(arm, *each("--prompt", ["the cat"] * 2), *drawing))


def test_a_file_has_a_prompt_a_line(record, tmp_path):
    plain, rows = tmp_path / "prompts.txt", tmp_path / "prompts.jsonl"
    plain.write_bytes("\ufeffthe cat\r\n\r\n é\n".encode())
    lines = [{"prompt": "the cat", "response": "unused"}, {"prompt": "two\nlines\u2028"}]
    rows.write_text("\n\n".join(json.dumps(line, ensure_ascii=False) for line in lines) + "\n", encoding="utf-8")
    given = record("autoregressive", "--prompts", plain)
    assert [result["prompt"] for result in given["results"]] == ["the cat", " é"]
    given = record("autoregressive", "--prompts", rows)
    assert [result["prompt"] for result in given["results"]] == ["the cat", "two\nlines\u2028"]


# Which checkpoint


def newest_last(runs, checkpoints, names):
    for age, name in enumerate(reversed(names)):
        folder = runs / name
        shutil.copytree(checkpoints["autoregressive"], folder)
        os.utime(folder / "config.json", (1e9 - age, 1e9 - age))


def test_without_a_checkpoint_the_newest_run_is_used_and_named(checkpoints, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    newest_last(tmp_path / "runs", checkpoints, ["z/step-0000900", "a/b/step-0000005", "a/b/step-0000010"])
    (tmp_path / "runs" / "step-broken").mkdir()
    assert run_command(main, ["--prompt", "the cat", "--json"]) == 0
    out, err = capsys.readouterr()
    newest = os.path.join("runs", "a", "b", "step-0000010")
    assert err.startswith(f"using {newest} (autoregressive)")
    assert json.loads(out)["checkpoint"] == newest


def test_without_any_run_it_says_how_to_make_one(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run_command(main, ["--prompt", "the cat"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert all(words in err for words in ("make demo", "python -m train", "--checkpoint"))


def test_a_runs_folder_stands_for_its_last_checkpoint(checkpoints, tmp_path, capsys):
    newest_last(tmp_path, checkpoints, ["step-0000010", "step-0000005"])
    assert run_command(main, ["--checkpoint", str(tmp_path), "--prompt", "the cat", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["checkpoint"] == str(tmp_path / "step-0000010")


# Infill


@pytest.mark.parametrize("arm", DIFFUSION)
def test_gaps_in_a_prompt_are_filled_and_all_else_stays(record, arm):
    made = record(arm, "--prompt", "the<|mask|> sat\non <|mask:3|>.", "--prompt", "é[red]<|mask:2|>")
    first, second = texts(made)
    assert re.fullmatch(r"the.* sat\non .*\.", first, re.DOTALL)
    assert second.startswith("é[red]")
    assert [result["ledger"]["kept"] for result in made["results"]] == [4, 2]


@pytest.mark.parametrize("arm", DIFFUSION)
def test_a_template_is_filled_for_each_prompt(record, arm):
    made = record(arm, "--prompt", "the cat", "--prompt", "Ada", "--template", '{"name":"<|mask:3|>"}')
    assert len(made["results"]) == 2
    assert all(re.fullmatch(r'\{"name":".*"\}', text, re.DOTALL) for text in texts(made))
    assert made["settings"]["template"] == '{"name":"<|mask:3|>"}'


def test_another_marker_word_makes_the_usual_one_text(record):
    (result,) = record("masked_diffusion", "--prompt", "<|mask:2|><|gap|>", "--mask-marker", "gap")["results"]
    assert result["text"].startswith("<|mask:2|>")
    assert result["ledger"]["kept"] == 1


def test_block_diffusion_says_once_that_it_does_not_look_ahead(sample):
    options = each("--prompt", ["the<|mask|> cat", "the<|mask|> mat"])
    assert sample("block_diffusion", *options).err.count("note: ") == 1
    assert "note: " not in sample("masked_diffusion", *options).err
    assert "note: " not in sample("block_diffusion", "--prompt", "the cat").err


@pytest.mark.parametrize("arm", ARMS)
def test_a_trace_and_its_page_are_written_and_the_trace_replays_the_answers(sample, arm, tmp_path, checkpoints):
    trace, page = tmp_path / "trace.jsonl", tmp_path / "page.html"
    prompts = each("--prompt", ["the cat", "Ada", "sat on"])
    out = sample(arm, *prompts, "--batch-size", 2, "--json", "--trace", trace, "--html", page).out
    _, tokenizer = load_checkpoint(checkpoints[arm])
    finals = replay(read_trace(trace))
    assert len(finals) == 3
    for tokens, result in zip(finals, json.loads(out)["results"], strict=True):
        kept = tokens[: tokens.index(tokenizer.end_id)] if tokenizer.end_id in tokens else tokens
        assert kept == result["tokens"]
    assert "Content-Security-Policy" in page.read_text()


def test_a_trace_that_cannot_be_written_is_refused_before_anything_is_decoded(complaint, tmp_path):
    assert str(tmp_path) in complaint("masked_diffusion", "--prompt", "the cat", "--trace", tmp_path)


@pytest.fixture(scope="module")
def heads(checkpoints, tmp_path_factory):
    """Untrained draft heads of the autoregressive twin."""
    model, _ = load_checkpoint(checkpoints["autoregressive"])
    folder = tmp_path_factory.mktemp("heads") / "step-0000001"
    save_heads(folder, DraftHeads(model.config.dim, 2).initialize(0), model)
    return folder.parent


@pytest.mark.parametrize("how", ["lookup", "lookup:1", "lookup:any", "itself", "heads"])
@pytest.mark.parametrize("drawing", [(), ("--temperature", 1, "--seed", 2)])
def test_speculation_gives_the_same_answers_and_says_what_it_verified(record, checkpoints, heads, how, drawing):
    prompts = each("--prompt", ["the cat", "Ada", "sat on the mat"])
    how = {"itself": checkpoints["autoregressive"], "heads": heads}.get(how, how)
    plain = record("autoregressive", *prompts, *drawing)
    made = record("autoregressive", *prompts, *drawing, "--speculate", how, "--draft-length", 3, "--batch-size", 2)
    assert texts(made) == texts(plain)
    assert all("verify" in result["ledger"]["passes"] for result in made["results"])
    assert made["settings"]["draft_length"] == 3


def test_draft_heads_are_not_taken_for_the_newest_checkpoint(checkpoints, heads, tmp_path, monkeypatch, capsys):
    shutil.copytree(checkpoints["autoregressive"], tmp_path / "runs" / "twin" / "step-0000001")
    shutil.copytree(heads, tmp_path / "runs" / "heads")
    (tmp_path / "runs" / "heads" / "step-0000001" / "config.json").touch()
    monkeypatch.chdir(tmp_path)
    assert run_command(main, ["--prompt", "Ada", "--speculate", "runs/heads"]) == 0
    assert "using runs/twin/step-0000001" in capsys.readouterr().err


def test_draft_heads_of_another_twin_are_refused(tiny_model, heads, complaint, checkpoints, tmp_path):
    model, tokenizer = load_checkpoint(checkpoints["autoregressive"])
    shape = {name: value for name, value in model.config.to_dict().items() if name != "objective"}
    other = tiny_model("autoregressive", seed=1, **shape)
    save_checkpoint(tmp_path / "other", other, tokenizer, {"response_length": 20})
    assert "trained for other weights" in complaint(tmp_path / "other", "--prompt", "Ada", "--speculate", heads)

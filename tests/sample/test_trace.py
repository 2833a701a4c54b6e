"""The audit record: its lines alone give the output, say what each pass did, and count as the ledger counts."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from types import SimpleNamespace

import pytest
import torch

from mdlm.errors import UserError
from sample.autoregressive import AutoregressiveConfig, decode
from sample.config import DenoiseConfig
from sample.denoise import denoise
from sample.generation import pad_left
from sample.infill import Request
from sample.presets import PRESETS, preset
from sample.trace import TraceWriter, check_target, read_trace, replay

MASK, END, PAD, BEGIN = 8, 9, 10, 11
LETTERS = SimpleNamespace(
    mask_id=MASK,
    end_id=END,
    decode=lambda ids: "".join("abcdefgh"[token] for token in ids if token < MASK),
    decode_pieces=lambda ids: [f"<|{token}|>" for token in ids],
)
"""Stands for a tokenizer of the tiny models' vocabulary."""
WIDTH = 10


def requests_for(prompts, response=None):
    return [Request(f"prompt {n}", prompt, response or [MASK] * WIDTH) for n, prompt in enumerate(prompts)]


def written(requests, generation, config):
    writer = TraceWriter(LETTERS, {"checkpoint": "runs/x", "settings": asdict(config)})
    writer.batch(requests, generation)
    return writer.lines


def denoised(denoiser, requests, config):
    tokens_BP, valid_BP = pad_left([request.prompt for request in requests], PAD)
    response_BR = torch.tensor([request.response for request in requests])
    return denoise(
        denoiser,
        torch.cat([tokens_BP, response_BR], dim=1),
        config,
        mask_id=MASK,
        end_id=END,
        valid_BL=torch.cat([valid_BP, torch.ones_like(response_BR, dtype=torch.bool)], dim=1),
        response_start=tokens_BP.shape[1],
    )


def responses(generation):
    return generation.tokens_BL[:, generation.response_start :].tolist()


def parts(lines, row):
    """What each pass did to one row."""
    return [entry for line in lines if line["kind"] == "pass" for entry in line["rows"] if entry["row"] == row]


def choices(**changes):
    return DenoiseConfig(trace=True, **changes)


DECODES = {
    **{name: ("masked_diffusion", preset(name, trace=True)) for name in PRESETS},
    "one token a pass": ("block_diffusion", choices()),
    "block threshold": ("block_diffusion", choices(threshold=0.5)),
    "fused store": ("block_diffusion", choices(threshold=0.5, fused_store=True)),
    "pipeline": ("block_diffusion", choices(threshold=0.3, pipeline=0.25)),
    "doubting blocks": ("block_diffusion", choices(revoke="verify", max_denoising_steps=2, temperature=9.0)),
    "ends in order": ("block_diffusion", choices(threshold=0.2, ends="in_order")),
    "doubting": ("masked_diffusion", preset("wino", trace=True, max_denoising_steps=3, temperature=9.0)),
    "whole canvas": ("masked_diffusion", choices(max_denoising_steps=3)),
    "canvas in order": ("masked_diffusion", choices(max_denoising_steps=4, ends="in_order")),
    "growing": ("masked_diffusion", choices(block_length=4, growing=True, temperature=1.0)),
    "prefix cache": ("masked_diffusion", choices(block_length=4, cache="prefix", threshold=0.4)),
    "dual cache": ("masked_diffusion", choices(block_length=4, cache="dual", threshold=0.4)),
    "ReMDM in blocks": (
        "masked_diffusion",
        preset("remdm", trace=True, block_length=5, max_denoising_steps=12, eta=0.3, seed=1),
    ),
    "ReMDM by confidence": (
        "masked_diffusion",
        preset("remdm", trace=True, revoke="remdm_confidence", max_denoising_steps=16),
    ),
}
TEMPLATE = [1, MASK, MASK, MASK, 2, MASK, MASK, 3, MASK, MASK]


@pytest.mark.parametrize("response", [None, TEMPLATE], ids=["open", "template"])
@pytest.mark.parametrize("name", DECODES)
def test_the_lines_alone_give_the_output_pass_by_pass(ending_model, prompts, name, response):
    arm, config = DECODES[name]
    requests = requests_for(prompts, response)
    generation = denoised(ending_model(arm), requests, config)
    header, *passes, finish = lines = json.loads(json.dumps(written(requests, generation, config)))
    assert replay(lines) == responses(generation)
    assert [line["pass"] for line in passes] == list(range(1, len(passes) + 1))
    assert all(token == END for row in finish["rows"] for _, token, _ in row["filled"])
    for row, ledger in enumerate(generation.ledger.rows()):
        own = parts(lines, row)
        assert len(own) == ledger.passes["denoise"] + ledger.passes["refresh"]
        revoked = sum(len(entry["revoked"]) for entry in own)
        assert sum(len(entry["committed"]) for entry in own) - revoked + len(finish["rows"][row]["filled"]) == (
            requests[row].response.count(MASK)
        )
        assert finish["rows"][row]["ledger"] == ledger.to_dict()
    assert {str(token) for tokens in replay(lines) for token in tokens} <= set(header["pieces"])


def test_revocations_are_in_the_decodes_that_promise_them(ending_model, prompts):
    for name in ("doubting", "remdm", "doubting blocks", "ReMDM in blocks", "ReMDM by confidence"):
        arm, config = DECODES[name]
        requests = requests_for(prompts)
        lines = written(requests, denoised(ending_model(arm), requests, config), config)
        assert any(entry["revoked"] for row in range(len(prompts)) for entry in parts(lines, row)), name


def test_rows_that_end_early_are_filled_in_the_last_line(ending_model, prompts):
    arm, config = DECODES["one token a pass"]
    requests = requests_for(prompts)
    (*_, finish) = written(requests, denoised(ending_model(arm), requests, config), config)
    assert any(row["filled"] for row in finish["rows"])


@pytest.mark.parametrize("name", ["ReMDM in blocks", "doubting", "block threshold", "pipeline"])
def test_what_is_written_of_a_row_does_not_depend_on_its_neighbours(ending_model, prompts, name):
    arm, config = DECODES[name]
    model = ending_model(arm)
    together = requests_for(prompts)
    lines = written(together, denoised(model, together, config), config)
    alone = written(together[:1], denoised(model, together[:1], config), config)

    def told(lines):
        places = [([part[:3] for part in entry["committed"]], entry["revoked"]) for entry in parts(lines, 0)]
        return places, [entry["final"] for entry in parts(lines, 0)]

    assert told(lines) == told(alone)


@pytest.mark.parametrize("name", ["block threshold", "ReMDM in blocks", "doubting"])
def test_a_window_is_final_once_and_its_tokens_stay(ending_model, prompts, name):
    arm, config = DECODES[name]
    requests = requests_for(prompts)
    lines = written(requests, denoised(ending_model(arm), requests, config), config)
    for row in range(len(prompts)):
        done = set()
        for line in lines[1:-1]:
            for entry in (entry for entry in line["rows"] if entry["row"] == row):
                assert line["start"] not in done
                done |= {line["start"]} if entry["final"] else set()
        assert done == {line["start"] for line in lines[1:-1] if any(e["row"] == row for e in line["rows"])}


@pytest.mark.parametrize("stop_check_every", [1, 4])
def test_an_autoregressive_decode_gives_each_row_a_token_a_pass(ending_model, prompts, stop_check_every):
    config = AutoregressiveConfig(max_new_tokens=WIDTH, stop_check_every=stop_check_every)
    requests = requests_for(prompts)
    generation = decode(ending_model("autoregressive"), prompts, config)
    lines = written(requests, generation, config)
    assert replay(lines) == responses(generation)
    assert lines[0]["decoder"] == "autoregressive"
    lengths = [len(parts(lines, row)) for row in range(len(prompts))]
    assert lengths == [ledger.total_passes for ledger in generation.ledger.rows()]
    assert len(set(lengths)) > 1
    assert all(score is None for line in lines[1:-1] for entry in line["rows"] for *_, score in entry["committed"])


def test_end_tokens_that_cost_nothing_are_in_the_last_line_only():
    wanted_LV = torch.nn.functional.one_hot(torch.tensor([0, 1, END, 2, 3, 4]), 12) * 30.0
    requests, config = [Request("", [BEGIN], [MASK] * 5)], choices(ends="in_order", block_length=4)
    lines = written(requests, denoised(lambda tokens_BL: wanted_LV[None], requests, config), config)
    assert [part[:2] for entry in parts(lines, 0) for part in entry["committed"]][-1] == [1, END]
    assert lines[-1]["rows"][0]["filled"] == [[place, END, "<|9|>"] for place in (2, 3, 4)]


def test_scores_and_the_end_tokens_mass_are_the_models(prompts):
    logits_V = torch.tensor([0.5, 0, 0, 0, 0, 0, 0, 0, 0, 0.25, 0, 0]).mul(10)
    requests = [Request("", [BEGIN], [MASK, 3, MASK])]
    config = choices(max_denoising_steps=1)
    generation = denoised(lambda tokens_BL: logits_V.expand(*tokens_BL.shape, -1), requests, config)
    (_, made, _) = written(requests, generation, config)
    probabilities_V = logits_V.masked_fill(torch.arange(12) == MASK, -torch.inf).softmax(-1)
    sure, end = round(float(probabilities_V[0]), 4), round(float(probabilities_V[END]), 4)
    (entry,) = made["rows"]
    assert entry["committed"] == [[0, 0, "a", pytest.approx(sure)], [2, 0, "a", pytest.approx(sure)]]
    assert entry["end_mass"] == [[place, pytest.approx(end)] for place in range(3)]
    assert (made["start"], entry["revoked"], entry["final"]) == (0, [], True)


def test_the_header_is_enough_to_read_characters_of_several_tokens(tokenizer):
    tokens = tokenizer.encode("é中\n<b>")
    config = choices()
    requests = [Request("x", [tokenizer.begin_id], [tokenizer.mask_id] * len(tokens))]
    wanted_LV = torch.nn.functional.one_hot(torch.tensor([0, *tokens]), tokenizer.vocab_size) * 30.0
    generation = denoise(
        lambda tokens_BL: wanted_LV[None],
        torch.tensor([[tokenizer.begin_id, *requests[0].response]]),
        config,
        mask_id=tokenizer.mask_id,
        end_id=tokenizer.end_id,
        response_start=1,
    )
    writer = TraceWriter(tokenizer, {})
    writer.batch(requests, generation)
    header, (read,) = writer.lines[0], replay(writer.lines)
    assert header["bytes"] and header["rows"] == [
        {"prompt": "x", "response": requests[0].response, "fixed": [], "open_gaps": []}
    ]
    raw = [
        bytes.fromhex(header["bytes"].get(str(token), "")) or header["pieces"][str(token)].encode() for token in read
    ]
    assert b"".join(raw).decode() == "é中\n<b>"
    assert header["textless"] == [tokenizer.mask_id]


@pytest.fixture
def two_batches(ending_model, prompts):
    """The writer of two batches, and their output."""
    config = choices(threshold=0.5)
    writer, wanted = TraceWriter(LETTERS, {"checkpoint": "runs/x", "settings": asdict(config)}), []
    for requests in (requests_for(prompts[:3]), requests_for(prompts[3:], TEMPLATE)):
        generation = denoised(ending_model("block_diffusion"), requests, config)
        writer.batch(requests, generation)
        wanted += responses(generation)
    return writer, wanted


def test_a_file_holds_all_batches_and_is_read_back(two_batches, tmp_path):
    writer, wanted = two_batches
    link = tmp_path / "link.jsonl"
    link.symlink_to(tmp_path / "trace.jsonl")
    writer.save(link)
    content = (tmp_path / "trace.jsonl").read_text(encoding="ascii")
    assert link.is_symlink()
    assert [json.loads(line)["kind"] for line in content.splitlines()].count("trace") == 2
    assert replay(read_trace(link)) == wanted
    assert sorted(tmp_path.iterdir()) == [link, tmp_path / "trace.jsonl"]


def test_a_target_that_cannot_be_a_file_is_refused_before_and_after_the_run(two_batches, tmp_path):
    for target in (tmp_path, tmp_path / "no" / "trace.jsonl", os.devnull):
        with pytest.raises(UserError, match=r"folder|ordinary file"):
            check_target(target)
        with pytest.raises(UserError):
            two_batches[0].save(target)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_one_line_and_the_old_file_stays(two_batches, tmp_path, monkeypatch):
    path = tmp_path / "trace.jsonl"
    path.write_text("old")

    def full_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full_disk)
    with pytest.raises(UserError, match="No space left") as error:
        two_batches[0].save(path)
    assert "\n" not in str(error.value)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("content", [b"", b"{", b"[1]\n", b'{"kind": "pass"}\n', b'{"prompt": "x"}\n', b"\xff\n"])
def test_what_is_no_trace_is_refused(tmp_path, content):
    path = tmp_path / "trace.jsonl"
    path.write_bytes(content)
    with pytest.raises(UserError, match="no trace"):
        read_trace(path)


def test_a_missing_file_and_another_version_are_named(tmp_path):
    with pytest.raises(UserError, match="cannot read"):
        read_trace(tmp_path / "trace.jsonl")
    (tmp_path / "trace.jsonl").write_text('{"kind": "trace", "version": 2}\n')
    with pytest.raises(UserError, match="version 2"):
        read_trace(tmp_path / "trace.jsonl")


def test_a_line_that_no_decode_writes_is_refused(two_batches):
    writer, _ = two_batches
    header, first, *rest = writer.lines
    with pytest.raises(UserError, match="no mask at position"):
        replay([header, first, first, *rest])
    untouched = {**first, "rows": [{**first["rows"][0], "revoked": [WIDTH - 1]}]}
    with pytest.raises(UserError, match="nothing to revoke"):
        replay([header, untouched])


def test_passes_that_were_not_kept_are_no_trace(ending_model, prompts):
    requests, config = requests_for(prompts), DenoiseConfig()
    with pytest.raises(ValueError, match="trace=True"):
        written(requests, denoised(ending_model("block_diffusion"), requests, config), config)

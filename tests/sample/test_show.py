"""A decode drawn pass by pass: what is masked, fresh and settled can be told apart, and the terminal stays whole."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import re

import pytest
import torch
from rich.console import Console

from sample.generation import Pass
from sample.infill import Request
from sample.show import Show, printable

ARMS = ("autoregressive", "masked_diffusion", "block_diffusion")
PROMPTS = ["the cat", "Ada", "sat on the mat", "[red]é[/red]"]


def each(flag, values):
    return [word for value in values for word in (flag, value)]


@pytest.mark.parametrize("arm", ARMS)
def test_off_a_terminal_every_pass_is_a_line(sample, record, arm):
    (result,) = record(arm, "--prompt", "the cat")["results"]
    shown = sample(arm, "--prompt", "the cat", "--show")
    passes = result["ledger"]["total_passes"] - result["ledger"]["passes"].get("store", 0)
    passes -= 0 if arm == "autoregressive" else result["ledger"]["passes"].get("prefill", 0)
    lines = shown.err.splitlines()
    assert [line.split(":")[0] for line in lines[:-1]] == [f"pass {number}" for number in range(1, passes + 1)]
    assert all("«" in line for line in lines[:-1])
    assert shown.out == result["text"] + "\n"


def test_several_rows_are_drawn_one_by_one(sample):
    lines = sample("autoregressive", *each("--prompt", PROMPTS), "--show").err.splitlines()
    assert [line.split(":")[0] for line in lines[:4]] == [f"pass 1, row {row}" for row in range(1, 5)]


def test_on_a_terminal_the_drawing_vanishes_and_no_control_character_passes(checkpoints, started):
    leader, follower = pty.openpty()
    prompt = "\x1b[31mthe\x07<|mask:3|>\u202e[red]"
    options = ("--checkpoint", checkpoints["masked_diffusion"], "--prompt", prompt, "--show", "0")
    with started(*options, stdout=follower, stderr=follower) as process:
        os.close(follower)
        output = b""
        with contextlib.suppress(OSError):  # the terminal ends with the process
            while data := os.read(leader, 1 << 16):
                output += data
    os.close(leader)
    assert process.returncode == 0
    drawn = output.decode()
    assert "\x1b[31m" not in drawn
    assert "\x07" not in drawn
    assert "\\x1b[31mthe\\x07" in drawn
    assert "[red]" in drawn
    assert "pass 3, 3 of 3 tokens" in drawn
    answers = drawn[drawn.rindex("\x1b[2K") :]
    assert "\\x1b[31mthe\\x07" in answers
    assert "pass 3" not in answers


def canvas_pass(tokenizer, rows, committed, start=0):
    """A `Pass` over responses behind a begin token; the window begins at response column `start`."""
    tokens = torch.tensor([[tokenizer.begin_id, *row] for row in rows])
    fresh = torch.tensor(committed)
    zeros, never = torch.zeros(fresh.shape), torch.zeros_like(fresh)
    return Pass(1, torch.arange(len(rows)), start + 1, tokens, fresh, never, zeros, zeros, never.any(-1))


def terminal(width=40, height=12, **options):
    return Console(
        file=io.StringIO(), force_terminal=True, width=width, height=height, markup=False, highlight=False, **options
    )


def drawn(console):
    return console.file.getvalue()


def test_masked_fresh_settled_and_fixed_tokens_differ_with_and_without_colours(tokenizer):
    mask, (a, b, c) = tokenizer.mask_id, tokenizer.encode("{}:")
    request = Request("the cat", [tokenizer.begin_id], [mask, mask, c, mask], is_infill=True)
    made = canvas_pass(tokenizer, [[a, b, c, mask]], [[True, False, False, False]])

    def picture(**options):
        console = terminal(**options)
        with Show([request], tokenizer, console, 0) as show:
            show.denoised(made)
        return drawn(console)

    coloured = picture(color_system="standard")
    styles = [re.search(rf"\x1b\[([\d;]*)m{re.escape(glyph)}", coloured)[1] for glyph in "{}:░"]
    assert len(set(styles)) == 4
    plain = picture(no_color=True, color_system="standard")
    assert re.search(r"\x1b\[[\d;]*7m\{\x1b\[0m", plain)  # reversed
    assert not re.search(r"\x1b\[[\d;]*7m\}", plain)
    assert "░" in plain


def test_a_window_is_drawn_where_it_stands(tokenizer):
    mask, (a,) = tokenizer.mask_id, tokenizer.encode("{")
    console = Console(file=io.StringIO(), width=80)
    with Show([Request("", [tokenizer.begin_id], [mask] * 4)], tokenizer, console) as show:
        show.denoised(canvas_pass(tokenizer, [[a, a, mask, a]], [[False, True]], start=2))
        show.denoised(canvas_pass(tokenizer, [[a, a, a, a]], [[True, False]], start=2))
    assert drawn(console) == "pass 1: {{░«{»\npass 2: {{«{»{\n"


def test_a_character_of_several_tokens_is_drawn_whole(tokenizer):
    tokens = tokenizer.encode("é中")
    assert len(tokens) > 2
    console = Console(file=io.StringIO(), width=80)
    with Show([Request("", [tokenizer.begin_id], [tokenizer.mask_id] * len(tokens))], tokenizer, console) as show:
        show.denoised(canvas_pass(tokenizer, [tokens], [[True] * len(tokens)]))
    assert drawn(console) == "pass 1: «é中»\n"


def test_rows_that_have_ended_leave_an_autoregressive_batch(tokenizer):
    end, (a, b) = tokenizer.end_id, tokenizer.encode("{}")
    requests = [Request(text, [tokenizer.begin_id], [tokenizer.mask_id] * 3) for text in "xyz"]
    console = Console(file=io.StringIO(), width=80)
    with Show(requests, tokenizer, console) as show:
        show.decoded(torch.tensor([[a], [end], [b]]))
        show.decoded(torch.tensor([[b], [a]]))
    lines = drawn(console).splitlines()
    assert lines[3:] == ["pass 2, row 1: {«}»", "pass 2, row 2: ∎", "pass 2, row 3: }«{»"]


def test_a_long_row_is_cut_to_the_lines_around_its_fresh_tokens(tokenizer):
    mask, (a, b) = tokenizer.mask_id, tokenizer.encode("{}")
    row = [a] * 400 + [b] + [mask] * 400
    console = terminal(width=40, height=10, color_system=None)
    with Show([Request("x" * 100, [tokenizer.begin_id], [mask] * 801)], tokenizer, console, 0) as show:
        show.denoised(canvas_pass(tokenizer, [row], [[token == b for token in row]]))
        frame = drawn(console)
    assert "}" in frame
    assert frame.count("\n") < 10


def test_waiting_and_drawing_are_not_booked_as_decoding(tokenizer):
    console = terminal()
    with Show([Request("x", [tokenizer.begin_id], [tokenizer.mask_id])], tokenizer, console, 0.05) as show:
        show.denoised(canvas_pass(tokenizer, [tokenizer.encode("{")], [[True]]))
    assert show.seconds_spent >= 0.05


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a\nb\tc", r"a\nb\tc"),
        ("\x1b[31m\x07\x9b", r"\x1b[31m\x07\x9b"),
        ("é 中 [b]", "é 中 [b]"),
        ("\u202e", r"\u202e"),
    ],
)
def test_what_cannot_be_printed_is_escaped(text, line):
    assert printable(text) == line

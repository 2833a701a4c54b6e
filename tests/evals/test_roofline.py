"""`evals.roofline` by hand and by its limits, and the command that stands on it. Nothing here asserts a speed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.utils.flop_counter
from hypothesis import given, settings
from hypothesis import strategies as st

from evals.ceilings import MACHINES, Machine, load_machines, measured_machine, named_machine
from evals.roofline import (
    RATIOS,
    Precision,
    Workload,
    at_ratios,
    closed_crossover,
    decode_seconds,
    layer_matrices,
    norm_weights,
    pass_work,
    predicted_crossover,
    speedup,
    stops_paying,
)
from mdlm.config import ModelConfig
from mdlm.errors import UserError
from mdlm.transformer import Transformer

ROOT = Path(__file__).resolve().parents[2]
SMALL = ModelConfig("block_diffusion", vocab_size=12, dim=16, layers=2, heads=4, kv_heads=2, head_dim=8, hidden_dim=24)
WIDE = ModelConfig("block_diffusion", vocab_size=8192, dim=512, layers=8, heads=8, kv_heads=2, hidden_dim=1536)
MACHINE = Machine("made up", 1e12, {"bf16": 2e14}, "here")


# --- shapes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("config", [SMALL, WIDE, SMALL.replace(qk_norm=False)])
def test_the_weights_are_those_of_the_model(config, tied):
    config = config.replace(tie_embeddings=tied)
    with torch.device("meta"):
        model = Transformer(config)
    tables = config.vocab_size * config.dim * (1 if tied else 2)
    assert layer_matrices(config) + norm_weights(config) + tables == model.num_parameters


@pytest.mark.parametrize("tied", [True, False])
def test_a_block_pass_by_hand(tied):
    """Two layers: q and o 16 x 32, k and v 16 x 16, three matrices 16 x 24; norms of 16, 16, 8, 8, and 16 at the end.
    Three rows of 5 positions that see 20 columns. One table of 12 x 16 is read, whether or not there is a second."""
    work = pass_work(SMALL.replace(tie_embeddings=tied), batch=3, positions=5, columns=20, head_positions=5)
    weights = 2 * (2 * 16 * 32 + 2 * 16 * 16 + 3 * 16 * 24)
    assert work.flops == {
        "layers": 3 * 5 * 2 * weights,
        "attention": 3 * 5 * 20 * 2 * 4 * 8 * 4,  # rows, positions, columns, layers, heads, width, two products of 2
        "head": 3 * 5 * 2 * 12 * 16,
    }
    assert work.bytes == {
        "layers": 2 * (weights + 2 * (16 + 16 + 8 + 8) + 16),
        "head": 2 * 12 * 16,
        "embedding": 2 * 3 * 5 * 16,
        "cache_read": 2 * 3 * 20 * 2 * 2 * 2 * 8,  # bytes, rows, columns, layers, key and value, KV heads, width
        "cache_write": 2 * 3 * 5 * 2 * 2 * 2 * 8,
        "logits": 2 * 3 * 5 * 12,
    }
    assert work.total_flops == sum(work.flops.values())
    assert work.intensity == pytest.approx(work.total_flops / work.total_bytes)


def test_without_a_head_its_table_is_not_read_and_without_a_cache_no_keys_are():
    work = pass_work(SMALL, batch=1, positions=5, columns=5, head_positions=0, cached=False)
    assert {name for name, value in work.bytes.items() if value} == {"layers", "embedding"}
    assert work.flops["head"] == 0


def test_narrow_weights_are_fewer_bytes_and_as_many_flops():
    sizes = {"batch": 2, "positions": 4, "columns": 9, "head_positions": 4}
    wide, narrow = pass_work(SMALL, **sizes), pass_work(SMALL, **sizes, precision=Precision(weights=0.5))
    assert narrow.flops == wide.flops
    for name, value in wide.bytes.items():
        of_weights = name in ("layers", "head", "embedding")
        assert narrow.bytes[name] == (value / 4 if of_weights else value)


def test_flops_are_those_that_torch_counts():
    """Of a whole canvas, with attention written as products: torch's counter does not see its fused kernel on a CPU."""
    model = Transformer(SMALL.replace(objective="masked_diffusion")).initialize(0)
    with torch.utils.flop_counter.FlopCounterMode(display=False) as counter:
        model(torch.zeros(3, 20, dtype=torch.long))
    work = pass_work(SMALL, batch=3, positions=20, columns=20, head_positions=20, cached=False)
    assert counter.get_total_flops() == work.total_flops


def test_a_step_of_one_token_is_one_flop_a_byte_at_two_bytes_a_weight():
    work = Workload(WIDE, prompt=16, answer=16, block=16)
    assert work.step(1).intensity == pytest.approx(1, rel=0.02)
    assert work.step(8).intensity == pytest.approx(8, rel=0.1)
    assert work.block_pass(1).intensity == pytest.approx(16, rel=0.1)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 200), st.integers(1, 60), st.integers(0, 500), st.sampled_from(["batch", "positions", "columns"]))
def test_more_of_anything_is_more_work_and_never_less_time(batch, positions, others, grown):
    sizes = {"batch": batch, "positions": positions, "columns": positions + others, "head_positions": 1}
    larger = {**sizes, grown: sizes[grown] + 1}
    larger["columns"] = max(larger["columns"], larger["positions"])
    small, large = pass_work(WIDE, **sizes), pass_work(WIDE, **larger)
    assert large.total_flops > small.total_flops
    assert large.total_bytes > small.total_bytes
    assert large.seconds(MACHINE, "bf16") >= small.seconds(MACHINE, "bf16")


# --- roofline -------------------------------------------------------------------------------------------------------


def test_seconds_are_those_of_the_lower_ceiling():
    work = pass_work(WIDE, batch=1, positions=1, columns=1, head_positions=1)
    assert work.seconds(MACHINE, "bf16") == work.total_bytes / 1e12
    assert work.bound_by(MACHINE, "bf16") == "bandwidth"
    slow = replace(MACHINE, peak={"bf16": 1e9})
    assert work.seconds(slow, "bf16") == work.total_flops / 1e9
    assert work.bound_by(slow, "bf16") == "arithmetic"


def test_the_closed_form_by_hand():
    """Half a token a position; 400 FLOP/s by 10 bytes/s, weights of 2 bytes: 0.5 · 40. The protocol's τ R / G."""
    ridge = measured_machine(
        {"flops_per_second": 400.0, "copy_bytes_per_second": 10.0, "copy_bytes": 1, "matrix_size": 1}, "fp32"
    ).ridge("fp32")
    assert closed_crossover(0.5, ridge, 2) == pytest.approx(20.0)
    assert closed_crossover(0.5, ridge, 4) == pytest.approx(40.0)


@pytest.mark.parametrize(("tokens", "weight_bytes"), [(1.5, 2), (4, 2), (4, 1), (12, 4)])
def test_the_solved_crossover_is_the_closed_form_where_that_is_exact(tokens, weight_bytes):
    """Cache and logits of no bytes, next to no columns, and matrices beside which embedding, norms and table vanish."""
    config = ModelConfig("block_diffusion", 8, dim=8192, layers=40, hidden_dim=65536, heads=1, kv_heads=1)
    work = Workload(config, prompt=1, answer=16, block=16, precision=Precision(weight_bytes, 1e-9))
    solved = predicted_crossover(work, tokens, MACHINE, "bf16")["batch"]
    assert solved == pytest.approx(closed_crossover(tokens / 16, MACHINE.ridge("bf16"), weight_bytes), rel=5e-3)


def test_at_the_crossover_both_are_equally_fast():
    work = Workload(WIDE, prompt=32, answer=32, block=16)
    batch = predicted_crossover(work, 4, MACHINE, "bf16")["batch"]
    assert speedup(work, batch, 4, MACHINE, "bf16") == pytest.approx(1)
    assert speedup(work, batch / 2, 4, MACHINE, "bf16") > 1 > speedup(work, batch * 2, 4, MACHINE, "bf16")


def test_the_twins_keys_and_values_put_the_crossover_off_and_many_of_them_for_ever():
    batches = [
        predicted_crossover(Workload(WIDE, prompt, 32, 16), 4, MACHINE, "bf16")["batch"] for prompt in (1, 64, 128)
    ]
    assert batches == sorted(set(batches))
    found = predicted_crossover(Workload(WIDE.replace(kv_heads=8), 2048, 32, 16), 4, MACHINE, "bf16")
    assert found["batch"] is None
    assert "ahead up to" in found["why"]


def test_less_than_a_token_a_pass_never_pays():
    found = predicted_crossover(Workload(WIDE, 32, 32, 16), 0.5, MACHINE, "bf16")
    assert found == {"batch": None, "why": "behind from batch 1 on"}


@settings(max_examples=40, deadline=None)
@given(st.floats(1, 1e5), st.floats(1, 4), st.floats(0.1, 16), st.integers(1, 4096))
def test_the_speedup_falls_with_the_batch_and_is_proportional_to_tokens(batch, factor, tokens, prompt):
    work = Workload(WIDE, prompt, 32, 16)
    ratio = speedup(work, batch, tokens, MACHINE, "bf16")
    assert speedup(work, batch * factor, tokens, MACHINE, "bf16") <= ratio * (1 + 1e-9)
    assert ratio <= tokens
    assert speedup(work, batch, tokens / 2, MACHINE, "bf16") == pytest.approx(ratio / 2)


# --- whole answers --------------------------------------------------------------------------------------------------


def test_whole_answers_are_counted_in_passes():
    """A clock that says 1 for every pass: 12 tokens in blocks of 4, 2 or 1.5 tokens a pass."""
    work = Workload(SMALL, prompt=5, answer=12, block=4)
    counted = decode_seconds(work, 1, 2, lambda _: 1.0)
    assert counted == {
        "autoregressive": 12,  # the prefill makes the first token
        "block_diffusion": 1 + 3 * 2 + 2,
        "masked_diffusion": 6,
    }
    assert decode_seconds(work, 1, 1.5, lambda _: 1.0)["block_diffusion"] == 1 + 3 * 3 + 2


def test_a_paged_cache_is_read_as_far_as_the_passes_of_a_decode_see_on_average():
    """A prompt of 5 and 12 tokens in blocks of 4: the blocks see 9, 13 and 17 columns, steps 6 to 17."""
    static = Workload(SMALL, prompt=5, answer=12, block=4)
    paged = replace(static, paged=True)
    a_column = static.block_pass(1).bytes["cache_write"] / 4
    assert static.step(1).bytes["cache_read"] == static.block_pass(1).bytes["cache_read"] == 17 * a_column
    assert paged.block_pass(1).bytes["cache_read"] == 13 * a_column
    assert paged.step(1).bytes["cache_read"] == 12 * a_column  # 11.5, rounded up
    assert paged.prefill(1, head=True) == static.prefill(1, head=True)
    assert paged.canvas(1) == static.canvas(1)
    assert replace(paged, answer=4).block_pass(1).bytes["cache_read"] == 9 * a_column


def test_the_ratios_divide_equal_totals_into_whole_blocks():
    found = at_ratios(Workload(SMALL, 8, 8, 4), 68)
    assert list(found) == list(RATIOS)
    assert {work.columns for work in found.values()} == {68}
    assert all(work.answer % 4 == 0 for work in found.values())
    answers = [work.answer for work in found.values()]
    assert answers == sorted(answers)
    assert (found[16.0].prompt, found[16.0].answer) == (64, 4)


def test_where_diffusion_stops_paying_is_said_in_ratios():
    assert stops_paying({16.0: 0.9, 1.0: 0.99, 0.25: 1.2}) == "below 1 at 16:1, 1:1"
    assert stops_paying({0.25: 0.5}) == "below 1 at 1:4"
    assert stops_paying({16.0: 1.0, 0.25: 3.0}) == "nowhere in the sweep"


# --- machines -------------------------------------------------------------------------------------------------------


def test_every_machine_of_the_file_has_ceilings_and_a_source():
    machines = load_machines()
    assert {"A100", "H100", "H200", "B200"} <= machines.keys()
    for machine in machines.values():
        assert 100 < machine.ridge("bf16") < 400  # FLOP/byte, dense; sparse ones would lie at twice that
        assert "data sheet" in machine.source
        assert "announced 20" in machine.source
    assert "dense, without sparsity" in MACHINES.read_text()
    assert named_machine("h100") == machines["H100"]


GOOD = "{bandwidth_bytes_per_second: 1.0e+12, peak_flops_per_second: {bf16: 1.0e+14}, source: s, announced: d}"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[1]", "a table"),
        ("A: [", "cannot be read"),
        ("A: {source: s}", "must have the fields"),
        (f"A: {GOOD.replace('source: s', 'sauce: s')}", "must have the fields"),
        (f"A: {GOOD.replace('{bf16: 1.0e+14}', '1.0e+14')}", "must name a dtype"),
        (f"A: {GOOD.replace('1.0e+12', '-1.0e+12')}", "bandwidth is -"),
        (f"A: {GOOD.replace('1.0e+14', 'much')}", "peak of bf16 is 'much'"),
        (f"A: {GOOD.replace('1.0e+14', '.inf')}", "peak of bf16 is inf"),
    ],
)
def test_a_wrong_machine_is_named(tmp_path, text, complaint):
    path = tmp_path / "machines.yaml"
    path.write_text(f"A: {GOOD}")
    assert load_machines(path)["A"].ridge("bf16") == pytest.approx(100)
    path.write_text(text)
    with pytest.raises(UserError, match=complaint) as caught:
        load_machines(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [{"batch": 0}, {"batch": -1}, {"positions": 0}, {"columns": 3}, {"head_positions": 5}, {"batch": float("nan")}],
)
def test_an_impossible_pass_is_refused(changes):
    sizes = {"batch": 1, "positions": 4, "columns": 4, "head_positions": 4}
    pass_work(SMALL, **sizes)
    with pytest.raises(UserError):
        pass_work(SMALL, **{**sizes, **changes})

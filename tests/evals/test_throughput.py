"""`python -m evals throughput`: every way decodes the same queue, and the record's numbers agree with each other."""

from __future__ import annotations

import io
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from evals.__main__ import main
from evals.batching import STATIC, TWIN, Contender, crossover, measure, ways
from evals.records import read_record
from evals.systems import GREEDY, Setting
from evals.throughput import print_result
from mdlm.errors import run_command
from sample import AutoregressiveConfig, DenoiseConfig, decode

ROOT = Path(__file__).resolve().parents[2]
RESPONSE, COLUMNS = 10, 6


@pytest.fixture(scope="module")
def contenders(ending_model):
    halves = Setting("two tokens a pass", DenoiseConfig(max_denoising_steps=2))
    settings = {"autoregressive": GREEDY, "masked_diffusion": halves, "block_diffusion": halves}
    return {name: Contender(ending_model(name), setting, COLUMNS, RESPONSE) for name, setting in settings.items()}


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The tiny shape in a process of its own, which sets threads and limits: the JSON line and the folder."""
    folder = tmp_path_factory.mktemp("throughput")
    command = [sys.executable, "-m", "evals", "throughput", "--shape", "tiny", "--rows", "3", "--batch-size", "2", "1"]
    command += ["--repeats", "2", "--threads", "1", "--dtype", "fp32", "--device", "cpu", "--json", "--out", folder]
    done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), folder


def test_every_way_gives_the_same_answers_at_every_batch_size(contenders, prompts):
    queue = prompts * 2
    plain = decode(contenders["autoregressive"].model, queue, AutoregressiveConfig(RESPONSE)).answers()
    for way, decoder in ways(contenders, compiled=False).items():
        made = [decoder(queue, size) for size in (1, 3, 8)]
        assert made[0].answers == made[1].answers == made[2].answers
        assert made[0].answers == plain or way not in (TWIN, STATIC)
        for decoded in made:
            assert decoded.kept == sum(map(len, decoded.answers))


@pytest.mark.parametrize("size", [1, 3])
def test_calls_are_those_of_the_trunk(contenders, prompts, trunk_calls, size):
    models = {TWIN: "autoregressive", STATIC: "autoregressive"}
    for way, decoder in ways(contenders, compiled=False).items():
        with trunk_calls(contenders[models.get(way, way)].model) as calls:
            decoded = decoder(prompts, size)
        assert sum(decoded.calls.values()) == len(calls)


def test_the_sides_take_turns_and_the_first_round_is_left_out(contenders, prompts):
    timed = []
    result = measure(contenders, prompts, [1, 4], repeats=3, compiled=False, device="cpu",
                     advance=lambda: timed.append(1))  # fmt: skip
    assert len(timed) == 4 * 2 * (1 + 3)
    assert {cell["seconds"]["n"] for cell in result["cells"]} == {3}


def test_the_json_line_is_the_record_that_is_written_beside_its_figure(measured):
    line, folder = measured
    assert read_record(folder / "throughput.json") == line
    assert (folder / "throughput.png").read_bytes().startswith(b"\x89PNG")
    settings = line["settings"]
    assert (line["kind"], settings["shape"], settings["prompts"], settings["compiled"]) == (
        "throughput",
        "tiny",
        3,
        False,
    )
    assert set(settings["decoders"]) == {"autoregressive", "masked_diffusion", "block_diffusion"}


def test_rates_and_ratios_follow_from_tokens_and_seconds(measured):
    result = measured[0]["result"]
    cells = {(cell["way"], cell["batch"]): cell for cell in result["cells"]}
    assert set(cells) == {(w, b) for w in (TWIN, STATIC, "masked_diffusion", "block_diffusion") for b in (1, 2)}
    for cell in cells.values():
        assert cell["tokens"] == 3 * 128
        assert cell["tokens_per_second"] * cell["seconds"]["median"] == pytest.approx(cell["tokens"])
        assert cell["differs_from_first_batch_size"] == 0
    for way, best in result["best_batch"].items():
        assert cells[way, best]["tokens_per_second"] == max(cells[way, b]["tokens_per_second"] for b in (1, 2))
    by_size = [entry["to_queue"]["median"] for entry in result["ratios"] if entry["way"] == "block_diffusion"]
    assert result["against_queue"]["block_diffusion"]["crossover"] == crossover([1, 2], by_size)
    assert result["against_queue"]["block_diffusion"]["predicted_batch"] > 0


def test_idle_slots_are_those_without_a_row(measured):
    """Three prompts over two slots: the last one's neighbour idles for its 127 steps; prompts are padded too."""
    cells = {(cell["way"], cell["batch"]): cell for cell in measured[0]["result"]["cells"]}
    assert cells[TWIN, 1]["idle_share"] == 0
    assert cells[TWIN, 2]["idle_share"] == cells[STATIC, 2]["idle_share"] > 0.1
    assert cells[TWIN, 2]["calls"]["decode"] == 2 * 127
    assert cells["block_diffusion", 2]["idle_share"] is None


def test_the_table_shows_rates_ratios_and_where_the_lead_ends(measured):
    record = json.loads(json.dumps(measured[0]))
    record["result"]["against_queue"]["block_diffusion"]["crossover"] = crossover([1, 2], [2.0, 0.5])
    record["result"]["cells"][0]["differs_from_first_batch_size"] = 0.25
    buffer = io.StringIO()
    print_result(record, Console(file=buffer, width=160))
    text = buffer.getvalue()
    for cell in record["result"]["cells"]:
        assert f"{cell['tokens_per_second']:,.0f}" in text
    assert "equal at batch 1.4, between batch 1 and 2" in text
    assert "a roofline says" in text
    assert "25.0% of a way's texts differ" in text


@pytest.mark.parametrize(
    ("ratios", "batch", "why"),
    [
        ([4.0, 2.0, 0.5], math.sqrt(2 * 4), "between batch 2 and 4"),
        ([2.0, 1.0, 0.5], 2.0, "between batch 2 and 4"),
        ([0.5, 2.0, 0.125], 2 * 2 ** (1 / 4), "between batch 2 and 4"),
        ([3.0, 2.0, 1.5], None, "ahead at batch 4"),
        ([0.9, 0.8, 0.5], None, "behind from batch 1"),
        ([0.9, 0.8, 1.5], None, "ahead at batch 4"),
    ],
)
def test_the_crossover_is_where_the_last_lead_ends(ratios, batch, why):
    found = crossover([1, 2, 4], ratios)
    assert found["batch"] == (None if batch is None else pytest.approx(batch))
    assert why in found["why"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ((), "give either"),
        (("runs/none", "--shape", "tiny"), "give either"),
        (("runs/none",), "no data/test.jsonl"),
        (("--shape", "3m"), "'3m'"),
        (("--shape", "tiny", "--batch-size", "1", "0"), "--batch-size"),
        (("--shape", "tiny", "--rows", "0"), "--rows 0"),
        (("--shape", "tiny", "--rows", "3", "--batch-size", "4"), "do not fill a batch of 4"),
    ],
)
def test_a_wrong_command_line_is_answered_with_one_line(capsys, words, complaint):
    assert run_command(main, ["throughput", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert complaint in err

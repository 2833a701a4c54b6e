"""lm-eval on a checkpoint: two tasks from local files, every objective, against likelihoods and decoders."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import pytest
import torch

os.environ |= {"HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

from lm_eval.api.instance import Instance

from evals.__main__ import main
from evals.harness import CheckpointLM, noise_number
from mdlm.checkpoint import save_checkpoint
from mdlm.errors import UserError, run_command
from mdlm.likelihood import autoregressive_nll, exact_nelbo, nelbo
from mdlm.tokenizer import Tokenizer
from sample.__main__ import main as sample

ARMS = {"autoregressive": "one", "masked_diffusion": "canvas", "block_diffusion": "block"}
DIFFUSION = ("masked_diffusion", "block_diffusion")
TEXTS = ["the cat sat on the mat", "a dog ran", "red and blue", "one two three"]
CHOICES = ["the cat", "a dog", "red and blue", "one two three"]
PROMPT, RESPONSE = 24, 24

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(TEXTS * 4, 290)


@pytest.fixture(scope="module")
def build(tmp_path_factory, tiny_model, tokenizer):
    """`build(arm, prompt_length)`: a random checkpoint and its model."""
    ids = {f"{role}_token_id": getattr(tokenizer, f"{role}_id") for role in ("mask", "end", "pad", "begin")}

    def make(arm, prompt_length=PROMPT):
        size = {"max_length": prompt_length + RESPONSE, "block_length": 8}
        model = tiny_model(arm, vocab_size=tokenizer.vocab_size, tie_embeddings=False, **size, **ids)
        lengths = {"prompt_length": prompt_length, "response_length": RESPONSE}
        training = {"config": {"data": lengths}, "supervised_end": ARMS[arm], "response_length": RESPONSE}
        folder = tmp_path_factory.mktemp("arms") / arm / "step-1"
        save_checkpoint(folder, model, tokenizer, training)
        return folder, model

    return make


@pytest.fixture(scope="module")
def arms(build):
    return {arm: build(arm) for arm in ARMS}


def asked(*arguments, doc_id=0, kind="loglikelihood"):
    return Instance(kind, {}, arguments, 0, metadata=("task", doc_id, 1))


def row(tokenizer, context, response, columns):
    """Begin token and context, then the response and masks up to so many columns, as one row; what is scored in it."""
    prompt = [tokenizer.begin_id, *tokenizer.encode(context)]
    tokens = torch.tensor([prompt + response + [tokenizer.mask_id] * (columns - len(response))])
    column_L = torch.arange(tokens.shape[1])
    scored_L = (column_L >= len(prompt)) & (column_L < len(prompt) + len(response))
    return tokens, {"mask_id": tokenizer.mask_id, "scored_BL": scored_L[None], "response_start": len(prompt)}


def answers_of(folder, prompts, capsys, *options):
    """What the sampling command answers."""
    argv = ["--checkpoint", str(folder), "--json", *(word for text in prompts for word in ("--prompt", text)), *options]
    assert run_command(sample, argv) == 0
    return [result["text"] for result in json.loads(capsys.readouterr().out)["results"]]


def write_task(folder, name, rows, **settings):
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    base = {
        "task": name, "dataset_path": "json", "test_split": "test", "doc_to_text": "{{question}}",
        "dataset_kwargs": {"data_files": {"test": str(folder / f"{name}.jsonl")}}, "target_delimiter": "",
    }  # fmt: skip
    (folder / f"{name}.yaml").write_text(json.dumps(base | settings))  # JSON is YAML


@pytest.mark.parametrize("arm", ARMS)
def test_two_tasks_from_local_files_give_what_likelihood_and_decoder_say(
    arms, arm, tmp_path, capsys, tokenizer, monkeypatch
):
    """Accuracy is that of an arg-max over likelihoods, exact match that of the answers of `python -m sample`."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    folder, _ = arms[arm]
    questions = [f"say {text}" for text in ("one", "two", "red", "dog")]
    answers = answers_of(folder, questions, capsys, "--max-new-tokens", "8")
    stop = answers[0][2]
    planted = [text.split(stop)[0] for text in answers[:3]] + ["something else"]
    lm = CheckpointLM(folder, num_samples=16, greedy=False)
    pairs = [asked(question, choice, doc_id=n) for n, question in enumerate(questions) for choice in CHOICES]
    nats = torch.tensor([value for value, _ in lm.loglikelihood(pairs)]).view(len(questions), len(CHOICES))
    gold = nats.argmax(1)
    gold[3] = (gold[3] + 1) % len(CHOICES)  # one is to be missed
    rows = [{"question": q, "choices": CHOICES, "gold": int(g)} for q, g in zip(questions, gold, strict=True)]
    write_task(tmp_path, "choose", rows, output_type="multiple_choice", doc_to_choice="{{choices}}",
               doc_to_target="{{gold}}", metric_list=[{"metric": "acc"}])  # fmt: skip
    rows = [{"question": q, "answer": text} for q, text in zip(questions, planted, strict=True)]
    write_task(tmp_path, "answer", rows, output_type="generate_until", doc_to_target="{{answer}}",
               generation_kwargs={"until": [stop], "max_gen_toks": 8, "do_sample": False},
               metric_list=[{"metric": "exact_match"}])  # fmt: skip
    out = tmp_path / "record.json"
    argv = ["lm-eval", "--checkpoint", str(folder), "--tasks", "choose", "answer", "--include_path", str(tmp_path)]
    assert run_command(main, [*argv, "--samples", "16", "--out", str(out), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["result"] == json.loads(out.read_text())["result"]
    assert record["result"]["results"]["choose"]["acc,none"] == 0.75
    assert record["result"]["results"]["answer"]["exact_match,none"] == 0.75
    bound = {"autoregressive": "exact_autoregressive", "masked_diffusion": "nelbo", "block_diffusion": "nelbo:block_8"}
    model = record["settings"]["model"]
    assert (model["bound"], model["num_samples"]) == (bound[arm], 1 if arm == "autoregressive" else 16)
    assert model["seed"] == 0 and record["versions"]["lm_eval"]


@pytest.mark.parametrize("arm", ARMS)
def test_a_likelihood_is_that_of_the_row_as_trained(arms, arm, tokenizer):
    """Each continuation alone, unbatched: exact, or the bound with masks behind it to the end of block or canvas."""
    folder, model = arms[arm]
    pairs = [("say one", "the cat"), ("a dog and red", "red and blue"), ("", "one two three")]
    lm = CheckpointLM(folder, num_samples=16, batch_size=3, greedy=False)
    got = lm.loglikelihood([asked(*pair, doc_id=n) for n, pair in enumerate(pairs)])
    for n, ((context, continuation), (value, _)) in enumerate(zip(pairs, got, strict=True)):
        response = tokenizer.encode(continuation)
        blocks = -(-len(response) // 8) * 8
        columns = {"autoregressive": 0, "masked_diffusion": RESPONSE, "block_diffusion": blocks}[arm]
        tokens_BL, given = row(tokenizer, context, response, columns)
        if arm == "autoregressive":
            expected = autoregressive_nll(model, tokens_BL, **given)
        else:
            noise = {"rows_B": [noise_number(asked(doc_id=n))]}
            expected = nelbo(model, tokens_BL, num_samples=16, **given, **noise)
        assert value == pytest.approx(-float(expected.nats_B), rel=1e-4)


@pytest.mark.parametrize("arm", ARMS)
def test_of_a_text_checkpoint_the_context_is_text(build, arm, tokenizer):
    """Context and continuation stand in the response behind the begin token, where blocks count from."""
    folder, model = build(arm, prompt_length=1)
    context, continuation = (tokenizer.encode(text) for text in ("a dog ran", " and blue"))
    value, _ = CheckpointLM(folder, num_samples=16, greedy=False).loglikelihood([asked("a dog ran", " and blue")])[0]
    both = context + continuation
    blocks = -(-len(both) // 8) * 8
    columns = {"autoregressive": 0, "masked_diffusion": RESPONSE, "block_diffusion": blocks}[arm]
    tokens_BL, given = row(tokenizer, "", both, columns)
    given["scored_BL"][:, : 1 + len(context)] = False
    if arm == "autoregressive":
        expected = autoregressive_nll(model, tokens_BL, **given)
    else:
        noise = {"rows_B": [noise_number(asked())]}
        expected = nelbo(model, tokens_BL, num_samples=16, **given, **noise)
    assert value == pytest.approx(-float(expected.nats_B), rel=1e-4)


def reader(tokens_BL):
    """A denoiser over 12 tokens, mask 8: it expects token 1, less so 2, the more surely the more it sees, and at some
    columns more than at others."""
    column_L = torch.arange(tokens_BL.shape[1], dtype=torch.float64)
    seen_B1 = (tokens_BL != 8).double().mean(-1, keepdim=True)
    surety_BL = 4 * seen_B1 * (1 + torch.sin(3 * column_L))
    return surety_BL[..., None] * (torch.arange(12) == 1) + 0.7 * surety_BL[..., None] * (torch.arange(12) == 2)


@pytest.mark.parametrize("block_length", [None, 4])
def test_common_noise_makes_differences_between_choices_vary_less(block_length):
    """Choices of one length and of unequal lengths: over 400 seeds the variance of their difference is under 0.7 of
    that with noise of their own; the standard error of such a ratio is at most 0.15 of it (2 · sqrt(2 / 400))."""
    for lengths in ((12, 12), (11, 12), (9, 12)):
        tokens_BL = torch.ones(2, 12, dtype=torch.int64)
        tokens_BL[1, 5] = 2
        valid_BL = torch.arange(12) < torch.tensor(lengths)[:, None]
        given = {
            "mask_id": 8,
            "valid_BL": valid_BL,
            "noise_tokens_B": [12, 12],
            "block_length": block_length,
            "num_samples": 8,
        }
        spread = {}
        for name, numbers in (("common", [3, 3]), ("own", [3, 4])):
            found = [nelbo(reader, tokens_BL, seed=seed, rows_B=numbers, **given).nats_B for seed in range(400)]
            spread[name] = float(torch.stack(found).diff(dim=1).var())
        assert spread["common"] < 0.7 * spread["own"], (lengths, spread)


@pytest.mark.parametrize("block_length", [None, 4])
def test_noise_for_more_tokens_than_a_row_has_changes_no_expectation(block_length):
    """Mean over 400 seeds against the bound by enumeration, within four standard errors."""
    tokens_BL = torch.ones(1, 7, dtype=torch.int64)
    given = {"mask_id": 8, "block_length": block_length}
    drawing = {"rows_B": [9], "noise_tokens_B": [11], "num_samples": 8}
    found = torch.stack([nelbo(reader, tokens_BL, seed=s, **given, **drawing).nats_B for s in range(400)])
    exact = float(exact_nelbo(reader, tokens_BL[0], **given).nats_B)
    assert abs(float(found.mean()) - exact) < 4 * float(found.std()) / 20
    with pytest.raises(UserError, match="noise for 3 tokens is too little"):
        nelbo(reader, tokens_BL, mask_id=8, noise_tokens_B=[3])


@pytest.mark.parametrize("arm", DIFFUSION)
def test_noise_belongs_to_the_question_not_to_the_choice_or_the_batch(arms, arm):
    folder, _ = arms[arm]
    requests = [asked("say", text, doc_id=n) for n, text in enumerate(["the cat"] * 2 + ["red and blue"])]
    again = [requests[2], requests[0], asked("say", "the cat", doc_id=0)]
    lm = CheckpointLM(folder, num_samples=8, batch_size=1, greedy=False)
    first, other, last = (value for value, _ in lm.loglikelihood(requests))
    moved = [value for value, _ in CheckpointLM(folder, num_samples=8, batch_size=3, greedy=False).loglikelihood(again)]
    assert moved == pytest.approx([last, first, first], rel=1e-4)
    assert other != pytest.approx(first, rel=1e-3), "another question draws other noise"


@pytest.mark.parametrize("arm", ARMS)
def test_greedy_is_what_the_decoder_begins_its_answer_with(arms, arm, tokenizer):
    """A planted model whose every token is " the": it answers that alone, as many as there are columns."""
    folder, _ = arms[arm]
    lm = CheckpointLM(folder, num_samples=8)
    weights = {name: torch.zeros_like(weight) for name, weight in lm.model.state_dict().items()}
    weights["embed_tokens.weight"] += 1
    weights["norm.weight"] += 1
    (the,) = tokenizer.encode(" the")
    weights["lm_head.weight"][the] = 1
    lm.model.load_state_dict(weights)
    texts = {" the": True, " the the the": True, " the cat": False, "red": False, "": True}
    got = lm.loglikelihood([asked("say", text, doc_id=n) for n, text in enumerate(texts)])
    assert [greedy for _, greedy in got] == list(texts.values())
    assert got[-1][0] == 0.0
    assert lm.generate_until([asked("say", {"until": "the the", "max_gen_toks": 8}, kind="generate_until")]) == [" "]
    silent = CheckpointLM(folder, num_samples=8, greedy=False)
    assert not any(greedy for _, greedy in silent.loglikelihood([asked("say", " the")]))


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("prompt_length", [1, PROMPT])
def test_a_whole_text_is_scored_in_chunks_each_token_once(build, arm, prompt_length, tokenizer):
    """A text of several chunks: of a flat model every token costs log(V − 1)."""
    folder, model = build(arm, prompt_length)
    for parameter in model.parameters():
        parameter.zero_()
    lm = CheckpointLM(folder, num_samples=8)
    lm.model.load_state_dict(model.state_dict())
    text = " ".join(TEXTS * 2)
    count = len(tokenizer.encode(text))
    assert count > 1.2 * RESPONSE
    (value,) = lm.loglikelihood_rolling([asked(text, kind="loglikelihood_rolling")])
    assert value == pytest.approx(-count * math.log(tokenizer.vocab_size - 1), rel=1e-5)
    assert lm.get_model_info()["truncated"] == {"contexts": 0, "tokens": 0}


@pytest.mark.parametrize("arm", ARMS)
def test_a_context_that_does_not_fit_loses_its_beginning_and_is_counted(arms, arm, tokenizer):
    folder, _ = arms[arm]
    long = "one two three " * 20
    kept = tokenizer.encode(long)[-(PROMPT - 1) :]
    assert tokenizer.encode(tokenizer.decode(kept)) == kept
    lm = CheckpointLM(folder, num_samples=8, greedy=False)
    (cut, _), (short, _) = lm.loglikelihood([asked(long, "a dog"), asked(tokenizer.decode(kept), "a dog")])
    assert cut == pytest.approx(short, rel=1e-5)
    over = len(tokenizer.encode(long)) - len(kept)
    assert lm.get_model_info()["truncated"] == {"contexts": 1, "tokens": over}
    with pytest.raises(UserError, match="shorten it"):
        lm.loglikelihood([asked("", "one two three " * 20)])


@pytest.mark.parametrize(("arm", "options"), [
    ("block_diffusion", {"threshold": 0.5}), ("masked_diffusion", {"block_length": 8, "accept": "entropy_bound"}),
    ("masked_diffusion", {"preset": "fast-dllm", "block_length": 8}), ("autoregressive", {"cache": "none"}),
])  # fmt: skip
def test_decoder_options_are_those_of_the_sampling_command(arms, arm, options, capsys):
    folder, _ = arms[arm]
    argv = [word for name, value in options.items() for word in ("--" + name.replace("_", "-"), str(value))]
    expected = answers_of(folder, ["say one", "red"], capsys, *argv)
    lm = CheckpointLM(folder, batch_size=1, **options)
    requests = [asked(text, {"until": []}, kind="generate_until") for text in ("say one", "red")]
    assert lm.generate_until(requests) == expected


def test_the_command_line_of_lm_eval_runs_it_too(arms, tmp_path):
    """As the module's docstring says; the results carry the bound's name."""
    folder, _ = arms["block_diffusion"]
    rows = [{"question": "say one", "choices": CHOICES, "gold": 0}]
    write_task(tmp_path, "choose", rows, output_type="multiple_choice", doc_to_choice="{{choices}}",
               doc_to_target="{{gold}}", metric_list=[{"metric": "acc"}])  # fmt: skip
    code = "import evals.harness, lm_eval.__main__ as m; m.cli_evaluate()"
    model_args = f"checkpoint={folder},num_samples=8,threshold=0.9"
    argv = ["run", "--model", "mdlm", "--model_args", model_args, "--device", "cpu", "--tasks",
            "choose", "--include_path", str(tmp_path), "--output_path", str(tmp_path / "out")]  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True, timeout=120,
                          env=os.environ | {"HF_HOME": str(tmp_path / "cache")})  # fmt: skip
    assert done.returncode == 0, done.stderr
    (written,) = (tmp_path / "out").rglob("results_*.json")
    found = json.loads(written.read_text())["config"]
    assert (found["bound"], found["num_samples"], found["decoder"]["threshold"]) == ("nelbo:block_8", 8, 0.9)


def test_what_cannot_be_used_is_refused_in_one_line(arms, tmp_path, capsys):
    folder, _ = arms["autoregressive"]
    for options, message in (
        ({"threshold": 0.5}, "for diffusion models"), ({"treshold": 0.5}, "did you mean 'threshold'"),
        ({"batch_size": 0}, "at least 1"), ({"dtype": "fp8"}, "unknown dtype"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=message):
            CheckpointLM(folder, **options)
    with pytest.raises(UserError, match="num_beams is unknown"):
        CheckpointLM(folder).generate_until([asked("say", {"num_beams": 4}, kind="generate_until")])
    argv = ["lm-eval", "--checkpoint", str(folder), "--tasks", "no_such_task_here", "--include-path", str(tmp_path)]
    assert run_command(main, argv) == 2
    assert "knows no task 'no_such_task_here'" in capsys.readouterr().err

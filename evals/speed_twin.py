"""Part `twin` of `python -m evals speed`: the autoregressive decoder beside every other that runs the same weights.

A comparison against a slow twin proves nothing. So one prompt of PROMPT tokens is continued greedily by ANSWER
tokens, one stream, by our decoder, by transformers' `generate`, by a plain compiled loop in the manner of gpt-fast and,
where one is installed, by an outside engine; all in one process, in turn, prefill included.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from rich.table import Table

from evals.machine import measure_floor
from evals.plain_decoding import PlainDecoder
from evals.speed_parts import ANSWER, PROMPT, Session, check, model_config
from evals.timing import paired_ratio
from mdlm.checkpoint import disk_name
from mdlm.export import exported_config
from mdlm.transformer import Transformer
from sample import AutoregressiveConfig, decode
from sample.drafters import PromptLookup
from sample.speculative import Speculation, decode_speculatively

EAGER, OURS, LOOKUP = "ours, eager", "ours, compiled", "ours, compiled + prompt lookup"
DEFAULT, PLAIN = "transformers generate", "plain loop, compiled"
FASTER_THAN_DEFAULT = {"7m": 2.5, "30m": 2.0, "100m": 1.4}
"""How many times as fast as transformers' default ours should be, by shape."""
DRAFT_LENGTH = 7

Decoder = Callable[[], list[int]]


def measure_twin(shape: str, session: Session) -> dict[str, Any]:
    """Tokens/s of every decoder, the bytes a token moves, and how far each is from reading them at full speed."""
    config = model_config(shape, "autoregressive")
    model = session.model(config)
    with torch.no_grad():  # the mask token, which ours never writes, must not be another's choice
        model.embed_tokens.weight[config.mask_token_id] = 0
    prompt = session.draw(config, PROMPT).tolist()
    floor = measure_floor(model.dtype, device=session.device, repeats=session.repeats)
    decoders = {**_ours(model, prompt), **_plain(model, prompt), **_transformers(model, prompt)}
    if "compiled" not in session.modes:
        decoders = {name: decoder for name, decoder in decoders.items() if "compiled" not in name}
    timings = session.time(decoders, session.repeats)
    ours = OURS if OURS in decoders else EAGER
    reference = decoders[ours]()
    moved = moved_bytes(model)
    pace = max(floor["copy_bytes_per_second"], floor["read_bytes_per_second"])
    result: dict[str, Any] = {"floor": floor, **moved, "decoders": {}, "checks": []}
    result["floor_tokens_per_second"] = pace / (moved["weight_bytes"] + moved["cache_bytes"])
    for name, timing in timings.items():
        seconds, answer = timing.to_dict(), decoders[name]()
        rate = ANSWER / seconds["median"]
        result["decoders"][name] = {
            "seconds": seconds,
            "tokens_per_second": rate,
            "times_floor": result["floor_tokens_per_second"] / rate,
            "ours_is_faster_by": paired_ratio(timing.seconds, timings[ours].seconds),
            "same_tokens": sum(a == b for a, b in zip(answer, reference, strict=True)) / ANSWER,
        }
    for name, bound in ((DEFAULT, FASTER_THAN_DEFAULT.get(shape)), (PLAIN, 1.0)):
        if bound and name in timings and ours == OURS:
            ratio = result["decoders"][name]["ours_is_faster_by"]
            what = f"ours compiled, tokens/s : {name}, {shape}"
            result["checks"].append(check(what, ratio, bound, at_most=False, part="twin", shape=shape))
    # Random weights soon repeat themselves and every guess is right: no measure of lookup (`evals speculation` is).
    plain = [name for name in timings if name != LOOKUP]
    result["strongest"] = min(plain, key=lambda name: result["decoders"][name]["seconds"]["median"])
    return result


def moved_bytes(model: Transformer) -> dict[str, int]:
    """Bytes one decoded token reads, from shapes: all weights, and the columns of the cache so far, on average."""
    config, size = model.config, model.dtype.itemsize
    embedding = 0 if config.tie_embeddings else config.vocab_size * config.dim
    columns = PROMPT + ANSWER // 2
    cache = 2 * config.layers * columns * config.kv_heads * config.head_dim
    return {"weight_bytes": (model.num_parameters - embedding) * size, "cache_bytes": cache * size}


def _ours(model: Transformer, prompt: list[int]) -> dict[str, Decoder]:
    def plainly(compiled: bool) -> list[int]:
        return decode(model, [prompt], AutoregressiveConfig(ANSWER, compile=compiled)).tokens_BL[0, PROMPT:].tolist()

    def guessing() -> list[int]:
        made = decode_speculatively(
            model,
            [prompt],
            AutoregressiveConfig(ANSWER, compile=True),
            drafter=PromptLookup(),
            speculation=Speculation(DRAFT_LENGTH),
        )
        return made.tokens_BL[0, PROMPT:].tolist()

    return {
        EAGER: lambda: plainly(False),
        OURS: lambda: plainly(True),
        LOOKUP: guessing,
    }


def _plain(model: Transformer, prompt: list[int]) -> dict[str, Decoder]:
    loops = {PLAIN: PlainDecoder(model, PROMPT + ANSWER, compiled=True)}
    if model.device.type == "cpu":
        loops["plain loop, compiled, frozen weights"] = PlainDecoder(model, PROMPT + ANSWER, compiled=True, frozen=True)
    return {name: partial(loop.generate, prompt, ANSWER) for name, loop in loops.items()}


def _transformers(model: Transformer, prompt: list[int]) -> dict[str, Decoder]:
    """`generate` with its default, growing cache, and with a static one and a compiled step, where it is installed."""
    if not find_spec("transformers"):
        return {}
    from transformers import CompileConfig, GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    twin: Any = Qwen3ForCausalLM(Qwen3Config(**exported_config(model.config, model.dtype)))
    twin.load_state_dict({disk_name(name): tensor for name, tensor in model.state_dict().items()}, strict=False)
    twin.to(device=model.device, dtype=model.dtype).eval().requires_grad_(False)
    prompt_1P = torch.tensor([prompt], device=model.device)
    common = {"max_new_tokens": ANSWER, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    compiling: Any = CompileConfig(mode="default", dynamic=False, fullgraph=False)
    compiling._compile_all_devices = True  # its own switch for devices that it does not compile on by default
    configs = {
        DEFAULT: GenerationConfig(**common),
        f"{DEFAULT}, static cache, compiled": GenerationConfig(
            **common, cache_implementation="static", compile_config=compiling
        ),
    }

    def generate(config: Any) -> list[int]:
        ones = torch.ones_like(prompt_1P)
        return twin.generate(prompt_1P, attention_mask=ones, generation_config=config)[0, PROMPT:].tolist()

    return {name: partial(generate, config) for name, config in configs.items()}


def twin_table(result: dict[str, Any], shape: str) -> Table:
    """The decoders of one shape."""
    pace = max(result["floor"][f"{kind}_bytes_per_second"] for kind in ("copy", "read")) / 1e9
    megabytes = (result["weight_bytes"] + result["cache_bytes"]) / 1e6
    table = Table(title_justify="left", title=(
        f"autoregressive decoding, {shape}, {PROMPT} + {ANSWER} tokens; {megabytes:.0f} MB a token, read at {pace:.1f} "
        f"GB/s: {result['floor_tokens_per_second']:,.0f} tokens/s at most"
    ))  # fmt: skip
    for column in ("decoder", "tokens/s", "p90, ms", ": floor", "ours : it", "same tokens"):
        table.add_column(column, justify="left" if column == "decoder" else "right")
    for name, entry in result["decoders"].items():
        note = " (random weights: all guesses right)" if name == LOOKUP else ""
        table.add_row(
            f"[bold]{name}[/bold]" if name == result["strongest"] else name + note,
            f"{entry['tokens_per_second']:,.0f}",
            f"{1e3 * entry['seconds']['p90']:,.0f}",
            f"{entry['times_floor']:.2f}",
            f"{entry['ours_is_faster_by']['median']:.2f}",
            f"{entry['same_tokens']:.0%}",
        )
    return table

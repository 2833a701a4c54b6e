"""What `python -m evals speed` measures: a training step, a cached pass, and the decoders at one stream.

Weights are random: speed does not depend on what a model has learned. Bytes and FLOPs are counted from shapes.
Shapes: B rows, R response columns, L positions, G positions of a pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, get_args
from unittest.mock import patch

import torch
from torch import Tensor

from evals.ceilings import measured_machine
from evals.machine import DTYPES, measure_floor
from evals.published import published_loop
from evals.roofline import Precision, pass_work
from evals.timing import Timing, alternate, distribution, paired_ratio, synchronize
from mdlm.attention import KVCache
from mdlm.config import ModelConfig, Objective
from mdlm.corruption import stratified_times
from mdlm.objectives import Batch, LossConfig, blocks_in_response, training_loss
from mdlm.transformer import Transformer
from sample import (
    AutoregressiveConfig,
    DenoiseConfig,
    Generation,
    approximate,
    autoregressive,
    decode,
    denoise,
    windows,
)
from sample.compiled import maybe_compiled
from sample.generation import canvas
from sample.windows import cached_columns
from train.config import OptimizerConfig
from train.loop import TrainingStep
from train.optimizer import Optimizers

K = TypeVar("K", bound=Hashable)

SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {"vocab_size": 512, "dim": 128, "layers": 2, "heads": 2, "kv_heads": 2, "hidden_dim": 384},
    "2m": {"vocab_size": 1024, "dim": 192, "layers": 4, "heads": 3, "kv_heads": 3, "hidden_dim": 576},
    "7m": {"vocab_size": 8192, "dim": 256, "layers": 6, "heads": 4, "kv_heads": 4, "hidden_dim": 768},
    "30m": {"vocab_size": 8192, "dim": 512, "layers": 8, "heads": 8, "kv_heads": 8, "hidden_dim": 1536},
    "100m": {"vocab_size": 16384, "dim": 768, "layers": 12, "heads": 12, "kv_heads": 12, "hidden_dim": 2304},
}
"""Named by their parameters; heads of 64, tied embeddings."""
ASKED_SHAPES = {"training": ("2m",), "pass": ("30m",), "decode": ("30m",), "twin": ("7m", "30m", "100m")}
"""The shapes each part is measured at where none is given, and of which its targets are asked."""
PROMPT, ANSWER, BLOCK, PASSES = 128, 128, 32, 8
"""One stream: tokens of prompt and answer, positions of a block, denoising passes a block."""
WIDTHS = (1, 2, 4, 8, 16, 32, 64)
"""Positions of a cached pass, against a cache of PROMPT + ANSWER columns that are all visible."""
PASS_CALLS = 20
"""Timed passes of each width in one repeat: a pass takes milliseconds."""


@dataclass(frozen=True)
class Session:
    """How everything is measured."""

    dtype: str
    device: str
    repeats: int
    batch_size: int
    modes: tuple[str, ...]
    """`eager`, and `compiled` unless it is left out."""
    seed: int
    objectives: Sequence[Objective] = get_args(Objective)
    """Those whose training is measured."""
    advance: Callable[[], None] = lambda: None
    """Called after every timed call; a progress display."""

    def time(self, sides: Mapping[K, Callable[[], object]], rounds: int) -> dict[K, Timing]:
        """Times the sides in turn."""
        return alternate(sides, rounds=rounds, device=self.device, advance=self.advance)

    def model(self, config: ModelConfig) -> Transformer:
        """A model for decoding: random weights of the session's dtype that never end an answer."""
        model = Transformer(config).initialize(self.seed)
        with torch.no_grad():
            # A logit of zero is not the largest of thousands of random ones, so that all arms decode every token.
            model.embed_tokens.weight[config.end_token_id] = 0
        return model.to(device=self.device, dtype=DTYPES[self.dtype]).eval().requires_grad_(False)

    def draw(self, config: ModelConfig, *shape: int) -> Tensor:
        """Random token ids, none of them special."""
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randint(config.vocab_size - 4, shape, generator=generator).to(self.device)


def model_config(shape: str, objective: Objective = "block_diffusion") -> ModelConfig:
    """A named shape as a model for rows of PROMPT + ANSWER tokens, in blocks of BLOCK."""
    return ModelConfig(objective, **SHAPES[shape], max_length=PROMPT + ANSWER, block_length=BLOCK)


def check(what: str, measured: dict[str, Any], bound: float, *, at_most: bool, part: str, shape: str) -> dict[str, Any]:
    """A target of the project beside its measured distribution; `met` is None for a shape it is not asked of."""
    met = measured["median"] <= bound if at_most else measured["median"] >= bound
    asked = {"asked": bound, "relation": "at most" if at_most else "at least", "of_shapes": ASKED_SHAPES[part]}
    return {"what": what, **asked, "measured": measured, "met": met if shape in ASKED_SHAPES[part] else None}


# --- training -------------------------------------------------------------------------------------------------------


def random_batch(config: ModelConfig, session: Session) -> Batch:
    """Full rows of random tokens with the noise of a training step."""
    rows = session.batch_size
    generator = torch.Generator().manual_seed(session.seed)
    everything_BL = torch.ones(rows, PROMPT + ANSWER, dtype=torch.bool)
    return Batch(
        tokens_BL=session.draw(config, rows, PROMPT + ANSWER),
        valid_BL=everything_BL,
        supervised_BR=everything_BL[:, PROMPT:].clone(),
        times_BJ=stratified_times((rows, blocks_in_response(config, ANSWER)), generator).float(),
        noise_BR=torch.rand(rows, ANSWER, generator=generator),
    ).to(session.device)


def training_steps(config: ModelConfig, session: Session) -> dict[str, Callable[[], float]]:
    """The whole step of `python -m train`, one function a mode: loss, backward, clipping, optimizer. Returns the loss.

    All modes train the same weights on the same batch.
    """
    model, loss_config, settings = Transformer(config).initialize(session.seed), LossConfig(), OptimizerConfig()
    model.to(session.device)
    batch = random_batch(config, session)
    optimizers = Optimizers(model, settings, steps=1_000_000)
    # The head runs on as many positions as this batch has masks, rounded up as in training.
    with torch.no_grad():
        wanted = int(training_loss(model, batch, loss_config, session.batch_size * ANSWER)[1]["predicted"])
    capacity = min(-(-wanted // 16) * 16, session.batch_size * ANSWER)

    def step_of(mode: str) -> Callable[[], float]:
        module = TrainingStep(model, loss_config, capacity, compiled=mode == "compiled")

        def step() -> float:
            with torch.autocast(session.device, torch.bfloat16, enabled=session.dtype == "bf16"):
                loss, _ = module(batch)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), settings.gradient_clip)
            optimizers.step(0)
            return float(loss.detach())

        return step

    return {mode: step_of(mode) for mode in session.modes}


def measure_training(shape: str, session: Session) -> dict[str, Any]:
    """Tokens/s of a training step for every objective, compiled beside eager."""
    result: dict[str, Any] = {"objectives": {}, "checks": []}
    result["tokens_a_step"] = tokens = session.batch_size * (PROMPT + ANSWER)
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")  # as `python -m train` does
    for objective in session.objectives:
        timings = session.time(training_steps(model_config(shape, objective), session), session.repeats)
        measured: dict[str, Any] = {"modes": {}}
        for mode, timing in timings.items():
            seconds = timing.to_dict()
            measured["modes"][mode] = {"seconds": seconds, "tokens_per_second": tokens / seconds["median"]}
        if "compiled" in timings:
            speedup = paired_ratio(timings["eager"].seconds, timings["compiled"].seconds)
            measured["speedup"] = speedup
            what = f"{objective} training, tokens/s compiled : eager"
            result["checks"].append(check(what, speedup, 1.5, at_most=False, part="training", shape=shape))
        result["objectives"][objective] = measured
    torch.set_float32_matmul_precision(precision)
    return result


# --- pass -----------------------------------------------------------------------------------------------------------


def cached_pass(
    model: Transformer, width: int, mode: str, session: Session, *, rows: int = 1, columns: int = PROMPT + ANSWER
) -> Callable[[], Tensor]:
    """One pass of a decoder over `width` positions of each row, head included, against a full cache."""
    cache = KVCache(model.config, rows, columns, dtype=model.dtype, device=model.device)
    cache.blocks_BS.zero_()
    columns_G = torch.arange(columns - width, columns, device=model.device)
    positions_BG = columns_G.expand(rows, -1).contiguous()
    blocks_BG = torch.ones(rows, width, dtype=torch.int32, device=model.device)
    tokens_BG = session.draw(model.config, rows, width)
    function = maybe_compiled(cached_columns, mode == "compiled", model)
    window_G = torch.arange(width, device=model.device)
    return lambda: function(model, tokens_BG, positions_BG, blocks_BG, columns_G, cache, window_G)


@torch.no_grad()
def measure_pass(shape: str, session: Session) -> dict[str, Any]:
    """Seconds of a cached pass by its positions, beside the floor max(bytes / bandwidth, FLOPs / peak)."""
    model = session.model(model_config(shape))
    floor = measure_floor(model.dtype, device=session.device, repeats=session.repeats)
    machine = measured_machine(floor, session.dtype)
    precision = Precision(model.dtype.itemsize, model.dtype.itemsize)
    sides = {(mode, width): cached_pass(model, width, mode, session) for mode in session.modes for width in WIDTHS}
    timings = session.time(sides, session.repeats * PASS_CALLS)
    result: dict[str, Any] = {"floor": floor, "modes": {mode: {} for mode in session.modes}, "checks": []}
    for (mode, width), timing in timings.items():
        seconds, columns = timing.to_dict(), PROMPT + ANSWER
        work = pass_work(
            model.config, batch=1, positions=width, columns=columns, head_positions=width, precision=precision
        )
        weight_bytes, bound = work.bytes["layers"] + work.bytes["head"], work.seconds(machine, session.dtype)
        result["modes"][mode][str(width)] = {
            "seconds": seconds,
            "against_one_position": paired_ratio(timing.seconds, timings[mode, 1].seconds),
            "weight_bytes": weight_bytes,
            "cache_bytes": work.bytes["cache_read"] + work.bytes["cache_write"],
            "bytes": work.total_bytes,
            "flops": work.total_flops,
            "weight_bytes_per_second": weight_bytes / seconds["median"],
            "floor_seconds": bound,
            "times_floor": seconds["median"] / bound,
        }
    if "compiled" in session.modes:
        ratio = result["modes"]["compiled"][str(BLOCK)]["against_one_position"]
        what = f"compiled pass, {BLOCK} positions : 1 position"
        result["checks"].append(check(what, ratio, 1.6, at_most=True, part="pass", shape=shape))
    return result


# --- decode ---------------------------------------------------------------------------------------------------------


@contextmanager
def trunk_calls(device: str) -> Iterator[list[tuple[float, float]]]:
    """Begin and end of every call of the model that the decoders make meanwhile, in seconds; the first is the prefill.

    The decoders get those functions, head included, from `maybe_compiled`; each is timed outside its compiled form.
    """
    calls: list[tuple[float, float]] = []

    def clocked(function: Callable, compiled: bool, model: Any = None) -> Callable:
        inner = maybe_compiled(function, compiled, model)

        def call(*arguments):
            synchronize(device)
            begin = time.perf_counter()
            out = inner(*arguments)
            synchronize(device)
            calls.append((begin, time.perf_counter()))
            return out

        return call

    with ExitStack() as patches:
        for module in (windows, approximate, autoregressive):
            patches.enter_context(patch.object(module, "maybe_compiled", clocked))
        yield calls


def decoders(shape: str, session: Session) -> tuple[dict[str, Callable[[bool], Generation]], Callable[[bool], Tensor]]:
    """Both arms' decoders of one random prompt and ANSWER new tokens, as functions of whether to compile; and the
    published loop on the block model's weights and canvas, at the same passes."""
    causal = session.model(model_config(shape, "autoregressive"))
    blockwise = session.model(model_config(shape, "block_diffusion"))
    config = blockwise.config
    prompt = session.draw(config, PROMPT).tolist()
    canvas_BL, _, start = canvas([prompt], ANSWER, pad_id=config.pad_token_id, mask_id=config.mask_token_id)

    def in_blocks(compiled: bool) -> Generation:
        settings = DenoiseConfig(max_denoising_steps=PASSES, block_length=BLOCK, compile=compiled)
        return denoise(
            blockwise,
            canvas_BL,
            settings,
            mask_id=config.mask_token_id,
            end_id=config.end_token_id,
            response_start=start,
        )

    def as_published(compiled: bool) -> Tensor:
        forward = maybe_compiled(Transformer.forward, compiled, blockwise)
        return published_loop(
            lambda tokens_BL: forward(blockwise, tokens_BL, None, start),
            canvas_BL.to(session.device),
            mask_id=config.mask_token_id,
            response_start=start,
            block_length=BLOCK,
            passes=PASSES,
        )

    def by_token(compiled: bool) -> Generation:
        return decode(causal, [prompt], AutoregressiveConfig(max_new_tokens=ANSWER, compile=compiled))

    return {"block_diffusion": in_blocks, "autoregressive": by_token}, as_published


def outside_trunk(decoder: Callable[[], Generation], device: str) -> dict[str, float]:
    """Where one decode's time goes: seconds end to end, to the end of the prefill, of the loop, and in its trunk.

    `loop_share` is the part of the loop's seconds that is not spent in the trunk, `whole_share` that of the decode's.
    """
    with trunk_calls(device) as calls:
        begin = time.perf_counter()
        generation = decoder()
        synchronize(device)
        end = time.perf_counter()
    if len(calls) != generation.ledger.total_calls:
        raise RuntimeError(f"the clock saw {len(calls)} passes, the ledger {generation.ledger.total_calls}")
    prefill, *loop = [stop - start for start, stop in calls]
    seconds, loop_seconds = end - begin, end - calls[0][1]
    return {
        "seconds": seconds,
        "prefill_seconds": seconds - loop_seconds,
        "loop_seconds": loop_seconds,
        "trunk_seconds": sum(loop),
        "loop_share": 1 - sum(loop) / loop_seconds,
        "whole_share": 1 - (prefill + sum(loop)) / seconds,
    }


def measure_decode(shape: str, session: Session) -> dict[str, Any]:
    """One stream: tokens/s of both arms at their passes, and the share of time that is spent outside the trunk."""
    arms, as_published = decoders(shape, session)
    sides = {
        (mode, arm): (lambda decoder=decoder, mode=mode: decoder(mode == "compiled"))
        for mode in session.modes
        for arm, decoder in arms.items()
    }
    loops = {(mode, "published_loop"): (lambda mode=mode: as_published(mode == "compiled")) for mode in session.modes}
    timings = session.time({**sides, **loops}, session.repeats)
    result: dict[str, Any] = {"modes": {mode: {"arms": {}} for mode in session.modes}, "checks": []}
    for (mode, arm), decoder in sides.items():
        # A series of its own, because the clock waits for a GPU at every pass.
        splits = [outside_trunk(decoder, session.device) for _ in range(session.repeats)]
        seconds, account = timings[mode, arm].to_dict(), decoder().ledger.row(0)
        result["modes"][mode]["arms"][arm] = of_arm = {
            "seconds": seconds,
            "useful_tokens_per_second": account.kept / seconds["median"],
            "ledger": account.to_dict(),
            "split": {name: distribution([split[name] for split in splits]) for name in splits[0]},
        }
        if mode == "compiled":
            what = f"{arm} decoding, share of the loop outside the trunk"
            result["checks"].append(
                check(what, of_arm["split"]["loop_share"], 0.10, at_most=True, part="decode", shape=shape)
            )
    for mode in session.modes:
        seconds_of = {arm: timings[mode, arm].seconds for arm in arms}
        ratio = paired_ratio(timings[mode, "published_loop"].seconds, seconds_of["block_diffusion"])
        made = arms["block_diffusion"](mode == "compiled").tokens_BL
        same = float((as_published(mode == "compiled") == made).float().mean())
        loop = {"seconds": timings[mode, "published_loop"].to_dict(), "same_tokens": same, "ours_is_faster_by": ratio}
        result["modes"][mode]["published_loop"] = loop
        if mode == "compiled":
            what = "block diffusion, tokens/s : the published loop's at equal passes"
            result["checks"].append(check(what, ratio, 2.0, at_most=False, part="decode", shape=shape))
        result["modes"][mode]["speed_ratio"] = paired_ratio(seconds_of["autoregressive"], seconds_of["block_diffusion"])
    return result

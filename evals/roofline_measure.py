"""What `python -m evals roofline --measure` times: the passes at every batch size, and whole answers at every ratio.

Weights are random. B rows, G positions of a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch

from evals.batching import crossover
from evals.roofline import Workload
from evals.roofline_report import BLOCK_PASS, STEP
from evals.speed_parts import Session, cached_pass
from evals.timing import paired_ratio
from mdlm.transformer import Transformer
from sample import AutoregressiveConfig, DenoiseConfig, decode, denoise
from sample.generation import canvas


@torch.no_grad()
def measure_sweep(work: Workload, batches: Sequence[int], tokens: float, session: Session) -> dict[str, Any]:
    """The twin's step and the block pass at every batch size, in turn; their speed-up, and where it falls below 1."""
    model, (mode,) = session.model(work.config), session.modes
    sides = {
        (name, batch): cached_pass(model, width, mode, session, rows=batch, columns=work.columns)
        for batch in batches
        for name, width in ((STEP, 1), (BLOCK_PASS, work.block))
    }
    timings = session.time(sides, session.repeats)
    ratios = {
        batch: paired_ratio(
            [tokens * seconds for seconds in timings[STEP, batch].seconds], timings[BLOCK_PASS, batch].seconds
        )
        for batch in batches
    }
    return {
        "seconds": {
            name: {str(batch): timings[name, batch].to_dict() for batch in batches} for name in (STEP, BLOCK_PASS)
        },
        "speedup": {str(batch): ratio for batch, ratio in ratios.items()},
        "crossover": crossover(batches, [ratio["median"] for ratio in ratios.values()]),
    }


@torch.no_grad()
def measure_ratios(works: Mapping[float, Workload], batch: int, tokens: float, session: Session) -> dict[str, Any]:
    """End-to-end speed-up of both diffusion arms' decoders over the twin's at every ratio, all in turn."""
    arms = ("autoregressive", "block_diffusion", "masked_diffusion")
    some = next(iter(works.values()))
    models = {arm: session.model(some.config.replace(objective=cast(Any, arm))) for arm in arms}
    sides = {
        (arm, ratio): _answers(models[arm], work, batch, tokens, session)
        for ratio, work in works.items()
        for arm in arms
    }
    timings = session.time(sides, session.repeats)
    return {
        f"{ratio:g}": {
            "seconds": {arm: timings[arm, ratio].to_dict() for arm in arms},
            "speedup": {
                arm: paired_ratio(timings["autoregressive", ratio].seconds, timings[arm, ratio].seconds)
                for arm in arms[1:]
            },
        }
        for ratio in works
    }


def _answers(model: Transformer, work: Workload, batch: int, tokens: float, session: Session) -> Callable[[], object]:
    """One arm's decoder of whole answers to random prompts."""
    config, compiled = model.config, session.modes == ("compiled",)
    prompts = session.draw(config, batch, work.prompt).tolist()
    if config.objective == "autoregressive":
        settings = AutoregressiveConfig(max_new_tokens=work.answer, compile=compiled)
        return lambda: decode(model, prompts, settings)
    canvas_BL, _, start = canvas(prompts, work.answer, pad_id=config.pad_token_id, mask_id=config.mask_token_id)
    window = work.block if config.objective == "block_diffusion" else work.answer
    passes = -int(-window // tokens)
    blocks = work.block if config.objective == "block_diffusion" else None
    setting = DenoiseConfig(max_denoising_steps=passes, block_length=blocks, compile=compiled)
    mask_id, end_id = config.mask_token_id, config.end_token_id
    return lambda: denoise(model, canvas_BL, setting, mask_id=mask_id, end_id=end_id, response_start=start)

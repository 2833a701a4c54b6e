"""Published samplers by the names readers know, each a combination of the five choices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mdlm.command import unknown
from sample.config import DenoiseConfig


@dataclass(frozen=True)
class Preset:
    """What a published sampler chooses, and where it is published."""

    source: str
    choices: dict[str, Any]


PRESETS: dict[str, Preset] = {
    "llada": Preset(
        "LLaDA (2502.09992) algorithm 5: low-confidence remasking; one token a pass, as its reference code is run",
        {"accept": "count", "score": "confidence"},
    ),
    "fast-dllm": Preset(
        "Fast-dLLM (2505.22618) section 3.3: confidence threshold 0.9, and always the surest",
        {"accept": "count", "score": "confidence", "threshold": 0.9},
    ),
    "entropy-bound": Preset(
        "EB-Sampler (2505.24857) figure 4; the paper sweeps its bound from 0.001 to 1.5 and has no default",
        {"accept": "entropy_bound", "score": "confidence", "entropy_bound": 0.1},
    ),
    "ancestral": Preset("MDLM (2406.07524) section 4.1", {"accept": "ancestral", "temperature": 1.0}),
    "first-hitting": Preset("Zheng et al. (2409.02908) algorithm 1", {"accept": "first_hitting", "temperature": 1.0}),
    "remdm": Preset(
        "ReMDM (2503.00307) section 4.1, capped; its cap for fewer steps than tokens is 0.04, otherwise 0.008",
        {"accept": "ancestral", "temperature": 1.0, "top_p": 0.9, "revoke": "remdm_cap", "eta": 0.04},
    ),
    "klass": Preset(
        "KLASS (2511.05664) algorithm 1; 0.9 and 0.01 are its code's defaults, tuned for each task in the paper",
        {"accept": "stable", "score": "confidence", "threshold": 0.9, "kl_threshold": 0.01, "kl_passes": 2},
    ),
    "wino": Preset(
        "WINO (2507.18578) algorithm 1; 0.6 and 0.9 are its code's defaults, whose cap on drafts is left out",
        {"accept": "count", "score": "confidence", "threshold": 0.6, "revoke": "verify", "revoke_threshold": 0.9},
    ),
}


def preset(name: str, **changes: Any) -> DenoiseConfig:
    """A published sampler's settings, with single choices changed. Raises `UserError` for an unknown name."""
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return DenoiseConfig(**(PRESETS[name].choices | changes))

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
    "llada": Preset("LLaDA (2502.09992), low-confidence remasking", {"accept": "count", "score": "confidence"}),
    "fast-dllm": Preset("Fast-dLLM (2505.22618), confidence threshold", {"accept": "count", "threshold": 0.9}),
    "entropy-bound": Preset("EB-Sampler (2505.24857)", {"accept": "entropy_bound", "score": "entropy"}),
    "ancestral": Preset("MDLM (2406.07524)", {"accept": "ancestral", "temperature": 1.0}),
    "first-hitting": Preset("2409.02908", {"accept": "first_hitting", "temperature": 1.0}),
    "remdm": Preset("ReMDM (2503.00307)", {"accept": "ancestral", "temperature": 1.0, "revoke": "remdm_cap"}),
    "klass": Preset("KLASS (2511.05664)", {"accept": "stable", "threshold": 0.9}),
    "wino": Preset("WINO (2507.18578)", {"accept": "count", "threshold": 0.6, "revoke": "verify"}),
}


def preset(name: str, **changes: Any) -> DenoiseConfig:
    """A published sampler's settings, with single choices changed. Raises `UserError` for an unknown name."""
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return DenoiseConfig(**(PRESETS[name].choices | changes))

"""The machine a number was measured on, and what it can do at best."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import torch

from evals.timing import Timing, alternate

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}

_NARROW_ARITHMETIC = ("avx512_bf16", "amx_bf16", "avx512_fp16", "amx_fp16", "avx_vnni", "bf16", "fphp")
"""Flags of /proc/cpuinfo (x86, then Arm) that decide how fast 16-bit products are."""


def describe_machine() -> dict[str, Any]:
    """Processor, cores, threads, torch and Python, as plain values for a record; `gpu` is None where there is none."""
    cpuinfo = _cpuinfo()
    flags = (cpuinfo.get("flags") or cpuinfo.get("Features") or "").split()
    return {
        "cpu": cpuinfo.get("model name") or platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "vector_instructions": torch.backends.cpu.get_cpu_capability(),
        "narrow_arithmetic": [flag for flag in _NARROW_ARITHMETIC if flag in flags],
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


def measure_floor(
    dtype: torch.dtype, *, device: str = "cpu", repeats: int = 7, copy_bytes: int = 1 << 28, matrix_size: int = 2048
) -> dict[str, Any]:
    """What bounds a pass from below: bytes/s of a copy (read and written both counted) and of a sum over the same
    buffer (read only), and FLOP/s of a square product.

    The copy moves `copy_bytes` from one buffer to another, the product is `matrix_size` cubed in `dtype`. Medians of
    `repeats`, after a warm-up.
    """
    source = torch.ones(copy_bytes // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    left = torch.randn(matrix_size, matrix_size, device=device).to(dtype)
    right, product = left.clone(), torch.empty_like(left)
    whole_words = source.view(torch.int64)
    sides = {
        "copy": lambda: target.copy_(source),
        "read": lambda: whole_words.sum(),
        "product": lambda: torch.mm(left, right, out=product),
    }
    timings: dict[str, Timing] = alternate(sides, rounds=repeats, device=device)
    seconds = {name: timing.to_dict() for name, timing in timings.items()}
    return {
        "copy_bytes_per_second": 2 * copy_bytes / seconds["copy"]["median"],
        "read_bytes_per_second": copy_bytes / seconds["read"]["median"],
        "flops_per_second": 2 * matrix_size**3 / seconds["product"]["median"],
        "copy_bytes": copy_bytes,
        "matrix_size": matrix_size,
        "seconds": seconds,
    }


def _cpuinfo() -> dict[str, str]:
    """The first processor's entry of /proc/cpuinfo; empty where there is no such file."""
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return {}
    lines = path.read_text().split("\n\n")[0].splitlines()
    pairs = (line.partition(":") for line in lines)
    return {name.strip(): value.strip() for name, _, value in pairs}

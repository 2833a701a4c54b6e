"""Process settings that steady and speed up work on a CPU."""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo import config as dynamo
from torch._inductor import config as inductor

SAFE_MARCH = "native -fno-tree-slp-vectorize"
"""What `torch.compile` hands to the C++ compiler behind `-march=`. GCC 12.2 merges scalar statements of a backward pass
into wrong vector code on a CPU with AVX-512 but without its bfloat16 part, and the gradients are NaN. Loops are
vectorised by torch itself, so that nothing is lost without it (`docs/log.md`)."""

MOST_SHAPES = 1024
"""Shapes a function is compiled for before torch would go on in eager mode: for good, and with a warning alone. Rows
that end shrink a batch through every size, so that torch's own limit of 8 is passed at once."""

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""glibc's `mallopt` parameters (malloc.h)."""


def keep_large_buffers() -> bool:
    """Tells glibc to keep freed large buffers for the next allocation instead of returning them to the system.

    Otherwise every step pays page faults for its activations. Returns whether the C library took the setting.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        libc = ctypes.CDLL("libc.so.6")
        return bool(libc.mallopt(M_MMAP_MAX, 0)) and bool(libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1))
    except (OSError, AttributeError):
        return False


def compile_static(function: Callable, **options: Any) -> Callable:
    """`torch.compile` for fixed shapes, many of them; its C++ compiler is kept from what it gets wrong.

    A march set elsewhere stays. What would no longer be compiled raises: a time would say compiled and be eager.
    """
    dynamo.recompile_limit = max(dynamo.recompile_limit, MOST_SHAPES)
    dynamo.accumulated_recompile_limit = max(dynamo.accumulated_recompile_limit, 8 * MOST_SHAPES)
    dynamo.fail_on_recompile_limit_hit = True
    if getattr(inductor.cpp, "march", "") is None and platform.machine() == "x86_64" and sys.platform == "linux":
        inductor.cpp.march = SAFE_MARCH
    return torch.compile(function, dynamic=False, **options)

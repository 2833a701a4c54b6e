"""Process settings that steady and speed up work on a CPU."""

from __future__ import annotations

import ctypes
import sys

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

"""Running the tests of a filled exercise, which is running code that a model wrote; only where that is allowed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

from mdlm.errors import UserError


def passes_tests(
    record: Mapping[str, Any], output: str, *, allow_untrusted_code: bool = False, seconds: float = 5
) -> bool:
    """Whether a record of `humaneval-infilling` passes its own tests with `output` in the gap.

    `record` has prompt, suffix, test and entry_point. The program runs in an isolated interpreter of its own, in an
    empty folder, without environment and input, and is killed after `seconds`. That is no sandbox: it can still do to
    files and network what the user can. Raises `UserError` without `allow_untrusted_code`.
    """
    if not allow_untrusted_code:
        raise UserError("the tests run code that a model wrote; allow_untrusted_code=True says that they may")
    program = f"{record['prompt']}{output}{record['suffix']}\n{record['test']}\ncheck({record['entry_point']})\n"
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-c", program],
                cwd=folder,
                env={},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
    return done.returncode == 0

"""Errors that a user can mend, and the one place where a command line turns them into one line."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from contextlib import suppress


class UserError(Exception):
    """Something the user gave is unusable. The message says what was wrong, where, and what would be right."""


def run_command(main: Callable[[list[str]], int | None], argv: list[str] | None = None) -> int:
    """Runs `main(argv)` and returns the exit status of the process.

    0 success; 2 unusable input (`UserError`, a file that cannot be read or written, a full disk), with one line on
    stderr and no traceback; 130 interrupted. Any other exception is a defect of ours and keeps its traceback.
    """
    try:
        status = main(sys.argv[1:] if argv is None else argv) or 0
        sys.stdout.flush()  # here, where a disk that takes no more is still answered in one line
        return status
    except UserError as error:
        return _complain(str(error))
    except KeyboardInterrupt:
        print("interrupted; what was already written is kept", file=sys.stderr)
        return 130
    except BrokenPipeError:
        _discard_stdout()  # its reader went away (`| head`)
        return 141
    except OSError as error:
        if error.errno == errno.ENOSPC:
            if error.filename is None:
                _discard_stdout()
            return _complain(
                f"the disk is full while writing {error.filename or 'output'}; free some space, then repeat"
            )
        if error.filename is not None:
            return _complain(f"{error.filename}: {error.strerror}")
        raise


def _discard_stdout() -> None:
    """Points stdout elsewhere, so that what is still in its buffer fails no second time when the process ends."""
    with suppress(OSError, ValueError):  # not a file: nothing is written at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(message: str) -> int:
    print("error: " + " ".join(message.split("\n")), file=sys.stderr)
    return 2

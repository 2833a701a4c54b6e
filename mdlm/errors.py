"""Errors that a user can mend, and the one place where a command line turns them into one line."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable


class UserError(Exception):
    """Something the user gave is unusable. The message says what was wrong, where, and what would be right."""


def run_command(main: Callable[[list[str]], int | None], argv: list[str] | None = None) -> int:
    """Runs `main(argv)` and returns the exit status of the process.

    0 success; 2 unusable input (`UserError`, a file that cannot be read or written, a full disk), with one line on
    stderr and no traceback; 130 interrupted. Any other exception is a defect of ours and keeps its traceback.
    """
    try:
        return main(sys.argv[1:] if argv is None else argv) or 0
    except UserError as error:
        return _complain(str(error))
    except KeyboardInterrupt:
        print("interrupted; what was already written is kept", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our stdout went away (`| head`): point stdout elsewhere so that the exit flush stays silent.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        if error.errno == errno.ENOSPC:
            return _complain(
                f"the disk is full while writing {error.filename or 'output'}; free some space, then repeat"
            )
        if error.filename is not None:
            return _complain(f"{error.filename}: {error.strerror}")
        raise


def _complain(message: str) -> int:
    print("error: " + " ".join(message.split("\n")), file=sys.stderr)
    return 2

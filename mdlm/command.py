"""What every command line here shares: one-line errors, and a suggestion when a name is unknown."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from difflib import get_close_matches
from typing import NoReturn

from mdlm.errors import UserError


class CommandParser(argparse.ArgumentParser):
    """An `ArgumentParser` whose complaint is a `UserError`: one line, without the usage text in front of it."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see `{self.prog} --help`)")


def unknown(kind: str, given: str, valid: Iterable[str]) -> UserError:
    """The error for a name that is none of `valid`: it says the nearest one, if any is near, and lists them all."""
    valid = list(valid)
    near = get_close_matches(given, valid, n=1)
    question = f" did you mean {near[0]!r}?" if near else ""
    return UserError(f"unknown {kind} {given!r};{question} valid: {', '.join(valid)}")

"""`code`: a span cut from a few statements of Python's standard library, to be filled in between prefix and suffix.

Rows come from the sources of the Python that runs, so they are the same in every process of one Python version and
may differ from one version to the next. The snippet around a gap parses on its own, so that an answer can be parsed.
"""

from __future__ import annotations

import ast
import textwrap
from bisect import bisect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path
from random import Random

from evals.corpora import SPLITS, stdlib_files
from evals.tasks.draws import pick
from evals.tasks.infill import MIDDLE, PREFIX, SUFFIX, check, gap_prompt, is_python
from evals.tasks.splits import MOST_DRAWS
from evals.tasks.task import Example, Knobs, Task, knob
from mdlm.errors import UserError

SHORTEST_SPAN = 4


@dataclass(frozen=True)
class CodeKnobs(Knobs):
    span: str = knob("line", ("line", "expression", "characters"), "what is cut out")
    context: int = knob(140, range(80, 2001), "characters of the snippet, span included, at most")
    longest: int = knob(60, range(8, 201), "characters of the span at most; never more than half of the snippet")


def make(split: str, row: int, seed: int, knobs: CodeKnobs) -> Example:
    """A file is as likely as it is long; a top-level module is one cluster and lies in one split."""
    random = Random(f"code {split} seed {seed} row {row}")
    files, ends = _files(split)
    for _ in range(MOST_DRAWS):
        module, path = files[bisect(ends, random.random() * ends[-1])]
        found = snippets(_text(path), knobs.context)
        # A file that is mostly tables holds few snippets for its length; they must not come again and again.
        if random.random() * len(_text(path)) > len(found) * knobs.context:
            continue
        snippet = pick(random, found)
        if any(_flat(snippet) in _library(earlier) for earlier in SPLITS[: SPLITS.index(split)]):
            continue  # what modules have in common belongs to the split that is trained on
        spans = [
            (start, end)
            for start, end in spans_of(snippet, knobs.span, random)
            if SHORTEST_SPAN <= end - start <= min(knobs.longest, len(snippet) // 2)
        ]
        if spans:
            start, end = pick(random, spans)
            return Example(gap_prompt(snippet[:start], snippet[end:]), snippet[start:end], module, split)
    raise UserError(f"no span in the library's {split!r} modules fits context={knobs.context}; choose a larger one")


@cache
def snippets(source: str, longest: int) -> tuple[str, ...]:
    """Runs of neighbouring statements, as many as fit in `longest` characters, without their common indentation.

    Only ASCII text that fills at least a third of the room and parses on its own.
    """
    if not is_python(source):
        return ()
    lines, found = source.splitlines(keepends=True), []
    for body in _bodies(ast.parse(source)):
        start = 0
        while start < len(body):
            end, fitting = start, ""
            while end < len(body) and len(text := _between(lines, body[start], body[end])) <= longest:
                end, fitting = end + 1, text
            if len(fitting) * 3 >= longest and fitting.isascii() and not _unfit(fitting):
                found.append(fitting)
            start = max(end, start + 1)
    return tuple(found)


def spans_of(snippet: str, kind: str, random: Random) -> Iterator[tuple[int, int]]:
    """(start, end) of what may be cut: lines without indentation and end, expressions, or one random run."""
    starts = [0]
    for line in snippet.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    if kind == "line":
        for start, line in zip(starts, snippet.splitlines(), strict=False):
            yield start + len(line) - len(line.lstrip()), start + len(line)
    elif kind == "expression":
        for node in ast.walk(ast.parse(snippet)):
            if isinstance(node, ast.expr) and node.end_lineno is not None and node.end_col_offset is not None:
                start, end = (
                    starts[node.lineno - 1] + node.col_offset,
                    starts[node.end_lineno - 1] + node.end_col_offset,
                )
                if _reads_as(snippet[start:end], node):
                    yield start, end
    else:
        length = pick(random, range(SHORTEST_SPAN, min(32, len(snippet) // 2) + 1))
        start = pick(random, range(len(snippet) - length + 1))
        yield start, start + length


def _reads_as(text: str, node: ast.expr) -> bool:
    """Whether the text alone is that expression: not a starred argument, a target, or a piece of an f-string."""
    return is_python(f"({text}\n)") and ast.dump(ast.parse(f"({text}\n)", mode="eval").body) == ast.dump(node)


@cache
def _files(split: str) -> tuple[list[tuple[str, Path]], list[int]]:
    """(module, path) of every file of the split, and where each ends when they are laid end to end, in bytes."""
    files = [(module, path) for side, module, path in stdlib_files() if side == split]
    return files, list(accumulate(path.stat().st_size for _, path in files))


@cache
def _library(split: str) -> str:
    """All sources of a split, flat."""
    return "".join(_flat(_text(path)) for _, path in _files(split)[0])


def _flat(text: str) -> str:
    """The text without indentation, each line between line ends."""
    return "\n" + "".join(line.strip() + "\n" for line in text.splitlines())


@cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def _bodies(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            body = getattr(node, name, None)
            if isinstance(body, list) and body:
                yield body


def _between(lines: list[str], first: ast.stmt, last: ast.stmt) -> str:
    start = min(node.lineno for node in (first, *getattr(first, "decorator_list", [])))
    return textwrap.dedent("".join(lines[start - 1 : last.end_lineno])).rstrip("\n")


def _unfit(text: str) -> bool:
    return any(mark in text for mark in (PREFIX, SUFFIX, MIDDLE, "\t", "\f", "\r")) or not is_python(text)


TASKS = (
    Task(
        name="code",
        description="Fill in what was cut from a few statements of Python's standard library.",
        group="infill",
        splits=SPLITS,
        knobs=CodeKnobs,
        schema=None,
        make=make,
        check=check,
    ),
)

"""Fill in the middle: how a gap is written into a prompt, and how what fills it is judged.

The prompt holds prefix and suffix between sentinels, the answer is the middle. A left-to-right model then reads both
sides before it writes (the prefix-suffix-middle order of Bavarian et al., 2207.14255), so that every arm is asked the
same question and none needs special tokens: the sentinels are text.
"""

from __future__ import annotations

import ast
import warnings

from evals.metrics import DocumentScore, plain_score
from evals.tasks.task import Example

PREFIX, SUFFIX, MIDDLE = "<PRE>", "<SUF>", "<MID>"


def gap_prompt(prefix: str, suffix: str) -> str:
    return f"{PREFIX}{prefix}{SUFFIX}{suffix}{MIDDLE}"


def sides(prompt: str) -> tuple[str, str]:
    """(prefix, suffix) of a prompt that `gap_prompt` made from texts without sentinels."""
    prefix, _, rest = prompt.removeprefix(PREFIX).partition(SUFFIX)
    return prefix, rest.removesuffix(MIDDLE)


def check(output: str, example: Example) -> DocumentScore:
    """exact: character by character. The stages up to the keys: the whole parses as Python. The share: similarity."""
    prefix, suffix = sides(example.prompt)
    exact = output == example.response
    parses = is_python(prefix + output + suffix)
    reason = "another text" if parses else "the whole does not parse"
    return plain_score(exact, parses, edit_similarity(output, example.response), reason)


def is_python(text: str) -> bool:
    """Whether the text parses as a Python module; nothing is run."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # an odd escape in a string parses all the same
        try:
            ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return False
    return True


def edit_similarity(ours: str, gold: str) -> float:
    """1 − Levenshtein distance ÷ length of the longer text, in characters; 1 for two empty texts."""
    distances = list(range(len(gold) + 1))
    for row, character in enumerate(ours, start=1):
        diagonal, distances[0] = distances[0], row
        for column, other in enumerate(gold, start=1):
            replaced = diagonal + (character != other)
            diagonal = distances[column]
            distances[column] = min(replaced, diagonal + 1, distances[column - 1] + 1)
    return 1 - distances[-1] / max(len(ours), len(gold), 1)

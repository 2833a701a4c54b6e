"""What a task is: documents that can be made again from a few numbers, and the knobs that make them easy or hard."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from evals.metrics import DocumentScore, score_document
from mdlm.command import unknown
from mdlm.errors import UserError

GROUPS = ("structured", "infill", "reasoning", "real")  # the report gives one ratio to the twin for each


@dataclass(frozen=True)
class Example:
    """One row: what the model reads, the one canonical answer, and the cluster the row belongs to in the statistics."""

    prompt: str
    response: str
    template: str
    split: str


def knob(default: int | str, allowed: range | tuple, meaning: str) -> Any:
    """A field of a `Knobs` dataclass: its default, every value it may take, and what it does, in a few words."""
    return dataclasses.field(default=default, metadata={"allowed": allowed, "meaning": meaning})


@dataclass(frozen=True)
class Knobs:
    """Base of a task's knobs. Raises `UserError` for a value that is not allowed."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if type(value) is not type(field.default) or value not in field.metadata["allowed"]:
                raise UserError(f"knob {field.name}={value!r} is not allowed; valid: {allowed_text(field)}")


def allowed_text(field: dataclasses.Field) -> str:
    """The values a knob may take, for people: `6..10`, or `a, b, c`."""
    allowed = field.metadata["allowed"]
    if isinstance(allowed, range):
        return f"{allowed[0]}..{allowed[-1]}"
    return ", ".join(map(str, allowed))


@dataclass(frozen=True)
class Task:
    """A family of rows, each with a canonical answer, and the rule that says what else would be right.

    `make(split, row, seed, knobs)` is a pure function: the same four give the same row in any process, however many
    rows are asked for. `schema(knobs)` is a JSON Schema that every response of the set fulfils; `schema` is None when
    the answers are no JSON. `check(output, example)` scores an output; without one the output is compared with the
    canonical answer as JSON. A task whose answers are no JSON needs a `check` (`evals.metrics.plain_score` makes its
    scores); any task may have one.
    """

    name: str
    description: str
    group: str
    splits: tuple[str, ...]
    knobs: type[Knobs]
    schema: Callable[[Any], dict[str, Any]] | None
    make: Callable[[str, int, int, Any], Example]
    check: Callable[[str, Example], DocumentScore] | None = None

    def __post_init__(self) -> None:
        if self.group not in GROUPS:
            raise unknown(f"group of task {self.name}", self.group, GROUPS)
        if self.schema is None and self.check is None:
            raise ValueError(f"task {self.name} has neither a schema nor a checker")

    def score(self, output: str, example: Example) -> DocumentScore:
        """The stages that an output reaches: by the task's own checker, else as JSON against the canonical answer."""
        return self.check(output, example) if self.check else score_document(output, example.response)

    def generate(self, split: str, rows: int, seed: int, knobs: Knobs | None = None) -> Iterator[Example]:
        """Rows 0 … `rows` - 1 of a split, in order. Raises `UserError` at once for a split the task lacks."""
        if split not in self.splits:
            raise unknown(f"split of task {self.name}", split, self.splits)
        chosen = self.knobs() if knobs is None else knobs
        return (self.make(split, row, seed, chosen) for row in range(rows))

    def read_knobs(self, settings: Mapping[str, str]) -> Knobs:
        """Knobs from text such as `{"fields": "6"}`. Raises `UserError` that names the valid names or values."""
        fields = {field.name: field for field in dataclasses.fields(self.knobs)}
        values = {}
        for name, text in settings.items():
            if name not in fields:
                raise unknown(f"knob of task {self.name}", name, fields)
            of_text = {str(value): value for value in fields[name].metadata["allowed"]}
            if text not in of_text:
                raise UserError(f"knob {name}={text!r} is not allowed; valid: {allowed_text(fields[name])}")
            values[name] = of_text[text]
        return self.knobs(**values)

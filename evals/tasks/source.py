"""Tasks whose rows are real data: a file of the user's, or a set of the Hub through `datasets`."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from evals.tasks.splits import SPLITS, owner
from evals.tasks.task import Example, Knobs, Task
from mdlm.command import unknown
from mdlm.errors import UserError

Record = Mapping[str, Any]
SOURCE = "a .jsonl or .parquet file, or hub:owner/name, hub:owner/name:config"

PICTURES = ("image", "images")  # columns that no task reads and that would be decoded row by row


class AnyText:
    """What the knob `source` may be: every text. For people it is `SOURCE`."""

    def __contains__(self, value: object) -> bool:
        return isinstance(value, str) and bool(value)

    def __iter__(self) -> Iterator[str]:
        yield SOURCE


@dataclass(frozen=True)
class HubSet:
    """A set of the Hub: owner/name, the configuration, and for a set that keeps a loading script, which `datasets` no
    longer runs, the branch and folder of its Parquet copy."""

    name: str
    config: str | None = None
    revision: str | None = None
    data_dir: str | None = None


@dataclass(frozen=True)
class SourceTask(Task):
    """A task whose rows are read, not made.

    read: (prompt, response, what decides the split and is the cluster in the statistics), of one record.
    hub: the set that the knob `source` names by default. sample: an invented row in the form of the data, for people.
    The order of a split's rows depends on their text and the seed, never on the file, and a split has as many rows as
    it has: `generate` ends there.
    """

    read: Callable[[Record], tuple[str, str, str]] = dataclasses.field(kw_only=True)
    hub: HubSet = dataclasses.field(kw_only=True)
    sample: Example = dataclasses.field(kw_only=True)

    def read_knobs(self, settings: Mapping[str, str]) -> Knobs:
        """As any task's, and `source` may be every text."""
        rest = {name: text for name, text in settings.items() if name != "source"}
        knobs = super().read_knobs(rest)
        return dataclasses.replace(knobs, **({"source": settings["source"]} if "source" in settings else {}))

    def generate(self, split: str, rows: int, seed: int, knobs: Knobs | None = None) -> Iterator[Example]:
        """Up to `rows` rows of a split. Raises `UserError` for a split or source that is not there or holds no row."""
        if split not in self.splits:
            raise unknown(f"split of task {self.name}", split, self.splits)
        chosen = self.knobs() if knobs is None else knobs
        found = self.rows_of(split, seed, chosen)
        return iter(found[:rows])

    def rows_of(self, split: str, seed: int, knobs: Any) -> list[Example]:
        """All rows of the split in the seed's order."""
        mine = [row for row in _rows(self, knobs.source) if row.split == split]
        if not mine:
            raise UserError(f"{knobs.source} holds no row for the split {split!r} of task {self.name}; give more rows")
        return sorted(mine, key=lambda row: hashlib.sha256(f"{seed}\n{row.prompt}\n{row.response}".encode()).digest())


def split_of(task: SourceTask, cluster: str) -> str:
    """A benchmark that is only tested on has one split; of others the cluster's hash decides."""
    return owner(cluster) if task.splits == SPLITS else task.splits[0]


def make_from(name: str) -> Callable[[str, int, int, Any], Example]:
    """The `make` of the task of that name: row number `row` of the split."""

    def make(split: str, row: int, seed: int, knobs: Any) -> Example:
        from evals.tasks import get_task

        task = get_task(name)
        assert isinstance(task, SourceTask)
        rows = task.rows_of(split, seed, knobs)
        if row >= len(rows):
            raise UserError(f"row {row} of split {split!r}: {knobs.source} has {len(rows)} such rows")
        return rows[row]

    return make


def pair(record: Record) -> tuple[str, str] | None:
    """Prompt and response of a record that has them as texts, else None."""
    found = record.get("prompt"), record.get("response")
    return found if all(isinstance(text, str) and text for text in found) else None  # type: ignore[return-value]


def compact(answer: Mapping[str, str]) -> str:
    return json.dumps(answer, ensure_ascii=False, separators=(",", ":"))


@cache
def _rows(task: SourceTask, source: str) -> tuple[Example, ...]:
    rows = []
    for number, record in enumerate(records(source, task.hub), start=1):
        try:
            prompt, response, cluster = task.read(record)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(
                f"{source}:{number}: no row of task {task.name} ({type(error).__name__}: {error}); its columns are "
                f"{', '.join(map(str, record))}"
            ) from error
        rows.append(Example(prompt, response, cluster, split_of(task, cluster)))
    return tuple(dict.fromkeys(rows))


def records(source: str, hub: HubSet) -> Iterator[Record]:
    """The records of a source. Raises `UserError` for one that cannot be read."""
    if not source.startswith("hub:"):
        path = Path(source)
        if not path.is_file():
            raise UserError(f"there is no file {source}; set source to {SOURCE}")
        yield from _json_lines(path) if path.suffix == ".jsonl" else _loaded(source, "parquet", data_files=source)
        return
    name, _, config = source.removeprefix("hub:").partition(":")
    known = name == hub.name and config == (hub.config or "")
    options = (
        {"revision": hub.revision, "data_dir": hub.data_dir} if known and hub.revision else {"name": config or None}
    )
    yield from _loaded(source, name, **options)


def _json_lines(path: Path) -> Iterator[Record]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except ValueError as error:  # bytes that are no UTF-8 too
                raise UserError(f"{path}:{number}: broken JSON ({error}); mend or delete the line") from error
            if not isinstance(record, dict):
                raise UserError(f"{path}:{number}: not a JSON object; mend or delete the line")
            yield record


def _loaded(source: str, path: str, /, **options: Any) -> Iterator[Record]:
    """All rows of all splits that the set was published in: this project splits by its own rule."""
    import datasets

    try:
        loaded = datasets.load_dataset(path, **options)
    except Exception as error:  # datasets raises many types for one fact, that the data cannot be read
        first = str(error).partition("\n")[0]
        raise UserError(f"{source} cannot be read by datasets: {first}; or set source to a local file") from error
    for part in loaded.values():
        yield from part.remove_columns([name for name in part.column_names if name in PICTURES])

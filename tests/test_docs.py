"""What the documents name exists."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from sample.presets import PRESETS

DOCS = Path(__file__).parent.parent / "docs"


def named():
    """(file, name) of every row of equations.md."""
    found = []
    for line in (DOCS / "equations.md").read_text().splitlines():
        cell = line.rstrip("| ").rpartition(" | ")[2]
        for file, names in re.findall(r"`(\w+/\w+\.py)`: ((?:`[\w.]+`(?:, )?)+)", cell):
            found += [(file, name) for name in re.findall(r"`([\w.]+)`", names)]
    return found


def test_there_are_equations():
    assert len(named()) > 45


@pytest.mark.parametrize(("file", "name"), named(), ids=lambda value: str(value))
def test_every_name_in_the_table_of_equations_is_in_the_file_it_is_said_to_be_in(file, name):
    found = importlib.import_module(file.removesuffix(".py").replace("/", "."))
    first, *rest = name.split(".")
    assert getattr(found, first).__module__ == found.__name__, "defined there, not imported"
    found = getattr(found, first)
    for part in rest:
        assert part in {**getattr(found, "__dataclass_fields__", {}), **vars(found)}


def test_the_page_of_presets_has_every_preset_and_its_numbers():
    rows = {
        row.split("|")[1].strip(" `"): row
        for row in (DOCS / "presets.md").read_text().splitlines()
        if row.startswith("| `")
    }
    for name, chosen in PRESETS.items():
        assert re.search(r"\d{4}\.\d{5}", chosen.source)[0] in rows[name]
        assert f"`{chosen.choices['accept']}`" in rows[name]
        for field in ("threshold", "entropy_bound", "kl_threshold", "revoke_threshold", "eta"):
            if field in chosen.choices:
                assert f"{chosen.choices[field]:g}" in rows[name], field

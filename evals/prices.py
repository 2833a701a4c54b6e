"""Prices of nodes and APIs from a dated file: no price stands in the code."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from evals.economics import api_cost
from mdlm.command import unknown
from mdlm.errors import UserError

PRICES = Path(__file__).resolve().parent.parent / "configs" / "prices.yaml"


@dataclass(frozen=True)
class NodePrice:
    """What a node costs an hour, busy or idle."""

    per_hour: float
    devices: int
    read: str
    """The day, or month, that the source states it for."""
    source: str

    def __post_init__(self) -> None:
        _positive("per_hour", self.per_hour)
        _positive("devices", self.devices)


@dataclass(frozen=True)
class ApiPrice:
    """What an API asks for a million tokens."""

    per_million_in: float
    per_million_out: float
    read: str
    source: str

    def __post_init__(self) -> None:
        _positive("per_million_in", self.per_million_in)
        _positive("per_million_out", self.per_million_out)

    def request(self, tokens_in: float, tokens_out: float) -> float:
        """What one request costs."""
        return api_cost(self.per_million_in, self.per_million_out, tokens_in, tokens_out)


@dataclass(frozen=True)
class Prices:
    nodes: dict[str, NodePrice]
    apis: dict[str, ApiPrice]

    def node(self, name: str) -> NodePrice:
        if name not in self.nodes:
            raise unknown("node", name, self.nodes)
        return self.nodes[name]

    def api(self, name: str) -> ApiPrice:
        if name not in self.apis:
            raise unknown("API", name, self.apis)
        return self.apis[name]


def load_prices(path: Path = PRICES) -> Prices:
    """The prices in a file; `UserError` names the entry and what is wrong with it."""
    entries = read_yaml(path)
    if not isinstance(entries, dict) or not entries.keys() <= {"nodes", "apis"}:
        raise UserError(f"{path}: two tables are expected, nodes and apis")
    return Prices(
        {name: made(NodePrice, entry, f"{path}: node {name}") for name, entry in (entries.get("nodes") or {}).items()},
        {name: made(ApiPrice, entry, f"{path}: API {name}") for name, entry in (entries.get("apis") or {}).items()},
    )


def read_yaml(path: Path) -> Any:
    """A YAML file's values; `UserError` where it cannot be read."""
    try:
        return yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{path} cannot be read: {' '.join(str(error).split())}") from error


def made(kind: type, entry: Any, where: str) -> Any:
    """A dataclass from a table; `UserError` says where a field is missing, unknown or unusable."""
    known = {field.name: field for field in fields(kind)}
    if not isinstance(entry, dict):
        raise UserError(f"{where}: a table is expected, with {', '.join(known)}")
    if strange := entry.keys() - known.keys():
        raise UserError(f"{where}: {unknown('field', min(strange, key=str), known)}")
    try:
        return kind(**entry)
    except TypeError:
        missing = [name for name, field in known.items() if field.default is MISSING and name not in entry]
        raise UserError(f"{where}: {', '.join(missing)} must be given") from None
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def _positive(what: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise UserError(f"{what} is {value!r}; it must be a number above 0")

"""What bounds a pass on a machine: bandwidth and peak FLOP/s, by data sheet or as measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from mdlm.command import unknown
from mdlm.errors import UserError

MACHINES = Path(__file__).resolve().parent.parent / "configs" / "machines.yaml"


@dataclass(frozen=True)
class Machine:
    """Two ceilings: bytes/s, and FLOP/s by dtype (dense, without sparsity)."""

    name: str
    bandwidth: float
    peak: Mapping[str, float]
    source: str

    def __post_init__(self) -> None:
        peaks = {f"peak of {dtype}": value for dtype, value in self.peak.items()}
        for what, value in {"bandwidth": self.bandwidth, **peaks}.items():
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not number or not 0 < value < math.inf:
                raise UserError(f"machine {self.name}: {what} is {value!r}; it must be a number above 0")

    def flops(self, dtype: str) -> float:
        """Peak FLOP/s of a dtype; `UserError` where it is not known."""
        if dtype not in self.peak:
            raise UserError(f"machine {self.name} has no peak for {dtype}; known are {', '.join(self.peak)}")
        return self.peak[dtype]

    def ridge(self, dtype: str) -> float:
        """FLOP/byte from which on a pass is bound by arithmetic: the protocol's R."""
        return self.flops(dtype) / self.bandwidth


def load_machines(path: Path = MACHINES) -> dict[str, Machine]:
    """The machines of a data file; `UserError` names the entry and the field that is wrong."""
    fields = {"bandwidth_bytes_per_second", "peak_flops_per_second", "source", "announced"}
    try:
        entries = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise UserError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(entries, dict):
        raise UserError(f"{path}: a table of machine names is expected")
    machines = {}
    for name, entry in entries.items():
        if not isinstance(entry, dict) or entry.keys() != fields:
            raise UserError(f"{path}: machine {name} must have the fields {', '.join(sorted(fields))}, and no others")
        if not isinstance(entry["peak_flops_per_second"], dict) or not entry["peak_flops_per_second"]:
            raise UserError(f"{path}: machine {name}: peak_flops_per_second must name a dtype, as in {{bf16: 1.0e+15}}")
        source = f"{entry['source']} (announced {entry['announced']})"
        machines[name] = Machine(name, entry["bandwidth_bytes_per_second"], entry["peak_flops_per_second"], source)
    return machines


def named_machine(name: str, path: Path = MACHINES) -> Machine:
    """A machine of the data file, whatever its name's case."""
    machines = {found.upper(): machine for found, machine in load_machines(path).items()}
    if name.upper() not in machines:
        raise unknown("machine", name, ["this", *machines])
    return machines[name.upper()]


def measured_machine(floor: Mapping[str, Any], dtype: str) -> Machine:
    """This machine by `machine.measure_floor`: the bytes/s of its copy, the FLOP/s of its product in a dtype."""
    source = f"measured: a copy of {floor['copy_bytes']:,} bytes, a product of {floor['matrix_size']} cubed"
    return Machine("this", floor["copy_bytes_per_second"], {dtype: floor["flops_per_second"]}, source)

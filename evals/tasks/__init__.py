"""The task registry. A task is one file of this folder that ends in `TASKS = (...)`; nothing else has to be edited."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from evals.tasks.task import Example, Knobs, Task, knob
from mdlm.command import unknown

__all__ = ["TASKS", "Example", "Knobs", "Task", "get_task", "knob"]

TASKS: dict[str, Task] = {
    task.name: task
    for module in iter_modules(__path__)
    for task in getattr(import_module(f"{__name__}.{module.name}"), "TASKS", ())
}


def get_task(name: str) -> Task:
    """The task of that name. Raises `UserError` with the nearest name and the list when there is none."""
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    return TASKS[name]

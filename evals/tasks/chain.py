"""`chain`: k steps of modular arithmetic, each on the result of the step before."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from evals.metrics import DocumentScore, plain_score
from evals.tasks.draws import distinct, pick, shuffled
from evals.tasks.splits import SPLITS, draw_for
from evals.tasks.task import Example, Knobs, Task, knob

NAMES = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class ChainKnobs(Knobs):
    steps: int = knob(4, range(1, 17), "operations after the first value")
    modulus: int = knob(10, (7, 10, 11, 97, 101), "what results are taken modulo of")
    order: str = knob("shuffled", ("shuffled", "ordered"), "how the definitions stand in the prompt")
    answer: str = knob("steps", ("steps", "result"), "every variable in order of use, or the last value alone")


def make(split: str, row: int, seed: int, knobs: ChainKnobs) -> Example:
    """The computation, whatever its names and its order in the prompt, decides the split."""
    random = Random(f"chain {split} seed {seed} row {row}")

    def computation(random: Random) -> tuple[int, list[tuple[str, int]]]:
        operations = [(pick(random, "+-*"), pick(random, range(2, knobs.modulus))) for _ in range(knobs.steps)]
        return pick(random, range(knobs.modulus)), operations

    value, operations = draw_for(split, random, computation, lambda drawn: f"{knobs.modulus} {drawn}")
    names = distinct(random, NAMES, knobs.steps + 1)
    definitions, values = [f"{names[0]}={value}"], [value]
    for before, name, (operator, number) in zip(names, names[1:], operations, strict=False):
        definitions.append(f"{name}={before}{operator}{number}")
        values.append(_applied(values[-1], operator, number) % knobs.modulus)
    if knobs.order == "shuffled":
        definitions = shuffled(random, definitions)
    steps = [f"{name}={value}" for name, value in zip(names, values, strict=True)]
    response = " ".join(steps) if knobs.answer == "steps" else str(values[-1])
    prompt = f"mod {knobs.modulus}: {'; '.join(definitions)}; {names[-1]}?"
    return Example(prompt, response, f"steps-{knobs.steps}/{row}", split)


def check(output: str, example: Example) -> DocumentScore:
    """Right: all steps and their values, or the value. The share counts steps by place."""
    steps, wanted = output.split(), example.response.split()
    right = sum(ours == gold for ours, gold in zip(steps, wanted, strict=False))
    same_names = [step.partition("=")[0] for step in steps] == [step.partition("=")[0] for step in wanted]
    well_formed = same_names if "=" in example.response else len(steps) == 1 and steps[0].isdecimal()
    first = next((gold for ours, gold in zip(steps, wanted, strict=False) if ours != gold), "another number of steps")
    return plain_score(steps == wanted, well_formed, right / max(len(steps), len(wanted)), f"not {first}")


def _applied(value: int, operator: str, number: int) -> int:
    return {"+": value + number, "-": value - number, "*": value * number}[operator]


TASKS = (
    Task(
        name="chain",
        description="Modular arithmetic in k steps, each on the result of the one before.",
        group="reasoning",
        splits=SPLITS,
        knobs=ChainKnobs,
        schema=None,
        make=make,
        check=check,
    ),
)

"""`path`: the way from the centre of a star graph to the end of one of its arms (Bachmann & Nagarajan, 2403.06963).

A model that predicts left to right has to know the whole arm before it takes the first step, which is where teacher
forcing hides the difficulty; every later step has one way to go.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from random import Random

from evals.metrics import DocumentScore, plain_score
from evals.tasks.draws import distinct, pick, shuffled
from evals.tasks.splits import SPLITS, draw_for
from evals.tasks.task import Example, Knobs, Task, knob

LABELS = range(10, 100)


@dataclass(frozen=True)
class PathKnobs(Knobs):
    degree: int = knob(3, range(2, 9), "arms of the star")
    length: int = knob(4, range(2, 10), "nodes of a way from the centre to an end, both counted")


def make(split: str, row: int, seed: int, knobs: PathKnobs) -> Example:
    random = Random(f"path {split} seed {seed} row {row}")
    arm = knobs.length - 1

    def star(random: Random) -> tuple[list[str], list[list[int]]]:
        centre, *others = distinct(random, LABELS, 1 + knobs.degree * arm)
        arms = [[centre, *others[start : start + arm]] for start in range(0, len(others), arm)]
        return sorted(f"{a}-{b}" for nodes in arms for a, b in pairwise(nodes)), arms

    # The graph decides the split: its arms are asked for on one side only.
    edges, arms = draw_for(split, random, star, lambda drawn: " ".join(drawn[0]))
    way = pick(random, arms)
    prompt = f"{' '.join(shuffled(random, edges))} | {way[0]} to {way[-1]}"
    return Example(prompt, " ".join(map(str, way)), f"star-{knobs.degree}-{knobs.length}/{row}", split)


def check(output: str, example: Example) -> DocumentScore:
    """Right: from start to goal along the edges. The share counts nodes by place."""
    graph, _, question = example.prompt.partition(" | ")
    edges, ends = set(graph.split()), question.split(" to ")
    way, wanted = output.split(), example.response.split()
    walked = all(f"{a}-{b}" in edges for a, b in pairwise(way))
    reached = len(way) > 1 and [way[0], way[-1]] == ends
    right = sum(ours == gold for ours, gold in zip(way, wanted, strict=False))
    return plain_score(
        walked and reached,
        well_formed=all(node.isdecimal() for node in way) and len(way) == len(wanted),
        share=right / max(len(way), len(wanted)),
        reason="a step that is no edge" if not walked else "not from start to goal",
    )


TASKS = (
    Task(
        name="path",
        description="The way from the centre of a star graph to the end of one of its arms.",
        group="reasoning",
        splits=SPLITS,
        knobs=PathKnobs,
        schema=None,
        make=make,
        check=check,
    ),
)

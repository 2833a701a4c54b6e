"""What a comparison's records say, taken together: one summary of plain values, from which every table is drawn."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean, median
from typing import Any

from evals.records import read_record
from evals.statistics import group_ratio, holm, mcnemar
from evals.tasks.task import GROUPS
from mdlm.errors import UserError
from mdlm.objectives import LossConfig, positions_a_row

TWIN = "autoregressive"
ARMS = ("autoregressive", "masked_diffusion", "block_diffusion")
BUDGETS = (0.85, 0.9, 0.95, 0.99)
"""Shares of the twin's final score whose training budget is reported."""
MOST_KINDS = 12
"""Of rows of one task, in a table of their own; a file's templates may be as many as its rows."""

Row = dict[str, Any]


class Records:
    """All records of a comparison, by arm and seed, then by task and name."""

    def __init__(self, folder: Path) -> None:
        self.runs: dict[tuple[str, int], dict[tuple[str, str], Row]] = {}
        for path in sorted((folder / "records").glob("*/*/*.json")):
            arm, _, seed = path.parts[-3].rpartition("-seed")
            self.runs.setdefault((arm, int(seed)), {})[path.parts[-2], path.stem] = read_record(path)
        self.gate_records = {
            (arm, seed): read_record(path)["result"]
            for arm, seed in self.runs
            if (path := folder / "records" / f"{arm}-seed{seed}" / "gates.json").exists()
        }
        if not self.runs:
            raise UserError(f"{folder} holds no records; run `python -m evals gap CONFIG --output={folder}` first")
        self.runs = dict(sorted(self.runs.items(), key=lambda item: (item[0][1], ARMS.index(item[0][0]))))
        self.arms = [arm for arm in ARMS if any(arm == found for found, _ in self.runs)]
        self.seeds = sorted({seed for _, seed in self.runs})
        first = next(iter(self.runs.values()))
        self.settings: Row = next(iter(first.values()))["settings"]
        self.machine: Row = next(iter(first.values()))["machine"]
        order = list(self.settings["config"]["tasks"]) or [task for task, _ in first]
        self.tasks = sorted({task for task, _ in first}, key=order.index)
        groups = {task: record["settings"]["group"] for (task, _), record in first.items()}
        self.groups = {group: [t for t in self.tasks if groups[t] == group] for group in GROUPS}
        self.groups = {group: tasks for group, tasks in self.groups.items() if tasks}

    def result(self, arm: str, seed: int, task: str, name: str) -> Row | None:
        """The result of one record, None where there is none."""
        record = self.runs.get((arm, seed), {}).get((task, name))
        return record and record["result"]

    def results(self, arm: str, task: str, name: str) -> dict[int, Row]:
        """The results of one name by seed, where there are any."""
        found = {seed: self.result(arm, seed, task, name) for seed in self.seeds}
        return {seed: result for seed, result in found.items() if result}

    def gates(self) -> list[Row]:
        """Every gate of every arm and seed, with what it compared."""
        return [
            {"arm": arm, "seed": seed, **gate}
            for (arm, seed), run in self.runs.items()
            for gate in self.gate_records.get((arm, seed), [])
        ]

    def training(self, arm: str, seed: int) -> Row:
        """What `training.json` says of an arm."""
        return next(iter(self.runs[arm, seed].values()))["settings"]["training"]

    def sweep(self, arm: str, seed: int, task: str) -> list[Row]:
        """The dev results of all settings, fewest passes first."""
        found = [
            record["result"]
            for (of_task, name), record in self.runs.get((arm, seed), {}).items()
            if of_task == task and name.startswith("dev-")
        ]
        return sorted(found, key=lambda result: result["total_passes"])

    def curve(self, arm: str, seed: int, tasks: list[str]) -> list[tuple[int, float]]:
        """(training step, exact match on dev, mean over tasks) of the frozen setting, the last checkpoint included."""
        by_step: dict[int, list[float]] = {}
        for task in tasks:
            frozen = self.result(arm, seed, task, "test-frozen")
            for (of_task, name), record in self.runs.get((arm, seed), {}).items():
                if of_task == task and name.startswith("curve-"):
                    by_step.setdefault(int(name.rpartition("-")[2]), []).append(record["result"]["exact"])
            for result in self.sweep(arm, seed, task):
                if frozen and result["setting"] == frozen["setting"]:
                    by_step.setdefault(self.training(arm, seed)["step"], []).append(result["exact"])
        return sorted((step, fmean(scores)) for step, scores in by_step.items() if len(scores) == len(tasks))


def summarise(records: Records) -> Row:
    """Training budgets by arm and seed, quality and speed by arm and task, and the ratio to the twin by group."""
    splits = sorted(
        {name.removesuffix("-frozen") for run in records.runs.values() for _, name in run if name.endswith("-frozen")},
        key=lambda split: (split != "test", split),
    )
    tasks = {
        split: [row for task in records.tasks for arm in records.arms if (row := _quality(records, arm, task, split))]
        for split in splits
    }
    _correct(tasks)
    return {
        "machine": records.machine,
        "seeds": records.seeds,
        "arms": [_budget(records, arm, seed) for arm, seed in records.runs],
        "quality": tasks,
        "groups": [
            _group(records, arm, group, of_group) for group, of_group in records.groups.items() for arm in records.arms
        ],
        "kinds": [row for task in records.tasks for arm in records.arms if (row := _kinds(records, arm, task))],
        "gates": records.gates(),
        "speed": [row for task in records.tasks for arm in records.arms if (row := _speed(records, arm, task))],
    }


def _budget(records: Records, arm: str, seed: int) -> Row:
    training = records.training(arm, seed)
    config, data = training["config"], training["config"]["data"]
    lengths = (data["prompt_length"], data["response_length"])
    return {
        "arm": arm,
        "seed": seed,
        "parameters": training["parameters"],
        "steps": training["step"],
        "rows_a_step": config["batch_size"],
        "tokens_seen": training["tokens_seen"],
        "predicted": training["predicted"],
        "positions_a_row": positions_a_row(arm, LossConfig(**config["loss"]), *lengths),
        "setting": next(iter(_settings_of(records, arm, seed)), None),
        "budget": _steps_to(records, arm, seed),
    }


def _settings_of(records: Records, arm: str, seed: int) -> list[str]:
    found = [records.result(arm, seed, task, "test-frozen") for task in records.tasks]
    return sorted({result["setting"] for result in found if result})


def _steps_to(records: Records, arm: str, seed: int) -> dict[str, int | None]:
    """The first checkpoint whose dev score reaches a share of the twin's final one; None where none did."""
    twin = records.curve(TWIN, seed, records.tasks)
    if not twin or twin[-1][1] == 0:
        return {}
    curve = records.curve(arm, seed, records.tasks)
    return {
        f"{share:g}": next((step for step, exact in curve if exact >= share * twin[-1][1]), None) for share in BUDGETS
    }


def _quality(records: Records, arm: str, task: str, split: str) -> Row | None:
    """One arm on one task: means over the trained seeds, each seed's exact match, and the ratio to the twin."""
    ours, twin = (records.results(side, task, f"{split}-frozen") for side in (arm, TWIN))
    if not ours:
        return None
    names = ("parses", "fits_schema", "keys_right", "leaf_values_right", "exact", "total_passes", "tokens_per_forward")
    row: Row = {"arm": arm, "task": task, "n": next(iter(ours.values()))["n"]}
    row |= {name: fmean(result[name] for result in ours.values()) for name in names}
    row["thrown_away"] = fmean(result["thrown_away"] for result in ours.values())
    row["exact_of_seeds"] = {str(seed): result["exact"] for seed, result in ours.items()}
    row["settings"] = sorted({result["setting"] for result in ours.values()})
    if len(ours) == 1:
        row["exact_interval"] = next(iter(ours.values()))["exact_interval"]
    if arm != TWIN and twin.keys() == ours.keys():
        right, reference = ({s: r["rows_exact"] for s, r in side.items()} for side in (ours, twin))
        clusters = next(iter(ours.values()))["rows_cluster"]
        row["to_twin"] = group_ratio({task: right}, {task: reference}, {task: clusters})
        row["share_of_twin_passes"] = row["total_passes"] / fmean(r["total_passes"] for r in twin.values())
        pooled = ([flag for s in ours for flag in side[s]] for side in (right, reference))
        row["mcnemar"] = mcnemar(*pooled)
    return row


def _kinds(records: Records, arm: str, task: str) -> Row | None:
    """Exact match on test by kind of row, all seeds together, where a task mixes kinds: `sort/17` is of kind `sort`."""
    right: dict[str, list[int]] = {}
    for result in records.results(arm, task, "test-frozen").values():
        for cluster, exact in zip(result["rows_cluster"], result["rows_exact"], strict=True):
            kind, named, _ = cluster.partition("/")
            right.setdefault(kind if named else "", []).append(exact)
    if not 2 <= len(right) <= MOST_KINDS:
        return None
    kinds = {kind: {"n": len(flags), "exact": fmean(flags)} for kind, flags in sorted(right.items())}
    return {"task": task, "arm": arm, "kinds": kinds}


def _correct(tasks: dict[str, list[Row]]) -> None:
    """Holm's correction over all comparisons with the twin on test."""
    compared = [row for row in tasks.get("test", []) if "mcnemar" in row]
    corrected = holm({number: row["mcnemar"]["p"] for number, row in enumerate(compared)})
    for number, p_value in corrected.items():
        compared[number]["mcnemar"]["p_holm"] = p_value


def _group(records: Records, arm: str, group: str, tasks: list[str]) -> Row:
    """One arm on all tasks of a group, on test: means over tasks, then seeds."""
    ours, twin = ({task: records.results(side, task, "test-frozen") for task in tasks} for side in (arm, TWIN))
    results = [result for of_task in ours.values() for result in of_task.values()]
    row: Row = {"group": group, "tasks": tasks, "arm": arm}
    row |= {name: fmean(r[name] for r in results) for name in ("exact", "leaf_values_right", "total_passes")}
    row["tokens_per_forward"] = sum(r["kept"] for r in results) / sum(r["total_passes"] for r in results)
    if arm != TWIN:
        right, reference = (
            {t: {s: r["rows_exact"] for s, r in side[t].items()} for t in tasks} for side in (ours, twin)
        )
        clusters = {task: next(iter(ours[task].values()))["rows_cluster"] for task in tasks}
        row["to_twin"] = group_ratio(right, reference, clusters)
        passes = fmean(r["total_passes"] for of_task in twin.values() for r in of_task.values())
        row["share_of_twin_passes"] = row["total_passes"] / passes
    return row


def _speed(records: Records, arm: str, task: str) -> Row | None:
    """One stream on one task: useful tokens a second and seconds an answer, medians over seeds, and their ratio."""
    row: Row = {"arm": arm, "task": task}
    for mode in ("eager", "compiled"):
        ours, twin = (records.results(side, task, f"speed-{mode}") for side in (arm, TWIN))
        if not ours:
            continue
        names = ("useful_tokens_per_second", "seconds_p50", "seconds_p90", "seconds_p99")
        row[mode] = {name: median(result[name] for result in ours.values()) for name in names}
        if twin.keys() == ours.keys():
            ratios = [ours[s]["useful_tokens_per_second"] / twin[s]["useful_tokens_per_second"] for s in ours]
            row[mode]["to_twin"] = median(ratios)
    return row if len(row) > 2 else None

"""Tables, a figure and a summary, drawn from a comparison's records and from nothing else."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib
from rich import box
from rich.console import Console
from rich.table import Table

from evals.records import read_record
from evals.statistics import ratio_interval
from mdlm.errors import UserError
from mdlm.objectives import LossConfig, positions_a_row

matplotlib.use("Agg")
from matplotlib import pyplot

TWIN = "autoregressive"
COLORS = {"autoregressive": "#444444", "masked_diffusion": "#d1495b", "block_diffusion": "#00798c"}
COMPARABLE = 0.85
"""Share of the twin's exact match under which no speed ratio is printed."""
BUDGETS = (0.85, 0.95)
"""Shares of the twin's final score whose training budget is reported."""


class Records:
    """All records of a comparison, by arm and seed."""

    def __init__(self, folder: Path) -> None:
        self.runs: dict[tuple[str, int], dict[str, dict[str, Any]]] = {}
        for path in sorted((folder / "records").glob("*/*.json")):
            arm, _, seed = path.parent.name.rpartition("-seed")
            self.runs.setdefault((arm, int(seed)), {})[path.stem] = read_record(path)
        if not self.runs:
            raise UserError(f"{folder} holds no records; run `python -m evals gap CONFIG --output={folder}` first")
        order = list(COLORS)
        self.runs = dict(sorted(self.runs.items(), key=lambda item: (item[0][1], order.index(item[0][0]))))

    def result(self, arm: str, seed: int, name: str) -> dict[str, Any] | None:
        """The result of one record, None where there is none."""
        record = self.runs.get((arm, seed), {}).get(name)
        return record and record["result"]

    def settings(self, arm: str, seed: int) -> dict[str, Any]:
        """What made an arm's records."""
        return next(iter(self.runs[arm, seed].values()))["settings"]

    def sweep(self, arm: str, seed: int) -> list[dict[str, Any]]:
        """The dev results of all settings, fewest passes first."""
        found = [r["result"] for name, r in self.runs[arm, seed].items() if name.startswith("dev-")]
        return sorted(found, key=lambda result: result["total_passes"])

    def curve(self, arm: str, seed: int) -> list[tuple[int, float]]:
        """(training step, exact match on dev) of the frozen setting, the last checkpoint included."""
        points = [
            (int(name.rpartition("-")[2]), record["result"]["exact"])
            for name, record in self.runs[arm, seed].items()
            if name.startswith("curve-")
        ]
        frozen = self.result(arm, seed, "test-frozen")
        last = [result for result in self.sweep(arm, seed) if frozen and result["setting"] == frozen["setting"]]
        return sorted(points + [(self.settings(arm, seed)["training"]["step"], result["exact"]) for result in last])


def write_report(folder: str | Path) -> dict[str, Any]:
    """Draws `quality_passes.png` and writes `report.md` and `report.txt` into a comparison's folder.

    Returns the summary that they show, as plain values. Raises `UserError` for a folder without records.
    """
    folder = Path(folder)
    records = Records(folder)
    summary = summarise(records)
    draw(records, folder / "quality_passes.png")
    (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    (folder / "report.md").write_text(markdown(records, summary))
    buffer = io.StringIO()
    console = Console(file=buffer, width=140)
    for title, rows in tables(summary):
        console.print(_rich_table(title, rows))
    (folder / "report.txt").write_text(buffer.getvalue())
    return summary


def summarise(records: Records) -> dict[str, Any]:
    """One entry for each arm and seed: training budget, quality, passes, ratio to the twin, speed."""
    rows = []
    for (arm, seed), found in records.runs.items():
        training = records.settings(arm, seed)["training"]
        row: dict[str, Any] = {
            "arm": arm,
            "seed": seed,
            "parameters": training["parameters"],
            "steps": training["step"],
            "rows_a_step": training["config"]["batch_size"],
            "tokens_seen": training["tokens_seen"],
            "predicted": training["predicted"],
            "positions_a_row": _positions_a_row(training["config"]),
        }
        for split in ("test", "unseen_templates"):
            ours, twin = found.get(f"{split}-frozen"), records.result(TWIN, seed, f"{split}-frozen")
            if not ours:
                continue
            result = ours["result"]
            names = ("parses", "keys_right", "leaf_values_right", "exact", "exact_interval", "n", "setting")
            row[split] = {name: result[name] for name in names}
            row[split] |= {name: result[name] for name in ("total_passes", "tokens_per_forward", "thrown_away")}
            if twin:
                row[split]["share_of_twin_passes"] = result["total_passes"] / twin["total_passes"]
                row[split]["to_twin"] = ratio_interval(result["rows_exact"], twin["rows_exact"], twin["rows_cluster"])
        for mode in ("eager", "compiled"):
            speed, twin = records.result(arm, seed, f"speed-{mode}"), records.result(TWIN, seed, f"speed-{mode}")
            if speed:
                rate = speed["useful_tokens_per_second"]
                row[f"speed_{mode}"] = {"tokens_per_second": rate, "seconds_p50": speed["seconds_p50"]}
                if twin:
                    row[f"speed_{mode}"]["to_twin"] = rate / twin["useful_tokens_per_second"]
        row["budget"] = _budgets(records, arm, seed)
        rows.append(row)
    first = next(iter(records.runs.values()))
    return {"arms": rows, "machine": next(iter(first.values())).get("machine")}


def _positions_a_row(config: dict[str, Any]) -> int:
    data = config["data"]
    loss = LossConfig(**config["loss"])
    return positions_a_row(config["model"]["objective"], loss, data["prompt_length"], data["response_length"])


def _budgets(records: Records, arm: str, seed: int) -> dict[str, int | None]:
    """The first checkpoint whose dev score reaches a share of the twin's final one; None where none did."""
    twin = records.curve(TWIN, seed)
    if not twin:
        return {}
    wanted = {share: share * twin[-1][1] for share in BUDGETS}
    curve = records.curve(arm, seed)
    return {
        f"{share:g}": next((step for step, exact in curve if exact >= score and score > 0), None)
        for share, score in wanted.items()
    }


def tables(summary: dict[str, Any]) -> Iterable[tuple[str, list[dict[str, str]]]]:
    """The report's tables: a title, and rows of column -> text."""
    arms = summary["arms"]
    for split, title in (("test", "Test: unseen people"), ("unseen_templates", "Unseen templates")):
        rows = [_quality_row(row, row[split]) for row in arms if split in row]
        if rows:
            yield f"{title}, n = {next(r[split]['n'] for r in arms if split in r)}", rows
    speeds = [_speed_row(row) for row in arms if "speed_eager" in row]
    if speeds:
        yield "Speed at one stream, useful tokens a second", speeds
    yield (
        "Training budget",
        [
            {
                "arm": _name(row),
                "parameters": f"{row['parameters']:,}",
                "steps × rows": f"{row['steps']:,} × {row['rows_a_step']}",
                "tokens seen": f"{row['tokens_seen']:,}",
                "predicted": f"{row['predicted']:,}",
                "positions a row": f"{row['positions_a_row']:,}",
            }
            | {f"steps to {share} of twin": f"{at:,}" if at else "not reached" for share, at in row["budget"].items()}
            for row in arms
        ],
    )


def _name(row: dict[str, Any]) -> str:
    return row["arm"] if row["seed"] == 0 else f"{row['arm']} (seed {row['seed']})"


def _quality_row(row: dict[str, Any], split: dict[str, Any]) -> dict[str, str]:
    low, high = split["exact_interval"]
    ratio = split.get("to_twin", {})
    to_twin = "—"
    if row["arm"] != TWIN and split["exact"] == 0:
        to_twin = "none exact"  # resampling rows that all failed would give an interval of no width
    elif ratio.get("ratio") is not None and row["arm"] != TWIN:
        to_twin = f"{ratio['ratio']:.3f} [{ratio['interval'][0]:.2f}, {ratio['interval'][1]:.2f}]"
    return {
        "arm": _name(row),
        "setting": split["setting"],
        "parses": f"{split['parses']:.3f}",
        "keys": f"{split['keys_right']:.3f}",
        "leaf values": f"{split['leaf_values_right']:.3f}",
        "exact": f"{split['exact']:.3f} [{low:.2f}, {high:.2f}]",
        "passes": f"{split['total_passes']:.1f}",
        "tok/forward": f"{split['tokens_per_forward']:.2f}",
        "exact ÷ twin": to_twin,
    }


def _speed_row(row: dict[str, Any]) -> dict[str, str]:
    cells = {"arm": _name(row)}
    # Fast and wrong is not fast: a speed ratio is shown only for an arm that comes near its twin's quality.
    ratio = row.get("test", {}).get("to_twin", {}).get("ratio")
    comparable = ratio is not None and ratio >= COMPARABLE
    for mode in ("eager", "compiled"):
        if speed := row.get(f"speed_{mode}"):
            cells[mode] = f"{speed['tokens_per_second']:,.0f}"
            cells[f"{mode} ÷ twin"] = (
                f"{speed['to_twin']:.2f}" if "to_twin" in speed and comparable else "quality short"
            )
            cells[f"{mode}, s a document"] = f"{speed['seconds_p50']:.3f}"
    return cells


def _rich_table(title: str, rows: list[dict[str, str]]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for number, column in enumerate(rows[0]):
        table.add_column(column, justify="left" if number == 0 else "right", no_wrap=number == 0)
    for row in rows:
        table.add_row(*(row.get(column, "—") for column in rows[0]))
    return table


def _markdown_table(rows: list[dict[str, str]]) -> str:
    columns = list(rows[0])
    lines = [columns, ["---"] + ["---:"] * (len(columns) - 1)] + [[row.get(c, "—") for c in columns] for row in rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def markdown(records: Records, summary: dict[str, Any]) -> str:
    """The whole report as Markdown."""
    settings = records.settings(*next(iter(records.runs)))
    config = settings["config"]
    task = config["task"]
    source = task["file"] or f"{task['name']} {task['knobs']}"
    seeds = sorted({seed for _, seed in records.runs})
    parts = [
        "# Masked diffusion against its autoregressive twin",
        f"Documents: {source}. Seeds: {seeds}. Weights while decoding: {settings['dtype']} on {settings['device']}. "
        "Same parameters, initial weights, tokenizer, rows and order, optimizer and steps for all arms; what a step "
        "costs differs (`positions a row`). Every number below stands in a JSON record under `records/`.",
        "![Quality against tokens per forward, and against training steps](quality_passes.png)",
    ]
    parts += [f"## {title}\n\n{_markdown_table(rows)}" for title, rows in tables(summary)]
    parts.append(
        "## How to read it\n\n"
        "- A pass is one call of the trunk: prefill, denoise, store and decode alike. `tok/forward` is the answer's "
        "tokens, without its end token, over all passes.\n"
        "- Equal budget means equal rows, order and steps. `positions a row` is what the trunk evaluates for a row in "
        "a step: a diffusion arm's noisy copies count, so equal steps are not equal arithmetic. `tokens seen` and "
        "`predicted` also differ by the end tokens each objective supervises.\n"
        "- Steps to a share of the twin's exact match: the first of the saved checkpoints that has it on dev, with "
        "the frozen setting; the truth lies between it and the checkpoint before.\n"
        "- Each arm's setting was chosen on dev: the fewest passes within 0.01 of that arm's best leaf values "
        "and exact match. Test was run once with it.\n"
        "- A speed ratio is printed only where exact match on test reaches 0.85 of the twin's.\n"
        "- `exact` has a 95 % Wilson interval; `exact ÷ twin` a 95 % paired bootstrap interval, by template.\n"
        "- The autoregressive row is greedy with a static key/value cache; lossless speculation is not in this table, "
        "so the speed ratios are upper bounds on what diffusion gains.\n"
        f"- Trained seeds: {len(seeds)}. With fewer than three, the training noise is not known.\n"
    )
    if task["file"]:
        parts.append("- A file's rows are used for several epochs; repetition favours diffusion.\n")
    return "\n\n".join(parts)


def draw(records: Records, path: Path) -> None:
    """Exact match on dev against tokens per forward for every setting, and against training steps."""
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for (arm, seed), _ in records.runs.items():
        color, label = COLORS[arm], arm.replace("_", " ") if seed == 0 else None
        swept = sorted(records.sweep(arm, seed), key=lambda result: result["tokens_per_forward"])
        x, y = [result["tokens_per_forward"] for result in swept], [result["exact"] for result in swept]
        errors = [[max(0, e - r["exact_interval"][0]) for e, r in zip(y, swept, strict=True)]]
        errors.append([max(0, r["exact_interval"][1] - e) for e, r in zip(y, swept, strict=True)])
        left.errorbar(x, y, yerr=errors, color=color, marker="o", ms=4, lw=1, capsize=2, label=label)
        frozen = records.result(arm, seed, "test-frozen")
        chosen = [result for result in swept if frozen and result["setting"] == frozen["setting"]]
        left.plot([r["tokens_per_forward"] for r in chosen], [r["exact"] for r in chosen], "*", ms=13, color=color)
        curve = records.curve(arm, seed)
        right.plot([step for step, _ in curve], [exact for _, exact in curve], color=color, marker="o", ms=4)
    left.set(xscale="log", xlabel="tokens per forward pass (all passes counted)", ylabel="whole document exact, dev")
    left.xaxis.set_major_formatter(matplotlib.ticker.FormatStrFormatter("%g"))
    left.set_title("Quality against passes; a star marks the frozen setting", fontsize=10)
    right.set(xlabel="training steps", ylabel="whole document exact, dev", xlim=(0, None))
    right.set_title("Quality against training, frozen setting", fontsize=10)
    for axes in (left, right):
        axes.set_ylim(-0.03, 1.03)
        axes.grid(alpha=0.25)
    left.legend(loc="lower left", frameon=False)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)

"""Tables and a report of a comparison, drawn from its records and from nothing else."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from evals.claims import COMPARABLE, judge
from evals.report_data import TWIN, Records, Row, summarise
from evals.report_figures import draw
from evals.report_page import page


def write_report(folder: str | Path) -> dict[str, Any]:
    """Draws `quality_passes.png` and writes `report.md`, `report.html`, `report.txt` and `summary.json`.

    Returns the summary that they show, as plain values. Raises `UserError` for a folder without records.
    """
    folder = Path(folder)
    records = Records(folder)
    summary = summarise(records)
    summary["claims"] = judge(summary, folder)
    figures = draw(records, folder)
    (folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    found, notes = list(tables(summary)), reading(records)
    (folder / "report.md").write_text(markdown(records, found, notes, [path.name for path in figures]))
    (folder / "report.html").write_text(page(introduction(records), found, notes, figures))
    buffer = io.StringIO()
    console = Console(file=buffer, width=150)
    for title, rows in found:
        console.print(_rich_table(title, rows))
    (folder / "report.txt").write_text(buffer.getvalue())
    return summary


HEADLINE = 1_000
"""Test rows of a task that a headline needs."""

Titled = tuple[str, list[dict[str, str]]]


def tables(summary: Row) -> Iterable[Titled]:
    """The report's tables: a title, and rows of column -> text. Where a gate failed there are no headlines."""
    failed = [gate for gate in summary["gates"] if not gate["passed"]]
    if failed:
        named = "; ".join(f"{gate['gate']} ({_name(gate)})" for gate in failed)
        yield f"REFUSED, no headline is printed: gates failed: {named}", [_gate_row(gate) for gate in summary["gates"]]
        return
    if len({row["task"] for row in summary["quality"].get("test", [])}) > 1:
        yield "By group, test", [_group_row(row) for row in summary["groups"]]
    for split, rows in summary["quality"].items():
        for task in dict.fromkeys(row["task"] for row in rows):
            of_task = [row for row in rows if row["task"] == task]
            yield f"{task}, {split.replace('_', ' ')}, n = {of_task[0]['n']}", [_quality_row(row) for row in of_task]
    for task in dict.fromkeys(row["task"] for row in summary["kinds"]):
        rows = [row for row in summary["kinds"] if row["task"] == task]
        yield f"{task} by kind, exact on test (rows, all seeds)", [_kinds_row(row) for row in rows]
    if summary["speed"]:
        ratios = {(r["arm"], r["task"]): r.get("to_twin", {}).get("ratio") for r in summary["quality"]["test"]}
        rows = [_speed_row(row, ratios.get((row["arm"], row["task"]))) for row in summary["speed"]]
        yield "Speed at one stream, useful tokens a second", rows
    yield "Training budget", [_budget_row(row) for row in summary["arms"]]
    yield "Claims", summary["claims"]
    if summary["gates"]:
        yield "Gates", [_gate_row(gate) for gate in summary["gates"]]


def _name(row: Row) -> str:
    return f"{row['arm']}, seed {row['seed']}"


def _interval(found: Row | None, digits: int = 2) -> str:
    """A ratio to the twin with its interval, in words where there is none."""
    if not found:
        return "—"
    if found["ratio"] is None:
        return "twin scores 0"
    if found["interval"] is None:
        return "none exact"
    low, high = found["interval"]
    return f"{found['ratio']:.3f} [{low:.{digits}f}, {high:.{digits}f}]"


def _group_row(row: Row) -> dict[str, str]:
    return {
        "group": row["group"],
        "arm": row["arm"],
        "tasks": ", ".join(row["tasks"]),
        "exact": f"{row['exact']:.3f}",
        "leaf values": f"{row['leaf_values_right']:.3f}",
        "exact ÷ twin": _interval(row.get("to_twin")),
        "verdict": row.get("to_twin", {}).get("verdict", "—"),
        "passes": f"{row['total_passes']:.1f}",
        "tok/forward": f"{row['tokens_per_forward']:.2f}",
        "passes ÷ twin": f"{row['share_of_twin_passes']:.2f}" if "share_of_twin_passes" in row else "—",
    }


def _quality_row(row: Row) -> dict[str, str]:
    exact = f"{row['exact']:.3f}"
    if "exact_interval" in row:
        exact += " [{:.2f}, {:.2f}]".format(*row["exact_interval"])
    cells = {"arm": row["arm"], "setting": ", ".join(row["settings"])}
    cells |= {"parses": f"{row['parses']:.3f}", "keys": f"{row['keys_right']:.3f}"}
    cells |= {"leaf values": f"{row['leaf_values_right']:.3f}", "exact": exact}
    if len(row["exact_of_seeds"]) > 1:
        cells["of seeds"] = " / ".join(f"{exact:.2f}" for exact in row["exact_of_seeds"].values())
    cells |= {"passes": f"{row['total_passes']:.1f}", "tok/forward": f"{row['tokens_per_forward']:.2f}"}
    cells["exact ÷ twin"] = _interval(row.get("to_twin"))
    if p_value := row.get("mcnemar", {}).get("p_holm"):
        cells["McNemar, Holm"] = f"{p_value:.2g}"
    return cells


def _kinds_row(row: Row) -> dict[str, str]:
    cells = {kind or "—": f"{found['exact']:.3f} ({found['n']})" for kind, found in row["kinds"].items()}
    return {"arm": row["arm"], **cells}


def _speed_row(row: Row, ratio: float | None) -> dict[str, str]:
    cells = {"task": row["task"], "arm": row["arm"]}
    # Fast and wrong is not fast: a speed ratio is shown only for an arm that comes near its twin's quality.
    comparable = row["arm"] == TWIN or (ratio is not None and ratio >= COMPARABLE)
    for mode in ("eager", "compiled"):
        if speed := row.get(mode):
            cells[mode] = f"{speed['useful_tokens_per_second']:,.0f}"
            cells[f"{mode} ÷ twin"] = (
                f"{speed['to_twin']:.2f}" if "to_twin" in speed and comparable else "quality short"
            )
            cells[f"{mode}, s p50"] = f"{speed['seconds_p50']:.3f}"
            cells[f"{mode}, s p90"] = f"{speed['seconds_p90']:.3f}"
    return cells


def _budget_row(row: Row) -> dict[str, str]:
    cells = {
        "arm": row["arm"],
        "seed": str(row["seed"]),
        "setting": row["setting"] or "—",
        "parameters": f"{row['parameters']:,}",
        "steps × rows": f"{row['steps']:,} × {row['rows_a_step']}",
        "tokens seen": f"{row['tokens_seen']:,}",
        "predicted": f"{row['predicted']:,}",
        "positions a row": f"{row['positions_a_row']:,}",
    }
    reached = {f"steps to {share} of twin": f"{at:,}" if at else "not reached" for share, at in row["budget"].items()}
    return cells | reached


def _gate_row(gate: Row) -> dict[str, str]:
    return {
        "arm": _name(gate),
        "gate": gate["gate"],
        "passed": "yes" if gate["passed"] else "NO",
        "what was compared": gate["detail"],
    }


def _rich_table(title: str, rows: list[dict[str, str]]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    texts = {"arm", "task", "group", "claim", "verdict", "evidence", "record", "gate", "what was compared", "tasks"}
    columns = list(dict.fromkeys(column for row in rows for column in row))
    for number, column in enumerate(columns):
        table.add_column(
            column, justify="left" if column in texts else "right", no_wrap=number == 0 and column != "claim"
        )
    for row in rows:
        table.add_row(*(row.get(column, "—").replace("[", "\\[") for column in columns))
    return table


def _markdown_table(rows: list[dict[str, str]]) -> str:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    lines = [columns, ["---"] + ["---:"] * (len(columns) - 1)] + [[row.get(c, "—") for c in columns] for row in rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def introduction(records: Records) -> str:
    """What was compared, in a paragraph."""
    settings, config = records.settings, records.settings["config"]
    sections = config["tasks"] or {records.tasks[0]: config["task"]}
    told = [
        f"{name} ({section['file'] or ' '.join(f'{k}={v}' for k, v in section['knobs'].items()) or 'default knobs'})"
        for name, section in sections.items()
    ]
    return (
        f"Tasks: {'; '.join(told)}. Seeds: {records.seeds}. Weights while decoding: {settings['dtype']} on "
        f"{settings['device']}. Same parameters, initial weights, tokenizer, rows and order, optimizer and steps for "
        "all arms; what a step costs differs (`positions a row`). Every number below stands in a JSON record under "
        "`records/`."
    )


def reading(records: Records) -> list[str]:
    """How to read the tables, one sentence or two an item."""
    fewest = min(
        result["n"] for task in records.tasks for result in records.results(TWIN, task, "test-frozen").values()
    )
    small = [f"A task has {fewest:,} test rows; below {HEADLINE:,} nothing here is a headline."]
    notes = [
        "A pass is one call of the trunk: prefill, denoise, store and decode alike. `tok/forward` is the answer's "
        "tokens, without its end token, over all passes.",
        "Equal budget means equal rows, order and steps. `positions a row` is what the trunk evaluates for a row in a "
        "step: a diffusion arm's noisy copies count, so equal steps are not equal arithmetic. `tokens seen` and "
        "`predicted` also differ by the end tokens each objective supervises.",
        "Steps to a share of the twin's exact match: the first of the saved checkpoints that has it on dev, mean over "
        "tasks, with the frozen setting; the truth lies between it and the checkpoint before.",
        "Each arm's setting was chosen on dev, one for all tasks: the fewest passes within 0.01 of that arm's best "
        "leaf values and exact match. Test was run once with it.",
        f"A speed ratio is printed only where exact match on test reaches {COMPARABLE} of the twin's.",
        "`exact` has a 95 % Wilson interval where one seed was trained; `exact ÷ twin` a 95 % paired bootstrap "
        "interval: seeds first, where there are several, then whole templates. McNemar's exact test pools the seeds' "
        "rows and is corrected by Holm's rule over all comparisons on test.",
        "The autoregressive row is greedy with a static key/value cache; lossless speculation is not in this table, so "
        "the speed ratios are upper bounds on what diffusion gains.",
        f"Trained seeds: {len(records.seeds)}. With fewer than three, the training noise is not known.",
    ]
    config = records.settings["config"]
    if any(section["file"] for section in [config["task"], *config["tasks"].values()]):
        notes.append("A file's rows are used for several epochs; repetition favours diffusion.")
    return (small if fewest < HEADLINE else []) + notes


def markdown(records: Records, found: list[Titled], notes: list[str], figures: list[str]) -> str:
    """The whole report as Markdown."""
    parts = ["# Masked diffusion against its autoregressive twin", introduction(records)]
    parts += [f"![{name}]({name})" for name in figures]
    parts += [f"## {title}\n\n{_markdown_table(rows)}" for title, rows in found]
    parts.append("## How to read it\n\n" + "\n".join(f"- {note}" for note in notes) + "\n")
    return "\n\n".join(parts)

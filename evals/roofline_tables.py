"""The printed side of `python -m evals roofline`."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

ARMS = ("block_diffusion", "masked_diffusion")


def print_result(record: dict[str, Any], console: Console) -> None:
    """Passes, speed-up against batch and against prompt, and the crossover, shape by shape."""
    for shape, result in record["result"].items():
        machine = result["machine"]
        ridge = machine["flops_per_second"] / machine["bandwidth"]
        line = f"{shape} on {machine['name']}: {machine['bandwidth'] / 1e9:,.1f} GB/s, "
        line += f"{machine['flops_per_second'] / 1e9:,.1f} GFLOP/s {machine['dtype']}, ridge {ridge:.1f} FLOP/byte"
        _say(console, f"{line} ({machine['source']})")
        console.print(_passes(result))
        console.print(_speedups(result))
        _crossover(result, record["settings"]["within"], console)
        console.print(_ratios(result))
        for batch, arms in result["stops_paying"].items():
            said = "; ".join(f"{_title(arm)} {words}" for arm, words in arms.items())
            _say(console, f"predicted, batch {batch}: {said}")
        if measured := result.get("stops_paying_measured"):
            said = "; ".join(f"{_title(arm)} {words}" for arm, words in measured.items())
            _say(console, f"measured, batch {result['ratios'][0]['measured']['batch']}: {said}")


def _passes(result: dict[str, Any]) -> Table:
    columns = ("batch", "MFLOP", "MB", "FLOP/byte", "bound by", "predicted, ms", "measured, ms", "error")
    table = _table("a pass, from its shape", "pass", *columns)
    for entry in sorted(result["passes"], key=lambda entry: entry["pass"]):
        measured = entry.get("measured_seconds")
        table.add_row(
            entry["pass"],
            str(entry["batch"]),
            f"{entry['flops'] / 1e6:,.1f}",
            f"{entry['bytes'] / 1e6:,.1f}",
            f"{entry['intensity']:.2f}",
            entry["bound_by"],
            f"{entry['predicted_seconds'] * 1e3:.3g}",
            f"{measured['median'] * 1e3:.3g}" if measured else "",
            f"{entry['error']:+.0%}" if measured else "",
        )
    return table


def _speedups(result: dict[str, Any]) -> Table:
    title = f"tokens/s of block diffusion : twin, {result['tokens_per_forward']:g} tokens a pass"
    table = _table(title, "batch", "predicted", "measured", "interval", "error")
    for entry in result["speedup"]:
        measured, cells = entry.get("measured"), ["", "", ""]
        if measured:
            interval = measured["interval"]
            cells = [
                f"{measured['median']:.2f}",
                f"[{interval[0]:.2f}, {interval[1]:.2f}]" if interval else "",
                f"{entry['error']:+.0%}",
            ]
        table.add_row(str(entry["batch"]), f"{entry['predicted']:.2f}", *cells)
    return table


def _crossover(result: dict[str, Any], within: float, console: Console) -> None:
    """The batch b* at which both are equally fast, by every way to know it."""
    for kind, found in result["crossover"].items():
        line = f"b*, {kind.replace('_', ' ')}: " + (f"{found['batch']:.1f}, " if found["batch"] else "") + found["why"]
        if "error" in found:
            line += f"; {found['error']:+.0%} against the measured one, "
            if "within" in found:
                line += f"{'within' if found['within'] else 'not within'} {within:.0%}"
            else:
                line += "with ceilings fitted to it: no prediction"
        _say(console, line)
    if attained := result.get("attained"):
        _say(
            console,
            f"attained ({attained['source']}): {attained['share_of_bandwidth']:.0%} of the bandwidth, "
            f"{attained['share_of_peak']:.0%} of the matrix rate; b* moves about as the second by the first.",
        )


def _ratios(result: dict[str, Any]) -> Table:
    sizes = list(result["ratios"][0]["predicted"])
    shown = dict.fromkeys((sizes[0], sizes[-1]))
    columns = [f"{_title(arm)[:6].strip()}, b={size}" for arm in ARMS for size in shown]
    measured = "measured" in result["ratios"][0]
    extra = [f"{_title(arm)[:6].strip()}, measured" for arm in ARMS] if measured else []
    table = _table("end to end, prefill included, × the twin", "prompt", "answer", *columns, *extra)
    for entry in result["ratios"]:
        cells = [f"{entry['predicted'][size][arm]:.2f}" for arm in ARMS for size in shown]
        if measured:
            cells += [f"{entry['measured']['speedup'][arm]['median']:.2f}" for arm in ARMS]
        table.add_row(str(entry["prompt"]), str(entry["answer"]), *cells)
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="left" if column in ("pass", "bound by") else "right", no_wrap=True)
    return table


def _say(console: Console, line: str) -> None:
    console.print(line, highlight=False, soft_wrap=True)


def _title(name: str) -> str:
    return name.replace("_", " ")

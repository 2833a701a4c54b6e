"""The figures of `python -m evals roofline`: passes on the roofline, and speed-up against batch size and prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from evals.report_figures import COLORS

matplotlib.use("Agg")
from matplotlib import pyplot

PASS_COLORS = {
    "autoregressive step": COLORS["autoregressive"],
    "block pass": COLORS["block_diffusion"],
    "full canvas": COLORS["masked_diffusion"],
    "prefill": "#edae49",
}


def draw(record: dict[str, Any], folder: Path) -> list[Path]:
    """Both figures of every shape; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for shape, result in record["result"].items():
        paths += [draw_roofline(shape, result, folder / f"roofline-{shape}.png")]
        paths += [draw_speedup(shape, result, folder / f"speedup-{shape}.png")]
    return paths


def draw_roofline(shape: str, result: dict[str, Any], path: Path) -> Path:
    """FLOP/s against FLOP/byte. Rings lie on the roof, where a pass is predicted; dots are measured passes."""
    machine, passes = result["machine"], result["passes"]
    ridge = machine["flops_per_second"] / machine["bandwidth"]
    found = [entry["intensity"] for entry in passes]
    reach = np.geomspace(min(*found, ridge) / 2, max(*found, ridge) * 2, 200)
    figure, axis = pyplot.subplots(figsize=(8, 5), layout="constrained")
    axis.plot(reach, np.minimum(reach * machine["bandwidth"], machine["flops_per_second"]), color="black", lw=1.5)
    axis.axvline(ridge, color="black", ls=":", lw=1, label=f"ridge, {ridge:.3g} FLOP/byte")
    for kind in dict.fromkeys(entry["pass"] for entry in passes):
        of_kind = [entry for entry in passes if entry["pass"] == kind]
        intensity = [entry["intensity"] for entry in of_kind]
        predicted = [entry["flops"] / entry["predicted_seconds"] for entry in of_kind]
        axis.plot(intensity, predicted, "o", mfc="none", color=PASS_COLORS[kind], label=f"{kind}, by batch")
        measured = [entry for entry in of_kind if "measured_seconds" in entry]
        rates = [entry["flops"] / entry["measured_seconds"]["median"] for entry in measured]
        axis.plot([entry["intensity"] for entry in measured], rates, "o", ms=4, color=PASS_COLORS[kind])
    title = f"{shape} on {machine['name']}; rings predicted, dots measured"
    axis.set(xscale="log", yscale="log", xlabel="FLOP/byte", ylabel="FLOP/s", title=title)
    axis.grid(alpha=0.25)
    axis.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path


def draw_speedup(shape: str, result: dict[str, Any], path: Path) -> Path:
    """Left: decoding against the batch size. Right: whole answers against the prompt's length, all columns equal."""
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 4.6), layout="constrained")
    color, sizes = COLORS["block_diffusion"], [entry["batch"] for entry in result["speedup"]]
    left.plot(sizes, [entry["predicted"] for entry in result["speedup"]], "--", color=color, label="predicted")
    if all("measured" in entry for entry in result["speedup"]):
        rates = [entry["measured"]["median"] for entry in result["speedup"]]
        left.plot(sizes, rates, "o-", ms=4, color=color, label="measured")
    for kind, style in (("predicted", "--"), ("closed_form", ":"), ("measured", "-")):
        if batch := result["crossover"].get(kind, {}).get("batch"):
            left.axvline(batch, color="gray", ls=style, lw=1, label=f"b*, {kind.replace('_', ' ')}: {batch:.1f}")
    left.set(xscale="log", yscale="log", xlabel="rows decoded together", ylabel="tokens/s, block diffusion : twin")
    left.set_xticks(sizes, map(str, sizes))
    ratios = result["ratios"]
    shares = [entry["prompt"] / (entry["prompt"] + entry["answer"]) for entry in ratios]
    for arm in ("block_diffusion", "masked_diffusion"):
        for number, batch in enumerate((str(sizes[0]), str(sizes[-1]))):
            curve = [entry["predicted"][batch][arm] for entry in ratios]
            label = f"{arm.replace('_', ' ')}, batch {batch}, predicted"
            right.plot(shares, curve, "--" if number == 0 else ":", color=COLORS[arm], label=label)
        if all("measured" in entry for entry in ratios):
            measured = [entry["measured"]["speedup"][arm]["median"] for entry in ratios]
            right.plot(shares, measured, "o-", ms=4, color=COLORS[arm], label=f"{arm.replace('_', ' ')}, measured")
    right.set(yscale="log", xlabel="the prompt's share of all columns", ylabel="end-to-end speed-up")
    for axis in (left, right):
        axis.axhline(1, color="black", lw=1)
        axis.minorticks_off()
        axis.yaxis.set_major_locator(matplotlib.ticker.LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter(matplotlib.ticker.StrMethodFormatter("{x:g}"))
        axis.grid(alpha=0.25)
        axis.legend(frameon=False, fontsize=8)
    figure.suptitle(f"{shape} on {result['machine']['name']}", fontsize=11)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path

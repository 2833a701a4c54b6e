"""The result of `python -m evals roofline` as plain values: predictions, and measurements put beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evals.ceilings import Machine
from evals.roofline import (
    Workload,
    closed_crossover,
    decode_seconds,
    predicted_crossover,
    speedup,
    stops_paying,
)

STEP, BLOCK_PASS = "autoregressive step", "block pass"
WITHIN = 0.25
"""How far the measured crossover may be from the predicted one."""


def predict(
    work: Workload,
    splits: Mapping[float, Workload],
    machine: Machine,
    *,
    dtype: str,
    tokens: float,
    batches: Sequence[int],
) -> dict[str, Any]:
    """Everything that follows from shapes and ceilings."""
    passes = [
        {
            "pass": kind,
            "batch": batch,
            "flops": made.total_flops,
            "bytes": made.total_bytes,
            "terms": {"flops": dict(made.flops), "bytes": dict(made.bytes)},
            "intensity": made.intensity,
            "bound_by": made.bound_by(machine, dtype),
            "predicted_seconds": made.seconds(machine, dtype),
        }
        for batch in batches
        for kind, made in work.passes(batch).items()
    ]
    closed = closed_crossover(tokens / work.block, machine.ridge(dtype), work.precision.weights)
    ratios = [_at_ratio(ratio, split, batches, tokens, machine, dtype) for ratio, split in splits.items()]
    return {
        "machine": {
            "name": machine.name,
            "bandwidth": machine.bandwidth,
            "flops_per_second": machine.flops(dtype),
            "source": machine.source,
            "dtype": dtype,
        },
        "tokens_per_forward": tokens,
        "passes": passes,
        "speedup": [{"batch": size, "predicted": speedup(work, size, tokens, machine, dtype)} for size in batches],
        "crossover": {
            "predicted": predicted_crossover(work, tokens, machine, dtype),
            "closed_form": {"batch": closed, "why": "weights alone"},
        },
        "ratios": ratios,
        "stops_paying": {
            str(size): {
                arm: stops_paying({entry["ratio"]: entry["predicted"][str(size)][arm] for entry in ratios})
                for arm in ("block_diffusion", "masked_diffusion")
            }
            for size in batches
        },
    }


def _at_ratio(
    ratio: float, work: Workload, batches: Sequence[int], tokens: float, machine: Machine, dtype: str
) -> dict[str, Any]:
    """Predicted end-to-end speed-ups of one split of the columns, by batch size and arm."""
    predicted = {}
    for batch in batches:
        seconds = decode_seconds(work, batch, tokens, lambda made: made.seconds(machine, dtype))
        twin = seconds.pop("autoregressive")
        predicted[str(batch)] = {arm: twin / taken for arm, taken in seconds.items()}
    return {"ratio": ratio, "prompt": work.prompt, "answer": work.answer, "predicted": predicted}


def compare(result: dict[str, Any], work: Workload, sweep: dict[str, Any], dtype: str) -> None:
    """Puts what this machine takes for the passes beside its predictions, and the measured crossover beside b*."""
    tokens, batches = result["tokens_per_forward"], [entry["batch"] for entry in result["speedup"]]
    for entry in result["passes"]:
        if entry["pass"] in sweep["seconds"]:
            entry["measured_seconds"] = sweep["seconds"][entry["pass"]][str(entry["batch"])]
            entry["error"] = entry["predicted_seconds"] / entry["measured_seconds"]["median"] - 1
    for entry in result["speedup"]:
        entry["measured"] = sweep["speedup"][str(entry["batch"])]
        entry["error"] = entry["predicted"] / entry["measured"]["median"] - 1
    found = result["crossover"]
    found["measured"] = sweep["crossover"]
    # Ceilings fitted to two of the timed passes. No prediction, and never judged as one: it says how much of an error
    # comes from ceilings that the passes do not reach.
    step, block = work.step(batches[0]), work.block_pass(batches[-1])
    pace = step.total_bytes / sweep["seconds"][STEP][str(batches[0])]["median"]
    rate = block.total_flops / sweep["seconds"][BLOCK_PASS][str(batches[-1])]["median"]
    source = f"{STEP} of batch {batches[0]}, {BLOCK_PASS} of batch {batches[-1]}"
    attained = Machine("attained", pace, {dtype: rate}, source)
    found["attained"] = predicted_crossover(work, tokens, attained, dtype)
    ceilings = result["machine"]
    result["attained"] = {
        "source": source,
        "share_of_bandwidth": pace / ceilings["bandwidth"],
        "share_of_peak": rate / ceilings["flops_per_second"],
    }
    for kind in ("predicted", "attained", "closed_form"):
        if found[kind]["batch"] and found["measured"]["batch"]:
            found[kind]["error"] = found[kind]["batch"] / found["measured"]["batch"] - 1
            if kind != "attained":
                found[kind]["within"] = abs(found[kind]["error"]) <= WITHIN


def compare_answers(result: dict[str, Any], measured: dict[str, Any], batch: int) -> None:
    """Puts the decoders' end-to-end speed-ups beside the predicted ones, at the smallest batch size."""
    for entry in result["ratios"]:
        entry["measured"] = {"batch": batch, **measured[f"{entry['ratio']:g}"]}
    result["stops_paying_measured"] = {
        arm: stops_paying({entry["ratio"]: entry["measured"]["speedup"][arm]["median"] for entry in result["ratios"]})
        for arm in ("block_diffusion", "masked_diffusion")
    }

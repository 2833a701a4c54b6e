"""The claims about masked diffusion under test, each judged by what a comparison's records say.

A claim is confirmed or refuted only where an interval decides it; everything else is not shown.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from evals.records import read_record
from evals.report_data import TWIN

Row = dict[str, Any]
CONFIRMED, REFUTED, NOT_SHOWN = "confirmed", "refuted", "not shown"
STRUCTURED = ("structured", "real")
COMPARABLE = 0.85
"""Share of the twin's exact match under which an arm's speed is no answer to the same question."""
LOSSLESS = (2.0, 4.0)
"""What lossless speculation is said to give the autoregressive side, as a factor of tokens a second."""
LITTLE = 0.05
"""Under this score the twin itself has not learned a task, and a ratio to it says nothing."""
LEAST_SEEDS = 3
"""Trained seeds from which on quality is judged: the demo's one seed gave 0.77 and, elsewhere, 0.98 of the twin."""


def judge(summary: Row, folder: Path) -> list[dict[str, str]]:
    """One row a claim: the claim, its verdict, what decides it, and the record behind."""
    rows = [
        *_quality(summary),
        _speed(summary),
        _batching(folder / "throughput.json"),
        _speculation(folder / "speculation.json"),
        _cost(folder / "fallback.json"),
        _prefill(folder / "roofline.json"),
    ]
    return rows


def _row(claim: str, verdict: str, evidence: str, record: str = "—") -> dict[str, str]:
    return {"claim": claim, "verdict": verdict, "evidence": evidence, "record": record}


def _best(summary: Row, groups: Iterable[str]) -> list[Row]:
    """The better diffusion arm of each group whose twin has learned something."""
    best = []
    for group in groups:
        rows = [row for row in summary["groups"] if row["group"] == group and "to_twin" in row]
        rows = [row for row in rows if row["to_twin"]["reference"] >= LITTLE and row["to_twin"]["interval"]]
        if rows:
            best.append(max(rows, key=lambda row: row["to_twin"]["ratio"]))
    return best


def _evidence(rows: list[Row]) -> str:
    texts = []
    for row in rows:
        low, high = row["to_twin"]["interval"]
        seeds = row["to_twin"]["seeds"]
        few = f", {seeds} of {LEAST_SEEDS} seeds" if seeds < LEAST_SEEDS else ""
        ratio = f"{row['to_twin']['ratio']:.2f} [{low:.2f}, {high:.2f}]"
        texts.append(f"{row['group']}: {row['arm'].replace('_', ' ')} {ratio}{few}")
    return "; ".join(texts) or "no group in which the twin has learned the tasks and a diffusion arm scores"


def _enough_seeds(rows: list[Row]) -> bool:
    """With fewer the noise between trainings is not known, and an interval over test rows leaves it out."""
    return bool(rows) and all(row["to_twin"]["seeds"] >= LEAST_SEEDS for row in rows)


def _quality(summary: Row) -> Iterable[dict[str, str]]:
    structured = _best(summary, STRUCTURED)
    if not _enough_seeds(structured):
        verdict = NOT_SHOWN
    elif all(row["to_twin"]["interval"][0] >= COMPARABLE for row in structured):
        verdict = CONFIRMED
    elif any(row["to_twin"]["interval"][1] < COMPARABLE for row in structured):
        verdict = REFUTED
    else:
        verdict = NOT_SHOWN
    claim = "diffusion reaches 0.85 or more of its twin's exact match on structured output"
    yield _row(claim, verdict, _evidence(structured), "*/test-frozen.json")
    reasoning = _best(summary, ("reasoning",))
    verdict = NOT_SHOWN
    if _enough_seeds(reasoning):
        low, high = reasoning[0]["to_twin"]["interval"]
        verdict = CONFIRMED if low >= 0.85 and high <= 0.95 else REFUTED if high < 0.85 or low > 0.95 else NOT_SHOWN
    yield _row("5 to 15 % behind on reasoning", verdict, _evidence(reasoning), "*/test-frozen.json")


def _speed(summary: Row) -> dict[str, str]:
    """Ten times the tokens a second, on every task that the twin has learned and an arm's quality is comparable in."""
    quality = {
        (row["arm"], row["task"]): row["to_twin"]["ratio"] or 0.0
        for row in summary["quality"]["test"]
        if row.get("to_twin", {}).get("reference", 0.0) >= LITTLE
    }
    found = []
    for row in summary["speed"]:
        mode = "compiled" if "compiled" in row else "eager"
        comparable = quality.get((row["arm"], row["task"]), 0.0) >= COMPARABLE
        if row["arm"] != TWIN and comparable and "to_twin" in row[mode]:
            found.append((row[mode]["to_twin"], f"{row['task']}: {row['arm'].replace('_', ' ')}, {mode}"))
    claim = "ten times the tokens per second at one stream, at comparable quality"
    if not found:
        return _row(claim, NOT_SHOWN, "no arm of comparable quality")
    best = max(found)
    verdict = CONFIRMED if min(found)[0] >= 10 else REFUTED if best[0] < 10 else NOT_SHOWN
    return _row(claim, verdict, f"at most {best[0]:.1f} times ({best[1]})", "*/speed-*.json")


def _batching(path: Path) -> dict[str, str]:
    claim = "the advantage vanishes with batching"
    if not path.exists():
        return _row(claim, NOT_SHOWN, "run `python -m evals throughput` into this folder")
    result = read_record(path)["result"]
    ends = {way: found["crossover"]["batch"] for way, found in result["against_queue"].items()}
    texts = [
        f"{way.replace('_', ' ')}: {'none within the sweep' if at is None else f'at {at:.0f} rows'}"
        for way, at in ends.items()
    ]
    verdict = CONFIRMED if ends and all(at is not None for at in ends.values()) else NOT_SHOWN
    return _row(claim, verdict, "; ".join(texts), path.name)


def _speculation(path: Path) -> dict[str, str]:
    claim = "lossless speculation gives the autoregressive side a factor of 2 to 4"
    if not path.exists():
        return _row(claim, NOT_SHOWN, "run `python -m evals speculation` into this folder")
    ways = [way for way in read_record(path)["result"]["ways"] if way["drafter"] != "plain"]
    best = max(ways, key=lambda way: way["faster_than_plain"])
    factor = best["faster_than_plain"]
    verdict = CONFIRMED if LOSSLESS[0] <= factor <= LOSSLESS[1] else REFUTED
    return _row(claim, verdict, f"{factor:.2f} with {best['drafter']}, {best['draft_length']} guesses", path.name)


def _cost(path: Path) -> dict[str, str]:
    """Confirmed or refuted where every way to run the node, one stream or the fastest batch, says the same."""
    claim = "a document costs less than with the twin at once, the twin for rejected ones included"
    if not path.exists():
        return _row(claim, NOT_SHOWN, "run `python -m evals fallback` into this folder")
    record = read_record(path)
    rows = [row for row in record["result"]["costs"] if row["to"] == "twin"]
    cheaper = [row["per_document"] < row["at_once"] for row in rows]
    error = f"errors at most {record['settings']['error']:.0%}"
    texts = [f"{row['basis']}: {row['per_document'] / row['at_once']:.2f} of its cost" for row in rows]
    evidence = f"{'; '.join(texts)}; {rows[0]['rejected']:.0%} rejected for {error}"
    return _row(claim, CONFIRMED if all(cheaper) else NOT_SHOWN if any(cheaper) else REFUTED, evidence, path.name)


def _prefill(path: Path) -> dict[str, str]:
    """End-to-end speed-up of block diffusion on random weights, at the longest and at the shortest prompt measured."""
    claim = "with long inputs and short outputs prefill eats the gain"
    found, texts = [], []
    record = read_record(path)["result"] if path.exists() else {}
    for shape, result in record.items():
        measured = {
            entry["ratio"]: entry["measured"]["speedup"]["block_diffusion"]["median"]
            for entry in result["ratios"]
            if "measured" in entry
        }
        if measured:
            short, long = measured[min(measured)], measured[max(measured)]
            texts.append(f"{shape}: {short:.2f} at 1:{1 / min(measured):g}, {long:.2f} at {max(measured):g}:1")
            # Of a gain, most is eaten, or none is; without a gain there is nothing to eat.
            eaten = (short - long) / (short - 1) if short > 1 else None
            found.append(
                NOT_SHOWN if eaten is None else CONFIRMED if eaten > 0.5 else REFUTED if eaten <= 0 else NOT_SHOWN
            )
    if not found:
        return _row(claim, NOT_SHOWN, "run `python -m evals roofline --measure --part answers` into this folder")
    verdict = found[0] if len(set(found)) == 1 else NOT_SHOWN
    return _row(claim, verdict, f"block diffusion, {'; '.join(texts)}", path.name)

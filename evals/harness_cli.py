"""`python -m evals lm-eval`: tasks of lm-eval on a checkpoint, as a record."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from evals.records import make_record, save_record
from mdlm.command import CommandParser
from mdlm.cpu import keep_large_buffers
from mdlm.errors import UserError

RESULTS = ("results", "versions", "n-shot", "n-samples", "higher_is_better")


def main(argv: list[str]) -> int:
    parser = CommandParser(
        "python -m evals lm-eval",
        description="Tasks of lm-eval on a checkpoint.",
        epilog="Any other option is the decoder's, as of `python -m sample`: --preset, --threshold, --cache, ...",
        allow_abbrev=False,
    )
    parser.add_argument("--checkpoint", required=True, type=Path, help="a checkpoint's or a run's folder")
    parser.add_argument("--tasks", required=True, nargs="+", help="names of tasks")
    parser.add_argument("--include-path", "--include_path", type=Path, help="a folder with tasks of one's own (YAML)")
    parser.add_argument("--num-fewshot", type=int, help="examples before each question; default: the task's")
    parser.add_argument("--limit", type=int, help="the first questions of each task only")
    parser.add_argument("--samples", type=int, default=128, help="canvases for each continuation's NELBO")
    parser.add_argument("--no-greedy", action="store_true", help="do not decode to tell whether a text is greedy")
    parser.add_argument("--batch-size", type=int, default=8, help="rows at once; changes no likelihood")
    parser.add_argument("--dtype", default="fp32", help="of the weights: fp32 or bf16")
    parser.add_argument("--device", help="default: cuda where there is one")
    parser.add_argument("--seed", type=int, default=0, help="of noise and decoder")
    parser.add_argument("--out", type=Path, help="write the record to this file")
    parser.add_argument("--json", action="store_true", help="print the record as one JSON line")
    options, rest = parser.parse_known_args(argv)
    if options.include_path and not options.include_path.is_dir():
        raise UserError(f"--include-path {options.include_path}: no such folder; name one that holds tasks (YAML)")
    if options.out and options.out.is_dir():
        raise UserError(f"--out {options.out}: this is a folder; give the name of a file to write")
    keep_large_buffers()
    record = evaluate(
        options.checkpoint,
        [name for given in options.tasks for name in given.split(",")],
        options.include_path,
        num_fewshot=options.num_fewshot,
        limit=options.limit,
        batch_size=options.batch_size,
        dtype=options.dtype,
        num_samples=options.samples,
        seed=options.seed,
        greedy=not options.no_greedy,
        device=options.device,
        **_decoder_options(rest),
    )
    if options.out:
        save_record(options.out, record)
    print(json.dumps(record, allow_nan=False) if options.json else _table(record))
    return 0


def evaluate(
    checkpoint: Path,
    tasks: list[str],
    include_path: Path | None = None,
    *,
    num_fewshot: int | None = None,
    limit: int | None = None,
    **model: Any,
) -> dict[str, Any]:
    """The record of `tasks` on a checkpoint; `model` are the arguments of `evals.harness.CheckpointLM`.

    Raises `UserError` where lm-eval is missing or knows no task of a name.
    """
    try:
        from lm_eval import simple_evaluate
        from lm_eval.tasks import TaskManager

        from evals.harness import CheckpointLM
    except ImportError as error:
        raise UserError(f"{error.name} is missing; install it by `pip install 'mdlm-reference[hf]'`") from error
    manager = TaskManager(include_path=include_path and str(include_path))
    if missing := [name for name in tasks if name not in manager.all_tasks]:
        raise UserError(f"lm-eval knows no task {missing[0]!r}; --include-path DIR adds those of a folder")
    lm = CheckpointLM(checkpoint, **model)
    found = simple_evaluate(
        lm, tasks=tasks, num_fewshot=num_fewshot, limit=limit, task_manager=manager, log_samples=False
    )
    assert found is not None  # one process
    settings = {"tasks": tasks, "num_fewshot": num_fewshot, "limit": limit, "model": lm.get_model_info()}
    return make_record("lm-eval", settings, _plain({name: found[name] for name in RESULTS if name in found}))


def _decoder_options(rest: list[str]) -> dict[str, Any]:
    """`--name value`, `--name=value` and flags as arguments; their meaning is the decoder's affair."""
    given: dict[str, Any] = {}
    name = None
    for word in rest:
        if word.startswith("--"):
            flag, equals, value = word[2:].partition("=")
            name = flag.replace("-", "_")
            given[name] = value if equals else True
        elif name is not None and given[name] is True:
            given[name] = word
        else:
            raise UserError(f"{word!r} stands alone; an option begins with --")
    return given


def _plain(value: Any) -> Any:
    """As JSON knows it: numbers that are none become null."""
    if isinstance(value, dict):
        return {str(name): _plain(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(member) for member in value]
    if isinstance(value, str | bool | int | None):
        return value
    number = float(value)
    return number if math.isfinite(number) else None


def _table(record: dict[str, Any]) -> str:
    model = record["settings"]["model"]
    lines = [f"{model['checkpoint']} ({model['objective']})"]
    if model["bound"]:
        drawn = "" if model["exact"] else f", {model['num_samples']} canvases each, noise {model['noise']}"
        lines.append(f"likelihoods: {model['bound']}{drawn}")
    for task, metrics in record["result"]["results"].items():
        for name, value in metrics.items():
            if isinstance(value, float) and "_stderr" not in name:
                metric, _, filtered = name.partition(",")
                error = metrics.get(f"{metric}_stderr,{filtered}")
                spread = f" ± {error:.4f}" if isinstance(error, float) else ""
                lines.append(f"  {task:<24}{metric:<16}{value:.4f}{spread}")
    if model["truncated"]["contexts"]:
        lines.append(f"{model['truncated']['contexts']} contexts did not fit and lost their beginnings")
    return "\n".join(lines)

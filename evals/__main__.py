"""`python -m evals COMMAND ...`: finds the command and hands it the rest of the line."""

from __future__ import annotations

from importlib import import_module

from mdlm.command import unknown
from mdlm.errors import run_command

# Command -> (module:function that takes the rest of the line, what it does). A command is imported only when it runs.
COMMANDS = {
    "tasks": ("evals.tasks_cli:list_tasks", "list the tasks, their splits and knobs, with an example each"),
    "make-data": ("evals.tasks_cli:make_data", "write rows of a task as JSON Lines that `train` reads"),
    "gap": ("evals.gap:main", "compare the arms: quality, passes, speed"),
    "presets": ("evals.presets:main", "every published sampler on the trained arms of a comparison"),
    "likelihood": ("evals.likelihood:main", "nats and bits of a file under checkpoints, each with its bound's name"),
    "estimators": ("evals.estimators:main", "compare ways to draw a NELBO's samples by their standard error"),
    "corpus": ("evals.corpus:main", "train the arms on text and compare their likelihoods"),
    "speculation": ("evals.speculation:main", "lossless speculation on the autoregressive twin of a comparison"),
    "throughput": ("evals.throughput:main", "tokens/s of the arms against the batch size, offline"),
    "roofline": ("evals.roofline_cli:main", "FLOPs and bytes of the passes, and where diffusion stops being ahead"),
    "cost": ("evals.cost:main", "what a useful token and an accepted document cost, from a throughput record"),
    "route": ("evals.route:main", "which work to run where, and what would change the answer"),
    "fallback": ("evals.fallback:main", "confidence of outputs, risk against coverage, and what falling back costs"),
    "fleet": ("evals.fleet_cli:main", "nodes that a stream of requests needs, by simulation"),
    "lm-eval": ("evals.harness_cli:main", "tasks of lm-eval on a checkpoint, likelihoods with their bound's name"),
    "memory": ("evals.memory:main", "peak memory of decoding by canvas length"),
    "speed": ("evals.speed:main", "time a training step and the decoders against the machine's own floor"),
}


def main(argv: list[str]) -> int | None:
    if not argv or argv[0] in ("-h", "--help"):
        print("usage: python -m evals COMMAND [--help] ...\n")
        for name, (_, meaning) in COMMANDS.items():
            print(f"  {name:<11}{meaning}")
        return 0
    if argv[0] not in COMMANDS:
        raise unknown("command", argv[0], COMMANDS)
    module, function = COMMANDS[argv[0]][0].split(":")
    return getattr(import_module(module), function)(argv[1:])


if __name__ == "__main__":
    raise SystemExit(run_command(main))

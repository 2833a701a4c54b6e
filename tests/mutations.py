"""Plants known faults, one at a time, in a copy of the project and names the test that notices each.

    python tests/mutations.py [NAME ...]

A fault that no test notices is a missing test, and ends the script with status 1. Every fault is a replacement of text
that occurs exactly once, so that a fault which no longer applies is an error and not a silent pass.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ORACLES = "tests/oracles"


@dataclass(frozen=True)
class Fault:
    """What is planted where, and the tests that are asked."""

    meaning: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...] = (ORACLES,)


FAULTS = {
    "weight": Fault(
        "the bound's weight lacks α′",
        "mdlm/corruption.py",
        "return -self.alpha_prime(t) / self.mask_rate(t)",
        "return 1 / self.mask_rate(t)",
    ),
    "divisor": Fault(
        "the bound's loss is divided by the masked tokens",
        "mdlm/objectives.py",
        "divisor = batch.supervised_BR.sum() if by_tokens else scored.counted",
        "divisor = scored.counted",
    ),
    "softmax": Fault(
        "the mask token stays in the softmax",
        "mdlm/corruption.py",
        "return logits.index_fill(-1, torch.full((1,), mask_id, device=logits.device), -torch.inf)",
        "return logits",
    ),
    "raster": Fault(
        "strata in raster order, so that a block always has its own stratum",
        "mdlm/corruption.py",
        "order = torch.randperm(count, generator=generator).double()",
        "order = torch.arange(count).double()",
    ),
    "gumbel": Fault(
        "unmasking and token from one float32 Gumbel draw, the mask among the categories",
        "sample/decide.py",
        "    none_BG = torch.zeros_like(masked_BG)\n",
        "    none_BG = torch.zeros_like(masked_BG)\n"
        "    if planned_BG is not None:\n"
        "        chance_BG1 = planned_BG.float().mean().clamp(1e-3, 1 - 1e-3).expand(*planned_BG.shape, 1)\n"
        "        joint = torch.cat([log_probs_BGV.float() + chance_BG1.log(), (1 - chance_BG1).log()], dim=-1)\n"
        "        drawn = uniform(keys_B, moment, 'token', tuple(joint.shape[1:])).float()\n"
        "        drawn_BG = (joint - torch.log(-torch.log(drawn + 1e-10))).argmax(-1)\n"
        "        planned_BG = masked_BG & (drawn_BG < log_probs_BGV.shape[-1])\n"
        "        candidate_BG = torch.where(planned_BG, drawn_BG, candidate_BG)\n",
        (ORACLES, "tests/sample"),
    ),
    "float32": Fault(
        "Gumbel noise in float32",
        "sample/policies.py",
        "torch.log(-torch.log1p(-noise_BGV.clamp(min=2.0**-54)))",
        "torch.log(-torch.log(noise_BGV.float().clamp(min=1e-10, max=1 - 1e-7)))",
        ("tests/sample/test_policies.py", ORACLES),
    ),
    "leak": Fault(
        "noisy positions see the clean tokens of their own block",
        "mdlm/attention.py",
        "noisy_to_clean = blocks_BL[:, None, None, :] < noisy_BR[:, None, :, None]",
        "noisy_to_clean = blocks_BL[:, None, None, :] <= noisy_BR[:, None, :, None]",
    ),
    "ends-scored": Fault(
        "a diffusion arm's likelihood is credited with the end tokens that fill its canvas",
        "evals/likelihood.py",
        '"tokens": len(response) + int(ends)',
        '"tokens": int(estimate.tokens_B[place])',
        ("tests/evals/test_likelihood.py",),
    ),
    "ends-kept": Fault(
        "the autoregressive arm's end token counts as a token of its answer",
        "sample/autoregressive.py",
        "    return generation\n",
        "    run.ledger.kept += (response_BR == model.config.end_token_id).any(-1).long()\n    return generation\n",
        ("tests/sample",),
    ),
    "floor": Fault(
        "a floor of 1e-3 under the mask rate of the evaluated bound",
        "mdlm/likelihood.py",
        "    times_KSN = times_KSJ[..., block_N]\n",
        "    times_KSN = times_KSJ[..., block_N].clamp(min=1e-3)\n",
    ),
    "carry-over": Fault(
        "a visible token may be changed",
        "sample/decide.py",
        "tokens_BG = torch.where(committed_BG, candidate_BG, tokens_BG).masked_fill(revoked_BG, mask_id)",
        "tokens_BG = torch.where(committed_BG | ~masked_BG, candidate_BG, tokens_BG).masked_fill(revoked_BG, mask_id)",
        ("tests/sample/test_denoise.py",),
    ),
    "order": Fault(
        "the greedy order looks at the token that is to be predicted",
        "mdlm/likelihood.py",
        "score_ML = CERTAINTIES[score](log_probs_MLV).masked_fill(~open_ML, -torch.inf)",
        "score_ML = log_probs_MLV.gather(-1, clean_ML[..., None])[..., 0].masked_fill(~open_ML, -torch.inf)",
    ),
    "padding": Fault(
        "padding is seen",
        "mdlm/attention.py",
        "return torch.where(valid_BL, blocks_L.int(), PADDING_BLOCK)",
        "return blocks_L.int().expand(valid_BL.shape)",
    ),
    "nucleus": Fault(
        "top-p drops the token that crosses p",
        "sample/policies.py",
        "mass_before_BGV = sorted_BGV.exp().cumsum(-1) - sorted_BGV.exp()",
        "mass_before_BGV = sorted_BGV.exp().cumsum(-1)",
        ("tests/sample/test_policies.py",),
    ),
    "sigma": Fault(
        "ReMDM does not unmask more where it masks again",
        "sample/clock.py",
        "(1 - torch.where(masked_BG, sigma_BG, 0.0))",
        "1.0",
        (ORACLES, "tests/sample"),
    ),
    "store": Fault(
        "a fused store forgets a finished block",
        "sample/windows.py",
        "first, self.unstored = start if self.unstored is None else self.unstored, None",
        "first, self.unstored = start, None",
        ("tests/sample/test_windows.py",),
    ),
    "checksum": Fault(
        "a checkpoint's checksums are not compared",
        "mdlm/checkpoint.py",
        "if sha256_of(file) != expected:",
        "if not sha256_of(file):",
        ("tests/train/test_loop.py",),
    ),
    "skip": Fault(
        "a skipped step leaves Muon's matrices moved",
        "train/optimizer.py",
        "p.copy_(torch.where(good, p, old))",
        "p.copy_(torch.where(p.isfinite(), p, old))",
        ("tests/train/test_health.py",),
    ),
    "spike-memory": Fault(
        "a resumed run forgets the losses that its limit for spikes follows from",
        "train/loop.py",
        'self.predicted, self.spikes.recent = progress["predicted"], progress["recent_losses"]',
        'self.predicted = progress["predicted"]',
        ("tests/train/test_health.py",),
    ),
}

NO_FAULT = Fault(
    "", "mdlm/corruption.py", "class Linear(Schedule)", "class Linear(Schedule)", (ORACLES, "tests/sample")
)


def main() -> int:
    parser = argparse.ArgumentParser(description="Plants faults and names the tests that notice them.")
    parser.add_argument("names", nargs="*", choices=[[], *FAULTS], help="only these faults")
    names = parser.parse_args().names or list(FAULTS)
    print("| fault | planted in | noticed by | s |\n| --- | --- | --- | ---: |")
    missed = 0
    if control := run(NO_FAULT):
        raise SystemExit(f"{control} fails without any fault; mend that first")
    for name in names:
        fault, since = FAULTS[name], time.perf_counter()
        noticed = run(fault)
        missed += noticed is None
        where = f"`{noticed}`" if noticed else "**nothing**"
        print(f"| {fault.meaning} | `{fault.file}` | {where} | {time.perf_counter() - since:.0f} |", flush=True)
    return 1 if missed else 0


def run(fault: Fault) -> str | None:
    """The first test that fails with the fault in place, None if all pass."""
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary) / "project"
        files = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
        )
        for name in files.stdout.decode().splitlines():
            if (ROOT / name).is_file():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, copy / name)
        path = copy / fault.file
        text = path.read_text()
        if text.count(fault.old) != 1:
            raise SystemExit(
                f"{fault.file} holds {fault.old!r} {text.count(fault.old)} times; bring the fault up to date"
            )
        path.write_text(text.replace(fault.old, fault.new))
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *fault.tests]
        # The copy's packages, not those that are installed.
        environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    if done.returncode not in (0, 1) or (done.returncode == 1) != (found is not None):
        raise SystemExit(f"the tests did not run:\n{done.stdout[-2000:]}")
    return found[1] if found else None


if __name__ == "__main__":
    raise SystemExit(main())

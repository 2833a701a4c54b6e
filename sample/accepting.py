"""Which candidates a pass commits. Each rule is a function of one view of the pass, and a line in `ACCEPT`.

Shapes: B rows, G positions of a window, V vocabulary. Ties go to the left everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sample.config import DenoiseConfig
from sample.noise import uniform
from sample.policies import confidence, rank_among


@dataclass
class View:
    """What a rule may look at."""

    config: DenoiseConfig
    log_probs_BGV: Tensor
    candidate_BG: Tensor
    score_BG: Tensor
    masked_BG: Tensor
    quota_B: Tensor
    """Least number of positions a row commits."""
    keys_B: Tensor
    """Of the rows' noise."""
    window: Tensor
    """The window's number for its noise, () int64."""
    state: dict[str, Tensor]
    """What the last pass of this window left."""
    next_state: dict[str, Tensor] = field(default_factory=dict)


def count(view: View) -> Tensor:
    """The quota's surest, and all at or above the threshold.

    A quota of one with a threshold is Fast-dLLM's rule (2505.22618); a quota alone is LLaDA's (2502.09992).
    """
    if view.config.threshold is None:
        return torch.zeros_like(view.masked_BG)
    return view.score_BG >= view.config.threshold


def factor(view: View) -> Tensor:
    """The n surest with (n + 1)(1 − confidence of the n-th) < factor. Fast-dLLM (2505.22618), factor-based."""
    sure_BG = confidence(view.log_probs_BGV, view.candidate_BG)
    place_BG = rank_among(sure_BG, view.masked_BG) + 1
    return (place_BG + 1) * (1 - sure_BG) < view.config.factor


def entropy_bound(view: View) -> Tensor:
    """The surest whose entropies, the largest left out, add up to at most the bound. EB-Sampler (2505.24857).

    The sum less the largest entropy bounds the mutual information that committing them together ignores.
    """
    entropy_BG = torch.special.entr(view.log_probs_BGV.exp()).sum(-1)
    order_BG = view.score_BG.masked_fill(~view.masked_BG, -torch.inf).argsort(dim=-1, descending=True, stable=True)
    sorted_BG = entropy_BG.gather(-1, order_BG)
    ignored_BG = sorted_BG.cumsum(-1) - sorted_BG.cummax(-1).values
    within_BG = ignored_BG <= view.config.entropy_bound
    return torch.zeros_like(view.masked_BG).scatter(-1, order_BG, within_BG)


def stable(view: View) -> Tensor:
    """All that reach the threshold and whose prediction has been still for some passes. KLASS (2511.05664).

    Still: KL(this pass ‖ the last one) below `kl_threshold` in each of the last `kl_passes` passes.
    """
    now_BGV = view.log_probs_BGV
    still_BG = torch.zeros_like(view.masked_BG, dtype=torch.int64)
    if "log_probs" in view.state:
        before_BGV = view.state["log_probs"]
        kl_BG = torch.where(now_BGV.isfinite(), now_BGV.exp() * (now_BGV - before_BGV), 0.0).sum(-1)
        still_BG = torch.where(kl_BG < view.config.kl_threshold, view.state["still"] + 1, 0)
    view.next_state = {"log_probs": now_BGV, "still": still_BG}
    return (view.score_BG >= (view.config.threshold or 0.0)) & (still_BG >= view.config.kl_passes)


def runs(view: View) -> Tensor:
    """The surest of each contiguous run of masks: committed tokens are no neighbours."""
    masked_BG, score_BG = view.masked_BG, view.score_BG
    starts_BG = masked_BG & ~torch.nn.functional.pad(masked_BG, (1, 0))[:, :-1]
    run_BG = starts_BG.long().cumsum(-1)  # positions that are not masked share a run's number and take no part
    score_BG = score_BG.double().masked_fill(~masked_BG, -torch.inf)
    best_BR = torch.full_like(score_BG, -torch.inf)
    best_BR = torch.nn.functional.pad(best_BR, (0, 1), value=-torch.inf)
    best_BR = best_BR.scatter_reduce(-1, run_BG, score_BG, "amax")
    is_best_BG = masked_BG & (score_BG == best_BR.gather(-1, run_BG))
    column_BG = torch.arange(masked_BG.shape[1], device=masked_BG.device).expand_as(run_BG)
    far = masked_BG.shape[1]
    leftmost_BR = torch.full_like(best_BR, far, dtype=torch.int64)
    leftmost_BR = leftmost_BR.scatter_reduce(-1, run_BG, torch.where(is_best_BG, column_BG, far), "amin")
    return is_best_BG & (column_BG == leftmost_BR.gather(-1, run_BG))


def first_hitting(view: View) -> Tensor:
    """The position whose time comes first: one a pass in uniformly random order. 2409.02908, first-hitting sampler.

    A network without a timestep sees only the order of the hitting times, which is drawn once for the window.
    """
    times_BG = uniform(view.keys_B, view.window, "order", view.masked_BG.shape[1:])
    return rank_among(times_BG, view.masked_BG) == 0


ACCEPT: dict[str, Callable[[View], Tensor]] = {
    "count": count,
    "factor": factor,
    "entropy_bound": entropy_bound,
    "stable": stable,
    "runs": runs,
    "first_hitting": first_hitting,
}
"""The rules that decide by what the pass predicts; `ancestral` goes by the clock, see `sample.clock`."""


def accepted(view: View) -> Tensor:
    """What a pass commits, (B, G) bool: by the rule, and the quota's surest where the rule is content with less."""
    chosen_BG = ACCEPT[view.config.accept](view)
    chosen_BG = chosen_BG & view.masked_BG
    if view.config.accept != "first_hitting":
        # Only what the rule leaves open: KLASS commits the surest where nothing is still, not beside what is.
        missing_B1 = view.quota_B[:, None] - chosen_BG.sum(-1, keepdim=True)
        chosen_BG = chosen_BG | (rank_among(view.score_BG, view.masked_BG & ~chosen_BG) < missing_B1)
    return chosen_BG & view.masked_BG

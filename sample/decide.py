"""One pass's decisions, from its logits: what is committed, what is revoked, and what the next pass must know.

Shapes: B rows, G positions of a window, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mdlm.certainty import margin, negative_entropy
from mdlm.corruption import log_probabilities
from sample.accepting import View, accepted
from sample.config import DenoiseConfig
from sample.noise import uniform
from sample.policies import SCORES, candidates, confidence, rank_among


@dataclass
class Decision:
    """What a pass does to a window; all (B, G)."""

    tokens_BG: Tensor
    committed_BG: Tensor
    revoked_BG: Tensor
    score_BG: Tensor
    """Of the candidate where there was a mask, of the standing token where it was verified."""
    end_mass_BG: Tensor
    """Probability of the end token."""
    state: dict[str, Tensor]
    margin_BG: Tensor | None = None
    """Probability of the likeliest token less that of the second; with `trace` only, like the next."""
    entropy_BG: Tensor | None = None
    """Nats."""


def decide(
    logits: Tensor,
    tokens_BG: Tensor,
    decoded_BG: Tensor,
    planned_BG: Tensor | None,
    quota_B: Tensor,
    keys_B: Tensor,
    window: Tensor,
    moment: Tensor,
    state: dict[str, Tensor],
    mask_id: int,
    end_id: int | None,
    config: DenoiseConfig,
) -> Decision:
    """Applies candidate, score, accept and, for `verify`, revoke.

    Args:
        logits: (B, G, V), or (B, 2 G, V) with the shadows' behind them.
        tokens_BG: the window before the pass. What is not masked keeps its token whatever the logits say.
        decoded_BG: True where this decode has committed a token.
        planned_BG: what the clock unmasks, where one decides instead of a rule.
        quota_B: least number of positions a row commits.
        keys_B, window, moment: of the rows' noise, see `sample.noise`.
        state: what the last pass of this window left.
    """
    width, masked_BG = tokens_BG.shape[1], tokens_BG == mask_id
    log_probs_BGV = log_probabilities(logits[:, :width], mask_id)
    noise_BGV = None
    if config.temperature > 0:
        noise_BGV = uniform(keys_B, moment, "token", (width, log_probs_BGV.shape[-1]))
    candidate_BG = candidates(log_probs_BGV, config.temperature, config.top_p, noise_BGV)
    score_noise_BG = uniform(keys_B, moment, "score", (width,)) if config.score == "random" else candidate_BG
    score_BG = SCORES[config.score](log_probs_BGV, candidate_BG, score_noise_BG)
    none_BG = torch.zeros_like(masked_BG)
    early_BG = none_BG
    if config.ends == "in_order" and end_id is not None:
        early_BG = (candidate_BG == end_id) & (masked_BG.long().cumsum(-1) > 1)
        score_BG = score_BG.masked_fill(early_BG, -torch.inf)
    view = View(config, log_probs_BGV, candidate_BG, score_BG, masked_BG, quota_B, keys_B, window, state)
    committed_BG = accepted(view) & ~early_BG if planned_BG is None else planned_BG
    next_state, revoked_BG = dict(view.next_state), none_BG
    if config.revoke == "verify":
        shadow_BGV = log_probabilities(logits[:, width:], mask_id)
        standing_BG = shadow_BGV.gather(-1, tokens_BG[..., None])[..., 0].exp()
        revoked_BG = doubtful(standing_BG, decoded_BG & ~masked_BG, committed_BG, state, config)
        next_state["accepted_B"] = committed_BG.sum(-1)
        score_BG = torch.where(masked_BG, score_BG, standing_BG)
    if config.revoke == "remdm_confidence":
        sure_BG = confidence(log_probs_BGV, candidate_BG)
        before_BG = state.get("psi_BG", torch.zeros_like(sure_BG))
        next_state["psi_BG"] = torch.where(committed_BG, sure_BG, before_BG)
    tokens_BG = torch.where(committed_BG, candidate_BG, tokens_BG).masked_fill(revoked_BG, mask_id)
    end_mass_BG = torch.zeros_like(score_BG) if end_id is None else log_probs_BGV[..., end_id].exp()
    certainty = (margin(log_probs_BGV), -negative_entropy(log_probs_BGV)) if config.trace else (None, None)
    return Decision(tokens_BG, committed_BG, revoked_BG, score_BG, end_mass_BG, next_state, *certainty)


def doubtful(
    standing_BG: Tensor, decoded_BG: Tensor, committed_BG: Tensor, state: dict[str, Tensor], config: DenoiseConfig
) -> Tensor:
    """The committed tokens that are masked again, (B, G) bool: the least likely under the threshold. WINO, 2507.18578.

    Fewer than the row committed in the pass before, and none in a pass that commits only one. With a_t commitments in
    pass t, all revocations of T passes are then at most Σ_{t<T} (a_t − 1), all commitments at most the window's G
    masks more than that, so a_T ≤ G − T + 1: as a_T ≥ 1, a window ends within G passes.
    """
    if "accepted_B" not in state:
        return torch.zeros_like(decoded_BG)
    most_B = torch.where(committed_BG.sum(-1) > 1, state["accepted_B"] - 1, 0)
    below_BG = decoded_BG & (standing_BG < config.revoke_threshold)
    return below_BG & (rank_among(-standing_BG, below_BG) < most_B[:, None])

"""Likelihoods and bounds with their names: what a model assigns to a text, in nats.

Everything here takes a denoiser: a `Transformer`, or any function from tokens (B, L) to logits (B, L, V). Shapes: B
rows, L columns, N scored columns of one row, K replicates, S samples of a replicate, J blocks, M canvases (copies of
rows with masks in them), W wanted positions of canvases, V vocabulary.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from mdlm.certainty import CERTAINTIES
from mdlm.corruption import Clipped, Schedule, get_schedule, log_probabilities
from mdlm.errors import UserError
from mdlm.scoring import Denoiser, Rows
from mdlm.transformer import Transformer

ORDERS = ("left_to_right", "right_to_left", "random", "blocks")
REPLICATES = 8
"""A Monte-Carlo estimate is the mean of so many independent ones, whose spread is its standard error."""
MOST_ENUMERATED = 14


@dataclass(frozen=True)
class Estimate:
    """Nats of each row under a named bound or likelihood."""

    bound: str
    """`nelbo`, `nelbo:block_G` and `exact_nelbo` lie at or above −log p; the others are a model's own −log p."""
    nats_KB: Tensor
    """Float64; K independent estimates of each row, one where nothing is drawn."""
    tokens_B: Tensor
    """Scored tokens of each row."""
    num_samples: int
    """Canvases averaged for each row; 1 where nothing is drawn."""
    exact: bool
    """Nothing was drawn: the standard error is zero."""

    @property
    def nats_B(self) -> Tensor:  # noqa: N802 — names carry their shape
        """Nats of each row."""
        return self.nats_KB.mean(0)

    @property
    def nats_per_token(self) -> float:
        """Nats of all rows over their scored tokens."""
        return float(self.nats_B.sum() / self.tokens_B.sum())

    @property
    def bits_per_token(self) -> float:
        return self.nats_per_token / math.log(2)

    @property
    def standard_error(self) -> float:
        """Monte-Carlo standard error of `nats_per_token` for these rows, with K − 1 degrees of freedom; not the error
        of the rows as a sample of others. NaN for one sample."""
        if self.exact:
            return 0.0
        if len(self.nats_KB) == 1:
            return math.nan
        return float(self.nats_KB.sum(-1).std() / len(self.nats_KB) ** 0.5 / self.tokens_B.sum())


@torch.no_grad()
def nelbo(
    denoiser: Denoiser,
    tokens_BL: Tensor,
    *,
    mask_id: int,
    schedule: str | Schedule | None = None,
    num_samples: int = 128,
    block_length: int | None = None,
    seed: int = 0,
    scored_BL: Tensor | None = None,
    valid_BL: Tensor | None = None,
    response_start: int = 0,
    first_row: int = 0,
    rows_B: Sequence[int] | None = None,
    noise_tokens_B: Sequence[int] | None = None,
    independent: bool = False,
) -> Estimate:
    """The negative evidence lower bound, estimated: nats at or above −log p. MDLM (2406.07524), BD3-LM (2503.09573).

    Without a schedule the number of masked tokens k is uniform over 1..n and the cross-entropy weighs n/k: the same
    bound with time integrated out (LLaDA, 2502.09992, for evaluation), of finite variance. With one, time is drawn and
    each token masked alone, with weight −α′/(1−α): at small t the weight's tail is heavy and the variance infinite.

    Samples are stratified within each row and block, and offset from row to row, by `seed` and the row's number alone:
    the result of a row depends neither on the batch it stands in nor on its padding.

    Args:
        denoiser: a `Transformer` (not an autoregressive one), or a function from tokens (B, L) to logits (B, L, V).
        tokens_BL: clean tokens.
        mask_id: the mask token.
        schedule: None, a name, or a `Schedule`. A clipped one is refused: its loss bounds nothing.
        num_samples: canvases for each row, rounded up to a multiple of `REPLICATES`. One is enough, and one is taken,
            where blocks of one token and no schedule leave nothing to draw.
        block_length: None takes a block-diffusion model's own, otherwise the whole row.
        scored_BL: columns that are predicted; the others are given. Default: all from `response_start` on.
        valid_BL: False at padding.
        response_start: the column blocks count from.
        first_row: the number of the first row, for a set that is evaluated batch by batch.
        rows_B: each row's number in place of that; rows of one number draw common noise.
        noise_tokens_B: draw each row's masks for so many scored tokens, of which it has the first; default: as many as
            it has. Rows of one number and unequal lengths, drawn for the longest, have equal masks where both have
            tokens. The bound stays one: tokens that a row lacks only leave the others' order as uniform as it was.
        independent: draw times and masks independently; only to see what stratification saves.
    """
    _refuse_autoregressive(denoiser)
    if num_samples < 1:
        raise UserError(f"num_samples is {num_samples}; it must be at least 1")
    schedule = None if schedule is None else get_schedule(schedule)
    if isinstance(schedule, Clipped):
        raise UserError(
            f"{schedule.name} never masks all or none, so that its loss bounds nothing; leave it to training"
        )
    rows = Rows(denoiser, tokens_BL, mask_id, block_length, scored_BL, valid_BL, response_start)
    replicates = min(REPLICATES, num_samples)
    samples, exact = -(-num_samples // replicates), False
    if schedule is None and rows.block_length == 1:
        replicates, samples, exact = 1, 1, True  # one token a block is the chain rule: nothing is drawn
    numbers_B = range(first_row, first_row + len(rows.tokens_BL)) if rows_B is None else rows_B
    shape = (len(rows.tokens_BL), replicates, samples, tokens_BL.shape[1])
    masked_BKSL = torch.zeros(shape, dtype=torch.bool)
    weight_BKSL = torch.zeros(shape, dtype=torch.float64)
    for row in range(shape[0]):
        columns_N = rows.scored_BL[row].nonzero().flatten().cpu()
        block_N = rows.block_L.cpu()[columns_N]
        if noise_tokens_B is not None:
            block_N = torch.cat([block_N, rows.blocks_behind(columns_N, noise_tokens_B[row])])
        masks_KSN, weight_KSN = _draw(block_N, schedule, replicates, samples, seed, numbers_B[row], independent)
        masked_BKSL[row, ..., columns_N] = masks_KSN[..., : len(columns_N)]
        weight_BKSL[row, ..., columns_N] = weight_KSN[..., : len(columns_N)]
    row_M = torch.arange(shape[0]).repeat_interleave(replicates * samples)
    nats_ML = rows.masked_nats(row_M.to(rows.device), masked_BKSL.flatten(0, 2).to(rows.device))
    nats_BKSL = nats_ML.cpu().view(shape) * weight_BKSL
    nats_KB = nats_BKSL.sum(-1).mean(-1).T
    return Estimate(rows.name("nelbo"), nats_KB, rows.tokens_B, replicates * samples, exact)


def _draw(
    block_N: Tensor,
    schedule: Schedule | None,
    replicates: int,
    samples: int,
    seed: int,
    row: int,
    independent: bool,
) -> tuple[Tensor, Tensor]:
    """What one row's samples mask, and how much each masked token weighs, both (K, S, N).

    Sample s of a replicate has its time in the s-th of S strata and weighs as much as that stratum is wide; for counts
    they are narrow near t = 0, where few tokens are masked and nats vary most. Pairs are equally wide and mirrored, so
    that a trend cancels.
    Where counts are drawn, the samples of a replicate walk through random orders of a block's tokens, one order after
    the other: each set is uniform among those of its size, and together they mask every token equally often.
    """
    _, block_N = block_N.unique(return_inverse=True)  # blocks without scored tokens take no part
    own, shared = _generator(seed, row), _generator(seed)
    blocks, tokens = int(block_N.max()) + 1, len(block_N)
    width_S1 = torch.ones(samples, 1, dtype=torch.float64)
    if independent:
        times_KSJ = 1 - torch.rand(replicates, samples, blocks, generator=own, dtype=torch.float64)
    else:
        # One offset for all rows and blocks of a replicate, moved on by irrational steps: uniform for each, even
        # over all.
        steps_J = row * _STEPS[0] + torch.arange(blocks, dtype=torch.float64) * _STEPS[1]
        offset_K1J = ((torch.rand(replicates, 1, generator=shared, dtype=torch.float64) + steps_J) % 1.0)[:, None]
        stratum_S1 = torch.arange(samples, dtype=torch.float64)[:, None]
        within_KSJ = torch.where(stratum_S1 % 2 == 0, 1 - offset_K1J, offset_K1J)
        edge_E = (torch.arange(0, samples + 1, dtype=torch.float64) / samples) ** (2 if schedule is None else 1)
        edge_E[1:samples:2] = (edge_E[0 : samples - 1 : 2] + edge_E[2 : samples + 1 : 2]) / 2  # pairs of equal width
        start_S1, width_S1 = edge_E[:-1, None], edge_E.diff()[:, None]
        times_KSJ = start_S1 + within_KSJ * width_S1
        width_S1 = width_S1 * samples
    times_KSN = times_KSJ[..., block_N]
    if schedule is not None:
        noise_KSN = torch.rand(replicates, samples, tokens, generator=own, dtype=torch.float64)
        return noise_KSN < schedule.mask_rate(times_KSN), width_S1 * schedule.loss_weight(times_KSN)
    size_N = block_N.bincount()[block_N]
    count_KSN = (times_KSN * size_N).ceil().long().clamp(min=1)
    noise_KSN = torch.rand(replicates, samples, tokens, generator=own, dtype=torch.float64)
    # A token's place in a random order of its block, 0 first.
    place_KSN = (block_N + noise_KSN).argsort(-1).argsort(-1) - _starts(block_N)
    if not independent:
        walked_KSN = count_KSN.cumsum(1) - count_KSN
        place_KSN = (place_KSN.gather(1, walked_KSN // size_N) - walked_KSN) % size_N
    return place_KSN < count_KSN, width_S1 * size_N / count_KSN


_STEPS = (0.7548776662466927, 0.5698402909980532)
"""1/p and 1/p² of the plastic number p = 1.3247…: the two-dimensional golden ratio."""


def _starts(block_N: Tensor) -> Tensor:
    """How many tokens stand in earlier blocks, for each token."""
    size_J = block_N.bincount()
    return (size_J.cumsum(0) - size_J)[block_N]


def _generator(*words: int) -> torch.Generator:
    digest = hashlib.blake2b(" ".join(map(str, words)).encode(), digest_size=4).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little"))


@torch.no_grad()
def exact_nelbo(
    denoiser: Denoiser,
    tokens_L: Tensor,
    *,
    mask_id: int,
    block_length: int | None = None,
    scored_L: Tensor | None = None,
    valid_L: Tensor | None = None,
    response_start: int = 0,
) -> Estimate:
    """The bound of one row (L,) by enumeration: Σ over masked sets S ≠ ∅ of (|S|−1)! (n−|S|)! / n! times the
    cross-entropy of S, summed over blocks of n ≤ 14 scored tokens. Arguments as for `nelbo`."""
    _refuse_autoregressive(denoiser)
    scored_BL = None if scored_L is None else scored_L[None]
    valid_BL = None if valid_L is None else valid_L[None]
    rows = Rows(denoiser, tokens_L[None], mask_id, block_length, scored_BL, valid_BL, response_start)
    total = torch.zeros((), dtype=torch.float64)
    columns_N = rows.scored_BL[0].nonzero().flatten()
    for block in rows.block_L[columns_N].unique():
        own_N = columns_N[rows.block_L[columns_N] == block]
        size = len(own_N)
        if size > MOST_ENUMERATED:
            raise UserError(f"{size} tokens have 2^{size} masked sets; enumerate blocks of up to {MOST_ENUMERATED}")
        sets = [chosen for k in range(1, size + 1) for chosen in combinations(own_N.tolist(), k)]
        weight_M = torch.tensor([1 / (len(s) * math.comb(size, len(s))) for s in sets], dtype=torch.float64)
        masked_ML = torch.zeros(len(sets), len(tokens_L), dtype=torch.bool)
        for index, chosen in enumerate(sets):
            masked_ML[index, list(chosen)] = True
        row_M = torch.zeros(len(sets), dtype=torch.int64, device=rows.device)
        total += (weight_M * rows.masked_nats(row_M, masked_ML.to(rows.device)).cpu().sum(-1)).sum()
    return Estimate(rows.name("exact_nelbo"), total.view(1, 1), rows.tokens_B, 1, True)


@torch.no_grad()
def order_nll(
    denoiser: Denoiser,
    tokens_BL: Tensor,
    order_L: Tensor | str,
    *,
    mask_id: int,
    block_length: int | None = None,
    seed: int = 0,
    scored_BL: Tensor | None = None,
    valid_BL: Tensor | None = None,
    response_start: int = 0,
    first_row: int = 0,
) -> Estimate:
    """The chain rule in one order: each token given those before it in the order, all others masked. A likelihood.

    `order_L` is a permutation of the columns, of which those not scored are passed over, or a name: `left_to_right`,
    `right_to_left`, `random` (drawn for each row), `blocks` (from left to right by blocks, random inside). The mean
    over all orders is the NELBO. Other arguments as for `nelbo`.
    """
    _refuse_autoregressive(denoiser)
    rows = Rows(denoiser, tokens_BL, mask_id, block_length, scored_BL, valid_BL, response_start)
    name = order_L if isinstance(order_L, str) else "given"
    if isinstance(order_L, str):
        if order_L not in ORDERS:
            raise UserError(f"order {order_L!r} is unknown; choose one of {', '.join(ORDERS)}, or give a permutation")
        if order_L == "blocks" and rows.block_length is None:
            raise UserError("the order by blocks needs a block_length")
    elif sorted(order_L.tolist()) != list(range(tokens_BL.shape[1])):
        raise UserError(f"the order must name each of the {tokens_BL.shape[1]} columns once")
    canvases = []
    for row in range(len(rows.tokens_BL)):
        columns_N = rows.scored_BL[row].nonzero().flatten().cpu()
        if isinstance(order_L, str):
            noise_N = torch.rand(len(columns_N), generator=_generator(seed, first_row + row), dtype=torch.float64)
            keys = {
                "left_to_right": columns_N,
                "right_to_left": -columns_N,
                "random": noise_N,
                "blocks": rows.block_L.cpu()[columns_N] + noise_N,
            }
            columns_N = columns_N[keys[order_L].argsort()]
        else:
            order = order_L.cpu()
            columns_N = order[torch.isin(order, columns_N)]
        canvases.append((torch.full_like(columns_N, row), columns_N, torch.arange(len(columns_N))))
    row_M, column_M, place_M = (torch.cat(parts).to(rows.device) for parts in zip(*canvases, strict=True))
    place_BL = torch.full(tokens_BL.shape, -1, device=rows.device)
    place_BL[row_M, column_M] = place_M
    wanted_ML = place_BL[row_M] == place_M[:, None]
    nats_M = rows.canvas_nats(row_M, place_BL[row_M] >= place_M[:, None], wanted_ML).sum(-1)
    nats_B = torch.zeros(len(tokens_BL), dtype=torch.float64, device=rows.device).index_add(0, row_M, nats_M)
    return Estimate(f"order_nll:{name}", nats_B[None].cpu(), rows.tokens_B, 1, True)


@torch.no_grad()
def deterministic_order_nll(
    denoiser: Denoiser,
    tokens_BL: Tensor,
    score: str,
    *,
    mask_id: int,
    block_length: int | None = None,
    scored_BL: Tensor | None = None,
    valid_BL: Tensor | None = None,
    response_start: int = 0,
) -> Estimate:
    """The chain rule in greedy order: at every step the surest masked position of the first unfinished block.

    The order depends on what is visible alone, never on the tokens still to be predicted, so that the probabilities of
    all texts sum to one. An order chosen for a text, such as its best one, has no such sum and is no likelihood;
    hence `score` is a name: `confidence`, `margin` or `entropy`. Ties go to the left.
    """
    _refuse_autoregressive(denoiser)
    if score not in CERTAINTIES:
        raise UserError(
            f"score {score!r} is unknown; choose one of {', '.join(CERTAINTIES)}: the order may depend on what is "
            "visible only, an order chosen for the text itself is no likelihood"
        )
    rows = Rows(denoiser, tokens_BL, mask_id, block_length, scored_BL, valid_BL, response_start)
    masked_BL = rows.scored_BL.clone()
    nats_B = torch.zeros(len(tokens_BL), dtype=torch.float64, device=rows.device)
    column_L = torch.arange(tokens_BL.shape[1], device=rows.device)
    while len(row_M := masked_BL.any(-1).nonzero().flatten()):
        masked_ML, clean_ML = masked_BL[row_M], rows.tokens_BL[row_M]
        canvas_ML = torch.where(masked_ML, mask_id, clean_ML)
        log_probs_MLV = log_probabilities(rows.logits(canvas_ML, row_M), mask_id)
        block_ML = torch.where(masked_ML, rows.block_L, len(column_L))
        open_ML = masked_ML & (block_ML == block_ML.amin(-1, keepdim=True))
        score_ML = CERTAINTIES[score](log_probs_MLV).masked_fill(~open_ML, -torch.inf)
        surest_ML = score_ML == score_ML.amax(-1, keepdim=True)
        chosen_M = torch.where(surest_ML, column_L, len(column_L)).amin(-1)
        each_M = torch.arange(len(row_M), device=rows.device)
        nats_B[row_M] -= log_probs_MLV[each_M, chosen_M, clean_ML[each_M, chosen_M]].double()
        masked_BL[row_M, chosen_M] = False
    return Estimate(f"deterministic_order_nll:{score}", nats_B[None].cpu(), rows.tokens_B, 1, True)


def _refuse_autoregressive(denoiser: Denoiser) -> None:
    if isinstance(denoiser, Transformer) and denoiser.config.objective == "autoregressive":
        raise UserError("an autoregressive model predicts no masked tokens; use autoregressive_nll")


@torch.no_grad()
def autoregressive_nll(
    denoiser: Denoiser,
    tokens_BL: Tensor,
    *,
    mask_id: int,
    scored_BL: Tensor | None = None,
    valid_BL: Tensor | None = None,
    response_start: int = 1,
) -> Estimate:
    """The likelihood of a model whose logits at column i are those of column i + 1, exactly."""
    if isinstance(denoiser, Transformer) and denoiser.config.objective != "autoregressive":
        raise UserError(f"a {denoiser.config.objective} model does not predict the next token; use nelbo or order_nll")
    if scored_BL is None:
        scored_BL = torch.arange(tokens_BL.shape[1]) >= response_start
        scored_BL = scored_BL.expand(tokens_BL.shape) if valid_BL is None else scored_BL & valid_BL.cpu()
    rows = Rows(denoiser, tokens_BL, mask_id, None, scored_BL, valid_BL, response_start=0)
    before_BL = rows.valid_BL.roll(1, 1)
    before_BL[:, 0] = False
    if (rows.scored_BL & ~before_BL).any():
        raise UserError("nothing stands before a row's first token to predict it from; score from the second one on")
    row_M = torch.arange(len(tokens_BL), device=rows.device)
    nats_B = rows.next_token_nats(row_M, rows.scored_BL).sum(-1)
    return Estimate("exact_autoregressive", nats_B[None].cpu(), rows.tokens_B, 1, True)

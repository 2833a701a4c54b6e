"""Every preset against its published algorithm, written down again as plainly as possible: one row, lists, floats.

Windows go from left to right; later ones stay masked. A network is a function from a row's tokens to each position's
probabilities, the mask token's left out. Sampling ones draw with the numbers our sampler draws with.
"""

from __future__ import annotations

import math

import pytest
import torch

from mdlm.attention import block_indices, logical_positions, visible
from mdlm.corruption import log_probabilities
from sample import denoise
from sample.noise import row_keys, uniform
from sample.presets import preset

MASK, LENGTH, PROMPT = 8, 12, 3
SHAPES = [("masked_diffusion", None), ("masked_diffusion", 5), ("block_diffusion", 4)]


def network(model):
    def probabilities(tokens):
        return log_probabilities(model(torch.tensor([tokens]), None, PROMPT)[0], MASK).exp().tolist()

    return probabilities


def shadow_probabilities(model, tokens, columns):
    """Each column's probabilities from an extra mask token at its position that sees all the position sees but the
    position itself."""
    row = torch.tensor([tokens])
    everything = torch.ones_like(row, dtype=torch.bool)
    blocks, positions = block_indices(model.config, everything, PROMPT), logical_positions(everything)
    sees = visible(blocks, blocks)[0, 0].tolist()
    length, width = len(tokens), len(columns)
    rows = [[*sees[i], *[False] * width] for i in range(length)]
    for place, column in enumerate(columns):
        others = [sees[column][j] and j != column for j in range(length)]
        rows.append([*others, *[place == other for other in range(width)]])
    hidden = model.hidden(
        torch.tensor([[*tokens, *[MASK] * width]]),
        torch.tensor([[*positions[0].tolist(), *[int(positions[0, c]) for c in columns]]]),
        torch.tensor(rows)[None, None],
    )
    return log_probabilities(model.head(hidden)[0, length:], MASK).exp().tolist()


def windows(block):
    for start in range(PROMPT, LENGTH, block or LENGTH - PROMPT):
        yield list(range(start, min(start + (block or LENGTH), LENGTH)))


def masked(tokens, window):
    return [i for i in window if tokens[i] == MASK]


def surest_first(p, left):
    return sorted(left, key=lambda i: (-max(p[i]), i))


def best(p, i):
    return p[i].index(max(p[i]))


def by_rule(rule):
    """A sampler that commits, pass by pass, what `rule(p, masked positions, memory)` says; memory is the window's."""

    def sampler(model, tokens, block):
        net, passes = network(model), 0
        for window in windows(block):
            memory = {}
            while left := masked(tokens, window):
                p, passes = net(tokens), passes + 1
                for i in rule(p, left, memory):
                    tokens[i] = best(p, i)
        return passes

    return sampler


def llada(p, left, memory):
    return surest_first(p, left)[:1]


def fast_dllm(p, left, memory):
    return {i for i in left if max(p[i]) >= 0.9} | {surest_first(p, left)[0]}


def fast_dllm_factor(p, left, memory):
    order = surest_first(p, left)
    n = max([n for n in range(1, len(order) + 1) if (n + 1) * (1 - max(p[order[n - 1]])) < 1.0], default=1)
    return order[:n]


def entropy_bound(p, left, memory):
    order = surest_first(p, left)
    entropy = [-sum(q * math.log(q) for q in p[i] if q > 0) for i in order]
    n = max(n for n in range(1, len(order) + 1) if n == 1 or sum(entropy[:n]) - max(entropy[:n]) <= 0.1)
    return order[:n]


def klass(p, left, memory):
    before, still = memory.get("p"), memory.setdefault("still", {})
    for i in left:
        moved = math.inf
        if before:
            moved = sum(q * math.log(q / r) for q, r in zip(p[i], before[i], strict=True) if q > 0)
        still[i] = still.get(i, 0) + 1 if moved < 0.01 else 0
    memory["p"] = p
    return [i for i in left if max(p[i]) >= 0.9 and still[i] >= 2] or surest_first(p, left)[:1]


def wino(model, tokens, block):
    net, passes = network(model), 0
    for window in windows(block):
        mine, last = set(), None
        while left := masked(tokens, window):
            p, passes = net(tokens), passes + 1
            drafts = {i for i in left if max(p[i]) >= 0.6} or {surest_first(p, left)[0]}
            doubted = []
            if last is not None and len(drafts) > 1:
                shadow = shadow_probabilities(model, tokens, window)
                standing = {i: shadow[window.index(i)][tokens[i]] for i in mine}
                doubted = sorted((i for i in mine if standing[i] < 0.9), key=lambda i: (standing[i], i))[: last - 1]
            for i in drafts:
                tokens[i] = best(p, i)
            for i in doubted:
                tokens[i] = MASK
            mine, last = (mine | drafts) - set(doubted), len(drafts)
    return passes


def noise(window, index, purpose, *shape):
    moment = (window[0] - PROMPT) * 2**20 + index
    return uniform(row_keys(0, torch.tensor([0])), torch.tensor(moment), purpose, shape)[0].tolist()


def sampled(p, u, top_p=1.0):
    """Arg max of log p plus Gumbel noise over the nucleus."""
    order, kept, mass = sorted(range(len(p)), key=lambda v: (-p[v], v)), [], 0.0
    for v in order:
        if mass < top_p:
            kept.append(v)
        mass += p[v]
    return max((v for v in kept if p[v] > 0), key=lambda v: math.log(p[v]) - math.log(-math.log1p(-u[v])))


def first_hitting(model, tokens, block):
    net, passes = network(model), 0
    for window in windows(block):
        times = dict(zip(window, noise(window, 0, "order", len(window)), strict=True))
        for index in range(len(window)):
            p, passes = net(tokens), passes + 1
            i = max(masked(tokens, window), key=times.get)
            tokens[i] = sampled(p[i], noise(window, index, "token", len(window), 12)[window.index(i)])
    return passes


def by_the_clock(cap, top_p):
    """The ancestral sampler with ReMDM's capped remasking, linear schedule, a step for each position of a window."""

    def sampler(model, tokens, block):
        net, passes = network(model), 0
        for window in windows(block):
            steps = len(window)
            for k in range(steps):
                t, s = (steps - k) / steps, (steps - k - 1) / steps
                alpha_t, alpha_s = 1 - t, 1 - s
                sigma = min(cap, 1.0 if alpha_t == 0 else min(1.0, (1 - alpha_s) / alpha_t))
                chance = (alpha_s - (1 - sigma) * alpha_t) / (1 - alpha_t)
                lift, drop = (noise(window, k, purpose, steps) for purpose in ("accept", "revoke"))
                u = noise(window, k, "token", steps, 12)
                lifted = [i for i in masked(tokens, window) if lift[window.index(i)] < chance or s == 0]
                dropped = [i for i in window if tokens[i] != MASK and drop[window.index(i)] < sigma]
                if lifted:
                    p, passes = net(tokens), passes + 1
                    for i in lifted:
                        tokens[i] = sampled(p[i], u[window.index(i)], top_p)
                for i in dropped:
                    tokens[i] = MASK
        return passes

    return sampler


PUBLISHED = {
    "llada": (by_rule(llada), {}),
    "fast-dllm": (by_rule(fast_dllm), {}),
    "fast-dllm by factor": (by_rule(fast_dllm_factor), {"threshold": None, "accept": "factor"}),
    "entropy-bound": (by_rule(entropy_bound), {}),
    "klass": (by_rule(klass), {}),
    "wino": (wino, {}),
    "first-hitting": (first_hitting, {}),
    "ancestral": (by_the_clock(0.0, 1.0), {}),
    "remdm": (by_the_clock(0.04, 0.9), {}),
    "remdm with a large cap": (by_the_clock(0.5, 0.9), {"eta": 0.5}),
}


@pytest.mark.parametrize(("objective", "block"), SHAPES)
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_preset_is_its_published_algorithm(tiny_model, name, objective, block):
    """Token by token and pass by pass, on ten random networks from unsure to decided."""
    plainly, changes = PUBLISHED[name]
    config = preset(name.split(" ")[0], **changes, cache="none", block_length=block)
    for seed in range(10):
        model = tiny_model(objective, seed=seed, gain=(6.0, 12.0, 20.0)[seed % 3], block_length=block or 16)
        tokens = [11, seed % 8, 3, *[MASK] * (LENGTH - PROMPT)]
        made = denoise(model, torch.tensor([tokens]), config, mask_id=MASK, response_start=PROMPT)
        passes = plainly(model, tokens, block)
        assert made.tokens_BL[0].tolist() == tokens
        assert made.ledger.row(0).total_passes == passes

"""Presets against the published algorithms, each read from its paper and code and written down plainly: one row, one
window, lists and floats. Every canvas on the way must agree, not only the last, and so must the number of passes.

Networks and settings make every rule do what it is for: a threshold that nothing reaches would prove nothing.
"""

from __future__ import annotations

import math
import zlib
from itertools import pairwise

import pytest
import torch

from mdlm.transformer import Transformer
from sample import denoise
from sample.noise import row_keys, uniform
from sample.presets import preset

MASK, VOCAB, START, LENGTH = 8, 12, 3, 15
CANVASES = [
    [11, 1, 5, *[MASK] * 12],
    [11, 6, 2, *[MASK] * 12],
    [11, 7, 0, *[MASK] * 5, 3, *[MASK] * 6],  # a template's token inside the answer, never changed
]


def table(seed, spread, moved):
    """A denoiser whose logits are a random table by place and token, and move with any change of the canvas."""

    def drawn(number):
        return torch.randn((LENGTH, VOCAB), generator=torch.Generator().manual_seed(number), dtype=torch.float64)

    def row(tokens):
        return spread * drawn(seed) + moved * drawn(zlib.crc32(bytes([seed, *tokens])))

    return lambda tokens_BL: torch.stack([row(tokens) for tokens in tokens_BL.tolist()])


def softmax(logits_BLV):
    """One row's probabilities of the real tokens; the mask token's is zero."""
    return logits_BLV[0].double().index_fill(-1, torch.tensor(MASK), -math.inf).softmax(-1).tolist()


class Network:
    """A denoiser as one row sees it: probabilities for each position, and a count of its passes."""

    def __init__(self, denoiser):
        self.denoiser, self.passes = denoiser, 0

    def __call__(self, x):
        self.passes += 1
        return softmax(self.denoiser(torch.tensor([x])))

    def with_shadows(self, x, window):
        """The same, and a second opinion from WINO's shadow block: mask tokens behind the canvas at the window's
        positions, unseen by it, that see all of it but their own position. Its paper lets them see each other too."""
        if not isinstance(self.denoiser, Transformer):
            return [p := self(x), {i: p[i] for i in window}]  # a table says what it holds likely where a token stands
        self.passes += 1
        canvas, shadows = range(len(x)), range(len(window))
        sees = [[True] * len(canvas) + [False] * len(shadows) for _ in canvas]
        sees += [[j != window[a] for j in canvas] + [a == b for b in shadows] for a in shadows]
        tokens, places = torch.tensor([[*x, *[MASK for _ in shadows]]]), torch.tensor([[*canvas, *window]])
        hidden = self.denoiser.hidden(tokens, places, torch.tensor(sees)[None, None])
        p = softmax(self.denoiser.head(hidden))
        return p[: len(x)], dict(zip(window, p[len(x) :], strict=True))


def masks(x, window):
    return [i for i in window if x[i] == MASK]


def surest_first(p, left):
    return sorted(left, key=lambda i: -max(p[i]))


def commit(x, p, chosen):
    for i in chosen:
        x[i] = p[i].index(max(p[i]))


def by_rule(rule):
    """Commits what `rule(p, masks, memory)` says until the window is full; the memory is the window's."""

    def decode(net, x, window, draw):
        memory = {}
        while left := masks(x, window):
            p = net(x)
            commit(x, p, rule(p, left, memory))
            yield

    return decode


def llada(steps=None):
    """LLaDA's code: each step's share of the window is settled beforehand, its remainder goes to the first steps."""

    def rule(p, left, memory):
        masked, memory["step"] = memory.setdefault("masked", len(left)), memory.get("step", 0) + 1
        share, more = divmod(masked, min(steps or masked, masked))
        return surest_first(p, left)[: share + (memory["step"] <= more)]

    return rule


def fast_dllm(threshold):
    return lambda p, left, _: [i for n, i in enumerate(surest_first(p, left)) if n == 0 or max(p[i]) >= threshold]


def factor(f):
    """The n surest, n the largest with (n + 1)(1 − c_n) < f, at least one."""

    def rule(p, left, _):
        order = surest_first(p, left)
        return order[: max((n for n, i in enumerate(order, 1) if (n + 1) * (1 - max(p[i])) < f), default=1)]

    return rule


def entropy_bound(gamma):
    """The longest prefix of the order, surest first, whose entropies but for the largest sum to γ at most."""

    def rule(p, left, _):
        order = surest_first(p, left)
        entropies = [sum(-q * math.log(q) for q in p[i] if q > 0) for i in order]
        fits = [n for n in range(1, len(order) + 1) if sum(entropies[:n]) - max(entropies[:n]) <= gamma]
        return order[: max(fits, default=1)]

    return rule


def klass(tau, epsilon, n):
    """All that are sure and have had a KL to the pass before below ε for n passes; the surest if there is none."""

    def rule(p, left, memory):
        history, before = memory.setdefault("kl", {}), memory.get("p")
        for i in left:
            pairs = zip(p[i], before[i], strict=True) if before else [(1.0, 1e-12)]
            history[i] = [*history.get(i, []), sum(a * math.log(a / b) for a, b in pairs if a > 0)][-n:]
        memory["p"] = p
        still = [i for i in left if len(history[i]) == n and max(history[i]) < epsilon]
        return [i for i in still if max(p[i]) > tau] or surest_first(p, left)[:1]

    return rule


def wino(tau_1, tau_2):
    """WINO's code, its limit of drafts left out: drafts above τ₁ or the surest; the tokens that the shadows doubt most
    (below τ₂) are masked again, fewer than the pass before drafted, none where only one is drafted."""

    def decode(net, x, window, draw):
        drafted, last = [], 30
        while left := masks(x, window):
            p, shadow = net.with_shadows(x, window)
            drafts = [i for i in left if max(p[i]) > tau_1] or surest_first(p, left)[:1]
            standing = {i: shadow[i][x[i]] for i in drafted}
            doubted = sorted((i for i in drafted if standing[i] < tau_2), key=standing.get)[: last - 1]
            doubted = doubted if len(drafts) > 1 else []
            commit(x, p, drafts)
            for i in doubted:
                x[i] = MASK
            drafted, last = [i for i in drafted + drafts if i not in doubted], len(drafts)
            yield

    return decode


def nucleus(p, top_p):
    """The likeliest tokens up to and with the one that crosses `top_p`, which ReMDM's code leaves out."""
    kept, mass = [0.0] * len(p), 0.0
    for token in sorted(range(len(p)), key=lambda token: -p[token]):
        kept[token], mass = p[token] if mass < top_p else 0.0, mass + p[token]
    return kept


def sample(p, u):
    return max((v for v in range(len(p)) if p[v] > 0), key=lambda v: math.log(p[v]) - math.log(-math.log1p(-u[v])))


def first_hitting(net, x, window, draw):
    """Each position's masking time is uniform; going back from t = 1 the latest is hit first."""
    times = dict(zip(window, draw(0, "order", len(window)), strict=True))
    for k, i in enumerate(sorted(masks(x, window), key=times.get, reverse=True)):
        x[i] = sample(net(x)[i], draw(k, "token", len(window), VOCAB)[i - window[0]])
        yield


def remdm(sigma_of, steps=None, top_p=1.0, shared_out=False):
    """ReMDM's backward process (MDLM's with σ = 0), α(t) = 1 − t: from t to s an unmasked token is masked with σ, a
    masked one unmasked with (α_s − (1 − σ) α_t)/(1 − α_t). `shared_out`: σ times softmax(−ψ) over what is unmasked, ψ
    the probability it was unmasked with, and no σ elsewhere. The network runs when it is asked for a token."""

    def decode(net, x, window, draw):
        psi, count, width = {}, steps or len(window), len(window)
        for k in range(count):
            alpha_t, alpha_s = k / count, (k + 1) / count
            sigma = sigma_of(min(1.0, (1 - alpha_s) / alpha_t) if alpha_t else 1.0)
            total = sum(math.exp(-q) for q in psi.values())
            sigmas = {i: sigma * math.exp(-q) / total if shared_out else sigma for i, q in psi.items()}
            chance = (alpha_s - (1 - (0 if shared_out else sigma)) * alpha_t) / (1 - alpha_t)
            assert -1e-12 < chance < 1 + 1e-12 and all(0 <= s <= 1 for s in [sigma, *sigmas.values()])
            accept, revoke = draw(k, "accept", width), draw(k, "revoke", width)
            unmasked = [i for i in masks(x, window) if accept[i - window[0]] < chance or k == count - 1]
            masked = [i for i in psi if revoke[i - window[0]] < sigmas[i]]
            if unmasked:
                p, u = net(x), draw(k, "token", width, VOCAB)
            for i in unmasked:
                x[i] = sample(nucleus(p[i], top_p), u[i - window[0]])
                psi[i] = p[i][x[i]]
            yield
            for i in masked:
                x[i] = MASK
                del psi[i]
            yield

    return decode


def noise(row, window):
    """The uniform numbers of one row's window: of pass k, for a purpose, in a shape."""

    def draw(k, purpose, *shape):
        moment = torch.tensor((window[0] - START) * 2**20 + k)
        return uniform(row_keys(0, torch.tensor([row])), moment, purpose, shape)[0].tolist()

    return draw


def plainly(decode, denoiser, row, block):
    """Every canvas of a row on its way, and the number of passes."""
    net, x, canvases = Network(denoiser), list(CANVASES[row]), [CANVASES[row]]
    for at in range(START, LENGTH, block):
        window = list(range(at, min(at + block, LENGTH)))
        canvases += [list(x) for _ in decode(net, x, window, noise(row, window))]
    return distinct(canvases), net.passes


def distinct(canvases):
    return [canvases[0], *(after for before, after in pairwise(canvases) if before != after)]


def ours(case, denoiser, block):
    changes = CASES[case][0] | {"block_length": None if block == LENGTH - START else block, "trace": True}
    config = preset(case.split(",")[0], **changes)
    made = denoise(denoiser, torch.tensor(CANVASES), config, mask_id=MASK, response_start=START)
    steps = [CANVASES, *(step.tokens_BL.tolist() for step in made.trace)]
    return [(distinct([step[r] for step in steps]), made.ledger.row(r).total_passes) for r in range(len(CANVASES))]


STILL = {"threshold": 0.5, "kl_threshold": 0.1}
CASES = {
    "llada": ({}, by_rule(llada())),
    "llada, five steps": ({"max_denoising_steps": 5}, by_rule(llada(5))),
    "fast-dllm": ({}, by_rule(fast_dllm(0.9))),
    "fast-dllm, unsure": ({"threshold": 0.4}, by_rule(fast_dllm(0.4))),
    "fast-dllm, factor": ({"threshold": None, "accept": "factor"}, by_rule(factor(1.0))),
    "entropy-bound": ({}, by_rule(entropy_bound(0.1))),
    "entropy-bound, loose": ({"entropy_bound": 1.0}, by_rule(entropy_bound(1.0))),
    "klass": ({}, by_rule(klass(0.9, 0.01, 2))),
    "klass, loose": (STILL, by_rule(klass(0.5, 0.1, 2))),
    "klass, patient": (STILL | {"kl_passes": 3}, by_rule(klass(0.5, 0.1, 3))),
    "wino": ({}, wino(0.6, 0.9)),
    "wino, strict": ({"threshold": 0.5, "revoke_threshold": 0.99}, wino(0.5, 0.99)),
    "ancestral": ({}, remdm(lambda most: 0.0)),
    "ancestral, five steps": ({"max_denoising_steps": 5}, remdm(lambda most: 0.0, 5)),
    "first-hitting": ({}, first_hitting),
    "remdm": ({}, remdm(lambda most: min(0.04, most), None, 0.9)),
    "remdm, often": ({"eta": 0.4, "max_denoising_steps": 15}, remdm(lambda most: min(0.4, most), 15, 0.9)),
    "remdm, rescaled": ({"revoke": "remdm_rescale", "eta": 0.3}, remdm(lambda most: 0.3 * most, None, 0.9)),
    "remdm, confidence": ({"revoke": "remdm_confidence", "eta": 1.0}, remdm(lambda most: most, None, 0.9, True)),
}


@pytest.mark.parametrize("kind", ["table", "masked_diffusion"])
@pytest.mark.parametrize("name", CASES)
def test_a_preset_takes_the_published_path(tiny_model, name, kind):
    """Three rows decoded together and one by one, by eight random networks of each kind, on the whole canvas and in
    blocks, the last one short and the ones behind still masked."""
    passes = committed = revoked = 0
    for seed in range(8):
        denoiser = table(seed, 5.0, (0.05, 1.5)[seed % 2])
        if kind != "table":
            denoiser = tiny_model(kind, seed=seed, gain=(40.0, 25.0)[seed % 2], tie_embeddings=False)
        for block in (LENGTH - START, 5, 4):
            for row, (canvases, count) in enumerate(ours(name, denoiser, block)):
                assert (canvases, count) == plainly(CASES[name][1], denoiser, row, block)
                changes = [pair for a, b in pairwise(canvases) for pair in zip(a, b, strict=True)]
                committed += sum(before == MASK != after for before, after in changes)
                revoked += sum(before != MASK == after for before, after in changes)
                passes += count
    assert passes == committed if name in ("llada", "first-hitting") else passes < committed
    assert (revoked > 0) == name.startswith(("wino", "remdm"))

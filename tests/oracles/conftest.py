"""Denoisers that are lookup tables, and what follows from any denoiser by enumeration.

Tables have three real tokens, 0 to 2, and mask 3. Their logits of the mask token are high: whoever forgets that it has
probability zero is far off. Shapes: B rows, L positions, V vocabulary, S strings or canvases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, combinations, permutations, product
from math import factorial, log

import pytest
import torch
from torch import Tensor

from mdlm.corruption import stratified_times
from mdlm.likelihood import nelbo
from mdlm.objectives import Batch

REAL, MASK = 3, 3


class Table:
    """A denoiser that looks up the logits of each canvas: (4^L, L, 4), float64, canvases counted in base 4."""

    def __init__(self, logits_SLV: Tensor) -> None:
        self.logits_SLV = logits_SLV
        self.places_L = (REAL + 1) ** torch.arange(logits_SLV.shape[1] - 1, -1, -1)

    def __call__(self, tokens_BL: Tensor) -> Tensor:
        return self.logits_SLV[(tokens_BL * self.places_L).sum(-1)]


def _random_table(length: int, seed: int = 0, spread: float = 1.5) -> Table:
    generator = torch.Generator().manual_seed(seed)
    shape = ((REAL + 1) ** length, length, REAL + 1)
    logits_SLV = spread * torch.randn(shape, generator=generator, dtype=torch.float64)
    logits_SLV[..., MASK] += 9
    return Table(logits_SLV)


def _consistent_table(joint_S: Tensor) -> Table:
    length = round(log(len(joint_S), REAL))
    table = _random_table(length)
    joint = joint_S.double().reshape([REAL] * length)
    for row, canvas in enumerate(product(range(REAL + 1), repeat=length)):
        masked = [column for column, token in enumerate(canvas) if token == MASK]
        agreeing = joint[tuple(slice(None) if token == MASK else token for token in canvas)]
        for axis, column in enumerate(masked):
            others = [other for other in range(len(masked)) if other != axis]
            marginal = agreeing.sum(others) if others else agreeing
            table.logits_SLV[row, column, :REAL] = marginal.log()
    return table


def _joint(length: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.softmax(1.5 * torch.randn(REAL**length, generator=generator, dtype=torch.float64), 0)


def _strings(length: int) -> Tensor:
    return torch.tensor(list(product(range(REAL), repeat=length)))


class Enumeration:
    """The likelihoods of rows, nats in float64, from log p(· | x with S masked) for every set S in every block.

    `blocks` lists each block's columns; columns in none are always visible. While a block is denoised, earlier ones
    are clean and later ones masked.
    """

    def __init__(
        self, denoiser: Callable[[Tensor], Tensor], tokens_BL: Tensor, blocks: list[list[int]], mask_id: int = MASK
    ) -> None:
        self.blocks, self.tokens_BL = blocks, tokens_BL
        self.log_probs: dict[frozenset[int], Tensor] = {}
        for index, block in enumerate(blocks):
            behind = list(chain(*blocks[index + 1 :]))
            for masked in self.masked_sets(block):
                canvas_BL = tokens_BL.clone()
                canvas_BL[:, [*masked, *behind]] = mask_id
                logits_BLV = denoiser(canvas_BL).double()
                logits_BLV[..., mask_id] = -torch.inf
                self.log_probs[frozenset(masked)] = torch.log_softmax(logits_BLV, -1)

    @staticmethod
    def masked_sets(block: list[int]) -> Iterator[tuple[int, ...]]:
        """All sets of columns but the empty one."""
        return chain(*(combinations(block, size) for size in range(1, len(block) + 1)))

    def nats(self, masked: frozenset[int], column: int) -> Tensor:
        """−log p of the row's own token at `column` while `masked` are masked, (B,)."""
        return -self.log_probs[masked][:, column].gather(-1, self.tokens_BL[:, column, None])[:, 0]

    def cross_entropy(self, masked: tuple[int, ...]) -> Tensor:
        """CE(S): nats of all masked tokens, (B,)."""
        return sum(self.nats(frozenset(masked), column) for column in masked)

    def nelbo(self) -> Tensor:
        """Σ over blocks and sets S ≠ ∅ of (|S|−1)! (G−|S|)! / G! · CE(S), (B,)."""
        return sum(
            factorial(len(s) - 1) * factorial(len(block) - len(s)) / factorial(len(block)) * self.cross_entropy(s)
            for block in self.blocks
            for s in self.masked_sets(block)
        )

    def orders(self) -> list[list[int]]:
        """All orders of the columns, block after block."""
        return [list(chain(*parts)) for parts in product(*(permutations(block) for block in self.blocks))]

    def order_nll(self, order: list[int]) -> Tensor:
        """The chain rule's nats in one order, (B,)."""
        block_of = {column: frozenset(block) for block in self.blocks for column in block}
        return sum(self.nats(block_of[column] - frozenset(order[:step]), column) for step, column in enumerate(order))

    def mixture_nll(self) -> Tensor:
        """−log p∞, the mixture over all orders in equal parts, (B,)."""
        nats = torch.stack([self.order_nll(order) for order in self.orders()])
        return log(len(nats)) - torch.logsumexp(-nats, 0)

    def greedy_nll(self, certainty: Callable[[Tensor], float]) -> Tensor:
        """The chain rule's nats in the order that always takes the most certain position, leftmost of equals, (B,).

        `certainty` takes the probabilities of one position, (V,)."""
        nats = torch.zeros(len(self.tokens_BL), dtype=torch.float64)
        for row in range(len(nats)):
            for block in self.blocks:
                left = list(block)
                while left:
                    masked = frozenset(left)
                    column = max(left, key=lambda c: (certainty(self.log_probs[masked][row, c].exp()), -c))
                    nats[row] += self.nats(masked, column)[row]
                    left.remove(column)
        return nats


def _sampled(denoiser, tokens_BL: Tensor, *, seeds: int = 16, **options) -> tuple[float, float]:
    estimates = [nelbo(denoiser, tokens_BL, seed=seed, **options) for seed in range(seeds)]
    mean = sum(estimate.nats_per_token for estimate in estimates) / seeds
    return mean, sum(estimate.standard_error**2 for estimate in estimates) ** 0.5 / seeds


def _blocks(columns: list[int], block_length: int | None) -> list[list[int]]:
    width = block_length or len(columns)
    return [columns[start : start + width] for start in range(0, len(columns), width)]


PROMPT, RESPONSE = [11, 3], [1, 5, 1, 7, 2]


def _copies(config, rows: int, seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    length, blocked = len(RESPONSE), config.objective == "block_diffusion"
    tokens_BL = torch.tensor([PROMPT + RESPONSE]).repeat(rows, 1)
    return Batch(
        tokens_BL=tokens_BL,
        valid_BL=torch.ones_like(tokens_BL, dtype=torch.bool),
        supervised_BR=torch.ones(rows, length, dtype=torch.bool),
        times_BJ=stratified_times((rows, -(-length // config.block_length) if blocked else 1), generator).float(),
        noise_BR=torch.rand(rows, length, generator=generator),
    )


def _enumerated_response(model) -> Enumeration:
    start, config = len(PROMPT), model.config
    columns = list(range(start, start + len(RESPONSE)))
    blocks = _blocks(columns, config.block_length if config.objective == "block_diffusion" else None)
    row = torch.tensor([PROMPT + RESPONSE])
    return Enumeration(lambda tokens_BL: model(tokens_BL, None, start), row, blocks, config.mask_token_id)


@pytest.fixture(scope="session")
def random_table() -> Callable[..., Table]:
    """`random_table(length, seed, spread)`: conditionals that belong to no joint distribution."""
    return _random_table


@pytest.fixture(scope="session")
def random_joint() -> Callable[..., Tensor]:
    """`random_joint(length, seed)`: probabilities of all strings in the order of `strings`, (3^L,)."""
    return _joint


@pytest.fixture(scope="session")
def consistent_table() -> Callable[[Tensor], Table]:
    """`consistent_table(joint)`: the conditionals of one joint distribution."""
    return _consistent_table


@pytest.fixture(scope="session")
def strings() -> Callable[[int], Tensor]:
    """`strings(length)`: all strings of real tokens, (3^L, L)."""
    return _strings


@pytest.fixture(scope="session")
def blocks_of() -> Callable[..., list[list[int]]]:
    """`blocks_of(columns, block_length)`: the columns in blocks; None makes them one."""
    return _blocks


@pytest.fixture(scope="session")
def enumeration() -> type[Enumeration]:
    """`enumeration(denoiser, tokens_BL, blocks, mask_id)`."""
    return Enumeration


@pytest.fixture(scope="session")
def sampled_nelbo() -> Callable[..., tuple[float, float]]:
    """`sampled_nelbo(denoiser, tokens_BL, **options of nelbo)`: nats a token averaged over seeds 0 to 15, and the
    standard error of that average, from the ones reported. Sixteen, because a single one may rest on a few groups of
    samples, and then has too few degrees of freedom for a bound on z."""
    return _sampled


@pytest.fixture(scope="session")
def training_copies() -> Callable[..., Batch]:
    """`training_copies(config, rows, seed)`: equal rows, a prompt and a response of five, with stratified times."""
    return _copies


@pytest.fixture(scope="session")
def enumerated_response() -> Callable[..., Enumeration]:
    """`enumerated_response(model)`: the enumeration of that same row."""
    return _enumerated_response

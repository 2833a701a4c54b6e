"""Batches as a pure function of (seed, step): rows, their layout, and the noise that will corrupt them.

Shapes: B rows, P prompt columns, R response columns, L = P + R, J blocks.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from mdlm.config import ModelConfig
from mdlm.corruption import stratified_times
from mdlm.errors import UserError
from mdlm.objectives import Batch, LossConfig, blocks_in_response
from train.config import SupervisedEnd
from train.data import TokenDataset


class BatchSource:
    """Gives batch `step` of a run, the same one whenever and wherever it is asked for.

    Row order depends on the seed and the step only, so that twins with different objectives see equal rows in equal
    order. A process takes its share of rows from the one global batch, so the number of processes changes nothing.
    """

    def __init__(
        self,
        dataset: TokenDataset,
        config: ModelConfig,
        *,
        batch_size: int,
        seed: int,
        supervised_end: SupervisedEnd,
        process: int = 0,
        processes: int = 1,
    ) -> None:
        if batch_size % processes:
            raise UserError(f"batch_size {batch_size} does not divide over {processes} processes; make it a multiple")
        self.dataset, self.config, self.seed, self.supervised_end = dataset, config, seed, supervised_end
        self.batch_size = batch_size
        self.prompt_length = dataset.manifest.prompt_length
        self.response_length = dataset.manifest.response_length
        share = batch_size // processes
        self._mine = slice(process * share, (process + 1) * share)
        self._epoch, self._order = -1, np.empty(0, dtype=np.int64)

    def rows(self, step: int) -> np.ndarray:
        """Indices of the global batch's rows: epoch after epoch, each a fresh permutation."""
        positions = np.arange(step * self.batch_size, (step + 1) * self.batch_size)
        chosen = np.empty(self.batch_size, dtype=np.int64)
        for epoch in np.unique(positions // len(self.dataset)):
            here = positions // len(self.dataset) == epoch
            chosen[here] = self._permutation(int(epoch))[positions[here] % len(self.dataset)]
        return chosen

    def _permutation(self, epoch: int) -> np.ndarray:
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = np.random.default_rng([self.seed, 1, epoch]).permutation(len(self.dataset))
        return self._order

    def batch(self, step: int) -> Batch:
        """This process's rows of batch `step`, with their noise."""
        generator = torch.Generator().manual_seed(_stream(self.seed, 2, step))
        noise_BR = torch.rand(self.batch_size, self.response_length, generator=generator)
        shape = (self.batch_size, blocks_in_response(self.config, self.response_length))
        times_BJ = stratified_times(shape, generator).float()
        return self.layout(self.rows(step)[self._mine], times_BJ[self._mine], noise_BR[self._mine])

    def layout(self, rows: np.ndarray, times_BJ: torch.Tensor, noise_BR: torch.Tensor) -> Batch:
        """Rows in fixed columns: prompts end, and responses start, at column P."""
        prompt_length, config = self.prompt_length, self.config
        tokens_BL = np.full((len(rows), prompt_length + self.response_length), config.pad_token_id, dtype=np.int64)
        valid_BL = np.zeros(tokens_BL.shape, dtype=bool)
        for b, row in enumerate(rows):
            prompt, response, ends = self.dataset.row(int(row))
            filled = prompt_length + self._supervised(len(response), ends)
            tokens_BL[b, prompt_length - len(prompt) : prompt_length] = prompt
            tokens_BL[b, prompt_length:filled] = config.end_token_id
            tokens_BL[b, prompt_length : prompt_length + len(response)] = response
            valid_BL[b, prompt_length - len(prompt) : filled] = True
        valid = torch.from_numpy(valid_BL)
        return Batch(torch.from_numpy(tokens_BL), valid, valid[:, prompt_length:].clone(), times_BJ, noise_BR)

    def _supervised(self, response_tokens, ends):
        """Supervised columns of rows with that many response tokens (numbers or arrays): the answer and its ends."""
        to_end = response_tokens + 1
        if self.supervised_end == "block":
            block = self.config.block_length
            to_end = np.minimum((to_end + block - 1) // block * block, self.response_length)
        elif self.supervised_end == "canvas":
            to_end = self.response_length
        return np.where(ends, to_end, response_tokens)

    def supervised_per_row(self) -> np.ndarray:
        """Supervised columns of each row of the data set."""
        return self._supervised(self.dataset.response_tokens, self.dataset.ends)

    def capacity(self, loss: LossConfig) -> int:
        """A bound on the positions one process's batch asks the head for, six standard deviations above the mean.

        Stratified times leave little spread: that of the rows' lengths, one stratum's offset, and the binomial draw.
        """
        counts = self.supervised_per_row()
        rows = self._mine.stop - self._mine.start
        rate, spread = 1.0, counts.var()
        drawn = self.config.objective != "autoregressive" and not loss.complementary  # else each token exactly once
        if drawn:
            rate = loss.mean_mask_rate()
            spread += 0.25 * counts.mean()
        if drawn and self.config.objective == "block_diffusion":
            # Blocks behind a short answer take part of the strata with them.
            spread += self.response_length * self.config.block_length / 48
        bound = rows * counts.mean() * rate + counts.max() + 6 * math.sqrt(rows * spread)
        if rows < self.batch_size and drawn:
            bound = rows * self.response_length  # a share of the rows holds a random part of the strata
        return int(min(math.ceil(bound / 16) * 16, rows * self.response_length))


def _stream(*words: int) -> int:
    """One 63-bit seed from several words, well mixed."""
    return int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0] >> np.uint64(1))

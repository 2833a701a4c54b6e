"""Throughput: a queue of prompts over a static batch of slots, for the autoregressive twin (continuous batching).

A row that ends leaves its slot to the next prompt while the others go on (iteration-level scheduling, Orca, OSDI 2022).
Prompts stand at the left of their slot, so that a column is a position, and attention is causal by column: what an
earlier row left behind stands in later columns than any query, and is overwritten before it could be seen.

Shapes: B slots, G prompts read together, P columns of a prompt, C columns of a pass, R response columns, V vocabulary.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from mdlm.attention import KVCache, visible
from mdlm.corruption import log_probabilities
from mdlm.errors import UserError
from mdlm.transformer import Transformer
from sample.autoregressive import AutoregressiveConfig, check_prompts, chunks
from sample.columns import drawn_tokens
from sample.compiled import maybe_compiled
from sample.ledger import KINDS, RowLedger
from sample.noise import row_keys, uniform_at
from sample.policies import candidates

GROUPS = (16, 4, 1)
"""Prompts read in one pass: few sizes, so that compiled shapes are few, and none is filled up with padding rows."""
SMALLEST_BUCKET = 32
"""Columns that the shortest prompts are padded to by default."""


class Finished(NamedTuple):
    """A row that is done."""

    row: int
    """Its place in the queue."""
    tokens: list[int]
    """Its answer, up to and without the end token."""
    account: RowLedger


@dataclass
class Work:
    """What a serving run evaluated, for whole batches: rows' own accounts leave out idle slots and padding."""

    calls: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    """How often the trunk ran, by kind: what a forward hook counts."""
    positions: int = 0
    """Positions evaluated, whoever they were for."""
    idle: int = 0
    """Of these, in slots that had no row: nothing was left in the queue, or its next prompt was being waited for."""
    padding: int = 0
    """Of these, behind prompts shorter than their bucket, or read a second time by a chunk."""


def first_tokens(
    model: Transformer,
    tokens_GC: Tensor,
    columns_C: Tensor,
    last_G: Tensor,
    cache: KVCache,
    keys_G: Tensor,
    temperature: float,
    top_p: float,
) -> Tensor:
    """Reads columns of prompts into the cache; the tokens (G, 1) that follow each row's place `last_G` among them."""
    mask_GCS = visible(columns_C.int().expand_as(tokens_GC), cache.blocks_BS)
    positions_GC = columns_C.expand_as(tokens_GC)
    hidden_GCD = model.hidden(tokens_GC, positions_GC, mask_GCS, cache=cache, columns_L=columns_C)
    hidden_G1D = hidden_GCD[torch.arange(len(last_G), device=last_G.device), last_G][:, None]
    log_probs_G1V = log_probabilities(model.head(hidden_G1D), model.config.mask_token_id)
    noise_G1V = None
    if temperature > 0:
        noise_G1V = uniform_at(keys_G, torch.zeros_like(last_G)[:, None], "token", log_probs_G1V.shape[-1])
    return candidates(log_probs_G1V, temperature, top_p, noise_G1V)


def advance(
    model: Transformer,
    tokens_B1: Tensor,
    columns_B1: Tensor,
    starts_B1: Tensor,
    response_BR: Tensor,
    cache: KVCache,
    keys_B: Tensor,
    temperature: float,
    top_p: float,
) -> None:
    """One decode step of all slots, in place: the newest tokens, which stand at `columns_B1`, and the ones behind.

    Slots without a row stay at their last column.
    """
    where = (tokens_B1, columns_B1, columns_B1, cache, keys_B, starts_B1)
    drawn_B1, _ = drawn_tokens(model, *where, temperature, top_p)
    place_B1 = (columns_B1 + 1 - starts_B1).clamp(max=response_BR.shape[1] - 1)
    response_BR.scatter_(1, place_B1, drawn_B1)
    tokens_B1.copy_(drawn_B1)
    columns_B1.copy_((columns_B1 + 1).clamp(max=cache.columns - 1))


class Serving:
    """Decodes a queue of prompts in `slots` rows at once; iterate over it for `Finished` rows, each as it ends.

    Every row's tokens are those of `sample.decode`, whatever the order of the queue and the number of slots. Rows that
    were handed out stay with the caller when the iteration is interrupted. Between two looks at whether rows have ended
    (`config.stop_check_every`) nothing waits for the device.

    Args:
        prompts: token ids, each with its begin token. All are checked before any work.
        config: as for `sample.decode`; `cache` is always on. With `prompt_columns` the slots have that many columns
            for prompts whatever the queue holds. Prompts longer than `prefill_chunk` are read alone, in chunks.
        slots: rows of the batch.
        buckets: columns that prompts are padded to, each to the smallest that holds it; longer ones to the longest
            prompt. Default: powers of two from 32.
        waves: refill the slots only when all rows have ended: static batching, for comparison.
        rows_B: each prompt's row number, which with `config.seed` decides its noise. Default: 0, 1, 2, …
    """

    def __init__(
        self,
        model: Transformer,
        prompts: Sequence[Sequence[int]],
        config: AutoregressiveConfig | None = None,
        *,
        slots: int,
        buckets: Sequence[int] | None = None,
        waves: bool = False,
        rows_B: Tensor | None = None,
    ) -> None:
        config = config or AutoregressiveConfig()
        if slots < 1:
            raise UserError(f"slots is {slots}; it must be at least 1")
        if buckets is not None and min(buckets, default=0) < 1:
            raise UserError(f"buckets are {list(buckets)}; give at least one, each of at least 1 column")
        longest = check_prompts(model, prompts, config)[0].shape[1]
        self.model, self.config, self.waves, self.work = model, config, waves, Work()
        self.prompts, self._queue = prompts, deque(range(len(prompts)))
        self.buckets = _buckets(min(longest, config.prefill_chunk or longest), buckets)
        device, columns = model.device, longest + config.max_new_tokens
        numbers_N = torch.arange(len(prompts)) if rows_B is None else rows_B
        self._all_keys_N = row_keys(config.seed, numbers_N.to(device))
        self._cache = _causal_cache(model, slots, columns)
        self._tokens_B1 = torch.full((slots, 1), model.config.pad_token_id, device=device)
        self._columns_B1 = torch.full((slots, 1), columns - 1, device=device)
        self._starts_B1 = torch.full((slots, 1), longest, device=device)
        self._response_BR = torch.full((slots, config.max_new_tokens), model.config.pad_token_id, device=device)
        self._keys_B = torch.zeros(slots, dtype=torch.int64, device=device)
        self._read_caches: dict[tuple[int, int], KVCache] = {}
        self._row: list[int | None] = [None] * slots
        self._decoded = [0] * slots
        """Tokens that each slot's row was given so far, its end token and those behind it included."""
        self._ended: deque[Finished] = deque()
        self._first_tokens = maybe_compiled(first_tokens, config.compile, model)
        self._advance = maybe_compiled(advance, config.compile, model)

    def __iter__(self) -> Iterator[Finished]:
        """The rows in the order in which they end. After a `break` a second iteration goes on with the next row."""
        while self._ended or self._queue or self._active():
            while self._ended:
                yield self._ended.popleft()
            if self._queue or self._active():
                self._work_until_look()

    def _active(self) -> list[int]:
        return [slot for slot, row in enumerate(self._row) if row is not None]

    @torch.no_grad()
    def _work_until_look(self) -> None:
        """Refills free slots, decodes up to the next look, and takes the rows out that have ended."""
        stride, limit = self.config.stop_check_every, self.config.max_new_tokens
        stride = stride or (16 if self.model.device.type == "cuda" else 1)
        if self._queue and len(self._active()) < (1 if self.waves else len(self._row)):
            self._refill()
            stride -= 1
        active = self._active()
        # The host knows how many tokens each row has: none decodes beyond its limit.
        steps = min(stride, limit - max(self._decoded[slot] for slot in active))
        state = (self._tokens_B1, self._columns_B1, self._starts_B1, self._response_BR)
        for _ in range(steps):
            self._advance(self.model, *state, self._cache, self._keys_B, self.config.temperature, self.config.top_p)
            self.work.calls["decode"] += 1
        self.work.positions += steps * len(self._row)
        self.work.idle += steps * (len(self._row) - len(active))
        end_B = (self._response_BR == self.model.config.end_token_id).any(-1).tolist()
        for slot in active:
            self._decoded[slot] += steps
            if end_B[slot] or self._decoded[slot] == limit:
                self._ended.append(self._finish(slot, self._response_BR[slot, : self._decoded[slot]].tolist()))

    def _finish(self, slot: int, decoded: list[int]) -> Finished:
        row, end_id = self._row[slot], self.model.config.end_token_id
        assert row is not None
        self._row[slot] = None
        answer = decoded[: decoded.index(end_id)] if end_id in decoded else decoded
        return Finished(row, answer, _account(len(self.prompts[row]), len(decoded), len(answer), self.config))

    def _refill(self) -> None:
        """Reads the next prompts of the queue into the free slots, groups of like length together."""
        free = [slot for slot, row in enumerate(self._row) if row is None]
        by_bucket: dict[int | None, list[tuple[int, int]]] = {}
        for slot in free[: len(self._queue)]:
            row = self._queue.popleft()
            self._row[slot], self._decoded[slot] = row, 1
            by_bucket.setdefault(self._bucket(len(self.prompts[row])), []).append((slot, row))
        for bucket, pairs in by_bucket.items():
            while pairs:
                size = next(size for size in GROUPS if size <= len(pairs)) if bucket else 1
                self._read(pairs[:size], bucket)
                pairs = pairs[size:]

    def _bucket(self, length: int) -> int | None:
        """Columns that a prompt of this length is padded to; None where it is read in chunks."""
        if self.config.prefill_chunk and length > self.config.prefill_chunk:
            return None
        return next(bucket for bucket in self.buckets if bucket >= length)

    def _read(self, pairs: list[tuple[int, int]], bucket: int | None) -> None:
        """Prefills the prompts of (slot, row) pairs and gives each row its first token."""
        slots, rows = zip(*pairs, strict=True)
        lengths = [len(self.prompts[row]) for row in rows]
        # Chunks share one compiled form because they read into a cache of one size.
        columns = bucket or self._cache.columns
        tokens_GP = torch.full((len(rows), bucket or lengths[0]), self.model.config.pad_token_id)
        for place, row in enumerate(rows):
            tokens_GP[place, : lengths[place]] = torch.tensor(self.prompts[row])
        device = self.model.device
        tokens_GP, slots_G = tokens_GP.to(device), torch.tensor(slots, device=device)
        keys_G = self._all_keys_N[torch.tensor(rows, device=device)]
        key = (len(rows), columns)
        if key not in self._read_caches:
            self._read_caches[key] = _causal_cache(self.model, *key)
        cache = self._read_caches[key]
        for start, stop, _ in chunks(tokens_GP.shape[1], None if bucket else self.config.prefill_chunk):
            columns_C = torch.arange(start, stop, device=device)
            last_G = torch.tensor(lengths, device=device).clamp(max=stop) - 1 - start
            where = (tokens_GP[:, start:stop], columns_C, last_G, cache, keys_G)
            first_G1 = self._first_tokens(self.model, *where, self.config.temperature, self.config.top_p)
            self.work.calls["prefill"] += 1
            self.work.positions += tokens_GP[:, start:stop].numel()
            self.work.padding += tokens_GP[:, start:stop].numel()
        self.work.padding -= sum(lengths)
        for target, source in zip(
            self._cache.keys_BKSN + self._cache.values_BKSN, cache.keys_BKSN + cache.values_BKSN, strict=True
        ):
            target[:, :, :columns].index_copy_(0, slots_G, source)
        self._response_BR[slots_G] = self.model.config.pad_token_id
        self._response_BR[slots_G, 0] = first_G1[:, 0]
        self._tokens_B1[slots_G] = first_G1
        self._starts_B1[slots_G] = self._columns_B1[slots_G] = torch.tensor(lengths, device=device)[:, None]
        self._keys_B[slots_G] = keys_G


def _buckets(longest: int, wanted: Sequence[int] | None) -> list[int]:
    """Rising columns, the last of which holds every prompt."""
    if wanted is None:
        wanted = [SMALLEST_BUCKET << power for power in range(longest.bit_length())]
    return sorted({bucket for bucket in wanted if bucket < longest} | {longest})


def _causal_cache(model: Transformer, rows: int, columns: int) -> KVCache:
    """A cache whose every column is its own block: a query sees the columns up to its own."""
    cache = KVCache(model.config, rows, columns, dtype=model.dtype, device=model.device)
    cache.blocks_BS.copy_(torch.arange(columns, dtype=torch.int32))
    return cache


def _account(prompt: int, decoded: int, kept: int, config: AutoregressiveConfig) -> RowLedger:
    """A row's ledger as `sample.decode` would keep it: a prefill or its chunks, then one pass for each token but one.

    Pass i of the decode sees the prompt and i tokens.
    """
    read = [booked for _, _, booked in chunks(prompt, config.prefill_chunk)]
    nothing = dict.fromkeys(KINDS, 0)
    return RowLedger(
        passes=nothing | {"prefill": len(read), "decode": decoded - 1},
        positions=nothing | {"prefill": prompt, "decode": decoded - 1},
        kv_positions=sum(read) + sum(range(prompt + 1, prompt + decoded)),
        kept=kept,
        thrown_away=decoded - kept,
    )

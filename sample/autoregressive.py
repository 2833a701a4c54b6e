"""The autoregressive twin's decoder: one token a pass against a static, exact key/value cache.

Shapes: B rows, P prompt columns, L positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mdlm.attention import KVCache, block_indices, logical_positions
from mdlm.corruption import log_probabilities
from mdlm.errors import UserError
from mdlm.transformer import Transformer
from sample.compiled import maybe_compiled
from sample.generation import Generation, book_result, check_tokens, pad_left
from sample.ledger import Ledger
from sample.noise import row_keys, uniform
from sample.policies import candidates


@dataclass(frozen=True)
class AutoregressiveConfig:
    """How an autoregressive model continues a prompt. The default is greedy."""

    max_new_tokens: int = 128
    """Most tokens decoded for a row, the end token included."""
    temperature: float = 0.0
    """0 takes the likeliest token."""
    top_p: float = 1.0
    """Sample from the smallest set of tokens of at least this mass."""
    seed: int = 0
    """Of everything that is drawn."""
    cache: bool = True
    """False evaluates the whole row at every pass: the reference for the cache, and nothing else."""
    prompt_columns: int | None = None
    """Columns to pad prompts to, so that one compiled step serves prompts of any length. None: the longest prompt."""
    prefill_chunk: int | None = None
    """Longer prompts are read in passes of so many columns, which bounds the memory of a pass. None: in one pass."""
    compile: bool = False
    """Compile the step; the first call of each shape then takes its time."""
    stop_check_every: int | None = None
    """Passes between two looks at whether rows have ended. None: 1 on a CPU, where looking is free, else 16."""

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "stop_check_every", "prefill_chunk"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise UserError(f"{name} is {value}; it must be at least 1")
        if self.temperature < 0:
            raise UserError(f"temperature is {self.temperature}; it must be 0 or more")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p is {self.top_p}; it must be above 0 and at most 1")


def last_logits(
    model: Transformer, tokens_BL: Tensor, positions_BL: Tensor, blocks_BL: Tensor, columns_L: Tensor, cache: KVCache
) -> Tensor:
    """Logits (B, 1, V) of the last of some columns, which are written into the cache: a prefill, or one token."""
    return model.head(model.step(tokens_BL, positions_BL, blocks_BL, columns_L, cache)[:, -1:])


def next_token(
    model: Transformer, tokens_B1: Tensor, positions_B1: Tensor, blocks_B1: Tensor, column_1: Tensor, cache: KVCache
) -> Tensor:
    """One greedy decode step, tokens in, tokens out, (B, 1): the unit of compilation."""
    logits_B1V = last_logits(model, tokens_B1, positions_B1, blocks_B1, column_1, cache)
    return log_probabilities(logits_B1V, model.config.mask_token_id).argmax(-1)


def chunks(columns: int, size: int | None) -> list[tuple[int, int, int]]:
    """The passes that read a prompt, each as columns [start, stop) and the column up to which it is booked.

    All have `size` columns, so that they share one compiled form, and are counted from the prompt's end, so that left
    padding moves none. The first begins at column 0: what it shares with the second is computed twice, to the same
    keys and values, and booked once, with the second.
    """
    size = min(size or columns, columns)
    return [(max(0, end - size), max(end, size), end) for end in reversed(range(columns, 0, -size))]


def check_prompts(
    model: Transformer, prompts: Sequence[Sequence[int]], config: AutoregressiveConfig
) -> tuple[Tensor, Tensor]:
    """Prompts as one tensor on the model's device, tokens and validity (B, P). Raises `UserError` for any that do not
    fit."""
    if model.config.objective != "autoregressive":
        raise UserError(f"a {model.config.objective} model cannot decode token by token; use sample.denoise")
    tokens_BP, valid_BP = pad_left(prompts, model.config.pad_token_id, config.prompt_columns)
    check_tokens(tokens_BP, model.config.vocab_size)
    start = tokens_BP.shape[1]
    if start + config.max_new_tokens > model.config.max_length:
        raise UserError(
            f"the longest prompt has {start} tokens and {config.max_new_tokens} new ones are asked for, the model was "
            f"made for {model.config.max_length} in all; shorten the prompt or ask for fewer"
        )
    return tokens_BP.to(model.device), valid_BP.to(model.device)


@torch.no_grad()
def decode(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    config: AutoregressiveConfig | None = None,
    *,
    rows_B: Tensor | None = None,
    on_token: Callable[[Tensor], None] | None = None,
) -> Generation:
    """Continues each prompt (token ids, its begin token included) until its end token or `max_new_tokens`.

    Args:
        rows_B: each row's number, which with `config.seed` decides its noise. Default: 0, 1, 2, …
        on_token: called with each pass's tokens (B, 1); a live display.

    Returns:
        Whole rows, padded on the left, with the ledger. What a row decodes does not depend on its neighbours.
    """
    config = config or AutoregressiveConfig()
    tokens_BP, valid_BP = check_prompts(model, prompts, config)
    rows, start = tokens_BP.shape
    run = _Run(model, valid_BP, config, rows_B)
    response_BR = torch.full((rows, config.max_new_tokens), model.config.pad_token_id, device=model.device)
    decoded_BR = torch.zeros_like(response_BR, dtype=torch.bool)
    for index in range(config.max_new_tokens):
        if index == 0:
            new_B1 = run.prefill(tokens_BP)
        else:
            new_B1 = run.step(new_B1, start + index - 1)
        response_BR[run.rows_B, index] = new_B1[:, 0]
        decoded_BR[run.rows_B, index] = True
        if on_token:
            on_token(new_B1)
        if (index + 1) % run.stop_check_every == 0:
            ended_B = (response_BR[run.rows_B] == model.config.end_token_id).any(-1)
            if ended_B.any():
                if ended_B.all():
                    break
                new_B1 = run.keep_rows(~ended_B, new_B1)
    generation = Generation(torch.cat([tokens_BP, response_BR], dim=1), run.ledger, start, model.config.end_token_id)
    book_result(generation, torch.cat([torch.zeros_like(valid_BP), decoded_BR], dim=1))
    return generation


class _Run:
    """The cache and the columns of the rows still being decoded."""

    def __init__(
        self, model: Transformer, valid_BP: Tensor, config: AutoregressiveConfig, rows_B: Tensor | None
    ) -> None:
        rows, start = valid_BP.shape
        new_BR = torch.ones(rows, config.max_new_tokens, dtype=torch.bool, device=model.device)
        self.model, self.config, self.start = model, config, start
        self.valid_BL = torch.cat([valid_BP, new_BR], dim=1)
        self.positions_BL = logical_positions(self.valid_BL)
        self.blocks_BL = block_indices(model.config, self.valid_BL, start)
        self.columns_L = torch.arange(self.valid_BL.shape[1], device=model.device)
        self.cache = KVCache(model.config, *self.valid_BL.shape, dtype=model.dtype, device=model.device)
        self.rows_B = torch.arange(rows, device=model.device)
        self.ledger = Ledger(rows, model.device)
        self.seen_BL = self.valid_BL.long().cumsum(-1)
        numbers_B = self.rows_B if rows_B is None else rows_B.to(model.device)
        self.keys_B = row_keys(config.seed, numbers_B)
        self.next_token = maybe_compiled(next_token, config.compile, model)
        self.last_logits = maybe_compiled(last_logits, config.compile, model)
        self.stop_check_every = config.stop_check_every or (16 if model.device.type == "cuda" else 1)
        self.tokens_BL = torch.full_like(self.positions_BL, model.config.pad_token_id)

    def prefill(self, tokens_BP: Tensor) -> Tensor:
        """Reads the prompts and returns the first new tokens, (B, 1). The head runs on one column a pass."""
        end = tokens_BP.shape[1]
        self.tokens_BL[:, :end] = tokens_BP
        read_B = torch.zeros_like(self.rows_B)
        for start, stop, booked in chunks(end, self.config.prefill_chunk):
            seen_B = self.seen_BL[:, booked - 1]
            # A chunk that holds padding alone is no pass of its row.
            self.ledger.count("prefill", self.rows_B, seen_B > read_B, seen_B - read_B, seen_B)
            logits_B1V = self.last_logits(self.model, *self._columns(slice(start, stop)), self.cache)
            read_B = seen_B
        return self._choose(logits_B1V, end)

    def step(self, tokens_B1: Tensor, column: int) -> Tensor:
        """Feeds the newest tokens, which stand at `column`, and returns the next ones, (B, 1)."""
        self.tokens_BL[:, column] = tokens_B1[:, 0]
        if not self.config.cache:
            self._count("decode", self.seen_BL[:, column], column + 1)
            valid_BL, start = self.valid_BL[:, : column + 1], self.valid_BL.shape[1] - self.config.max_new_tokens
            return self._choose(self.model(self.tokens_BL[:, : column + 1], valid_BL, start)[:, -1:], column + 1)
        self._count("decode", 1, column + 1)
        arguments = (self.model, *self._columns(slice(column, column + 1)), self.cache)
        if self.config.temperature == 0:
            return self.next_token(*arguments)
        return self._choose(self.last_logits(*arguments), column + 1)

    def keep_rows(self, live_B: Tensor, tokens_B1: Tensor) -> Tensor:
        """Takes finished rows out of the batch; returns the newest tokens of those that stay."""
        keep = live_B.nonzero().flatten()
        self.cache.keep_rows(keep)
        for name in ("rows_B", "valid_BL", "positions_BL", "blocks_BL", "seen_BL", "tokens_BL", "keys_B"):
            setattr(self, name, getattr(self, name)[keep])
        return tokens_B1[keep]

    def _columns(self, window: slice) -> tuple[Tensor, ...]:
        return (
            self.tokens_BL[:, window],
            self.positions_BL[:, window],
            self.blocks_BL[:, window],
            self.columns_L[window],
        )

    def _choose(self, logits_B1V: Tensor, column: int) -> Tensor:
        """The token for a column, (B, 1)."""
        log_probs_B1V = log_probabilities(logits_B1V, self.model.config.mask_token_id)
        noise_B1V = None
        if self.config.temperature > 0:
            moment = torch.tensor(column - self.start, device=self.keys_B.device)
            noise_B1V = uniform(self.keys_B, moment, "token", (1, log_probs_B1V.shape[-1]))
        return candidates(log_probs_B1V, self.config.temperature, self.config.top_p, noise_B1V)

    def _count(self, kind: str, positions: Tensor | int, seen_columns: int) -> None:
        everyone_B = torch.ones_like(self.rows_B, dtype=torch.bool)
        self.ledger.count(kind, self.rows_B, everyone_B, positions, self.seen_BL[:, seen_columns - 1])

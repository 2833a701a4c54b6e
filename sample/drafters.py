"""What guesses for a model: the prompt itself, a smaller twin, or heads on the model's own hidden states.

Shapes: B rows, L columns of a row, W guesses, N tokens that are matched, D width.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from mdlm.checkpoint import load_checkpoint, resolve_checkpoint
from mdlm.corruption import log_probabilities
from mdlm.errors import UserError
from mdlm.heads import DraftHeads, holds_heads, load_heads
from mdlm.tokenizer import Tokenizer
from mdlm.transformer import Transformer
from sample.autoregressive import AutoregressiveConfig
from sample.columns import Columns
from sample.compiled import maybe_compiled
from sample.ledger import Ledger


class Drafter(Protocol):
    """Guesses tokens. Its state, if any, belongs to one decode."""

    def start(
        self, tokens_BL: Tensor, valid_BL: Tensor, prompt_columns: int, rows_B: Tensor | None, ledger: Ledger
    ) -> None:
        """Begins a decode: the buffer that will hold the rows, and the account that its passes go into."""

    def propose(self, tokens_BL: Tensor, newest_B: Tensor, count: int, working_B: Tensor, hidden_BD: Tensor) -> Tensor:
        """Up to `count` guesses, (B, ≤ count), for the columns behind `newest_B`, that of each row's newest token.

        `hidden_BD` are the model's hidden states that the newest tokens were drawn from, left by the pass before.
        """

    def keep_rows(self, keep: Tensor) -> None:
        """Drops all rows but those at the indices `keep`."""


class PromptLookup:
    """Continues the latest earlier place where the row's last tokens stand, the longest match first; costs no pass.

    For answers that copy from their prompt. Up to `longest` tokens are matched, at least one; None: any length.
    """

    def __init__(self, longest: int | None = 3) -> None:
        if longest is not None and longest < 1:
            raise UserError(f"the longest match is {longest} tokens; it must be at least 1")
        self.longest = longest
        self.first_B = torch.zeros(0)

    def start(
        self, tokens_BL: Tensor, valid_BL: Tensor, prompt_columns: int, rows_B: Tensor | None, ledger: Ledger
    ) -> None:
        self.first_B = valid_BL.long().argmax(-1)

    def propose(self, tokens_BL: Tensor, newest_B: Tensor, count: int, working_B: Tensor, hidden_BD: Tensor) -> Tensor:
        columns_L = torch.arange(tokens_BL.shape[1], device=tokens_BL.device)
        longest = min(self.longest or len(columns_L), len(columns_L))
        # What stands before a row is no token, and a window that reaches there matches no further.
        known_BL = tokens_BL.masked_fill(columns_L < self.first_B[:, None], -1)
        ending_here_BLN = F.pad(known_BL, (longest - 1, 0), value=-1).unfold(1, longest, 1).flip(-1)
        newest_B1N = ending_here_BLN.take_along_dim(newest_B[:, None, None], 1)
        # How many tokens up to column i agree with those up to the newest, (B, L), at most `longest`.
        same_BLN = (ending_here_BLN == newest_B1N) & (newest_B1N >= 0)
        agree_BL = same_BLN.to(torch.int32).cumprod(-1).sum(-1)
        agree_BL = agree_BL.masked_fill(columns_L >= newest_B[:, None], 0)
        # The longest match wins, of equals the latest.
        best_B = (agree_BL * tokens_BL.shape[1] + columns_L).masked_fill(agree_BL == 0, -1).argmax(-1)
        # A copy that runs into the newest token goes on with itself: text that repeats is guessed as repeating.
        behind_W = torch.arange(count, device=tokens_BL.device)
        period_B1 = (newest_B - best_B).clamp(min=1)[:, None]
        return tokens_BL.gather(1, best_B[:, None] + 1 + behind_W % period_B1)

    def keep_rows(self, keep: Tensor) -> None:
        self.first_B = self.first_B[keep]


class DraftModel:
    """A smaller autoregressive twin that decodes greedily, or with the row's own noise, one token a pass."""

    def __init__(self, model: Transformer, config: AutoregressiveConfig) -> None:
        if model.config.objective != "autoregressive":
            raise UserError(f"a {model.config.objective} model cannot draft token by token")
        self.model, self.config = model, config
        self.state: Columns | None = None

    def start(
        self, tokens_BL: Tensor, valid_BL: Tensor, prompt_columns: int, rows_B: Tensor | None, ledger: Ledger
    ) -> None:
        self.ledger = ledger
        self.state = Columns(self.model, valid_BL, self.config, rows_B)
        self.state.prefill(tokens_BL, prompt_columns, ledger, "draft")

    def propose(self, tokens_BL: Tensor, newest_B: Tensor, count: int, working_B: Tensor, hidden_BD: Tensor) -> Tensor:
        state = self.state
        assert state is not None
        tokens_BL, guesses = tokens_BL.clone(), []
        # After a full acceptance the cache lacks the last guess as well: two columns are written first.
        for step in range(count):
            first_B = newest_B + step - (1 if step == 0 else 0)
            columns_BW = first_B[:, None] + torch.arange(2 if step == 0 else 1, device=tokens_BL.device)
            columns_BW = columns_BW.clamp(min=0, max=tokens_BL.shape[1] - 1)
            inputs_BW = tokens_BL.gather(1, columns_BW)
            drawn_BW, _ = state.draw(inputs_BW, columns_BW)
            self.ledger.count(
                "draft", state.rows_B, working_B, columns_BW.shape[1], state.real_before(columns_BW[:, -1])
            )
            guesses.append(drawn_BW[:, -1])
            column_B1 = (newest_B + step + 1).clamp(max=tokens_BL.shape[1] - 1)[:, None]
            tokens_BL = tokens_BL.scatter(1, column_B1, drawn_BW[:, -1:])
        return torch.stack(guesses, dim=1)

    def keep_rows(self, keep: Tensor) -> None:
        assert self.state is not None
        self.state.keep_rows(keep)


def head_guesses(model: Transformer, heads: DraftHeads, hidden_BD: Tensor, count: int) -> Tensor:
    """The likeliest token of each of the first `count` heads, (B, count)."""
    return log_probabilities(model.head(heads(hidden_BD, count)), model.config.mask_token_id).argmax(-1)


class HeadsDrafter:
    """Heads on the model's own hidden states (Medusa, 2401.10774): one chain of likeliest tokens, no pass of a trunk.

    It guesses no further than there are heads. Greedy also where the model samples: a head does not see the tokens
    between, so its distribution is the flatter one, and where the model is sure the likeliest token of a flatter one
    agrees more often than a draw from it.
    """

    def __init__(self, model: Transformer, heads: DraftHeads, config: AutoregressiveConfig) -> None:
        self.model, self.heads = model, heads
        self._guesses = maybe_compiled(head_guesses, config.compile)

    def start(
        self, tokens_BL: Tensor, valid_BL: Tensor, prompt_columns: int, rows_B: Tensor | None, ledger: Ledger
    ) -> None:
        """Nothing to do: the hidden states come with every call."""

    def propose(self, tokens_BL: Tensor, newest_B: Tensor, count: int, working_B: Tensor, hidden_BD: Tensor) -> Tensor:
        return self._guesses(self.model, self.heads, hidden_BD, count)

    def keep_rows(self, keep: Tensor) -> None:
        """Nothing is kept."""


def load_drafter(how: str, model: Transformer, tokenizer: Tokenizer, config: AutoregressiveConfig) -> Drafter:
    """The drafter that a word or a folder names.

    Args:
        how: `lookup`, `lookup:N` for matches of up to N tokens, `lookup:any`, the folder of a smaller twin, or that of
            draft heads.
        model: what it guesses for.
    """
    word, _, longest = how.partition(":")
    if word == "lookup":
        if longest and longest != "any" and not longest.isdecimal():
            raise UserError(f"{how!r}: the longest match is a number or `any`, as in lookup:3 or lookup:any")
        return PromptLookup(None if longest == "any" else int(longest)) if longest else PromptLookup()
    folder = resolve_checkpoint(how)
    if holds_heads(folder):
        return HeadsDrafter(model, load_heads(folder, model), config)
    draft, other = load_checkpoint(folder, dtype=model.dtype, device=model.device)
    if other.fingerprint() != tokenizer.fingerprint():
        raise UserError(f"{folder}: its tokenizer is not the model's; draft with a twin of the same run")
    return DraftModel(draft, config)

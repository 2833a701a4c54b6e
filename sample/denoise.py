"""The denoising loop: a canvas with masks in, the same canvas filled out, several tokens a pass.

Shapes: B rows, L positions, G positions of a window, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mdlm.corruption import log_probabilities
from mdlm.errors import UserError
from mdlm.transformer import Transformer
from sample.generation import Generation, Pass, book_result, check_tokens
from sample.ledger import Ledger
from sample.policies import SCORES, accept, candidates, quota
from sample.windows import CachedBlocks, WholeCanvas, maybe_compiled


@dataclass(frozen=True)
class DenoiseConfig:
    """How a canvas is filled. The defaults commit one token a pass, the surest first."""

    max_denoising_steps: int | None = None
    """Passes a window gets: its masks are committed in equal shares, the remainder to the first passes. None: one
    token a pass, or with a threshold as few passes as it takes."""
    threshold: float | None = None
    """Commit every candidate whose score reaches this, and at least one a pass."""
    score: Literal["confidence", "margin", "entropy", "random"] = "confidence"
    """What makes a candidate sure."""
    block_length: int | None = None
    """Positions of a window. None: the trained one for block diffusion, the whole canvas otherwise."""
    cache: bool = True
    """Use the exact key/value cache where the model allows one."""
    temperature: float = 0.0
    """0 takes the likeliest token; otherwise candidates are sampled."""
    top_p: float = 1.0
    """Sample from the smallest set of tokens of at least this mass."""
    seed: int = 0
    """Of everything that is drawn."""
    stop_at_end: bool = True
    """Leave out the windows behind one that holds an end token."""
    compile: bool = False
    """Compile the pass; the first call of each shape then takes its time."""
    trace: bool = False
    """Keep every pass in `Generation.trace`."""

    def __post_init__(self) -> None:
        for name in ("max_denoising_steps", "block_length"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise UserError(f"{name} is {value}; it must be at least 1")
        if self.score not in SCORES:
            raise UserError(f"score {self.score!r} is unknown; choose one of {', '.join(SCORES)}")
        if self.temperature < 0:
            raise UserError(f"temperature is {self.temperature}; it must be 0 or more")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p is {self.top_p}; it must be above 0 and at most 1")


def commit(
    logits_BGV: Tensor,
    tokens_BG: Tensor,
    quota_B: Tensor,
    mask_id: int,
    config: DenoiseConfig,
    generator: torch.Generator | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """One pass's decisions: the window's new tokens, which were committed, each candidate's score; all (B, G).

    A position that is not masked keeps its token whatever the logits say.
    """
    log_probs_BGV = log_probabilities(logits_BGV, mask_id)
    masked_BG = tokens_BG == mask_id
    candidate_BG = candidates(log_probs_BGV, config.temperature, config.top_p, generator)
    score_BG = SCORES[config.score](log_probs_BGV, candidate_BG, generator)
    committed_BG = accept(score_BG, masked_BG, quota_B, config.threshold)
    return torch.where(committed_BG, candidate_BG, tokens_BG), committed_BG, score_BG


@torch.no_grad()
def denoise(
    denoiser: Callable[..., Tensor],
    canvas_BL: Tensor,
    config: DenoiseConfig | None = None,
    *,
    mask_id: int,
    end_id: int | None = None,
    valid_BL: Tensor | None = None,
    response_start: int = 0,
    on_pass: Callable[[Pass], None] | None = None,
) -> Generation:
    """Fills every masked position of a canvas; all others never change.

    A prompt, a suffix and a template are the same thing here: positions that are not masked. Windows are filled from
    left to right, counted from `response_start`; a mask before it is refused.

    Args:
        denoiser: a `Transformer`, or any function from tokens (B, L) to logits (B, L, V), which sees padding as it is.
        canvas_BL: token ids, `mask_id` where a token is wanted.
        end_id: the end token. A row that was given one where nothing fixed follows is finished after that window:
            its remaining masks become end tokens at no cost.
        valid_BL: False at padding, which stands on the left. Default: no padding.
        response_start: the column where every row's response begins.
        on_pass: called after every pass; a live display.

    Returns:
        The filled canvas, the ledger, and the passes when `config.trace` is set.
    """
    config = config or DenoiseConfig()
    run = _Run(denoiser, canvas_BL, config, mask_id, end_id, valid_BL, response_start, on_pass)
    return run.fill()


class _Run:
    """The state of one decode: the canvas, and which of its rows still have work."""

    def __init__(self, denoiser, canvas_BL, config, mask_id, end_id, valid_BL, response_start, on_pass) -> None:
        self.config, self.mask_id, self.end_id, self.on_pass = config, mask_id, end_id, on_pass
        self.block_length, causal_over_blocks = config.block_length, False
        if isinstance(denoiser, Transformer):
            _check_model(denoiser, canvas_BL, mask_id)
            canvas_BL = canvas_BL.to(denoiser.device)
            causal_over_blocks = denoiser.config.objective == "block_diffusion"
            if causal_over_blocks:
                self.block_length = config.block_length or denoiser.config.block_length
        self.device = canvas_BL.device
        valid_BL = torch.ones_like(canvas_BL, dtype=torch.bool) if valid_BL is None else valid_BL.to(self.device)
        self.ledger = Ledger(len(canvas_BL), self.device)
        self.generation = Generation(canvas_BL.clone(), self.ledger, response_start, end_id)
        self.tokens_BL = canvas_BL.clone()
        """The rows still in the batch; finished ones have moved to `generation`."""
        strategy = CachedBlocks if causal_over_blocks and config.cache else WholeCanvas
        self.source = strategy(
            denoiser, valid_BL, response_start, self.ledger, block_length=self.block_length, compiled=config.compile
        )
        self.generator = torch.Generator(self.device).manual_seed(config.seed)
        self.commit = maybe_compiled(commit, config.compile and config.temperature == 0 and config.score != "random")
        self.decoded_BL = torch.zeros_like(canvas_BL, dtype=torch.bool)

    def windows(self) -> Iterator[tuple[int, int]]:
        """Columns [start, stop) of every window, from left to right."""
        length, first = self.tokens_BL.shape[1], self.generation.response_start
        if self.block_length is None:
            yield first, length
            return
        for start in range(first, length, self.block_length):
            yield start, min(start + self.block_length, length)

    def fill(self) -> Generation:
        """Fills window after window."""
        masked_BL = self.tokens_BL == self.mask_id
        columns_L = torch.arange(masked_BL.shape[1], device=self.device)
        # Behind its last fixed column a row may stop at an end token; before it, the rest of a template still counts.
        last_fixed_B = torch.where(masked_BL, -1, columns_L).amax(-1)
        last_masked_B = torch.where(masked_BL, columns_L, -1).amax(-1)
        first_masked_B = torch.where(masked_BL, columns_L, len(columns_L)).amin(-1)
        first, last = int(first_masked_B.min()), int(last_masked_B.max())
        if first < self.generation.response_start:
            raise UserError("the canvas has masks before response_start; set response_start to where masks may stand")
        # Windows before the first mask are prefilled with the prompt.
        pending = [(start, stop) for start, stop in self.windows() if first < stop and start <= last]
        if pending:
            # Each row is booked its own columns before its first window, as if it were alone.
            begin = self.generation.response_start
            width = self.block_length or len(columns_L) - begin
            own_B = begin + (first_masked_B - begin) // width * width
            self.source.prefill(self.tokens_BL, pending[0][0], own_B, last_masked_B >= 0)
        for start, stop in pending:
            self._fill_window(start, stop)
            rows_B = self.source.rows_B
            live_B = last_masked_B[rows_B] >= stop
            if self.end_id is not None and self.config.stop_at_end:
                filled_BL = self.tokens_BL[:, :stop].masked_fill(~masked_BL[rows_B, :stop], self.mask_id)
                ended_B = (filled_BL == self.end_id).any(-1)
                live_B &= ~(ended_B & (last_fixed_B[rows_B] < stop))
            if not self._keep(live_B):
                break
            # A row alone would have prefilled the windows before its first mask.
            self.source.store(self.tokens_BL, start, stop, first_masked_B[self.source.rows_B] < stop)
        self.generation.tokens_BL[self.source.rows_B] = self.tokens_BL
        if self.end_id is not None:
            left_BL = self.generation.tokens_BL == self.mask_id
            self.generation.tokens_BL = self.generation.tokens_BL.masked_fill(left_BL, self.end_id)
        book_result(self.generation, self.decoded_BL)
        return self.generation

    def _keep(self, live_B: Tensor) -> bool:
        """Takes finished rows out of the batch; False when none is left."""
        if len(live_B) and live_B.all():
            return True
        self.generation.tokens_BL[self.source.rows_B] = self.tokens_BL
        keep = live_B.nonzero().flatten()
        self.source.keep_rows(keep)
        self.tokens_BL = self.tokens_BL[keep]
        return len(keep) > 0

    def _fill_window(self, start: int, stop: int) -> None:
        window = self.tokens_BL[:, start:stop]  # a view: assignments land in the canvas
        at_start_B = (window == self.mask_id).sum(-1)
        self.decoded_BL[self.source.rows_B, start:stop] |= window == self.mask_id
        limit = self.config.max_denoising_steps
        passes = limit or stop - start
        for index in range(stop - start):
            working_B = (window == self.mask_id).any(-1)
            if not working_B.any():
                break
            logits_BGV = self.source.logits(self.tokens_BL, start, stop, working_B)
            if limit is None:
                quota_B = torch.ones_like(at_start_B)
            else:
                quota_B = quota(at_start_B, index, passes)
            tokens_BG, committed_BG, score_BG = self.commit(
                logits_BGV, window, quota_B, self.mask_id, self.config, self.generator
            )
            window.copy_(tokens_BG)
            if self.config.trace or self.on_pass:
                self._report(start, committed_BG, score_BG)

    def _report(self, start: int, committed_BG: Tensor, score_BG: Tensor) -> None:
        canvas_BL = self.generation.tokens_BL.clone()
        canvas_BL[self.source.rows_B] = self.tokens_BL
        count = self.ledger.calls["denoise"]
        made = Pass(count, self.source.rows_B, start, canvas_BL, committed_BG.clone(), score_BG.clone())
        if self.config.trace:
            self.generation.trace.append(made)
        if self.on_pass:
            self.on_pass(made)


def _check_model(model: Transformer, canvas_BL: Tensor, mask_id: int) -> None:
    config = model.config
    if config.objective == "autoregressive":
        raise UserError("an autoregressive model cannot denoise; use sample.decode")
    if mask_id != config.mask_token_id:
        raise UserError(f"mask_id {mask_id} is not the model's mask token {config.mask_token_id}")
    check_tokens(canvas_BL, config.vocab_size)
    if canvas_BL.shape[1] > config.max_length:
        raise UserError(
            f"the canvas has {canvas_BL.shape[1]} positions, the model was made for {config.max_length}; "
            "shorten the prompt or ask for fewer new tokens"
        )

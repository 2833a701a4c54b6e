"""The denoising loop: a canvas with masks in, the same canvas filled out, several tokens a pass.

Shapes: B rows, L positions, G positions of a window, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from mdlm.errors import UserError
from mdlm.transformer import Transformer
from sample.approximate import CachedCanvas
from sample.clock import tick
from sample.compiled import maybe_compiled
from sample.config import DenoiseConfig
from sample.decide import Decision, decide
from sample.generation import Generation, Pass, book_result, check_tokens
from sample.ledger import Ledger
from sample.noise import row_keys
from sample.policies import quota
from sample.windows import CachedBlocks, WholeCanvas

_WINDOW_MOMENTS = 1 << 20
"""Passes of different windows draw different noise: their moments are so far apart."""


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
    rows_B: Tensor | None = None,
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
        rows_B: each row's number, which with `config.seed` decides its noise. Default: 0, 1, 2, …
        on_pass: called after every pass with what it committed, what it revoked, and which rows' windows are final.

    Returns:
        The filled canvas, the ledger, and the passes when `config.trace` is set.
    """
    config = config or DenoiseConfig()
    run = _Run(denoiser, canvas_BL, config, mask_id, end_id, valid_BL, response_start, rows_B, on_pass)
    return run.fill()


class _Run:
    """The state of one decode: the canvas, and which of its rows still have work."""

    def __init__(self, denoiser, canvas_BL, config, mask_id, end_id, valid_BL, response_start, rows_B, on_pass) -> None:
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
        self.source = self._source(denoiser, valid_BL, causal_over_blocks)
        if rows_B is None:
            rows_B = torch.arange(len(canvas_BL))
        self.keys_B = row_keys(config.seed, rows_B.to(self.device))
        self.decide = maybe_compiled(decide, config.compile)
        self.decoded_BL = torch.zeros_like(canvas_BL, dtype=torch.bool)
        masked_BL = self.tokens_BL == mask_id
        columns_L = torch.arange(masked_BL.shape[1], device=self.device)
        self.columns_L = columns_L
        # Behind its last fixed column a row may stop at an end token; before it, the rest of a template still counts.
        self.last_fixed_B = torch.where(masked_BL, -1, columns_L).amax(-1)
        self.last_masked_B = torch.where(masked_BL, columns_L, -1).amax(-1)
        self.first_masked_B = torch.where(masked_BL, columns_L, len(columns_L)).amin(-1)
        self.masked_BL = masked_BL

    def _source(self, denoiser, valid_BL: Tensor, causal_over_blocks: bool):
        """Where logits come from under this config. Refuses a cache that the model cannot have."""
        config, about = self.config, (denoiser, valid_BL, self.generation.response_start, self.ledger)
        verified = config.revoke == "verify"
        if config.cache in ("prefix", "dual"):
            if causal_over_blocks or not isinstance(denoiser, Transformer):
                raise UserError(
                    f"cache {config.cache} is for masked-diffusion models; block diffusion has an exact one"
                )
            drift = {"compiled": config.compile, "measure_drift": config.measure_drift}
            return CachedCanvas(*about, config.cache, **drift)
        shape = {"block_length": self.block_length, "compiled": config.compile, "verified": verified}
        if causal_over_blocks and config.growing:
            raise UserError("growing is for masked-diffusion models; blocks never see what is behind them")
        if causal_over_blocks and config.cache == "exact":
            return CachedBlocks(*about, **shape, fused=config.fused_store)
        if config.pipeline is not None and not causal_over_blocks:
            raise UserError("pipeline needs a block-diffusion model")
        return WholeCanvas(*about, **shape, growing=config.growing)

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
        begin = self.generation.response_start
        first, last = int(self.first_masked_B.min()), int(self.last_masked_B.max())
        if first < begin:
            raise UserError("the canvas has masks before response_start; set response_start to where masks may stand")
        # Windows before the first mask are prefilled with the prompt.
        pending = [(start, stop) for start, stop in self.windows() if first < stop and start <= last]
        if pending:
            # Each row is booked its own columns before its first window, as if it were alone.
            width = self.block_length or len(self.columns_L) - begin
            own_B = begin + (self.first_masked_B - begin) // width * width
            self.source.prefill(self.tokens_BL, pending[0][0], own_B, self.last_masked_B >= 0)
        for place, (start, stop) in enumerate(pending):
            following = pending[place + 1] if self.config.pipeline is not None and place + 1 < len(pending) else None
            self._fill_window(start, stop, following)
            live_B = self.last_masked_B[self.source.rows_B] >= stop
            if self.end_id is not None and self.config.stop_at_end:
                live_B &= ~self._ended(stop)
            if not self._keep(live_B):
                break
            # A row alone would have prefilled the windows before its first mask.
            self.source.store(self.tokens_BL, start, stop, self.first_masked_B[self.source.rows_B] < stop)
        self.generation.tokens_BL[self.source.rows_B] = self.tokens_BL
        if self.end_id is not None:
            left_BL = self.generation.tokens_BL == self.mask_id
            self.generation.tokens_BL = self.generation.tokens_BL.masked_fill(left_BL, self.end_id)
        self.generation.drift = getattr(self.source, "drift", None)
        book_result(self.generation, self.decoded_BL)
        return self.generation

    def _ended(self, stop: int) -> Tensor:
        """Rows that were given an end token before column `stop`, with nothing fixed behind it, (B,) bool."""
        rows_B = self.source.rows_B
        given_BL = (self.tokens_BL[:, :stop] == self.end_id) & self.masked_BL[rows_B, :stop]
        return given_BL.any(-1) & (self.last_fixed_B[rows_B] < stop)

    def _keep(self, live_B: Tensor) -> bool:
        """Takes finished rows out of the batch; False when none is left."""
        if len(live_B) and live_B.all():
            return True
        self.generation.tokens_BL[self.source.rows_B] = self.tokens_BL
        keep = live_B.nonzero().flatten()
        self.source.keep_rows(keep)
        self.tokens_BL, self.keys_B = self.tokens_BL[keep], self.keys_B[keep]
        return len(keep) > 0

    def _fill_window(self, start: int, stop: int, following: tuple[int, int] | None) -> None:
        window = self.tokens_BL[:, start:stop]  # a view: assignments land in the canvas
        rows_B, width, config = self.source.rows_B, stop - start, self.config
        masked_at_start_BG = window == self.mask_id
        at_start_B = masked_at_start_BG.sum(-1)
        self.decoded_BL[rows_B, start:stop] |= masked_at_start_BG
        may_revoke_BG = self.masked_BL[rows_B, start:stop]
        steps = config.max_denoising_steps or width
        state: dict[str, Tensor] = {}
        look = config.stop_check_every or (4 if self.device.type == "cuda" else 1)
        for index in range(steps if config.scheduled else width):
            masked_BG = window == self.mask_id
            moment = self._moment(start, index)
            planned_BG, revoked_BG = None, None
            working_B = masked_BG.any(-1)
            if config.scheduled:
                psi_BG = state.get("psi_BG", torch.zeros(masked_BG.shape, device=self.device))
                decoded_BG = may_revoke_BG & ~masked_BG
                planned_BG, revoked_BG = tick(config, index, steps, masked_BG, decoded_BG, psi_BG, self.keys_B, moment)
                working_B = planned_BG.any(-1)  # where the clock unmasks nothing, no pass is needed
            if (not config.scheduled and index % look) or working_B.any():
                made = self._one_pass(
                    start, stop, following, index, working_B, planned_BG, at_start_B, may_revoke_BG, state
                )
                state = made.state
            elif not config.scheduled:
                break
            if revoked_BG is not None and config.revoke != "none":
                self._revoke(start, window, revoked_BG)

    def _one_pass(
        self,
        start: int,
        stop: int,
        following: tuple[int, int] | None,
        index: int,
        working_B: Tensor,
        planned_BG: Tensor | None,
        at_start_B: Tensor,
        may_revoke_BG: Tensor,
        state: dict[str, Tensor],
    ) -> Decision:
        """One call of the trunk, and what follows from it."""
        config, window, limit = self.config, self.tokens_BL[:, start:stop], self.config.max_denoising_steps
        joined_B = torch.zeros_like(working_B)
        if following:
            done_BG = window != self.mask_id
            joined_B = working_B & (done_BG.sum(-1) >= config.pipeline * (stop - start))
        last = following[1] if following and joined_B.any() else stop
        stop_B = torch.where(joined_B, last, stop) if last > stop else None
        logits = self.source.logits(self.tokens_BL, start, last, working_B, stop_B)
        quota_B = torch.ones_like(at_start_B) if limit is None else quota(at_start_B, index, limit)
        where = (self.keys_B, self._moment(start, 0), self._moment(start, index))
        chosen = (self.mask_id, self.end_id, config)
        made = self.decide(
            logits[:, : stop - start] if last > stop else logits,
            window,
            may_revoke_BG & (window != self.mask_id),
            planned_BG,
            quota_B,
            *where,
            state,
            *chosen,
        )
        if last > stop:
            self._look_ahead(logits[:, stop - start :], stop, last, joined_B, where)
        window.copy_(made.tokens_BG)
        if config.revoke == "verify":
            self.ledger.thrown_away.index_add_(0, self.source.rows_B, made.revoked_BG.sum(-1))
        if config.ends == "in_order" and self.end_id is not None:
            self._finish_ended(start, stop)
        if config.trace or self.on_pass:
            self._report(start, made, working_B & ~(window == self.mask_id).any(-1))
        return made

    def _look_ahead(self, logits: Tensor, start: int, stop: int, joined_B: Tensor, where: tuple) -> None:
        """Commits in the next window what reaches the threshold, in rows that have come far enough."""
        window = self.tokens_BL[:, start:stop]
        masked_BG = window == self.mask_id
        self.decoded_BL[self.source.rows_B, start:stop] |= masked_BG & joined_B[:, None]
        nothing_B = torch.zeros_like(self.source.rows_B)
        made = self.decide(
            logits, window, ~masked_BG, None, nothing_B, *where, {}, self.mask_id, self.end_id, self.config
        )
        window.copy_(torch.where(joined_B[:, None], made.tokens_BG, window))

    def _revoke(self, start: int, window: Tensor, revoked_BG: Tensor) -> None:
        self.ledger.thrown_away.index_add_(0, self.source.rows_B, revoked_BG.sum(-1))
        window.masked_fill_(revoked_BG, self.mask_id)
        if self.config.trace or self.on_pass:
            none_BG, zero_BG = torch.zeros_like(revoked_BG), torch.zeros(revoked_BG.shape, device=self.device)
            nobody_B = torch.zeros_like(self.source.rows_B, dtype=torch.bool)
            self._report(start, Decision(window, none_BG, revoked_BG, zero_BG, zero_BG, {}), nobody_B)

    def _finish_ended(self, start: int, stop: int) -> None:
        """Fills a row behind its first given end token with end tokens, at no cost, where nothing fixed follows."""
        rows_B, window = self.source.rows_B, self.tokens_BL[:, start:stop]
        column_G = self.columns_L[start:stop]
        given_BG = (window == self.end_id) & self.masked_BL[rows_B, start:stop]
        first_B = torch.where(given_BG, column_G, len(self.columns_L)).amin(-1)
        finished_B = self.last_fixed_B[rows_B] < first_B
        left_BG = (window == self.mask_id) & finished_B[:, None] & (column_G > first_B[:, None])
        self.decoded_BL[rows_B, start:stop] &= ~left_BG
        window.masked_fill_(left_BG, self.end_id or 0)

    def _moment(self, start: int, index: int) -> Tensor:
        """A pass's number for its noise: logical, so that padding does not move it."""
        logical = start - self.generation.response_start
        return torch.tensor(logical * _WINDOW_MOMENTS + index, device=self.device)

    def _report(self, start: int, made: Decision, final_B: Tensor) -> None:
        canvas_BL = self.generation.tokens_BL.clone()
        canvas_BL[self.source.rows_B] = self.tokens_BL
        passed = Pass(
            index=self.ledger.total_calls - self.ledger.calls["prefill"] - self.ledger.calls["store"],
            rows=self.source.rows_B,
            start=start,
            tokens_BL=canvas_BL,
            committed_BG=made.committed_BG.clone(),
            revoked_BG=made.revoked_BG.clone(),
            score_BG=made.score_BG.clone(),
            end_mass_BG=made.end_mass_BG.clone(),
            final_B=final_B.clone(),
            margin_BG=made.margin_BG,
            entropy_BG=made.entropy_BG,
        )
        if self.config.trace:
            self.generation.trace.append(passed)
        if self.on_pass:
            self.on_pass(passed)


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

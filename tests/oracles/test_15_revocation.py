"""Oracle 15: revoking committed tokens ends: a window of G masks is full after at most G passes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sample import DenoiseConfig, denoise

MASK, LENGTH = 8, 12


def table(seed):
    """A denoiser that is surer or less sure of everything with every token it sees, and so changes its mind."""

    def logits(tokens_BL):
        rows = []
        for tokens_L in tokens_BL.tolist():
            generator = torch.Generator().manual_seed(hash((seed, *tokens_L)) % 2**62)
            rows.append(4 * torch.randn(len(tokens_L), MASK + 1, generator=generator))
        return torch.stack(rows)

    return logits


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    kind=st.sampled_from(["table", "masked_diffusion", "block_diffusion"]),
    seed=st.integers(0, 20),
    threshold=st.floats(0, 1),
    revoke_threshold=st.floats(0, 1),
    block_length=st.sampled_from([None, 4, 7]),
    score=st.sampled_from(["confidence", "margin", "random"]),
    passes=st.none() | st.integers(1, 12),
    fixed=st.sets(st.integers(0, LENGTH - 1), max_size=6),
)
def test_a_window_ends_within_its_length_and_keeps_what_was_fixed(
    tiny_model, kind, seed, threshold, revoke_threshold, block_length, score, passes, fixed
):
    denoiser = table(seed) if kind == "table" else tiny_model(kind, seed=seed)
    canvas_BL = torch.full((2, LENGTH), MASK)
    for column in fixed:
        canvas_BL[:, column] = column % 8
    config = DenoiseConfig(
        threshold=threshold,
        revoke="verify",
        revoke_threshold=revoke_threshold,
        block_length=block_length,
        score=score,
        max_denoising_steps=passes,
        trace=True,
    )
    made = denoise(denoiser, canvas_BL, config, mask_id=MASK)
    assert not (made.tokens_BL == MASK).any()
    fixed_BL = canvas_BL != MASK
    assert made.tokens_BL[fixed_BL].equal(canvas_BL[fixed_BL])
    passes_of: dict[int, int] = {}
    for step in made.trace:
        passes_of[step.start] = passes_of.get(step.start, 0) + 1
        window_BG = fixed_BL[:, step.start : step.start + step.revoked_BG.shape[1]]
        assert not (step.revoked_BG & window_BG).any()
        assert not (step.revoked_BG & step.committed_BG).any()
    width = block_length or {"block_diffusion": 4}.get(kind, LENGTH)
    for start, count in passes_of.items():
        masks = int((canvas_BL[0, start : start + width] == MASK).sum())
        assert count <= masks
    revoked = sum(int(step.revoked_BG.sum()) for step in made.trace)
    assert int(made.ledger.thrown_away.sum()) == revoked


@pytest.mark.parametrize("kind", ["masked_diffusion", "block_diffusion"])
def test_tokens_are_revoked_at_all(tiny_model, kind):
    """The bound above is not that of a decoder that never revokes."""
    config = DenoiseConfig(threshold=0.2, revoke="verify", revoke_threshold=0.95, block_length=12)
    model = tiny_model(kind, gain=12.0)
    made = denoise(model, torch.full((16, LENGTH), MASK), config, mask_id=MASK, rows_B=torch.arange(16))
    assert int(made.ledger.thrown_away.sum()) > 0

"""What a denoiser may be told: five choices, freely combined. Presets name the combinations that papers publish."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from mdlm.corruption import get_schedule
from mdlm.errors import UserError

Accept = Literal["count", "factor", "entropy_bound", "stable", "runs", "ancestral", "first_hitting"]
Revoke = Literal["none", "remdm_cap", "remdm_rescale", "remdm_confidence", "verify"]
Score = Literal["confidence", "margin", "entropy", "random"]
Cache = Literal["exact", "none", "prefix", "dual"]
Ends = Literal["anywhere", "in_order"]
SCHEDULED = ("ancestral",)
"""Rules that unmask by a clock instead of by score."""


@dataclass(frozen=True)
class DenoiseConfig:
    """How a canvas is filled. The defaults commit one token a pass, the surest first."""

    # Candidate: which token a masked position would get.
    temperature: float = 0.0
    """0 takes the likeliest token; otherwise candidates are sampled."""
    top_p: float = 1.0
    """Sample from the smallest set of tokens of at least this mass."""

    # Score: how sure a candidate is.
    score: Score = "confidence"

    # Accept: which candidates a pass commits.
    accept: Accept = "count"
    """`count`: equal shares of the window, see `max_denoising_steps`, and with a `threshold` all that reach it.
    `factor`: the n surest, n the largest with (n + 1)(1 − confidence of the n-th) < `factor`. `entropy_bound`: the
    surest whose entropies without the largest add up to at most `entropy_bound`. `stable`: all that reach `threshold`
    and whose prediction moved less than `kl_threshold` over the last `kl_passes` passes. `runs`: the surest of each
    contiguous run of masks. `ancestral`: each position alone, by the clock of `schedule`. `first_hitting`: one a
    pass, in random order. All score rules commit at least one."""
    max_denoising_steps: int | None = None
    """Passes a window gets: each commits at least an equal share, the remainder one more in the first passes. None:
    one token a pass, or by the rule as few passes as it takes; for `ancestral` the clock's steps, by default the
    window's length."""
    threshold: float | None = None
    """Score that a candidate must reach (`count`, `stable`)."""
    factor: float = 1.0
    entropy_bound: float = 0.1
    """Nats."""
    kl_threshold: float = 0.01
    """Nats."""
    kl_passes: int = 2
    schedule: str = "linear"

    # Revoke: which committed tokens become masks again.
    revoke: Revoke = "none"
    """`remdm_*`: committed tokens are masked again with the clock's probability σ, capped, rescaled or shared out by
    low confidence; only with `ancestral`. `verify`: tokens whose probability given all others is under
    `revoke_threshold`, fewer than the pass before committed, so that a window ends within its length in passes."""
    eta: float = 1.0
    """ReMDM's cap or scale of σ."""
    revoke_threshold: float = 0.9

    # Window and stop.
    block_length: int | None = None
    """Positions of a window. None: the trained one for block diffusion, the whole canvas otherwise."""
    pipeline: float | None = None
    """Share of a window that must be decided before the next one is denoised beside it, by `threshold` alone."""
    growing: bool = False
    """Bidirectional model: windows behind the present one do not exist yet, instead of being masked."""
    stop_at_end: bool = True
    """Leave out the windows behind one that holds an end token."""
    ends: Ends = "anywhere"
    """`in_order`: an end token is committed only where nothing before it is masked, and finishes its row."""

    # Cache.
    cache: Cache = "exact"
    """`exact` where the model allows one (block diffusion), otherwise every pass evaluates the canvas; `none` always
    does. `prefix` and `dual` are approximate, for the bidirectional model in windows."""
    fused_store: bool = False
    """Store a finished block in the next block's first pass: one pass less for each block, the same result."""
    measure_drift: bool = False
    """Compare an approximate cache with none at every pass; costs that pass."""

    seed: int = 0
    """Of everything that is drawn; each row draws its own by its number."""
    stop_check_every: int | None = None
    """Passes between two looks at whether a window is full. None: 1 on a CPU, where looking is free, else 4; passes
    over a full window change nothing. The clock's rules look at every step."""
    compile: bool = False
    """Compile the pass; the first call of each shape then takes its time."""
    trace: bool = False
    """Keep every pass in `Generation.trace`."""

    def __post_init__(self) -> None:
        for name in ("max_denoising_steps", "block_length", "kl_passes", "stop_check_every"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise UserError(f"{name} is {value}; it must be at least 1")
        choices = {"score": Score, "accept": Accept, "revoke": Revoke, "cache": Cache, "ends": Ends}
        for name, kind in choices.items():
            if (chosen := getattr(self, name)) not in get_args(kind):
                raise UserError(f"{name} {chosen!r} is unknown; choose one of {', '.join(get_args(kind))}")
        for name in ("temperature", "entropy_bound", "kl_threshold", "eta"):
            if not getattr(self, name) >= 0:
                raise UserError(f"{name} is {getattr(self, name)}; it must be 0 or more")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p is {self.top_p}; it must be above 0 and at most 1")
        get_schedule(self.schedule)
        self._check_combination()

    def _check_combination(self) -> None:
        scheduled = self.accept in SCHEDULED
        if self.revoke.startswith("remdm") and not scheduled:
            raise UserError(f"revoke {self.revoke} goes by the clock of accept ancestral; choose that, or verify")
        if self.revoke == "verify" and scheduled:
            raise UserError("revoke verify goes with a score rule; with accept ancestral choose remdm_cap")
        if self.accept == "stable" and self.threshold is None:
            raise UserError("accept stable needs a threshold")
        if self.pipeline is not None:
            if not 0 <= self.pipeline <= 1:
                raise UserError(f"pipeline is {self.pipeline}; it is a share between 0 and 1")
            if self.threshold is None or self.accept != "count" or self.revoke != "none":
                raise UserError("pipeline needs accept count with a threshold and no revoke")
        if self.growing and self.block_length is None:
            raise UserError("growing needs a block_length to grow by")
        if self.cache in ("prefix", "dual") and (self.block_length is None or self.growing or self.revoke == "verify"):
            raise UserError(f"cache {self.cache} needs a block_length, and goes with neither growing nor verify")

    @property
    def scheduled(self) -> bool:
        """Whether positions are unmasked by a clock, not by score."""
        return self.accept in SCHEDULED

"""What a training run is: one frozen dataclass tree, read from a file in `configs/`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from mdlm.config import ModelConfig, Objective
from mdlm.errors import UserError
from mdlm.objectives import LossConfig

SupervisedEnd = Literal["one", "block", "canvas"]
DEFAULT_END: dict[str, SupervisedEnd] = {
    "autoregressive": "one",
    "masked_diffusion": "canvas",
    "block_diffusion": "block",
}


@dataclass(frozen=True)
class ModelSection:
    """The trunk's shape; the vocabulary and the special ids come from the tokenizer."""

    objective: Objective = "masked_diffusion"
    dim: int = 256
    layers: int = 6
    heads: int = 4
    kv_heads: int = 4
    head_dim: int = 64
    hidden_dim: int = 768
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-6
    qk_norm: bool = True
    tie_embeddings: bool = True
    block_length: int = 16
    causal_prompt: bool = False


@dataclass(frozen=True)
class DataConfig:
    """Where the rows come from and how they are laid out."""

    train: str = ""
    """A .jsonl, .txt, .parquet or .arrow file, a folder saved by `datasets`, or hub:owner/name."""
    validation: str = ""
    """Same kinds; empty: no validation."""
    tokenizer: str = ""
    """An existing tokenizer.json; empty: byte-level BPE is trained on the training source."""
    vocab_size: int = 1024
    """Size of the tokenizer to train, special tokens included."""
    prompt_length: int = 128
    """Most prompt tokens of a row, its begin token included."""
    response_length: int = 128
    """Response columns of a row: the answer, its end token, and what fills the canvas."""
    too_long: Literal["drop", "cut"] = "drop"
    """A row over those lengths is left out, or cut; either way it is counted."""
    on_error: Literal["stop", "skip"] = "stop"
    """A broken line stops the preparation, or is skipped and counted."""
    supervised_end: SupervisedEnd | None = None
    """End tokens that are supervised after an answer. `one`: all an autoregressive decoder needs. `block`: to the end
    of its block, so that a block never betrays the answer's length. `canvas`: to the end of the canvas, for the same
    reason on a full canvas. Default: one, block and canvas for the three objectives."""


@dataclass(frozen=True)
class OptimizerConfig:
    """Optimizer, learning rate and its course."""

    name: Literal["muon", "adamw"] = "muon"
    """`muon`: Muon for the matrices of the layers, AdamW for all else. `adamw`: AdamW for everything."""
    lr: float = 5e-3
    """Peak learning rate of Muon, or of AdamW where it is alone."""
    adamw_lr: float = 3e-3
    """Peak learning rate of AdamW beside Muon."""
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.95)
    warmup_steps: int = 50
    decay_fraction: float = 0.3
    """The last part of the run over which the rate falls linearly to zero; before that it is constant."""
    gradient_clip: float = 1.0

    def __post_init__(self) -> None:
        for name in ("lr", "adamw_lr", "gradient_clip"):
            if not getattr(self, name) > 0:
                raise UserError(f"optimizer.{name} is {getattr(self, name)}; it must be above 0")
        if self.weight_decay < 0 or self.warmup_steps < 0 or not 0 <= self.decay_fraction <= 1:
            raise UserError("optimizer: weight_decay and warmup_steps must be 0 or more, decay_fraction within [0, 1]")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise UserError(f"optimizer.betas are {self.betas}; each must be at least 0 and below 1")


@dataclass(frozen=True)
class TrainConfig:
    """One training run, from a data file to a checkpoint folder."""

    output: str = ""
    """The run's folder; created, and refused if it holds another run (see --resume)."""
    init_from: str = ""
    """A checkpoint, or a run's folder, whose weights the run starts from: of any objective, with the same shape and
    tokenizer, which is taken along where `data.tokenizer` is empty. A Qwen3 folder is converted first:
    `python -m mdlm.export --from qwen3 FOLDER OUT`. Empty: weights drawn from the seed."""
    seed: int = 0
    steps: int = 1000
    batch_size: int = 32
    """Rows of one step, over all processes."""
    model: ModelSection = field(default_factory=ModelSection)
    data: DataConfig = field(default_factory=DataConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    precision: Literal["bf16", "fp32"] = "bf16"
    compile: bool = True
    validate_every: int = 500
    validation_batches: int = 8
    checkpoint_every: int = 500
    keep_checkpoints: int = 2
    log_every: int = 10
    trackers: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = ()
    """Where the log goes besides `log.jsonl`, through accelerate; each must be installed."""
    ema_decay: float | None = None
    """Keeps an average of the weights, which validation and the checkpoints' `model.safetensors` then hold; the
    weights themselves lie in `state/`. None: no average."""
    on_bad_step: Literal["stop", "skip"] = "stop"
    """What follows a step whose loss or gradient is not finite, or whose loss is a spike; `bad_steps.jsonl` describes
    it. `stop`: the run ends. `skip`: the step changes neither weights nor optimizer; ten in a row end the run."""
    spike_mads: float | None = 20.0
    """A loss is a spike so many median absolute deviations above the median of the recent steps. None: never."""
    spike_window: int = 128
    """The recent steps; before there are as many, nothing is a spike."""
    resume: Literal["auto", "never"] = "never"
    """`auto` goes on from the newest checkpoint in `output`, or starts when there is none."""

    def __post_init__(self) -> None:
        for name in [
            "steps",
            "batch_size",
            "validate_every",
            "validation_batches",
            "checkpoint_every",
            "keep_checkpoints",
            "log_every",
            "spike_window",
        ]:
            if getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.seed < 0:
            raise UserError(f"seed is {self.seed}; it must be 0 or more")
        if self.ema_decay is not None and not 0 < self.ema_decay < 1:
            raise UserError(f"ema_decay is {self.ema_decay}; it must be above 0 and below 1, or none")
        if self.spike_mads is not None and not self.spike_mads > 0:
            raise UserError(f"spike_mads is {self.spike_mads}; it must be above 0, or none")

    @property
    def supervised_end(self) -> SupervisedEnd:
        """The rule for end tokens, the objective's own where none is given."""
        return self.data.supervised_end or DEFAULT_END[self.model.objective]

    def model_config(self, tokenizer) -> ModelConfig:
        """The full model config once the tokenizer is known."""
        return ModelConfig(
            **vars(self.model),
            vocab_size=tokenizer.vocab_size,
            max_length=self.data.prompt_length + self.data.response_length,
            mask_token_id=tokenizer.mask_id,
            end_token_id=tokenizer.end_id,
            pad_token_id=tokenizer.pad_id,
            begin_token_id=tokenizer.begin_id,
        )

"""Decoding: the denoiser, the autoregressive decoder, and the ledger of what each output cost."""

from sample.autoregressive import AutoregressiveConfig, decode
from sample.config import DenoiseConfig
from sample.denoise import denoise
from sample.generation import Generation
from sample.ledger import Ledger

__all__ = ["AutoregressiveConfig", "DenoiseConfig", "Generation", "Ledger", "decode", "denoise"]

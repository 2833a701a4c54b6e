"""Decoding: the denoiser, the autoregressive decoder, and the ledger of what each output cost."""

from sample.autoregressive import AutoregressiveConfig, decode
from sample.denoise import DenoiseConfig, denoise
from sample.generation import Generation
from sample.ledger import Ledger

__all__ = ["AutoregressiveConfig", "DenoiseConfig", "Generation", "Ledger", "decode", "denoise"]

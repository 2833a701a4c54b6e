"""Masked-diffusion language models and their autoregressive twin, from one trunk."""

from mdlm.checkpoint import load_checkpoint, save_checkpoint
from mdlm.config import ModelConfig
from mdlm.errors import UserError
from mdlm.transformer import Transformer

__all__ = ["ModelConfig", "Transformer", "UserError", "load_checkpoint", "save_checkpoint"]

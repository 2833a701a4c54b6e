"""The trunk that all three objectives share: a pre-norm transformer in the tensor layout of the Qwen3 family.

Shapes: B rows, L positions, S key positions, V vocabulary, H heads, K KV heads, N head width, D width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from mdlm.attention import KVCache, attend, block_indices, logical_positions, visible
from mdlm.config import ModelConfig
from mdlm.narrow import Linear, product


def rotary_table(length: int, head_dim: int, theta: float) -> Tensor:
    """Cosines and sines of RoFormer's rotary positions (2104.09864) in the half-rotation layout, (2, length, N)."""
    # On the CPU even under a `meta` default device, so that a model loaded without initial weights has its table.
    exponents_N = torch.arange(0, head_dim, 2, dtype=torch.float32, device="cpu") / head_dim
    # Rounded as transformers rounds it: `theta**-x` is a last bit away, and at position 40,000 that is 1/500 rad.
    angles_LN = torch.arange(length, dtype=torch.float32, device="cpu")[:, None] * (1.0 / theta**exponents_N)
    angles_LN = torch.cat([angles_LN, angles_LN], dim=-1)
    return torch.stack([angles_LN.cos(), angles_LN.sin()])


def rotate(x_BHLN: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
    """Applies rotary positions to queries or keys; the tables are (B, 1, L, N)."""
    cos_BLN, sin_BLN = tables
    first, second = x_BHLN.chunk(2, dim=-1)
    return (x_BHLN * cos_BLN + torch.cat([-second, first], dim=-1) * sin_BLN).to(x_BHLN.dtype)


class RMSNorm(nn.Module):
    """Root-mean-square normalisation, computed in float32 (1910.07467)."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        x32 = x.float()
        return (x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype) * self.weight.to(x.dtype)


class Attention(nn.Module):
    """Grouped-query attention with per-head RMSNorm on queries and keys, no biases."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.q_proj = Linear(config.dim, config.heads * config.head_dim)
        self.k_proj = Linear(config.dim, config.kv_heads * config.head_dim)
        self.v_proj = Linear(config.dim, config.kv_heads * config.head_dim)
        self.o_proj = Linear(config.heads * config.head_dim, config.dim)
        self.q_norm = RMSNorm(config.head_dim, config.norm_eps) if config.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(config.head_dim, config.norm_eps) if config.qk_norm else nn.Identity()

    def forward(
        self,
        x_BLD: Tensor,
        rotary: tuple[Tensor, Tensor],
        mask_BLS: Tensor | None,
        cache: KVCache | None,
        columns_L: Tensor | None,
        layer: int,
    ) -> Tensor:
        split = "b l (h n) -> b h l n"
        q_BHLN = rotate(self.q_norm(rearrange(self.q_proj(x_BLD), split, n=self.head_dim)), rotary)
        k_BKLN = rotate(self.k_norm(rearrange(self.k_proj(x_BLD), split, n=self.head_dim)), rotary)
        v_BKLN = rearrange(self.v_proj(x_BLD), split, n=self.head_dim)
        if cache is not None and columns_L is not None:
            k_BKLN, v_BKLN = cache.write(layer, columns_L, k_BKLN, v_BKLN)
        out_BHLN = attend(q_BHLN, k_BKLN, v_BKLN, mask_BLS)
        return self.o_proj(rearrange(out_BHLN, "b h l n -> b l (h n)"))


class MLP(nn.Module):
    """SwiGLU (2002.05202)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = Linear(config.dim, config.hidden_dim)
        self.up_proj = Linear(config.dim, config.hidden_dim)
        self.down_proj = Linear(config.hidden_dim, config.dim)

    def forward(self, x_BLD: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x_BLD)) * self.up_proj(x_BLD))


class Layer(nn.Module):
    """One pre-norm block: attention, then the feed-forward network."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.dim, config.norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.dim, config.norm_eps)
        self.mlp = MLP(config)

    def forward(self, x_BLD: Tensor, *attention_arguments) -> Tensor:
        x_BLD = x_BLD + self.self_attn(self.input_layernorm(x_BLD), *attention_arguments)
        return x_BLD + self.mlp(self.post_attention_layernorm(x_BLD))


class Transformer(nn.Module):
    """Token ids in, hidden states or logits out. Knows no timestep, no loss and no decoder.

    `hidden` is one forward pass of the trunk and `head` turns the hidden states one needs into logits; they are
    separate so that losses and decoders run the head only where they use it. Calling the module does both and makes
    it a `Denoiser`.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.dim)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.dim, config.norm_eps)
        # A table, not a formula: a compiler would otherwise compute the cosines again in every layer.
        self.rotary = rotary_table(config.max_length, config.head_dim, config.rope_theta)
        self.lm_head = None if config.tie_embeddings else Linear(config.dim, config.vocab_size)

    def _apply(self, fn, recurse: bool = True) -> Transformer:
        """Moves the rotary table along with the module, but keeps it in float32 whatever the weights' dtype."""
        super()._apply(fn, recurse)
        self.rotary = self.rotary.to(self.device)
        return self

    def initialize(self, seed: int) -> Transformer:
        """Draws the weights: normal, sd 0.02, and the two projections that write to the residual stream scaled
        down by sqrt(2 layers) (GPT-2). The same seed and shape give bit-equal weights whatever the objective."""
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if parameter.ndim < 2:
                nn.init.ones_(parameter)
                continue
            residual = name.endswith(("o_proj.weight", "down_proj.weight"))
            scale = 0.02 / (2 * self.config.layers) ** 0.5 if residual else 0.02
            drawn = torch.empty(parameter.shape).normal_(std=scale, generator=generator)
            with torch.no_grad():
                parameter.copy_(drawn)
        return self

    def hidden(
        self,
        tokens_BL: Tensor,
        positions_BL: Tensor,
        mask_BLS: Tensor | None,
        *,
        cache: KVCache | None = None,
        columns_L: Tensor | None = None,
    ) -> Tensor:
        """One pass of the trunk: (B, L, D) hidden states after the last norm.

        Args:
            tokens_BL: token ids.
            positions_BL: logical positions (see `attention.logical_positions`).
            mask_BLS: (B, 1, L, S) bool, True where a query sees a key; None sees everything.
            cache: reads and writes keys and values; L new columns `columns_L` against its S columns.
        """
        x_BLD = self.embed_tokens(tokens_BL)
        cos_BLN, sin_BLN = self.rotary[:, positions_BL]
        rotary = (cos_BLN[:, None], sin_BLN[:, None])
        for index, layer in enumerate(self.layers):
            x_BLD = layer(x_BLD, rotary, mask_BLS, cache, columns_L, index)
        return self.norm(x_BLD)

    def head(self, hidden: Tensor) -> Tensor:
        """Logits (..., V) of hidden states (..., D), unnormalised and with the mask token still in them."""
        weight = self.embed_tokens.weight if self.lm_head is None else self.lm_head.weight
        return product(hidden, weight)

    def forward(self, tokens_BL: Tensor, valid_BL: Tensor | None = None, response_start: int = 0) -> Tensor:
        """Logits (B, L, V) of whole rows without a cache, each position seeing what the objective lets it see.

        `valid_BL` is False at padding (default: no padding); `response_start` is the column where responses begin.
        For `autoregressive` the logits at position i are those of token i + 1, otherwise of token i itself.
        """
        if valid_BL is None:
            valid_BL = torch.ones_like(tokens_BL, dtype=torch.bool)
        blocks_BL = block_indices(self.config, valid_BL, response_start)
        hidden_BLD = self.hidden(tokens_BL, logical_positions(valid_BL), visible(blocks_BL, blocks_BL))
        return self.head(hidden_BLD)

    def step(
        self, tokens_BL: Tensor, positions_BL: Tensor, blocks_BL: Tensor, columns_L: Tensor, cache: KVCache
    ) -> Tensor:
        """One cached pass: writes L new columns, sees what stands in the cache, returns hidden states (B, L, D).

        Prefill, a denoising pass over a block, storing a finished block and decoding one token are all this call.
        """
        cache.blocks_BS.index_copy_(1, columns_L, blocks_BL)
        mask_BLS = visible(blocks_BL, cache.blocks_BS)
        return self.hidden(tokens_BL, positions_BL, mask_BLS, cache=cache, columns_L=columns_L)

    @property
    def num_parameters(self) -> int:
        """Trainable parameters, a tied head counted once."""
        return sum(parameter.numel() for parameter in self.parameters())

    @property
    def device(self) -> torch.device:
        return self.embed_tokens.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embed_tokens.weight.dtype

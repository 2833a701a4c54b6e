"""A plain compiled autoregressive loop in the manner of gpt-fast, for the bench: what our decoder has to be as fast as.

One row without padding, a static cache, one compiled step that takes a token and its position and returns logits,
joined query, key and value weights, torch's attention, arg max outside. Weights are taken from our trunk.
Shapes: L positions, S cache columns, H heads, K KV heads, N head width, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._inductor import config as inductor

from mdlm.cpu import compile_static
from mdlm.transformer import Layer, Transformer, rotate


def _linear(*weights: Tensor) -> nn.Linear:
    joined = torch.cat([weight.detach() for weight in weights])
    made = nn.Linear(joined.shape[1], joined.shape[0], bias=False, device="meta")
    made.weight = nn.Parameter(joined, requires_grad=False)
    return made


class _Block(nn.Module):
    k_cache: Tensor
    v_cache: Tensor

    def __init__(self, layer: Layer, heads: int, kv_heads: int, head_dim: int, columns: int) -> None:
        super().__init__()
        attention, mlp = layer.self_attn, layer.mlp
        self.sizes = [heads * head_dim, kv_heads * head_dim, kv_heads * head_dim]
        self.head_dim, self.grouped = head_dim, heads != kv_heads
        self.wqkv = _linear(attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight)
        self.wo, self.w2 = _linear(attention.o_proj.weight), _linear(mlp.down_proj.weight)
        self.w1, self.w3 = _linear(mlp.gate_proj.weight), _linear(mlp.up_proj.weight)
        self.norms: list[nn.Module] = [attention.q_norm, attention.k_norm]  # the trunk's own, not registered again
        self.attention_norm, self.ffn_norm = layer.input_layernorm, layer.post_attention_layernorm
        weight = self.wo.weight
        for name in ("k_cache", "v_cache"):
            empty = torch.zeros(1, kv_heads, columns, head_dim, dtype=weight.dtype, device=weight.device)
            self.register_buffer(name, empty)

    def forward(self, x_1LD: Tensor, positions_L: Tensor, rotary: tuple[Tensor, Tensor], mask_LS: Tensor) -> Tensor:
        length = x_1LD.shape[1]
        parts = self.wqkv(self.attention_norm(x_1LD)).split(self.sizes, dim=-1)
        q, k, v = (part.view(1, length, -1, self.head_dim) for part in parts)
        q, k = (rotate(norm(part).transpose(1, 2), rotary) for part, norm in zip((q, k), self.norms, strict=True))
        self.k_cache[:, :, positions_L] = k
        self.v_cache[:, :, positions_L] = v.transpose(1, 2)
        seen = F.scaled_dot_product_attention(
            q, self.k_cache, self.v_cache, attn_mask=mask_LS[None, None], enable_gqa=self.grouped
        )
        x_1LD = x_1LD + self.wo(seen.transpose(1, 2).reshape(1, length, -1))
        hidden = self.ffn_norm(x_1LD)
        return x_1LD + self.w2(F.silu(self.w1(hidden)) * self.w3(hidden))


class PlainDecoder(nn.Module):
    """An autoregressive trunk of ours, rebuilt as such a loop."""

    def __init__(self, model: Transformer, columns: int, *, compiled: bool, frozen: bool = False) -> None:
        super().__init__()
        config = model.config
        self.embedding = model.embed_tokens
        heads = (config.heads, config.kv_heads, config.head_dim)
        self.blocks = nn.ModuleList(_Block(cast(Layer, layer), *heads, columns) for layer in model.layers)
        self.norm = model.norm
        self.output = _linear(model.embed_tokens.weight if model.lm_head is None else model.lm_head.weight)
        self.rotary = model.rotary
        self.mask_SS = torch.ones(columns, columns, dtype=torch.bool, device=model.device).tril()
        self.frozen = frozen
        self.one: Callable[..., Tensor] = self.logits
        if compiled:
            # Two functions: the compiler would take the one it has for the other, whose weights are no constants.
            one = self._frozen_logits if frozen else self._logits
            self.one = compile_static(one, fullgraph=True)

    def logits(self, tokens_1L: Tensor, positions_L: Tensor) -> Tensor:
        """Logits (V,) behind the last of some tokens."""
        x_1LD, mask_LS = self.embedding(tokens_1L), self.mask_SS[positions_L]
        cos_LN, sin_LN = self.rotary[:, positions_L]
        for block in self.blocks:
            x_1LD = block(x_1LD, positions_L, (cos_LN, sin_LN), mask_LS)
        return self.output(self.norm(x_1LD)[0, -1])

    def _logits(self, tokens_1L: Tensor, positions_L: Tensor) -> Tensor:
        return self.logits(tokens_1L, positions_L)

    def _frozen_logits(self, tokens_1L: Tensor, positions_L: Tensor) -> Tensor:
        return self.logits(tokens_1L, positions_L)

    @torch.no_grad()
    def generate(self, prompt: list[int], new_tokens: int) -> list[int]:
        """Greedy continuation, `new_tokens` ids."""
        device = self.output.weight.device
        made = torch.tensor([prompt], device=device)
        positions_L = torch.arange(len(prompt), device=device)
        with inductor.patch(freezing=True) if self.frozen else nullcontext():
            token = self.logits(made, positions_L).argmax()
            answer, position_1 = [token], positions_L[-1:] + 1
            for _ in range(new_tokens - 1):
                token = self.one(token.view(1, 1), position_1).argmax()
                answer.append(token)
                position_1 = position_1 + 1
        return torch.stack(answer).tolist()

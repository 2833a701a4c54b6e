"""Which position may see which, and the static key/value cache.

One rule serves all three objectives. Every position carries a *block index*, and position i sees position j when
j is not padding and `block(j) <= block(i)`:

    autoregressive      every position is its own block: causal
    masked_diffusion    all positions share one block: bidirectional
    block_diffusion     the prompt is block 0 and the response's blocks are 1, 2, ...: causal over blocks

Shapes: B rows, L positions (queries), S positions (keys), K KV heads, N head width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mdlm.config import ModelConfig
from mdlm.narrow import attend_one, compiled_for_cpu

PADDING_BLOCK = torch.iinfo(torch.int32).max
"""Block index of padding: later than every real block, so that no real position sees it."""


def logical_positions(valid_BL: Tensor) -> Tensor:
    """Positions counted from each row's first real token, (B, L) int64; padding gets 0.

    `valid_BL` is True at real tokens. Left padding therefore never moves a token's position.
    """
    return (valid_BL.long().cumsum(-1) - 1).clamp(min=0)


def block_of(columns_L: Tensor, block_length: int, blocks: int) -> Tensor:
    """columns // block_length for columns below blocks * block_length, −1 for columns below 0. (L,) int64.

    By counting borders, not by dividing: torch 2.13's compiler for CPUs splits a loop at an integer division and loses
    what is left over when the length is not a multiple, so a compiled step would read memory nobody wrote.
    """
    borders_J = block_length * torch.arange(blocks, device=columns_L.device)
    return (columns_L[:, None] >= borders_J).sum(-1) - 1


def block_indices(config: ModelConfig, valid_BL: Tensor, response_start: int) -> Tensor:
    """The block index of every position, (B, L) int32; padding gets `PADDING_BLOCK`.

    `response_start` is the column at which every row's response begins (prompts are padded on the left). Response
    blocks count from there, so that no other row and no padding can move a block's border.
    """
    length = valid_BL.shape[1]
    columns_L = torch.arange(length, device=valid_BL.device)
    if config.objective == "masked_diffusion":
        blocks_L = torch.zeros_like(columns_L)
    elif config.objective == "autoregressive":
        blocks_L = columns_L
    else:
        blocks = -(-(length - response_start) // config.block_length)
        response_L = block_of(columns_L - response_start, config.block_length, blocks) + 1
        # A causal prompt takes the indices below 1, one for each position.
        prompt_L = columns_L - response_start + 1 if config.causal_prompt else torch.zeros_like(columns_L)
        blocks_L = torch.where(columns_L < response_start, prompt_L, response_L)
    return torch.where(valid_BL, blocks_L.int(), PADDING_BLOCK)


def visible(query_blocks_BL: Tensor, key_blocks_BS: Tensor) -> Tensor:
    """The attention mask of the rule above, (B, 1, L, S) bool, True where a query may see a key.

    A padding query sees every position: its output is never used, and an empty row would be NaN in the softmax.
    """
    return key_blocks_BS[:, None, None, :] <= query_blocks_BL[:, None, :, None]


def attend(q_BHLN: Tensor, k_BKSN: Tensor, v_BKSN: Tensor, mask_BLS: Tensor | None) -> Tensor:
    """Scaled dot-product attention (1706.03762, eq. 1), (B, H, L, N).

    torch's kernel, with two exceptions on a CPU. In training its backward pass takes two to three times as long as
    plain matrix products, whose scores fit into the cache at the lengths one trains there. A single query position of
    a compiled step goes by `narrow.attend_one`.
    """
    rows, heads, length, width = q_BHLN.shape
    if length == 1 and compiled_for_cpu(q_BHLN):
        return attend_one(q_BHLN, k_BKSN, v_BKSN, mask_BLS)
    if q_BHLN.is_cuda or not torch.is_grad_enabled():
        grouped = heads != k_BKSN.shape[1]
        return F.scaled_dot_product_attention(q_BHLN, k_BKSN, v_BKSN, attn_mask=mask_BLS, enable_gqa=grouped)
    k_BHSN = k_BKSN.repeat_interleave(heads // k_BKSN.shape[1], dim=1)
    v_BHSN = v_BKSN.repeat_interleave(heads // v_BKSN.shape[1], dim=1)
    scores = torch.bmm(q_BHLN.reshape(-1, length, width), k_BHSN.reshape(rows * heads, -1, width).mT)
    scores_BHLS = scores.view(rows, heads, length, -1) * width**-0.5
    if mask_BLS is not None:
        scores_BHLS = scores_BHLS.masked_fill(~mask_BLS, -torch.inf)
    weights_BHLS = torch.softmax(scores_BHLS, dim=-1, dtype=torch.float32).to(v_BHSN.dtype)
    values = torch.bmm(weights_BHLS.view(rows * heads, length, -1), v_BHSN.reshape(rows * heads, -1, width))
    return values.view(q_BHLN.shape)


def side_by_side(blocks_BL: Tensor, response_start: int, copies: int = 1) -> Tensor:
    """The mask that trains all blocks in one pass: the clean row, then noisy copies of its response.

    Returns (B, 1, L + copies * R, L + copies * R) bool, R the response's columns. Clean positions see clean blocks up
    to their own; noisy positions see their own block in their own copy and all earlier blocks' clean one. BD3-LM
    (2503.09573), with the noisy copy of the prompt left out, since a prompt is never corrupted.
    """
    response_BR = blocks_BL[:, response_start:]
    noisy_BR = response_BR.repeat(1, copies)
    copy_R = torch.arange(copies, device=blocks_BL.device).repeat_interleave(response_BR.shape[1])
    clean_to_clean = visible(blocks_BL, blocks_BL)
    clean_to_noisy = torch.zeros_like(clean_to_clean[..., :1]).expand(-1, -1, -1, noisy_BR.shape[1])
    noisy_to_clean = blocks_BL[:, None, None, :] < noisy_BR[:, None, :, None]
    noisy_to_noisy = noisy_BR[:, None, None, :] == noisy_BR[:, None, :, None]
    noisy_to_noisy = noisy_to_noisy & (copy_R == copy_R[:, None])
    clean = torch.cat([clean_to_clean, clean_to_noisy], dim=-1)
    return torch.cat([clean, torch.cat([noisy_to_clean, noisy_to_noisy], dim=-1)], dim=-2)


class KVCache:
    """Keys and values of the positions seen so far, one preallocated buffer a layer. An exact cache.

    A position is visible once its column holds a block index other than `PADDING_BLOCK`, and then only to blocks not
    earlier than its own. Writing a column again replaces what stood there, so a block under denoising may be written
    at every pass and leaves nothing behind.
    """

    exact = True

    def __init__(
        self, config: ModelConfig, rows: int, columns: int, *, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> None:
        shape = (rows, config.kv_heads, columns, config.head_dim)
        self.keys_BKSN = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.layers)]
        self.values_BKSN = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.layers)]
        self.blocks_BS = torch.full((rows, columns), PADDING_BLOCK, dtype=torch.int32, device=device)

    @property
    def columns(self) -> int:
        """How many positions of a row the cache can hold."""
        return self.blocks_BS.shape[1]

    def write(self, layer: int, columns_L: Tensor, keys_BKLN: Tensor, values_BKLN: Tensor) -> tuple[Tensor, Tensor]:
        """Stores one layer's keys and values at `columns_L` and returns that layer's whole buffers.

        Columns may also be (B, L), each row's own.
        """
        keys_BKSN, values_BKSN = self.keys_BKSN[layer], self.values_BKSN[layer]
        if columns_L.ndim == 2:
            where_BKLN = columns_L[:, None, :, None].expand(keys_BKLN.shape)
            keys_BKSN.scatter_(2, where_BKLN, keys_BKLN)
            values_BKSN.scatter_(2, where_BKLN, values_BKLN)
            return keys_BKSN, values_BKSN
        keys_BKSN.index_copy_(2, columns_L, keys_BKLN)
        values_BKSN.index_copy_(2, columns_L, values_BKLN)
        return keys_BKSN, values_BKSN

    def keep_rows(self, rows: Tensor) -> None:
        """Drops all rows but `rows` (indices), in that order."""
        self.keys_BKSN = [buffer[rows] for buffer in self.keys_BKSN]
        self.values_BKSN = [buffer[rows] for buffer in self.values_BKSN]
        self.blocks_BS = self.blocks_BS[rows]

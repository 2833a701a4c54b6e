"""Compiled passes of the decoders, each compiled once for the whole process.

On a CPU the compiler packs the weights for its matrix kernels when it compiles a pass, instead of at every call: 1.3
times as fast at 16 positions, for a second copy of the weights. A pass is then bound to the model it was compiled for.
Products of few positions in bfloat16 are compiled along with the rest of the pass: what a call of the matrix library
costs is most of such a product, and without it a pass of a block is twice as fast (`docs/log.md`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch._inductor import config as inductor

from mdlm.cpu import compile_static
from mdlm.transformer import Transformer

FEW = 128
"""Positions of a pass up to which compiled products beat the matrix library's."""

_compiled: dict[Callable, Callable] = {}
_packed: WeakKeyDictionary[Transformer, list[tuple[int, int]]] = WeakKeyDictionary()
"""The weights that passes were compiled with: address and version of each."""


def maybe_compiled(function: Callable, compiled: bool, model: Any = None) -> Callable:
    """The function, or its compiled form.

    `model` is what a pass reads: the function's first argument, tokens the second. A `Transformer` on a CPU is packed;
    a pass of a single position needs no packed weights, see `mdlm.narrow`.
    """
    if not compiled:
        return function
    if function not in _compiled:
        _compiled[function] = compile_static(function)
    plain = _compiled[function]
    if not isinstance(model, Transformer) or model.device.type != "cpu":
        return plain
    weights = [(weight.data_ptr(), weight._version) for weight in model.parameters()]
    if _packed.setdefault(model, weights) != weights:
        # Somebody trained it further, or loaded other weights: what was compiled knows the old ones.
        torch.compiler.reset()
        _packed.clear()
        _packed[model] = weights

    def packed(model: Transformer, tokens: Tensor, *arguments: Any) -> Any:
        if tokens.numel() == 1:
            return plain(model, tokens, *arguments)
        few = tokens.numel() <= FEW and model.dtype == torch.bfloat16
        # Read while a pass compiles, at the first call of each shape.
        with inductor.patch(
            freezing=True, max_autotune_gemm=few, max_autotune_gemm_backends="CPP" if few else "ATEN,CPP"
        ):
            return plain(model, tokens, *arguments)

    return packed

"""Linear layers: column-parallel and plain ones (`linear`), row-parallel ones with their reduction (`linear_row`).

Weights stay as they were loaded, [N, K]: what vLLM packs away at load time for its own kernels is not packed, so that
a reload, tied weights and checksums read plain parameters.
"""

from __future__ import annotations

from typing import Any

import torch

from logdiff_kernels import ops
from logdiff_kernels.align import AlignSpec
from logdiff_kernels.contract.linear import rank_leaves
from logdiff_kernels.engines.vllm.align import collectives
from logdiff_kernels.engines.vllm.align.patches import Patches

OPERATOR = "logdiff_operator"
"""Attribute of an aligned layer: the contract's operator that it runs, set when its weights have been loaded."""


def apply(patches: Patches, spec: AlignSpec) -> None:
    """Replace the unquantised linear method, row-parallel layers and router gates, as far as `spec` names them."""
    from vllm.model_executor.layers.fused_moe.router.gate_linear import GateLinear
    from vllm.model_executor.layers.linear import RowParallelLinear, UnquantizedLinearMethod

    def method(stock: Any) -> Any:
        def apply(self: Any, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
            kind = getattr(layer, OPERATOR, None)
            if kind is None:
                output: torch.Tensor = stock(self, layer, x, bias)
                return output
            if kind == "router":
                return _router_logits(layer, x, bias)
            return ops.linear(x, layer.weight, bias)

        return apply

    def process(stock: Any) -> Any:
        def process_weights_after_loading(self: Any, layer: Any) -> None:
            kind = operator_of(layer)
            if kind not in spec:
                stock(self, layer)
            elif getattr(layer, OPERATOR, None) is None:
                setattr(layer, OPERATOR, kind)

        return process_weights_after_loading

    def row(self: Any, input_: torch.Tensor) -> Any:
        part = input_ if self.input_is_parallel or self.tp_size == 1 else _own_columns(self, input_)
        bias = None if self.skip_bias_add else self.bias
        output = row_product(part, self.weight, bias, self.tp_size, self.input_size)
        if not self.return_bias:
            return output
        return output, (self.bias if self.skip_bias_add else None)

    def gate(self: Any, x: torch.Tensor) -> Any:
        logits = _router_logits(self, x, None if self.skip_bias_add else self.bias)
        if not self.return_bias:
            return logits
        return logits, (self.bias if self.skip_bias_add else None)

    if {"linear", "linear_row", "router"} & spec.ops:
        patches.wrap(UnquantizedLinearMethod, "apply", method)
        patches.wrap(UnquantizedLinearMethod, "process_weights_after_loading", process)
    if "linear_row" in spec:
        patches.replace(RowParallelLinear, "forward", row)
    if "router" in spec:
        patches.replace(GateLinear, "forward", gate)


def operator_of(layer: Any) -> str:
    """The contract's operator for a layer that the unquantised linear method serves."""
    from vllm.model_executor.layers.fused_moe.router.gate_linear import GateLinear
    from vllm.model_executor.layers.linear import RowParallelLinear
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    if isinstance(layer, RowParallelLinear):
        return "linear_row"
    if isinstance(layer, VocabParallelEmbedding):
        return "lm_head"
    return "router" if isinstance(layer, GateLinear) else "linear"


def row_product(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, size: int, inputs: int
) -> torch.Tensor:
    """`linear_row` over `size` tensor-parallel ranks: each holds `inputs / size` columns of x [..., K] and weight.

    Returns:
        [..., N] in x's dtype, the same bits on every rank and for every `size`.

    Raises:
        UnsupportedError: a `size` that doesn't divide the contract's leaves.
    """
    if size == 1:
        return ops.linear_row(x, weight, bias)
    partial = ops.linear_row_partial(x, weight, rank_leaves(inputs, size))
    return ops.tree_combine(collectives.gathered(partial), bias, x.dtype)


def _own_columns(layer: Any, x: torch.Tensor) -> torch.Tensor:
    width = x.shape[-1] // layer.tp_size
    return x.narrow(-1, layer.tp_rank * width, width)


def _router_logits(layer: Any, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return ops.linear(x.to(layer.weight.dtype), layer.weight, bias, out_dtype=torch.float32)

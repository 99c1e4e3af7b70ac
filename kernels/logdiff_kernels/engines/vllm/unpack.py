"""The weights that vLLM's kernels read, brought back from packed memory.

On CPUs vLLM hands a linear weight to oneDNN or another packing library and leaves a parameter of shape (0,) behind.
The only reader of that memory is the kernel itself, so it is asked: rows of the identity through the layer's own
`quant_method.apply` give the columns of the weight, exactly (each output element is 1 * w plus zeros).

Fused expert weights are packed by a pure permutation of elements. Packing the numbers 0, 1, 2, ... with the engine's
own operator gives that permutation for any instruction set; its inverse unpacks the memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from logdiff_kernels.engines.vllm import align
from logdiff_kernels.engines.vllm.linear_parts import weight_shape

BLOCK_BYTES = 64 << 20
"""Bound on the output of one identity block."""


def weight_columns(layer: Any) -> Iterator[tuple[int, torch.Tensor]]:
    """Column blocks (first column, values [rows, columns]) of a linear or embedding layer's weight, as kernels read it.

    Args:
        layer: a vLLM linear layer, language-model head or embedding without quantisation.
    """
    if not is_packed(layer):
        yield 0, layer.weight.data
        return
    rows, columns = weight_shape(layer)
    dtype = getattr(layer, "params_dtype", None) or layer.weight.dtype
    step = max(1, min(columns, BLOCK_BYTES // (rows * dtype.itemsize)))
    for start in range(0, columns, step):
        count = min(step, columns - start)
        identity = torch.zeros(count, columns, dtype=dtype)
        identity[torch.arange(count), torch.arange(start, start + count)] = 1
        with torch.no_grad():
            yield start, layer.quant_method.apply(layer, identity, None).to(dtype).t()


def is_packed(layer: Any) -> bool:
    """Whether the layer's kernel may read other memory than the parameter (vLLM's CPU backend)."""
    return getattr(layer, "cpu_linear", None) is not None


def expert_weights(experts: Any) -> Iterator[tuple[int, torch.Tensor, torch.Tensor, bool]]:
    """The weights of every local expert, as kernels read them, without padding.

    Args:
        experts: a vLLM `RoutedExperts` without quantisation.

    Yields:
        (local index, w13 [gate and up rows, hidden], w2 [hidden, intermediate], whether they were unpacked).

    Raises:
        ValueError: a packing that is no permutation of elements.
    """
    w13, w2 = experts.w13_weight.data, experts.w2_weight.data
    kernel = packing_kernel(experts)
    if kernel is None:
        for index in range(len(w13)):
            yield index, w13[index], w2[index], False
        return
    size = int(experts.moe_config.intermediate_size_per_partition)
    padded = int(kernel._padded_intermediate_size(experts.moe_config))
    order13, order2 = _packed_order(w13, kernel.isa), _packed_order(w2, kernel.isa)
    for index in range(len(w13)):
        first, second = _unpacked(w13[index], order13), _unpacked(w2[index], order2)
        if padded != size:
            first = torch.cat((first[:size], first[padded : padded + size]))
            second = second[:, :size]
        yield index, first, second, True


def packing_kernel(experts: Any) -> Any | None:
    """The packing kernel of vLLM's CPU backend that owns these experts, or None where the parameters are read."""
    spec = align.active()
    if spec is not None and "moe" in spec:
        return None
    try:
        from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts
    except ImportError:
        return None
    kernel = getattr(getattr(experts.quant_method, "moe_kernel", None), "fused_experts", None)
    if not isinstance(kernel, CPUUnquantizedExperts) or kernel._use_zentorch:
        return None
    return kernel


def _packed_order(weight: torch.Tensor, isa: str) -> torch.Tensor:
    """int64 [rows * columns]: the row-major index of the element that stands at each place of one packed expert.

    Raises:
        ValueError: the operator does not only move elements.
    """
    from vllm._custom_ops import cpu_prepack_moe_weight

    count = weight[0].numel()
    indices = torch.arange(count, dtype=torch.int64)
    order = torch.zeros(count, dtype=torch.int64)
    # 8 bits at a time: integers up to 255 are exact in every weight dtype.
    for shift in range(0, max(1, (count - 1).bit_length()), 8):
        digits = ((indices >> shift) & 0xFF).to(weight.dtype).reshape(1, *weight.shape[1:])
        packed = cpu_prepack_moe_weight(digits.contiguous(), isa)
        order |= packed.reshape(-1).to(torch.int64) << shift
    if not torch.equal(order.sort().values, indices):
        raise ValueError(f"the expert packing for {isa!r} is no permutation of elements")
    return order


def _unpacked(packed: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    flat = torch.empty(packed.numel(), dtype=packed.dtype)
    flat[order] = packed.reshape(-1)
    return flat.reshape(packed.shape)

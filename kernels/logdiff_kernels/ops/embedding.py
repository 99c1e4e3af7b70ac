"""Token embedding: rows of the table, times the model's embedding scale as Hugging Face rounds it.

Gradient of the table: per id the fp32 sum over its tokens in batch order from +0, times the scale, one cast.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from logdiff_kernels.cpu import embedding as cpu
from logdiff_kernels.errors import InputError, UnsupportedError
from logdiff_kernels.ops.definition import define
from logdiff_kernels.ops.devices import Kernels
from logdiff_kernels.ops.direct import direct, plain

_kernels = Kernels(cpu)


def embedding(
    ids: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor | float | None = None,
    padding_idx: int | None = None,
) -> torch.Tensor:
    """Rows of weight [V, n] for integer ids [...]: [..., n] of the weight's dtype.

    Args:
        ids: any integer dtype, any shape.
        weight: bf16, fp16 or fp32, any strides.
        scale: rounded to the weight's dtype first, then one product with one rounding; None for none.
        padding_idx: row whose gradient is 0.

    Raises:
        IndexError: an id outside [0, V).
        UnsupportedError: another device or dtype.
    """
    factor = None
    if scale is not None:
        factor = float(torch.as_tensor(scale).detach().to(weight.dtype))
    padding = -1 if padding_idx is None else padding_idx
    if direct(ids, weight):
        return _embedding(ids, weight, factor)
    return torch.ops.logdiff.embedding(ids, weight, factor, padding)  # type: ignore[no-any-return]


def _embedding(ids: torch.Tensor, weight: torch.Tensor, scale: float | None) -> torch.Tensor:
    if not plain(weight) or ids.is_cpu != weight.is_cpu:
        raise UnsupportedError(
            f"aligned embedding: weight is {weight.dtype} on {weight.device}, ids are on {ids.device}",
            value=str(weight.dtype),
            hint="bfloat16, float16 or float32, all on the CPU or all on an NPU",
        )
    if weight.dim() != 2 or ids.is_floating_point() or ids.dtype == torch.bool:
        raise InputError("aligned embedding: ids are integers, weight is [V, n]", value=tuple(weight.shape))
    flat = ids.reshape(math.prod(ids.shape)).to(torch.int64)
    rows: torch.Tensor = _kernels.of(weight).embedding(flat, weight, scale)
    return rows.view(*ids.shape, weight.shape[1])


def _grad(
    grad: torch.Tensor, ids: torch.Tensor, vocab: int, scale: float | None, padding_idx: int, dtype: torch.dtype
) -> torch.Tensor:
    flat = ids.reshape(math.prod(ids.shape)).to(torch.int64)
    rows = grad.reshape(flat.shape[0], grad.shape[-1])
    out: torch.Tensor = _kernels.of(rows).embedding_backward(rows, flat, vocab, scale, dtype)
    if padding_idx >= 0:
        out[padding_idx] = 0
    return out


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ids, weight, ctx.scale, ctx.padding_idx = inputs
    ctx.save_for_backward(ids)
    ctx.vocab, ctx.dtype = weight.shape[0], weight.dtype


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    (ids,) = ctx.saved_tensors
    out = torch.ops.logdiff.embedding_grad(grad, ids, ctx.vocab, ctx.scale, ctx.padding_idx, ctx.dtype)
    return None, out, None, None


define(
    "embedding(Tensor ids, Tensor weight, float? scale=None, int padding_idx=-1) -> Tensor",
    lambda ids, weight, scale=None, padding_idx=-1: _embedding(ids, weight, scale),
    lambda ids, weight, scale=None, padding_idx=-1: weight.new_empty((*ids.shape, weight.shape[1])),
    _save,
    _backward,
)
define(
    "embedding_grad(Tensor grad, Tensor ids, SymInt vocab, float? scale, int padding_idx, ScalarType dtype) -> Tensor",
    _grad,
    lambda grad, ids, vocab, scale, padding_idx, dtype: grad.new_empty((vocab, grad.shape[-1]), dtype=dtype),
)

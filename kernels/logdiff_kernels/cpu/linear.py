"""Matrix products of the CPU backend: thin calls on tensors whose shapes and dtypes the caller has checked."""

from __future__ import annotations

from ctypes import c_float, c_int32, c_int64, c_void_p
from functools import cache
from typing import Any

import torch

from logdiff_kernels.contract import STEP
from logdiff_kernels.cpu.library import DTYPE_CODES, check, function

SINGLE, TREE, BLOCKS = 0, 1, 2

_P, _L, _I = c_void_p, c_int64, c_int32
_OPERAND = [_P, _I, _L, _L]
_SIGNATURES: dict[str, list[Any]] = {
    "ld_matmul": [_L, _L, _L, *_OPERAND, *_OPERAND, _P, _I, _P, _I, _L, _I, _L],
    "ld_grouped_matmul": [
        *(_L, _P, _L, _L, *_OPERAND),
        *(_P, _I, _L, _L, _L),
        *(_P, _I, _L, _P, _I, _L, _I, _L),
    ],
    "ld_grouped_outer": [_L, _P, _L, _L, _P, _I, _L, _P, _I, _L, _P, _I, _L, _L, _L],
    "ld_grouped_row_sum": [_L, _P, _L, _P, _I, _L, _P, _I, _L, _L],
    "ld_tree_combine": [_L, _L, _L, _P, _L, _L, _P, _I, _P, _I],
    "ld_scale_cap": [_P, _L, c_float, c_float],
}


@cache
def _call(name: str) -> Any:
    return function(name, _SIGNATURES[name])


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
    plan: int = SINGLE,
    count: int = 1,
) -> torch.Tensor:
    """a [M,K] times b [N,K] transposed, + bias [N] in fp32, one cast to `dtype`: [M,N]. Any strides."""
    m, k = a.shape
    n = b.shape[0]
    a_strides, b_strides = a.stride(), b.stride()
    out = torch.empty(m, n, dtype=dtype)
    bias_at, bias_code = None, 0
    if bias is not None:
        if bias.stride(0) != 1:
            bias = bias.contiguous()
        bias_at, bias_code = bias.data_ptr(), DTYPE_CODES[bias.dtype]
    status = _call("ld_matmul")(
        *(m, n, k),
        *(a.data_ptr(), DTYPE_CODES[a.dtype], *a_strides),
        *(b.data_ptr(), DTYPE_CODES[b.dtype], *b_strides),
        *(bias_at, bias_code, out.data_ptr(), DTYPE_CODES[dtype], n),
        *(plan, count),
    )
    if status:
        check("ld_matmul", status)
    return out


def grouped_matmul(
    a: torch.Tensor,
    offsets: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
    plan: int = SINGLE,
    count: int = 1,
) -> torch.Tensor:
    """Rows offsets[e] .. offsets[e+1] of a [R,K] times b[e] of [E,N,K] transposed, + bias[e] of [E,N]: [R,N]."""
    rows, k = a.shape
    groups, n = b.shape[0], b.shape[1]
    out = torch.empty((rows, n), dtype=dtype)
    if bias is not None and bias.stride(1) != 1:
        bias = bias.contiguous()
    status = _call("ld_grouped_matmul")(
        groups,
        offsets.data_ptr(),
        n,
        k,
        a.data_ptr(),
        DTYPE_CODES[a.dtype],
        a.stride(0),
        a.stride(1),
        b.data_ptr(),
        DTYPE_CODES[b.dtype],
        b.stride(0),
        b.stride(1),
        b.stride(2),
        None if bias is None else bias.data_ptr(),
        0 if bias is None else DTYPE_CODES[bias.dtype],
        0 if bias is None else bias.stride(0),
        out.data_ptr(),
        DTYPE_CODES[dtype],
        n,
        plan,
        count,
    )
    if status:
        check("ld_grouped_matmul", status)
    return out


def grouped_outer(grad: torch.Tensor, x: torch.Tensor, offsets: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Weight gradients [E,N,K]: per group the sum over its rows of grad [R,N] times x [R,K], by 512-row blocks."""
    grad = grad if grad.stride(1) == 1 else grad.contiguous()
    x = x if x.stride(1) == 1 else x.contiguous()
    groups, n, k = offsets.shape[0] - 1, grad.shape[1], x.shape[1]
    out = torch.empty((groups, n, k), dtype=dtype)
    status = _call("ld_grouped_outer")(
        groups,
        offsets.data_ptr(),
        n,
        k,
        grad.data_ptr(),
        DTYPE_CODES[grad.dtype],
        grad.stride(0),
        x.data_ptr(),
        DTYPE_CODES[x.dtype],
        x.stride(0),
        out.data_ptr(),
        DTYPE_CODES[dtype],
        n * k,
        k,
        STEP,
    )
    if status:
        check("ld_grouped_outer", status)
    return out


def grouped_row_sum(grad: torch.Tensor, offsets: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Bias gradients [E,N]: for each group, the sum of its rows of grad [R,N], by 512-row blocks."""
    grad = grad if grad.stride(1) == 1 else grad.contiguous()
    groups, n = offsets.shape[0] - 1, grad.shape[1]
    out = torch.empty((groups, n), dtype=dtype)
    status = _call("ld_grouped_row_sum")(
        groups,
        offsets.data_ptr(),
        n,
        grad.data_ptr(),
        DTYPE_CODES[grad.dtype],
        grad.stride(0),
        out.data_ptr(),
        DTYPE_CODES[dtype],
        n,
        STEP,
    )
    if status:
        check("ld_grouped_row_sum", status)
    return out


def tree_combine(partials: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """T(t) over partials [t,R,N] fp32, + bias [N] in fp32, one cast: [R,N]."""
    if partials.stride(2) != 1:
        partials = partials.contiguous()
    if bias is not None and bias.stride(0) != 1:
        bias = bias.contiguous()
    count, rows, n = partials.shape
    out = torch.empty((rows, n), dtype=dtype)
    status = _call("ld_tree_combine")(
        count,
        rows,
        n,
        partials.data_ptr(),
        partials.stride(0),
        partials.stride(1),
        None if bias is None else bias.data_ptr(),
        0 if bias is None else DTYPE_CODES[bias.dtype],
        out.data_ptr(),
        DTYPE_CODES[dtype],
    )
    if status:
        check("ld_tree_combine", status)
    return out


def scale_cap_(logits: torch.Tensor, scale: float, softcap: float) -> torch.Tensor:
    """In place on contiguous fp32: times `scale` (unless 1), then softcap*tanh1(z/softcap) (unless 0)."""
    status = _call("ld_scale_cap")(logits.data_ptr(), logits.numel(), scale, softcap)
    if status:
        check("ld_scale_cap", status)
    return logits

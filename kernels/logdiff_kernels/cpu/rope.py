"""RoPE of the CPU backend: a thin call on tensors whose shapes and dtypes the caller has checked."""

from __future__ import annotations

from ctypes import c_int32, c_int64, c_void_p
from functools import cache
from typing import Any

from torch import Tensor

from logdiff_kernels.cpu.library import DTYPE_CODES, check, packed
from logdiff_kernels.cpu.rows import new_like


@cache
def _call() -> Any:
    return packed("ld_rope", [*[c_void_p] * 4, *[c_int64] * 8, *[c_int32] * 3])


def rope(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, backward: bool, out: Tensor | None = None) -> Tensor:
    """x [T, H, D] turned by cos and sin [T, R/2]; `out` may be x itself and has a unit stride on D."""
    if x.stride(2) != 1:
        x = x.contiguous()
    if not cos.is_contiguous():
        cos = cos.contiguous()
    if not sin.is_contiguous():
        sin = sin.contiguous()
    if out is None:
        out = new_like(x)
    tokens, heads, dim = x.shape
    status = _call()(
        x.data_ptr(),
        cos.data_ptr(),
        sin.data_ptr(),
        out.data_ptr(),
        tokens,
        heads,
        dim,
        2 * cos.shape[1],
        x.stride(0),
        x.stride(1),
        out.stride(0),
        out.stride(1),
        DTYPE_CODES[x.dtype],
        interleaved,
        backward,
    )
    if status:
        check("ld_rope", status)
    return out

"""RMS norms of the CPU backend: thin calls on tensors whose shapes and dtypes the caller has checked."""

from __future__ import annotations

from ctypes import c_float, c_int32, c_int64, c_void_p
from functools import cache
from typing import Any

import torch
from torch import Tensor

from logdiff_kernels.cpu.library import DTYPE_CODES, check, packed
from logdiff_kernels.cpu.rows import new_like, rows

_P, _L, _I, _R = c_void_p, c_int64, c_int32, c_float
_SIGNATURES: dict[str, list[Any]] = {
    "ld_rms_norm": [_P, _P, _P, _P, *[_L] * 5, _I, _I, _R, _R],
    "ld_add_rms_norm": [*[_P] * 6, *[_L] * 7, _I, _I, _R, _R],
    "ld_rms_norm_backward": [*[_P] * 7, _L, _L, _I, _I, _R],
}


@cache
def _call(name: str) -> Any:
    return packed(name, _SIGNATURES[name])


def _dense(weight: Tensor | None) -> Tensor | None:
    return weight if weight is None or weight.is_contiguous() else weight.contiguous()


def rms_norm(x: Tensor, weight: Tensor | None, eps: float, offset: float, keep: bool) -> tuple[Tensor, Tensor | None]:
    """y [..., n] like x and, if `keep`, rstd fp32 [rows]."""
    weight = _dense(weight)
    y = new_like(x)
    x, d0, d1, s0, s1 = rows(x)
    rstd = torch.empty(d0 * d1, dtype=torch.float32) if keep else None
    status = _call("ld_rms_norm")(
        x.data_ptr(),
        0 if weight is None else weight.data_ptr(),
        y.data_ptr(),
        0 if rstd is None else rstd.data_ptr(),
        d0,
        d1,
        x.shape[-1],
        s0,
        s1,
        DTYPE_CODES[x.dtype],
        0 if weight is None else DTYPE_CODES[weight.dtype],
        eps,
        offset,
    )
    if status:
        check("ld_rms_norm", status)
    return y, rstd


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None, eps: float, offset: float, keep: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """(y, new residual, rstd or None); x and residual have one shape and dtype."""
    weight = _dense(weight)
    y = new_like(x)
    total = new_like(x)
    x, d0, d1, xs0, xs1 = rows(x)
    residual, r0, r1, rs0, rs1 = rows(residual)
    if (d0, d1) != (r0, r1):
        x, d0, d1, xs0, xs1 = rows(x.contiguous())
        residual, r0, r1, rs0, rs1 = rows(residual.contiguous())
    rstd = torch.empty(d0 * d1, dtype=torch.float32) if keep else None
    status = _call("ld_add_rms_norm")(
        x.data_ptr(),
        residual.data_ptr(),
        0 if weight is None else weight.data_ptr(),
        y.data_ptr(),
        total.data_ptr(),
        0 if rstd is None else rstd.data_ptr(),
        d0,
        d1,
        x.shape[-1],
        xs0,
        xs1,
        rs0,
        rs1,
        DTYPE_CODES[x.dtype],
        0 if weight is None else DTYPE_CODES[weight.dtype],
        eps,
        offset,
    )
    if status:
        check("ld_add_rms_norm", status)
    return y, total, rstd


def rms_norm_backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    rstd: Tensor,
    extra: Tensor | None,
    offset: float,
    need_x: bool,
    need_weight: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """(dx like x, dw like the weight), each where needed; `extra` is added to dx in fp32 before the cast."""
    dy, x, weight = dy.contiguous(), x.contiguous(), _dense(weight)
    extra = None if extra is None else extra.contiguous()
    n = x.shape[-1]
    dx = new_like(x) if need_x else None
    dw = torch.empty(n, dtype=torch.float32) if need_weight else None
    status = _call("ld_rms_norm_backward")(
        dy.data_ptr(),
        x.data_ptr(),
        0 if weight is None else weight.data_ptr(),
        rstd.data_ptr(),
        0 if extra is None else extra.data_ptr(),
        0 if dx is None else dx.data_ptr(),
        0 if dw is None else dw.data_ptr(),
        rstd.numel(),
        n,
        DTYPE_CODES[x.dtype],
        0 if weight is None else DTYPE_CODES[weight.dtype],
        offset,
    )
    check("ld_rms_norm_backward", status)
    return dx, None if dw is None or weight is None else dw.to(weight.dtype)

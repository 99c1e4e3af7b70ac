"""Gated activations of the CPU backend: thin calls on tensors whose shapes and dtypes the caller has checked."""

from __future__ import annotations

from ctypes import c_float, c_int32, c_int64, c_void_p
from functools import cache
from typing import Any

import torch
from torch import Tensor

from logdiff_kernels.cpu.library import DTYPE_CODES, check, packed
from logdiff_kernels.cpu.rows import new_like, rows

SWIGLU, GEGLU_TANH, SWIGLU_CLAMPED = 0, 1, 2

_P, _L, _I, _R = c_void_p, c_int64, c_int32, c_float
_SIGNATURES: dict[str, list[Any]] = {
    "ld_glu": [*[_P] * 3, *[_L] * 8, _I, _I, _R, _R],
    "ld_glu_backward": [*[_P] * 5, _L, _I, _I, _R, _R],
}


@cache
def _call(name: str) -> Any:
    return packed(name, _SIGNATURES[name])


def glu(gate: Tensor, up: Tensor, kind: int, alpha: float = 1.0, limit: float = 0.0) -> Tensor:
    """act(gate) * up, contiguous [..., n]; gate and up may be halves of one tensor, also its even and odd elements."""
    n = gate.shape[-1]
    step = d1 = 1
    gs1 = us1 = 0
    if gate.is_contiguous() and up.is_contiguous():
        d0, gs0, us0 = gate.numel() // n if n else 0, n, n
    elif gate.dim() == 2 and gate.stride(1) == up.stride(1) == 2:
        step = 2
        d0, gs0, us0 = gate.shape[0], gate.stride(0), up.stride(0)
    else:
        gate, d0, d1, gs0, gs1 = rows(gate)
        up, u0, u1, us0, us1 = rows(up)
        if (d0, d1) != (u0, u1):
            gate, d0, d1, gs0, gs1 = rows(gate.contiguous())
            up, u0, u1, us0, us1 = rows(up.contiguous())
    y = new_like(gate)
    status = _call("ld_glu")(
        gate.data_ptr(),
        up.data_ptr(),
        y.data_ptr(),
        d0,
        d1,
        n,
        gs0,
        gs1,
        us0,
        us1,
        step,
        DTYPE_CODES[gate.dtype],
        kind,
        alpha,
        limit,
    )
    if status:
        check("ld_glu", status)
    return y


def glu_backward(dy: Tensor, gate: Tensor, up: Tensor, kind: int, alpha: float, limit: float) -> tuple[Tensor, Tensor]:
    """(dgate, dup), contiguous, like gate."""
    dy, gate, up = dy.contiguous(), gate.contiguous(), up.contiguous()
    dgate, dup = torch.empty_like(gate), torch.empty_like(up)
    status = _call("ld_glu_backward")(
        dy.data_ptr(),
        gate.data_ptr(),
        up.data_ptr(),
        dgate.data_ptr(),
        dup.data_ptr(),
        gate.numel(),
        DTYPE_CODES[gate.dtype],
        kind,
        alpha,
        limit,
    )
    check("ld_glu_backward", status)
    return dgate, dup

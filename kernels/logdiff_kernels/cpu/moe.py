"""Rows of a mixture of experts on the CPU backend: sorted by expert, gathered, combined."""

from __future__ import annotations

from ctypes import c_int32, c_int64, c_void_p
from functools import cache
from typing import Any

import torch
from torch import Tensor

from logdiff_kernels.cpu.library import DTYPE_CODES, address, check, packed
from logdiff_kernels.errors import InputError

_P, _L, _I = c_void_p, c_int64, c_int32
_SIGNATURES: dict[str, list[Any]] = {
    "ld_moe_sort": [*[_P] * 5, *[_L] * 3],
    "ld_moe_gather": [*[_P] * 3, *[_L] * 4, _I],
    "ld_moe_combine": [*[_P] * 7, *[_L] * 5, _I, _I],
    "ld_moe_combine_backward": [*[_P] * 6, *[_L] * 4, _I],
}
_DUPLICATE, _NO_SUCH_EXPERT, _NO_SUCH_ROW = -10, -11, -12


@cache
def _call(name: str) -> Any:
    return packed(name, _SIGNATURES[name])


def sort(ids: Tensor, experts: int, logical: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """(offsets [E+1], order [rows], position [T*k]), all int64; rows = slots whose id isn't negative.

    Raises:
        InputError: an expert twice in one token, or one that isn't there.
    """
    ids = ids.contiguous()
    logical = None if logical is None else logical.contiguous()
    tokens, k = ids.shape
    offsets = torch.empty(experts + 1, dtype=torch.int64)
    order = torch.empty(tokens * k, dtype=torch.int64)
    position = torch.empty(tokens * k, dtype=torch.int64)
    status = _call("ld_moe_sort")(
        ids.data_ptr(),
        address(logical),
        offsets.data_ptr(),
        order.data_ptr(),
        position.data_ptr(),
        tokens,
        k,
        experts,
    )
    if status == _DUPLICATE:
        raise InputError("aligned moe: a token has the same expert twice", value=tuple(ids.shape))
    if status == _NO_SUCH_EXPERT:
        raise InputError(f"aligned moe: an expert id beyond the {experts} experts", value=int(ids.max()))
    if status:
        check("ld_moe_sort", status)
    return offsets, order, position


def gather(x: Tensor, order: Tensor, k: int) -> Tensor:
    """x[order // k], rows copied: [rows, H]."""
    if x.stride(1) != 1:
        x = x.contiguous()
    out = torch.empty((order.shape[0], x.shape[1]), dtype=x.dtype)
    status = _call("ld_moe_gather")(
        x.data_ptr(),
        order.data_ptr(),
        out.data_ptr(),
        order.shape[0],
        k,
        x.shape[1],
        x.stride(0),
        DTYPE_CODES[x.dtype],
    )
    if status:
        check("ld_moe_gather", status)
    return out


def combine(
    y: Tensor,
    weights: Tensor | None,
    ids: Tensor,
    position: Tensor,
    logical: Tensor | None,
    shared: Tensor | None,
) -> Tensor:
    """The sum of each token's rows of y [rows, H], lowest logical expert first, shared last: [T, H] like y."""
    y, ids, position = y.contiguous(), ids.contiguous(), position.contiguous()
    logical = None if logical is None else logical.contiguous()
    weights = None if weights is None else weights.contiguous()
    shared = None if shared is None else shared.contiguous()
    out = torch.empty((ids.shape[0], y.shape[1]), dtype=y.dtype)
    status = _call("ld_moe_combine")(
        y.data_ptr(),
        address(weights),
        ids.data_ptr(),
        position.data_ptr(),
        address(logical),
        address(shared),
        out.data_ptr(),
        ids.shape[0],
        ids.shape[1],
        y.shape[1],
        y.shape[0],
        0 if logical is None else logical.shape[0],
        DTYPE_CODES[y.dtype],
        0 if shared is None else DTYPE_CODES[shared.dtype],
    )
    _refuse("ld_moe_combine", status, y)
    return out


def _refuse(name: str, status: int, y: Tensor) -> None:
    if status == _NO_SUCH_ROW:
        raise InputError(f"aligned moe: a position beyond the {y.shape[0]} rows", value=tuple(y.shape))
    if status == _NO_SUCH_EXPERT:
        raise InputError("aligned moe: an id that has no logical expert", value=tuple(y.shape))
    if status:
        check(name, status)


def combine_backward(dout: Tensor, y: Tensor, weights: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
    """(dy like y, dweights fp32 like weights)."""
    dout, y, weights = dout.contiguous(), y.contiguous(), weights.contiguous()
    dy = torch.empty_like(y)
    dweights = torch.empty_like(weights)
    status = _call("ld_moe_combine_backward")(
        dout.data_ptr(),
        y.data_ptr(),
        weights.data_ptr(),
        position.data_ptr(),
        dy.data_ptr(),
        dweights.data_ptr(),
        weights.shape[0],
        weights.shape[1],
        y.shape[1],
        y.shape[0],
        DTYPE_CODES[y.dtype],
    )
    _refuse("ld_moe_combine_backward", status, y)
    return dy, dweights

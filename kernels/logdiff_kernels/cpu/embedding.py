"""Embedding rows of the CPU backend."""

from __future__ import annotations

from ctypes import c_float, c_int32, c_int64, c_void_p
from functools import cache
from typing import Any

import torch

from logdiff_kernels.cpu.library import DTYPE_CODES, check, function

_P, _L, _I = c_void_p, c_int64, c_int32
_SIGNATURES: dict[str, list[Any]] = {
    "ld_embedding": [_L, _L, _L, _P, _P, _I, _L, _I, c_float, _P],
    "ld_embedding_backward": [_L, _P, _P, _P, _L, _P, _I, _L, _I, c_float, _P, _I],
}
_BAD_ID = -2


@cache
def _call(name: str) -> Any:
    return function(name, _SIGNATURES[name])


def embedding(ids: torch.Tensor, weight: torch.Tensor, scale: float | None) -> torch.Tensor:
    """Rows [T,n] of weight [V,n] for ids int64 [T]; times `scale` in fp32 with one cast when it is given.

    Raises:
        IndexError: an id outside [0, V).
    """
    weight = weight if weight.stride(1) == 1 else weight.contiguous()
    ids = ids.contiguous()
    tokens, (vocab, n) = ids.shape[0], weight.shape
    out = torch.empty((tokens, n), dtype=weight.dtype)
    status = _call("ld_embedding")(
        tokens,
        n,
        vocab,
        ids.data_ptr(),
        weight.data_ptr(),
        DTYPE_CODES[weight.dtype],
        weight.stride(0),
        scale is not None,
        1.0 if scale is None else scale,
        out.data_ptr(),
    )
    if status == _BAD_ID:
        raise IndexError(f"token id outside [0, {vocab}): ids span {int(ids.min())} to {int(ids.max())}")
    if status:
        check("ld_embedding", status)
    return out


def embedding_backward(
    grad: torch.Tensor, ids: torch.Tensor, vocab: int, scale: float | None, dtype: torch.dtype
) -> torch.Tensor:
    """Gradient [V,n] of the weight: per id the fp32 sum of grad [T,n] in batch order, times `scale`, one cast."""
    grad = grad if grad.stride(1) == 1 else grad.contiguous()
    n = grad.shape[1]
    out = torch.zeros((vocab, n), dtype=dtype)
    ordered, order = torch.sort(ids, stable=True)
    run_ids, lengths = torch.unique_consecutive(ordered, return_counts=True)
    runs = torch.zeros(run_ids.shape[0] + 1, dtype=torch.int64)
    torch.cumsum(lengths, 0, out=runs[1:])
    status = _call("ld_embedding_backward")(
        run_ids.shape[0],
        runs.data_ptr(),
        run_ids.data_ptr(),
        order.data_ptr(),
        n,
        grad.data_ptr(),
        DTYPE_CODES[grad.dtype],
        grad.stride(0),
        scale is not None,
        1.0 if scale is None else scale,
        out.data_ptr(),
        DTYPE_CODES[dtype],
    )
    if status:
        check("ld_embedding_backward", status)
    return out

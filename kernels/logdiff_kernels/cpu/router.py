"""The router of the CPU backend: thin calls on tensors whose shapes and dtypes the caller has checked."""

from __future__ import annotations

from ctypes import c_float, c_int32, c_int64, c_void_p
from functools import cache
from typing import Any

import torch
from torch import Tensor

from logdiff_kernels.cpu.library import check, packed

SIGMOID, ON_LOGITS, RENORMALIZE, TOP2 = 1, 2, 4, 8

_P, _L, _I, _R = c_void_p, c_int64, c_int32, c_float
_SIGNATURES: dict[str, list[Any]] = {
    "ld_router": [*[_P] * 4, *[_L] * 5, _I, _R, _R],
    "ld_router_backward": [*[_P] * 4, *[_L] * 3, _I, _R, _R],
}


@cache
def _call(name: str) -> Any:
    return packed(name, _SIGNATURES[name])


def router(
    logits: Tensor,
    bias: Tensor | None,
    k: int,
    groups: int,
    topk_groups: int,
    flags: int,
    renorm_eps: float,
    scaling: float,
) -> tuple[Tensor, Tensor]:
    """(weights fp32 [T, k], ids int64 [T, k]) in choice order."""
    logits = logits.contiguous()
    bias = None if bias is None else bias.contiguous()
    tokens, experts = logits.shape
    weights = torch.empty((tokens, k), dtype=torch.float32)
    ids = torch.empty((tokens, k), dtype=torch.int64)
    status = _call("ld_router")(
        logits.data_ptr(),
        0 if bias is None else bias.data_ptr(),
        weights.data_ptr(),
        ids.data_ptr(),
        tokens,
        experts,
        k,
        groups,
        topk_groups,
        flags,
        renorm_eps,
        scaling,
    )
    if status:
        check("ld_router", status)
    return weights, ids


def router_backward(
    dweights: Tensor, logits: Tensor, ids: Tensor, flags: int, renorm_eps: float, scaling: float
) -> Tensor:
    """The gradient of the logits, fp32 [T, E]."""
    dweights, logits, ids = dweights.contiguous(), logits.contiguous(), ids.contiguous()
    out = torch.empty(logits.shape, dtype=torch.float32)
    status = _call("ld_router_backward")(
        logits.data_ptr(),
        ids.data_ptr(),
        dweights.data_ptr(),
        out.data_ptr(),
        logits.shape[0],
        logits.shape[1],
        ids.shape[1],
        flags,
        renorm_eps,
        scaling,
    )
    check("ld_router_backward", status)
    return out

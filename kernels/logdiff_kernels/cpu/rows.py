"""Rows of a tensor as the C kernels read them: two leading dimensions of any stride, elements side by side."""

from __future__ import annotations

from torch import Tensor

Rows = tuple[Tensor, int, int, int, int]


def rows(x: Tensor) -> Rows:
    """`x` [..., n] as (tensor, d0, d1, stride 0, stride 1), in elements; a copy where no two strides describe it."""
    n = x.shape[-1]
    if x.is_contiguous():
        return x, x.numel() // n if n else 0, 1, n, 0
    dims = x.dim()
    if x.stride(-1) == 1:
        if dims == 2:
            return x, x.shape[0], 1, x.stride(0), 0
        if dims == 3:
            return x, x.shape[0], x.shape[1], x.stride(0), x.stride(1)
        if dims == 4 and x.stride(0) == x.stride(1) * x.shape[1]:
            return x, x.shape[0] * x.shape[1], x.shape[2], x.stride(1), x.stride(2)
        if dims == 4 and x.shape[0] == 1:
            return x, x.shape[1], x.shape[2], x.stride(1), x.stride(2)
    x = x.contiguous()
    return x, x.numel() // n if n else 0, 1, n, 0

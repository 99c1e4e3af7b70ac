"""Rows of a tensor as the C kernels read them: two leading dimensions of any stride, elements side by side."""

from __future__ import annotations

import torch
from torch import Tensor

Rows = tuple[Tensor, int, int, int, int]


def rows(x: Tensor) -> Rows:
    """`x` [..., n] as (tensor, d0, d1, stride 0, stride 1), in elements; a copy where no two strides describe it."""
    if x.is_contiguous():
        n = x.shape[-1]
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
    return rows(x.contiguous())


def new_like(x: Tensor) -> Tensor:
    """A new contiguous tensor of x's shape and dtype."""
    # torch takes three times as long to read a shape as to copy one
    return torch.empty_like(x) if x.is_contiguous() else torch.empty(x.shape, dtype=x.dtype)

"""R64 and T(L) in numpy: the definition, element after element in the contract's order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from logdiff_kernels.contract import R64_LANES

FloatArray = NDArray[np.float32]


def r64(x: NDArray[Any]) -> FloatArray:
    """The contract's sum over the last axis: fp32 [..., n] -> fp32 [...]."""
    x = np.asarray(x, np.float32)
    n = x.shape[-1]
    if n == 0:
        return np.zeros(x.shape[:-1], np.float32)
    chunks = -(-n // R64_LANES)
    padded = np.zeros((*x.shape[:-1], chunks * R64_LANES), np.float32)
    padded[..., :n] = x
    acc = padded[..., :R64_LANES].copy()
    with np.errstate(all="ignore"):
        for chunk in range(1, chunks):
            acc = acc + padded[..., chunk * R64_LANES : (chunk + 1) * R64_LANES]
        for half in (32, 16, 8):
            acc = acc[..., :half] + acc[..., half : 2 * half]
        while acc.shape[-1] > 1:
            acc = acc[..., 0::2] + acc[..., 1::2]
    return np.asarray(acc[..., 0], np.float32)


def tree(parts: Sequence[Any] | NDArray[Any]) -> FloatArray:
    """T(L): the balanced binary tree over the first axis; its length is a power of two.

    Raises:
        ValueError: the length isn't a power of two.
    """
    level = [np.asarray(part, np.float32) for part in parts]
    if not level or len(level) & (len(level) - 1):
        raise ValueError(f"T(L) takes a power of two of partial results, got {len(level)}")
    with np.errstate(all="ignore"):
        while len(level) > 1:
            level = [np.asarray(level[i] + level[i + 1], np.float32) for i in range(0, len(level), 2)]
    return level[0]

"""The numeric contract transcribed in numpy: exact fused steps and casts, for comparing kernels bit by bit.

Independent of the kernels: fp32 arrays in, fp32 arrays out, one operation after the other in the contract's order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from logdiff_kernels.contract import reductions
from logdiff_kernels.contract.linear import leaf_ranges
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]

r64 = reductions.r64
tree = reductions.tree


def fma(a: Any, b: Any, c: Any) -> FloatArray:
    """a*b + c with one rounding. The product is exact in fp64; the sum is rounded to odd there, then to fp32.

    Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums", IEEE Transactions on Computers 57 (2008).
    """
    with np.errstate(all="ignore"):
        product = np.asarray(a, np.float32).astype(np.float64) * np.asarray(b, np.float32).astype(np.float64)
        addend = np.asarray(c, np.float32).astype(np.float64)
        total = np.asarray(product + addend)
        back = total - product
        error = (product - (total - back)) + (addend - back)  # TwoSum: total + error is exact
        inexact = np.isfinite(total) & (error != 0)
        bits = total.view(np.int64)
        step = np.where((error > 0) == (total > 0), 1, -1)
        odd = np.where(inexact & (bits & 1 == 0), bits + step, bits).view(np.float64)
        return np.asarray(odd.astype(np.float32))


def matmul(x: Any, w: Any, start: Any = None) -> FloatArray:
    """[..., M, K] by [..., N, K] -> [..., M, N]: k ascending, fused, from +0 (or from `start`)."""
    x, w = np.asarray(x, np.float32), np.asarray(w, np.float32)
    shape = (*np.broadcast_shapes(x.shape[:-2], w.shape[:-2]), x.shape[-2], w.shape[-2])
    acc = np.zeros(shape, np.float32) if start is None else np.asarray(start, np.float32)
    for k in range(x.shape[-1]):
        acc = fma(x[..., :, None, k], w[..., None, :, k], acc)
    return acc


def matmul_row(x: Any, w: Any) -> FloatArray:
    """The same cut into the leaves of `linear_row`, combined by the tree."""
    x, w = np.asarray(x, np.float32), np.asarray(w, np.float32)
    return tree([matmul(x[..., begin:end], w[..., begin:end]) for begin, end in leaf_ranges(x.shape[-1])])


def cast(x: Any, dtype: torch.dtype) -> FloatArray:
    """RINT to the dtype, kept in fp32."""
    x = np.asarray(x, np.float32)
    if dtype == torch.float32:
        return x
    if dtype == torch.float16:
        with np.errstate(all="ignore"):
            return x.astype(np.float16).astype(np.float32)
    bits = x.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(x), np.float32(np.nan), rounded.view(np.float32)).astype(np.float32)


def array(tensor: torch.Tensor) -> FloatArray:
    """A tensor's values in fp32 (exact for bf16, fp16, fp32)."""
    return np.asarray(tensor.detach().float().contiguous().numpy())


def same_bits(a: Any, b: Any) -> bool:
    """Equal shapes and bits; any NaN equals any NaN, -0 differs from +0. Tensors or fp32 arrays."""
    return differing(a, b) == 0


def differing(a: Any, b: Any) -> int:
    """Number of elements whose bits differ, any NaN being equal to any NaN.

    Raises:
        AssertionError: the shapes or dtypes differ.
    """
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        assert a.dtype == b.dtype, (a.dtype, b.dtype)
    x = array(a) if isinstance(a, torch.Tensor) else np.ascontiguousarray(a, np.float32)
    y = array(b) if isinstance(b, torch.Tensor) else np.ascontiguousarray(b, np.float32)
    assert x.shape == y.shape, (x.shape, y.shape)
    return int(np.sum((x.view(np.uint32) != y.view(np.uint32)) & ~(np.isnan(x) & np.isnan(y))))


def hard_values(shape: tuple[int, ...], dtype: torch.dtype, seed: int, *, special: bool = False) -> torch.Tensor:
    """Random data with outliers, subnormals and both zeros; with `special` also NaN and infinities (one in 200)."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator)
    kind = torch.randint(0, 200, shape, generator=generator)
    x = torch.where(kind < 4, x * 300, x)
    x = torch.where(kind == 4, torch.zeros(()), x)
    x = torch.where(kind == 5, -torch.zeros(()), x)
    tiny = {torch.float32: 1e-40, torch.bfloat16: 1e-40, torch.float16: 1e-6}[dtype]
    x = torch.where((kind == 6) | (kind == 7), x * tiny, x)
    if special:
        x = torch.where(kind == 8, torch.tensor(float("nan")), x)
        x = torch.where(kind == 9, torch.tensor(float("inf")) * torch.sign(x), x)
    return x.to(dtype)

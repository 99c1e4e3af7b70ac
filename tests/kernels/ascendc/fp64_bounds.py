"""How far a result may lie from its fp64 value whatever order Mmad sums in: from reduction lengths and dtypes alone.

A sum of k products in any order, each of k roundings at most, is off by at most gamma(k) |a||b| (N. J. Higham,
"Accuracy and Stability of Numerical Algorithms", 2nd ed., 3.1). A cast is monotone, so a result lies between the casts
of the two ends of its interval: overflow and subnormals need no case of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from logdiff_kernels.contract import STEP
from logdiff_kernels.cpu.linear import BLOCKS, TREE
from torch import Tensor

U = 2.0**-24
"""Unit roundoff of fp32."""

TINY = 2.0**-149
"""The least fp32: what a rounding below the normal numbers may cost, beside its relative error."""


@dataclass(frozen=True)
class Expected:
    """A part of a result: its fp64 value and how far from it fp32 may be before the cast.

    Attributes:
        result: position among the results.
        rows: rows of the result along dimension 0; None: all.
        value: fp64.
        error: fp64, of the same shape.
    """

    result: int
    rows: Tensor | None
    value: Tensor
    error: Tensor


def outside(found: list[Tensor], expected: Expected) -> int:
    """Elements of a result that lie outside of their interval."""
    got = found[expected.result]
    got = got if expected.rows is None else got[expected.rows]
    low, high = (
        (expected.value + sign * expected.error).to(torch.float32).to(got.dtype).double() for sign in (-1.0, 1.0)
    )
    inside = (low <= got.double()) & (got.double() <= high)
    return int((~inside).sum())


def gamma(roundings: float) -> float:
    """Relative error of a product of that many factors 1 + d, |d| <= U."""
    return roundings * U / (1 - roundings * U)


# --- matrix products


def _product(a: Tensor, b: Tensor, bias: Tensor | None, plan: int, count: int) -> tuple[Tensor, Tensor]:
    """a [M, K] times b [N, K] transposed, and its error before the cast."""
    a, b = a.double(), b.double()
    k = a.shape[1]
    added = {TREE: math.ceil(math.log2(max(count, 1))), BLOCKS: -(-k // STEP)}.get(plan, 0)
    roundings = k + 1 + added + (bias is not None)
    value, size = a @ b.t(), a.abs() @ b.abs().t()
    if bias is not None:
        value, size = value + bias.double(), size + bias.double().abs()
    return value, gamma(roundings) * size + roundings * TINY


def _matmul(
    a: Tensor, b: Tensor, bias: Tensor | None, dtype: torch.dtype, plan: int = 0, count: int = 1
) -> Iterator[Expected]:
    yield Expected(0, None, *_product(a, b, bias, plan, count))


def _grouped_matmul(
    a: Tensor,
    offsets: Tensor,
    b: Tensor,
    bias: Tensor | None,
    dtype: torch.dtype,
    plan: int = 0,
    count: int = 1,
) -> Iterator[Expected]:
    for group, (begin, end) in enumerate(zip(offsets.tolist(), offsets.tolist()[1:], strict=False)):
        rows = torch.arange(begin, end)
        yield Expected(0, rows, *_product(a[rows], b[group], None if bias is None else bias[group], plan, count))


def _grouped_outer(grad: Tensor, x: Tensor, offsets: Tensor, dtype: torch.dtype) -> Iterator[Expected]:
    for group, (begin, end) in enumerate(zip(offsets.tolist(), offsets.tolist()[1:], strict=False)):
        value, error = _product(grad[begin:end].t(), x[begin:end].t(), None, BLOCKS, STEP)
        yield Expected(0, torch.tensor([group]), value[None], error[None])


PRODUCTS: dict[str, Callable[..., Iterator[Expected]]] = {
    "linear.matmul": _matmul,
    "linear.grouped_matmul": _grouped_matmul,
    "linear.grouped_outer": _grouped_outer,
}
"""Bounds of the matrix products, by module and function."""

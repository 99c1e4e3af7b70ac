"""Inputs of the matrix kernels for `cases`: one function for each form of product, and for the kernels beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from logdiff_kernels.contract import STEP
from logdiff_kernels.contract.linear import row_leaves
from logdiff_kernels.cpu.linear import BLOCKS, SINGLE, TREE

if TYPE_CHECKING:
    from logdiff_kernels.ascendc.cases import Source

ROWS, COLUMNS = 133, 150
"""More than a tile of either, and a few of the next."""


def linear(source: Source, k: int, dtype: torch.dtype) -> tuple[Any, ...]:
    """Forward, k of the given length."""
    return source.floats(ROWS, k, dtype=dtype), source.floats(COLUMNS, k, dtype=dtype), None, dtype


def decode(source: Source, k: int, dtype: torch.dtype) -> tuple[Any, ...]:
    """Few rows, fp32 results, as of a router."""
    return source.floats(3, k, dtype=dtype), source.floats(COLUMNS, k, dtype=dtype), None, torch.float32


def bias(source: Source, k: int, dtype: torch.dtype) -> tuple[Any, ...]:
    """Bias in fp32."""
    return *linear(source, k, dtype)[:2], source.floats(COLUMNS), dtype, SINGLE, 1


def row(source: Source, k: int, dtype: torch.dtype) -> tuple[Any, ...]:
    """`linear_row` with a bias."""
    bias = source.floats(COLUMNS, dtype=dtype)
    return *linear(source, k, dtype)[:2], bias, dtype, TREE, row_leaves(k)


def input_grad(source: Source, n: int, dtype: torch.dtype) -> tuple[Any, ...]:
    """The gradient of x: the weight is contiguous along its columns."""
    grad, weight = source.floats(ROWS, n, dtype=dtype), source.floats(n, COLUMNS, dtype=dtype)
    return grad, weight.t(), None, dtype


def blocks(source: Source, tokens: int, dtype: torch.dtype) -> tuple[Any, ...]:
    """A weight gradient over that many tokens."""
    grad, x = source.floats(tokens, 40, dtype=dtype), source.floats(tokens, COLUMNS, dtype=dtype)
    return grad.t(), x.t(), None, dtype, BLOCKS, STEP


def _offsets(rows: int) -> Tensor:
    """Five groups, two of them empty."""
    return torch.tensor([0, 0, rows // 3, rows // 3, rows - rows // 5, rows])


def grouped(source: Source, k: int, dtype: torch.dtype) -> tuple[Any, ...]:
    """Groups of rows, two of them empty."""
    weight = source.floats(5, COLUMNS, k, dtype=dtype)
    return source.floats(2 * ROWS, k, dtype=dtype), _offsets(2 * ROWS), weight, None, dtype


def grouped_row(source: Source, k: int, dtype: torch.dtype) -> tuple[Any, ...]:
    """`linear_row` per group."""
    x, offsets, weight, _, _ = grouped(source, k, dtype)
    return x, offsets, weight, source.floats(5, COLUMNS, dtype=dtype), dtype, TREE, row_leaves(k)


def outer(source: Source, tokens: int, dtype: torch.dtype) -> tuple[Any, ...]:
    """Weight gradients per group."""
    grad, x = source.floats(tokens, 40, dtype=dtype), source.floats(tokens, COLUMNS, dtype=dtype)
    return grad, x, _offsets(tokens), dtype


def row_sum(source: Source, tokens: int, dtype: torch.dtype) -> tuple[Any, ...]:
    """Bias gradients per group."""
    return source.floats(tokens, COLUMNS, dtype=dtype), _offsets(tokens), dtype


def tree(source: Source, n: int, dtype: torch.dtype) -> tuple[Any, ...]:
    """Four ranks."""
    return source.floats(4, 9, n), source.floats(n, dtype=dtype), dtype


def scale_cap(source: Source, columns: int, _: torch.dtype) -> tuple[Any, ...]:
    """Logits of that many columns."""
    return source.floats(3, columns, scale=20.0), 0.7, 30.0

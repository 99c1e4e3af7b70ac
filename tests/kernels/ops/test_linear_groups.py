"""Products per group of rows, as experts need them: each group as if it were alone."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from logdiff_kernels import ops
from logdiff_kernels.errors import InputError
from torch import Tensor

from tests.kernels import oracle
from tests.kernels.ops import row_laws

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def one_by_one(x: Tensor, offsets: Tensor, weight: Tensor, bias: Tensor | None, row: bool) -> Tensor:
    product = ops.linear_row if row else ops.linear
    bounds = offsets.tolist()
    return torch.cat(
        [
            product(x[begin:end], weight[e].contiguous(), None if bias is None else bias[e])
            for e, (begin, end) in enumerate(pairwise(bounds))
        ]
    )


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.sampled_from((0, 1, 2, 3, 5, 8, 13, 30)), min_size=1, max_size=9),
    n=st.sampled_from((1, 8, 17, 64)),
    k=st.sampled_from((0, 5, 32, 64, 160)),
    dtype=st.sampled_from(DTYPES),
    transposed=st.booleans(),
    bias=st.booleans(),
    row=st.booleans(),
    seed=st.integers(0, 2**20),
)
def test_groups_are_products_of_their_own(
    counts: list[int], n: int, k: int, dtype: torch.dtype, transposed: bool, bias: bool, row: bool, seed: int
) -> None:
    offsets = torch.tensor([0, *counts]).cumsum(0)
    x = oracle.hard_values((int(offsets[-1]), k), dtype, seed)
    w = oracle.hard_values((len(counts), n, k), dtype, seed + 1)
    b = oracle.hard_values((len(counts), n), dtype, seed + 2) if bias else None
    laid = w.mT.contiguous().mT if transposed else w
    row_laws.same(ops.grouped_linear(x, offsets, laid, b, row), one_by_one(x, offsets, w, b, row))


@pytest.mark.parametrize("count", [1, 2, 5])
def test_many_experts_with_few_rows_each(count: int) -> None:
    """More groups than rows, and any number of threads."""
    x = oracle.hard_values((128, 96), torch.bfloat16, 1)
    w = oracle.hard_values((200, 40, 96), torch.bfloat16, 2)
    chosen = torch.randint(0, 200, (128,), generator=torch.Generator().manual_seed(3)).sort().values
    offsets = torch.searchsorted(chosen, torch.arange(201))
    with row_laws.threads(count):
        got = ops.grouped_linear(x, offsets, w, row=True)
    row_laws.same(got, one_by_one(x, offsets, w, None, True))


def test_fp32_output() -> None:
    x, w = torch.randn(4, 16).bfloat16(), torch.randn(2, 3, 16).bfloat16()
    got = ops.grouped_linear(x, torch.tensor([0, 1, 4]), w, out_dtype=torch.float32)
    row_laws.same(
        got, torch.cat([ops.linear(x[:1], w[0], None, torch.float32), ops.linear(x[1:], w[1], None, got.dtype)])
    )


@pytest.mark.parametrize("offsets", [[0, 3], [1, 2, 4], [0, 5, 4], [0, 2, 3], [0, -1, 4]])
def test_offsets_that_do_not_cover_the_rows_are_refused(offsets: list[int]) -> None:
    with pytest.raises(InputError):
        ops.grouped_linear(torch.randn(4, 16), torch.tensor(offsets), torch.randn(2, 3, 16))

"""Embedding rows are copies, scaled as Hugging Face scales them; gradients are sums in batch order."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from logdiff_kernels import ops
from logdiff_kernels.errors import UnsupportedError
from logdiff_kernels.ops.reference import embedding as reference

from tests.kernels import oracle
from tests.kernels.ops import row_laws

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 7, 8, 64, 100])
def test_rows_are_copies(n: int, dtype: torch.dtype) -> None:
    w = oracle.hard_values((50, n), dtype, n, special=True)
    ids = torch.randint(0, 50, (3, 11))
    row_laws.same(ops.embedding(ids, w), w[ids])
    row_laws.same(ops.embedding(ids.int(), row_laws.strided(w)), w[ids])
    row_laws.same(ops.embedding(ids.T, row_laws.scattered(w)), w[ids.T])


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_scale_is_rounded_to_the_weight_first(dtype: torch.dtype) -> None:
    """As Gemma's module: `embed(ids) * scale.to(weight.dtype)`."""
    w, ids = oracle.hard_values((50, 96), dtype, 5), torch.arange(50)
    scale = 96**0.5
    stock = torch.nn.functional.embedding(ids, w) * torch.tensor(scale).to(dtype)
    row_laws.same(ops.embedding(ids, w, scale), stock)
    row_laws.same(ops.embedding(ids, w, torch.tensor(scale)), stock)


def test_ids_outside_the_table_are_refused() -> None:
    w = torch.randn(5, 8)
    for bad in (5, -1):
        with pytest.raises(IndexError, match=r"\[0, 5\)"):
            ops.embedding(torch.tensor([0, bad]), w)
    with pytest.raises(UnsupportedError, match="float64"):
        ops.embedding(torch.tensor([0]), w.double())
    assert ops.embedding(torch.zeros(0, dtype=torch.int64), w).shape == (0, 8)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradient_sums_tokens_in_batch_order(dtype: torch.dtype) -> None:
    w = torch.randn(20, 12).to(dtype).requires_grad_()
    ids = torch.randint(0, 15, (4, 50), generator=torch.Generator().manual_seed(1))
    grad = oracle.hard_values((4, 50, 12), dtype, 2)
    for count in (1, 2, 3):
        with row_laws.threads(count):
            (got,) = torch.autograd.grad(ops.embedding(ids, w, 3.0), w, grad)
        total = np.zeros((20, 12), np.float32)
        for token, row in zip(ids.flatten().tolist(), oracle.array(grad).reshape(200, 12), strict=True):
            total[token] = total[token] + row
        assert oracle.differing(got, oracle.cast(total * np.float32(3), dtype)) == 0


def test_gradient_against_fp64_and_padding() -> None:
    w, ids = torch.randn(20, 12, requires_grad=True), torch.randint(0, 20, (300,))
    grad = torch.randn(300, 12)
    (got,) = torch.autograd.grad(ops.embedding(ids, w, 0.5, padding_idx=3), w, grad)
    exact = w.detach().double().requires_grad_()
    (want,) = torch.autograd.grad(reference.embedding(ids, exact, 0.5), exact, grad.double())
    assert float(got[3].abs().max()) == 0
    want[3] = 0
    assert float((got - want).norm() / want.norm()) < 2.0**-20


def test_opcheck_and_compile() -> None:
    w, ids = torch.randn(20, 12, requires_grad=True), torch.randint(0, 20, (3, 5))
    torch.library.opcheck(
        torch.ops.logdiff.embedding,
        (ids, w, 2.0, 3),
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
    )
    compiled = torch.compile(lambda w: ops.embedding(ids, w, 3.3), backend="aot_eager", fullgraph=True)
    grad = torch.randn(3, 5, 12)
    row_laws.same(torch.autograd.grad(compiled(w), w, grad), torch.autograd.grad(ops.embedding(ids, w, 3.3), w, grad))

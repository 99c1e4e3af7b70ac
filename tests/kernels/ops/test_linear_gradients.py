"""Gradients of the matrix products: the stated order bit for bit, fp64, determinism, torch.library and compile."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from logdiff_kernels import ops
from logdiff_kernels.contract import STEP
from logdiff_kernels.ops.reference import linear as reference
from torch import Tensor

from tests.kernels import oracle
from tests.kernels.ops import row_laws

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
OFFSETS = torch.tensor([0, 0, 5, 30, 31, 70])


def inputs(rows: int, n: int, k: int, dtype: torch.dtype, groups: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x, weight, bias that want gradients, and the gradient of the output."""
    lead = (groups,) if groups else ()
    generator = torch.Generator().manual_seed(rows + n)
    x, w, b, grad = (
        torch.randn(shape, generator=generator).to(dtype) for shape in ((rows, k), (*lead, n, k), (*lead, n), (rows, n))
    )
    return x.requires_grad_(), w.requires_grad_(), b.requires_grad_(), grad


def by_blocks(grad: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Sum over rows of grad[r] x[r] in blocks of 512 rows, each fused from +0, added ascending."""
    total = None
    for begin in range(0, len(x), STEP):
        part = oracle.matmul(grad[begin : begin + STEP].T, x[begin : begin + STEP].T)
        total = part if total is None else total + part
    return total if total is not None else np.zeros((grad.shape[1], x.shape[1]), np.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [0, 1, 511, 512, 513, 1100])
def test_gradients_have_the_stated_order(rows: int, dtype: torch.dtype) -> None:
    x, w, b, grad = inputs(rows, 9, 20, dtype)
    gx, gw, gb = torch.autograd.grad(ops.linear(x, w, b), (x, w, b), grad)
    assert (gx.dtype, gw.dtype, gb.dtype) == (dtype, dtype, dtype)
    g, xa, wa = oracle.array(grad), oracle.array(x), oracle.array(w)
    assert oracle.differing(gx, oracle.cast(oracle.matmul(g, wa.T), dtype)) == 0
    assert oracle.differing(gw, oracle.cast(by_blocks(g, xa), dtype)) == 0
    ones = np.ones((rows, 1), np.float32)
    assert oracle.differing(gb, oracle.cast(by_blocks(g, ones)[:, 0], dtype)) == 0


@pytest.mark.parametrize("product", ["linear", "linear_row", "lm_head", "lm_head capped", "grouped", "grouped row"])
def test_gradients_against_fp64(product: str) -> None:
    groups = 5 if product.startswith("grouped") else 0
    x, w, b, grad = inputs(70, 33, 64, torch.float32, groups)
    exact = [t.detach().double().requires_grad_() for t in (x, w, b)]
    more: dict[str, Any] = {"scale": 0.5, "softcap": 4.0} if product == "lm_head capped" else {}
    if groups:
        more = {"row": product == "grouped row"}
        ours = ops.grouped_linear(x, OFFSETS, w, b, **more)
        theirs = reference.grouped_linear(exact[0], OFFSETS, exact[1], exact[2])
    else:
        name = product.split()[0]
        ours, theirs = getattr(ops, name)(x, w, b, **more), getattr(reference, name)(*exact, **more)
    got = torch.autograd.grad(ours, (x, w, b), grad)
    want = torch.autograd.grad(theirs, exact, grad.double())
    for one, other in zip(got, want, strict=True):
        assert float((one - other).norm() / other.norm()) < 2.0**-20


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_do_not_depend_on_threads(dtype: torch.dtype) -> None:
    x, w, b, grad = inputs(1500, 70, 48, dtype)
    runs = []
    for count in (1, 2, 3, 5):
        with row_laws.threads(count):
            runs.append(torch.autograd.grad(ops.linear_row(x, w, b), (x, w, b), grad))
    for run in runs[1:]:
        row_laws.same(run, runs[0])


def test_gradient_rows_are_independent_but_weight_gradients_know_the_order() -> None:
    x, w, b, grad = inputs(700, 20, 40, torch.float32)
    order = torch.randperm(700, generator=torch.Generator().manual_seed(0))
    gx, gw, _ = torch.autograd.grad(ops.linear(x, w, b), (x, w, b), grad)
    px, pw, _ = torch.autograd.grad(ops.linear(x[order], w, b), (x, w, b), grad[order])
    row_laws.same(px, gx)
    assert oracle.differing(pw, gw) > 0


def test_group_gradients_are_those_of_each_group() -> None:
    x, w, b, grad = inputs(70, 24, 32, torch.bfloat16, 5)
    gx, gw, gb = torch.autograd.grad(ops.grouped_linear(x, OFFSETS, w, b, row=True), (x, w, b), grad)
    for e in range(5):
        rows = slice(int(OFFSETS[e]), int(OFFSETS[e + 1]))
        xe, we, be = (t.detach().requires_grad_() for t in (x[rows], w[e], b[e]))
        alone = torch.autograd.grad(ops.linear_row(xe, we, be), (xe, we, be), grad[rows])
        row_laws.same((gx[rows], gw[e], gb[e]), alone, f"group {e}")


def test_training_forward_is_inference_forward() -> None:
    x, w, b, _ = inputs(37, 50, 96, torch.bfloat16)
    for product in (ops.linear, ops.linear_row, ops.lm_head):
        trained = product(x, w, b)
        assert trained.requires_grad
        with torch.no_grad():
            row_laws.same(product(x, w, b), trained.detach())


def test_tree_gradient() -> None:
    parts, bias = torch.randn(4, 3, 5, requires_grad=True), torch.randn(5, requires_grad=True)
    grad = torch.randn(3, 5)
    gp, gb = torch.autograd.grad(ops.tree_combine(parts, bias, torch.float32), (parts, bias), grad)
    assert torch.equal(gp, grad.expand(4, 3, 5))
    assert torch.equal(gb, grad[0] + grad[1] + grad[2])


@pytest.mark.parametrize("needs", [(True, False, False), (False, True, False), (False, False, True)])
def test_only_wanted_gradients(needs: tuple[bool, bool, bool]) -> None:
    x, w, b, grad = inputs(6, 5, 8, torch.float32)
    for tensor, need in zip((x, w, b), needs, strict=True):
        tensor.requires_grad_(need)
    ops.linear(x, w, b).backward(grad)
    assert [t.grad is not None for t in (x, w, b)] == list(needs)


@pytest.mark.parametrize("name", ["linear", "linear_row", "lm_head", "tree_combine", "grouped_linear"])
def test_opcheck(name: str) -> None:
    x, w, b, _ = inputs(7, 9, 32, torch.float32)
    gx, gw, gb, _ = inputs(70, 9, 32, torch.float32, 5)
    arguments: dict[str, tuple[Any, ...]] = {
        "linear": (x[None], w, b, None),
        "linear_row": (x, w, b),
        "lm_head": (x, w, b, 0.5, 30.0),
        "tree_combine": (torch.randn(4, 3, 5, requires_grad=True), None, torch.float32),
        "grouped_linear": (gx, OFFSETS, gw, gb, True, None),
    }
    torch.library.opcheck(getattr(torch.ops.logdiff, name), arguments[name])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_opcheck_of_what_has_no_gradient(dtype: torch.dtype) -> None:
    x, w, _, grad = (t.detach() for t in inputs(70, 9, 32, dtype))
    library = torch.ops.logdiff
    for op, arguments in (
        (library.linear, (x, w, None, torch.float32)),
        (library.linear_row_partial, (x, w, 2)),
        (library.linear_weight_grad, (grad, x, dtype)),
        (library.linear_bias_grad, (grad, dtype)),
        (library.grouped_weight_grad, (grad, x, OFFSETS, dtype)),
        (library.grouped_bias_grad, (grad, OFFSETS, dtype)),
    ):
        torch.library.opcheck(op, arguments, test_utils=("test_schema", "test_faketensor"))


def test_compiled_training_gives_the_same_bits() -> None:
    x, w, b, grad = inputs(12, 16, 32, torch.bfloat16)

    def step(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return ops.linear_row(ops.linear(x, w, b), w.mT) * 2

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    grad = torch.randn(12, 32).bfloat16()
    row_laws.same(
        (compiled(x, w, b).detach(), *torch.autograd.grad(compiled(x, w, b), (x, w, b), grad)),
        (step(x, w, b).detach(), *torch.autograd.grad(step(x, w, b), (x, w, b), grad)),
    )

"""Gated activations: the contract's bits, the laws of rows, gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from logdiff_kernels import ops
from logdiff_kernels.errors import InputError, UnsupportedError
from logdiff_kernels.ops.reference import activation as exact
from torch import Tensor

from tests.kernels.ops import row_oracle
from tests.kernels.ops.row_laws import check_accuracy, check_rows, same, strided
from tests.kernels.oracle import hard_values, same_bits

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
Gated = Callable[[Tensor, Tensor], Tensor]
OPS: dict[str, tuple[Gated, Gated, Gated]] = {
    "swiglu": (ops.swiglu, row_oracle.swiglu, exact.swiglu),
    "geglu_tanh": (ops.geglu_tanh, row_oracle.geglu_tanh, exact.geglu_tanh),
    "swiglu_clamped": (
        lambda g, u: ops.swiglu_clamped(g, u, 1.702, 7.0),
        lambda g, u: row_oracle.swiglu_clamped(g, u, 1.702, 7.0),
        lambda g, u: exact.swiglu_clamped(g, u, 1.702, 7.0),
    ),
}


@settings(max_examples=80, deadline=None)
@given(
    name=st.sampled_from(sorted(OPS)),
    rows=st.integers(1, 5),
    n=st.sampled_from([1, 3, 8, 9, 15, 16, 64, 100, 257]),
    layout=st.sampled_from(["apart", "halves", "interleaved"]),
    dtype=st.sampled_from(DTYPES),
    special=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_activations_are_the_contract_to_the_bit(
    name: str, rows: int, n: int, layout: str, dtype: torch.dtype, special: bool, seed: int
) -> None:
    fused = hard_values((rows, 2 * n), dtype, seed, special=special)
    gate, up = {
        "apart": lambda: (fused[:, :n].clone(), fused[:, n:].clone()),
        "halves": lambda: (fused[:, :n], fused[:, n:]),
        "interleaved": lambda: (fused[:, 0::2], fused[:, 1::2]),
    }[layout]()
    ours, transcribed, _ = OPS[name]
    assert same_bits(ours(gate, up), torch.from_numpy(transcribed(gate, up)).to(dtype))


@pytest.mark.parametrize("name", OPS)
def test_rows_are_independent_of_batch_threads_and_strides(name: str) -> None:
    for dtype in DTYPES:
        check_rows(OPS[name][0], hard_values((40, 300), dtype, 1), hard_values((40, 300), dtype, 2))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OPS)
def test_gradients_are_those_of_fp64(name: str, dtype: torch.dtype) -> None:
    fused = (torch.randn(40, 180) * 4).to(dtype).requires_grad_()
    wide = fused.detach().double().requires_grad_()
    dy = torch.randn(40, 90).to(dtype)
    ours, _, reference = OPS[name]
    ours(*fused.chunk(2, dim=1)).backward(dy)
    reference(*wide.chunk(2, dim=1)).backward(dy.double())
    assert (fused.grad - wide.grad).abs().max() <= (torch.finfo(dtype).eps + 2e-6) * wide.grad.abs().max()


@pytest.mark.parametrize("name", OPS)
def test_gradients_far_out_are_finite(name: str) -> None:
    gate = torch.tensor([-3e38, -1e20, -200.0, -90.0, 90.0, 1e20, 3e38]).requires_grad_()
    up = torch.ones(7, requires_grad=True)
    OPS[name][0](gate, up).backward(torch.full((7,), 1e-3))
    assert torch.isfinite(gate.grad).all()
    assert torch.isfinite(up.grad).all()


def test_training_and_compiled_give_the_bits_of_inference() -> None:
    g, u = hard_values((9, 50), torch.bfloat16, 3), hard_values((9, 50), torch.bfloat16, 4)
    for ours, _, _ in OPS.values():
        expected = ours(g, u)
        same(ours(g.clone().requires_grad_(), u), expected)
        same(torch.compile(ours, backend="aot_eager")(g, u), expected)


def test_operators_pass_opcheck() -> None:
    for kind in range(3):
        g, u = (strided(torch.randn(3, 20)).requires_grad_() for _ in range(2))
        torch.library.opcheck(torch.ops.logdiff.glu.default, (g, u, kind, 1.702, 1.0))


@pytest.mark.parametrize("dtype", DTYPES)
def test_error_is_no_larger_than_that_of_torch(dtype: torch.dtype) -> None:
    g, u = torch.randn(64, 1024).to(dtype), torch.randn(64, 1024).to(dtype)
    functional = torch.nn.functional
    check_accuracy(ops.swiglu(g, u), functional.silu(g) * u, exact.swiglu(g, u))
    check_accuracy(ops.geglu_tanh(g, u), functional.gelu(g, approximate="tanh") * u, exact.geglu_tanh(g, u))
    c, d = g.clamp(max=7.0), u.clamp(-7.0, 7.0)
    stock = (d + 1) * (c * torch.sigmoid(c * 1.702))
    check_accuracy(ops.swiglu_clamped(g, u, 1.702, 7.0), stock, exact.swiglu_clamped(g, u, 1.702, 7.0))


def test_what_is_not_covered_raises() -> None:
    with pytest.raises(InputError, match="shapes"):
        ops.swiglu(torch.zeros(2, 4), torch.zeros(2, 5))
    with pytest.raises(UnsupportedError, match="float64"):
        ops.swiglu(torch.zeros(2, 4).double(), torch.zeros(2, 4).double())
    with pytest.raises(InputError, match="limit"):
        ops.swiglu_clamped(torch.zeros(2, 4), torch.zeros(2, 4), 1.0, 0.0)

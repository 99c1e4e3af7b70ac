"""rms_norm and add_rms_norm: the contract's bits, the laws of rows, gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from logdiff_kernels import ops
from logdiff_kernels.errors import InputError, UnsupportedError
from logdiff_kernels.ops.reference import norm as exact

from tests.kernels.ops import row_oracle
from tests.kernels.ops.row_laws import check_accuracy, check_rows, same, strided, threads
from tests.kernels.oracle import hard_values, same_bits

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SIZES = st.sampled_from([1, 2, 7, 8, 15, 16, 17, 63, 64, 65, 96, 127, 128, 129, 511, 512, 513, 576])


def _weight(n: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    return hard_values((n,), dtype, seed + 1)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 9),
    n=SIZES,
    dtype=st.sampled_from(DTYPES),
    wtype=st.sampled_from([*DTYPES, None]),
    offset=st.sampled_from([0.0, 1.0]),
    special=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_rms_norm_is_the_contract_to_the_bit(
    rows: int, n: int, dtype: torch.dtype, wtype: torch.dtype | None, offset: float, special: bool, seed: int
) -> None:
    x = hard_values((rows, n), dtype, seed, special=special)
    w = None if wtype is None else _weight(n, wtype, seed)
    assert same_bits(
        ops.rms_norm(x, w, 1e-6, offset), torch.from_numpy(row_oracle.rms_norm(x, w, 1e-6, offset)).to(dtype)
    )


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 9), n=SIZES, dtype=st.sampled_from(DTYPES), seed=st.integers(0, 10**6))
def test_add_rms_norm_rounds_the_sum_once_and_norms_the_rounded(
    rows: int, n: int, dtype: torch.dtype, seed: int
) -> None:
    x, residual = hard_values((rows, n), dtype, seed), hard_values((rows, n), dtype, seed + 2)
    w = _weight(n, dtype, seed)
    y, total = ops.add_rms_norm(x, residual, w, 1e-5)
    expected_y, expected_total = row_oracle.add_rms_norm(x, residual, w, 1e-5)
    assert same_bits(total, torch.from_numpy(expected_total).to(dtype))
    assert same_bits(y, torch.from_numpy(expected_y).to(dtype))
    assert same_bits(y, ops.rms_norm(total, w, 1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_independent_of_batch_threads_and_strides(dtype: torch.dtype) -> None:
    x, residual = hard_values((70, 576), dtype, 1), hard_values((70, 576), dtype, 2)
    w = _weight(576, dtype, 3)
    check_rows(lambda a: ops.rms_norm(a, w, 1e-6), x)
    check_rows(lambda a, b: ops.add_rms_norm(a, b, w, 1e-6, 1.0), x, residual)


def test_heads_of_a_fused_projection_are_normed_in_place_of_a_copy() -> None:
    fused = hard_values((5, 9, 64), torch.bfloat16, 4)
    w = _weight(64, torch.bfloat16, 4)
    heads = fused[:, 2:6]
    four = fused[None].expand(1, 5, 9, 64)[:, :, 2:6]
    expected = ops.rms_norm(heads.contiguous(), w, 1e-6)
    same(ops.rms_norm(heads, w, 1e-6), expected)
    same(ops.rms_norm(four, w, 1e-6)[0], expected)
    same(ops.rms_norm(heads.transpose(0, 1), w, 1e-6), expected.transpose(0, 1).contiguous())


def test_a_changed_last_bit_of_one_input_is_seen() -> None:
    x = hard_values((3, 64), torch.float32, 5)
    y = ops.rms_norm(x, None, 1e-6)
    x.view(torch.int32)[1, 63] ^= 1
    assert not same_bits(y[1], ops.rms_norm(x, None, 1e-6)[1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_gradients_are_those_of_fp64(dtype: torch.dtype, offset: float) -> None:
    x, residual = (torch.randn(700, 96).to(dtype).requires_grad_() for _ in range(2))
    w = torch.randn(96).to(dtype).requires_grad_()
    y, total = ops.add_rms_norm(x, residual, w, 1e-5, offset)
    dy, dt = torch.randn(700, 96).to(dtype), torch.randn(700, 96).to(dtype)
    torch.autograd.backward([y, total], [dy, dt])
    xd, rd, wd = (t.detach().double().requires_grad_() for t in (x, residual, w))
    rounded = total.detach().double() + (xd + rd - (xd + rd).detach())
    torch.autograd.backward([exact.rms_norm(rounded, wd, 1e-5, offset), rounded], [dy.double(), dt.double()])
    step = torch.finfo(dtype).eps
    for ours, theirs in ((x.grad, xd.grad), (residual.grad, rd.grad), (w.grad, wd.grad)):
        assert (ours - theirs).abs().max() <= (step + 2e-6) * theirs.abs().max()
    assert torch.equal(x.grad, residual.grad)


def test_weight_gradient_is_the_documented_sum_and_no_matter_of_threads() -> None:
    x, dy = torch.randn(1100, 80), torch.randn(1100, 80)
    w = torch.randn(80, requires_grad=True)
    found = []
    for count in (1, 2, 3):
        with threads(count):
            w.grad = None
            ops.rms_norm(x, w, 1e-6).backward(dy)
            found.append(w.grad.clone())
    _, rstd = torch.ops.logdiff.rms_norm(x, w.detach(), 1e-6, 0.0)
    total = torch.zeros(80)
    for block in range(0, 1100, 512):
        acc = torch.zeros(80)
        for i in range(block, min(1100, block + 512)):
            acc = acc + dy[i] * (x[i] * rstd[i])
        total = total + acc
    for grad in found:
        same(grad, total)


def test_training_gives_the_bits_of_inference() -> None:
    x, w = hard_values((9, 200), torch.bfloat16, 6), _weight(200, torch.bfloat16, 6)
    with torch.no_grad():
        inference = ops.rms_norm(x, w, 1e-6), *ops.add_rms_norm(x, x, w, 1e-6)
    wg = w.clone().requires_grad_()
    same((ops.rms_norm(x, wg, 1e-6), *ops.add_rms_norm(x, x, wg, 1e-6)), inference)
    compiled = torch.compile(
        lambda a, b: (ops.rms_norm(a, b, 1e-6), *ops.add_rms_norm(a, a, b, 1e-6)), backend="aot_eager"
    )
    same(compiled(x, wg), inference)


def test_operators_pass_opcheck() -> None:
    x, w = torch.randn(3, 4, 40).bfloat16().requires_grad_(), torch.randn(40).requires_grad_()
    torch.library.opcheck(torch.ops.logdiff.rms_norm.default, (x, w, 1e-6, 1.0))
    torch.library.opcheck(torch.ops.logdiff.rms_norm.default, (x, None, 1e-6, 0.0))
    torch.library.opcheck(torch.ops.logdiff.add_rms_norm.default, (x, strided(x.detach()), w, 1e-6, 0.0))


@pytest.mark.parametrize("dtype", DTYPES)
def test_error_is_no_larger_than_that_of_torch(dtype: torch.dtype) -> None:
    x, w = hard_values((64, 2048), dtype, 7), torch.randn(2048).to(dtype)
    stock = torch.nn.functional.rms_norm(x, (2048,), w, 1e-6)
    check_accuracy(ops.rms_norm(x, w, 1e-6), stock, exact.rms_norm(x, w, 1e-6))


def test_what_is_not_covered_raises() -> None:
    with pytest.raises(UnsupportedError, match="float64"):
        ops.rms_norm(torch.zeros(2, 4, dtype=torch.float64), None, 1e-6)
    with pytest.raises(InputError, match="shapes"):
        ops.rms_norm(torch.zeros(2, 4), torch.zeros(5), 1e-6)
    with pytest.raises(InputError, match="shapes"):
        ops.add_rms_norm(torch.zeros(2, 4), torch.zeros(2, 4).bfloat16(), None, 1e-6)


def test_no_rows_give_no_rows() -> None:
    assert ops.rms_norm(torch.zeros(0, 8), None, 1e-6).shape == (0, 8)

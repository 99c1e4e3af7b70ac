"""rope: the contract's bits, the laws of rows, gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from logdiff_kernels import ops
from logdiff_kernels.contract.rope import RopeSpec, table
from logdiff_kernels.errors import InputError, UnsupportedError
from logdiff_kernels.ops.reference import rope as exact

from tests.kernels.ops import row_oracle
from tests.kernels.ops.row_laws import check_accuracy, check_rows, same, strided
from tests.kernels.oracle import hard_values, same_bits

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SPEC = RopeSpec.from_hf({"head_dim": 64, "rope_theta": 10000.0})


def _angles(tokens: int, half: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    angle = torch.rand(tokens, half, generator=torch.Generator().manual_seed(seed)) * 6.3
    return angle.cos(), angle.sin()


@settings(max_examples=60, deadline=None)
@given(
    tokens=st.integers(1, 6),
    heads=st.integers(1, 4),
    half=st.sampled_from([1, 3, 4, 7, 8, 9, 16, 24, 32, 64]),
    rest=st.sampled_from([0, 1, 8, 32]),
    interleaved=st.booleans(),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 10**6),
)
def test_rope_is_the_contract_to_the_bit(
    tokens: int, heads: int, half: int, rest: int, interleaved: bool, dtype: torch.dtype, seed: int
) -> None:
    x = hard_values((tokens, heads, 2 * half + rest), dtype, seed, special=True)
    cos, sin = _angles(tokens, half, seed)
    expected = torch.from_numpy(row_oracle.rope(x, cos, sin, interleaved)).to(dtype)
    assert same_bits(ops.rope(x, cos, sin, interleaved), expected)
    in_place = x.clone()
    assert ops.rope(in_place, cos, sin, interleaved, out=in_place) is in_place
    assert same_bits(in_place, expected)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_independent_of_batch_threads_and_strides(dtype: torch.dtype, interleaved: bool) -> None:
    cos, sin = _angles(200, 24)
    check_rows(lambda x, c, s: ops.rope(x, c, s, interleaved), hard_values((200, 5, 64), dtype, 1), cos, sin)


def test_heads_of_a_fused_projection_are_turned_where_they_are() -> None:
    fused = hard_values((5, 9, 64), torch.bfloat16, 4)
    cos, sin = _angles(5, 32)
    expected = ops.rope(fused[:, 2:6].contiguous(), cos, sin)
    before = fused.clone()
    ops.rope(fused[:, 2:6], cos, sin, out=fused[:, 2:6])
    same(fused[:, 2:6], expected)
    same(fused[:, 6:], before[:, 6:])


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_gradient_is_that_of_fp64(dtype: torch.dtype, interleaved: bool) -> None:
    x = torch.randn(11, 3, 40).to(dtype).requires_grad_()
    dy = torch.randn(11, 3, 40).to(dtype)
    cos, sin = _angles(11, 16)
    ops.rope(x, cos, sin, interleaved).backward(dy)
    xd = x.detach().double().requires_grad_()
    exact.rope(xd, cos, sin, interleaved).backward(dy.double())
    assert (x.grad - xd.grad).abs().max() <= (torch.finfo(dtype).eps + 1e-6) * xd.grad.abs().max()


def test_training_and_compiled_give_the_bits_of_inference() -> None:
    x = hard_values((9, 4, 64), torch.bfloat16, 6)
    cos, sin = _angles(9, 32)
    expected = ops.rope(x, cos, sin)
    same(ops.rope(x.clone().requires_grad_(), cos, sin), expected)
    same(torch.compile(lambda a: ops.rope(a, cos, sin), backend="aot_eager")(x), expected)


def test_operator_passes_opcheck() -> None:
    cos, sin = _angles(3, 8)
    for interleaved, dtype in ((False, torch.bfloat16), (True, torch.float32)):
        x = strided(torch.randn(3, 2, 20).to(dtype)).requires_grad_()
        torch.library.opcheck(torch.ops.logdiff.rope.default, (x, cos, sin, interleaved))


@pytest.mark.parametrize("dtype", DTYPES)
def test_error_is_no_larger_than_that_of_torch(dtype: torch.dtype) -> None:
    x = hard_values((64, 8, 64), dtype, 7)
    cos, sin = (torch.from_numpy(t) for t in table(SPEC, range(64)))
    c, s = (torch.cat([t, t], dim=1)[:, None].to(dtype) for t in (cos, sin))
    stock = x * c + torch.cat([-x[..., 32:], x[..., :32]], dim=-1) * s
    check_accuracy(ops.rope(x, cos, sin), stock, exact.rope(x, cos, sin))


def test_what_is_not_covered_raises() -> None:
    cos, sin = _angles(3, 8)
    with pytest.raises(InputError, match="shapes"):
        ops.rope(torch.zeros(3, 2, 14), cos, sin)
    with pytest.raises(UnsupportedError, match="float64"):
        ops.rope(torch.zeros(3, 2, 16, dtype=torch.float64), cos, sin)
    with pytest.raises(UnsupportedError, match="bfloat16"):
        ops.rope(torch.zeros(3, 2, 16), cos.bfloat16(), sin.bfloat16())
    with pytest.raises(UnsupportedError, match="gradient"):
        ops.rope(torch.zeros(3, 2, 16, requires_grad=True), cos, sin, out=torch.zeros(3, 2, 16))

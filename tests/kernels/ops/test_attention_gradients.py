"""Gradients of attention: the contract's bits, fp64 autograd, any number of threads."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from logdiff_kernels import ops
from logdiff_kernels.ops.reference import attention as exact
from torch import Tensor

from tests.kernels.ops import attention_oracle as oracle
from tests.kernels.ops.attention_cases import Case, draw, starts
from tests.kernels.ops.row_laws import same, threads
from tests.kernels.oracle import array, hard_values, same_bits

SEEDS = st.integers(0, 10**6)


def backward(case: Case, dout: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    leaves = [x.clone().requires_grad_() for x in (case.q, case.k, case.v)]
    sinks = None if case.sinks is None else case.sinks.clone().requires_grad_()
    out, lse = case.run(**dict(zip("qkv", leaves, strict=True)), sinks=sinks)
    grads = torch.autograd.grad(out, leaves if sinks is None else [*leaves, sinks], dout)
    return out.detach(), lse, grads


def check_bits(case: Case, seed: int) -> None:
    """One sequence against the transcription."""
    dout = hard_values((*case.q.shape[:2], case.v.shape[2]), case.q.dtype, seed + 9)
    out, lse, grads = backward(case, dout)
    want = oracle.gradients(dout, case.q, case.k, case.v, out, lse, case.options, case.sinks)
    for name, got, expected in zip(("dq", "dk", "dv", "dsinks"), grads, want, strict=False):
        assert expected is not None
        assert same_bits(array(got), expected), name


@settings(max_examples=12, deadline=None)
@given(SEEDS, st.booleans())
def test_gradients_are_the_contract_to_the_bit(seed: int, chunked: bool) -> None:
    case = draw(seed, lengths=(1, 2, 15, 16, 17, 33, 64, 65, 100), sequences=1, chunked=chunked)
    if case.q.numel():
        check_bits(case, seed)


@pytest.mark.parametrize(("keys", "queries"), [(530, 30), (520, 520)])
def test_gradients_over_steps_and_query_blocks_are_the_contract(keys: int, queries: int) -> None:
    torch.manual_seed(keys)  # fp32: a cast to 16 bits would hide another order of the sums
    q, k, v = (torch.randn(n, h, 8) for n, h in ((queries, 2), (keys, 1), (keys, 1)))
    check_bits(Case(q, k, v, starts([queries]), starts([keys]), None, oracle.Options(8**-0.5)), keys)


@pytest.mark.slow(seconds=120)
def test_many_more_gradients_are_the_contract() -> None:
    for seed in range(30):
        case = draw(seed + 10**7, lengths=(33, 100, 257, 300), sequences=1, chunked=seed % 2 == 0)
        if case.q.numel():
            check_bits(case, seed)


@settings(max_examples=15, deadline=None)
@given(SEEDS)
def test_gradients_do_not_depend_on_threads_or_the_batch(seed: int) -> None:
    """Each sequence of a packed batch alone; with many threads dQ and dK, dV are swept apart, with one together."""
    case = draw(seed, chunked=seed % 2 == 0)
    dout = hard_values((*case.q.shape[:2], case.v.shape[2]), case.q.dtype, seed + 9)
    _, _, want = backward(case, dout)
    for count in (1, 2, 13):
        with threads(count):
            same(backward(case, dout)[2], want, f"{count} threads")
    for q, k in case.sequences():
        alone = Case(
            case.q[q],
            case.k[k],
            case.v[k],
            starts([q.stop - q.start]),
            starts([k.stop - k.start]),
            case.sinks,
            case.options,
        )
        _, _, (dq, dk, dv, *_) = backward(alone, dout[q])
        same((dq, dk, dv), (want[0][q], want[1][k], want[2][k]), "alone")


@pytest.mark.parametrize("seed", range(8))
def test_gradients_are_those_of_fp64(seed: int) -> None:
    case = draw(seed * 13 + 1, lengths=(17, 65, 130))
    torch.manual_seed(seed)
    case.q, case.k, case.v = (torch.randn(x.shape) for x in (case.q, case.k, case.v))
    dout = torch.randn(*case.q.shape[:2], case.v.shape[2])
    _, _, grads = backward(case, dout)
    leaves = [x.double().requires_grad_() for x in (case.q, case.k, case.v)]
    sinks = None if case.sinks is None else case.sinks.double().requires_grad_()
    out = exact.attention(*leaves, case.cu_q, case.cu_k, **{**case.arguments, "sinks": sinks})
    assert isinstance(out, Tensor)
    want = torch.autograd.grad(out, leaves if sinks is None else [*leaves, sinks], dout.double())
    for name, got, expected in zip(("dq", "dk", "dv", "dsinks"), grads, want, strict=False):
        scale = float(expected.abs().max()) + 0.1  # with a window of one key dq is exactly zero
        assert float((got.double() - expected).abs().max()) <= 2e-5 * scale, name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_error_of_16_bit_gradients_is_that_of_stock(dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    q, k, v, dout = (torch.randn(300, 4, 64).to(dtype).requires_grad_(i < 3) for i in range(4))
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    reference = exact.attention(*wide, starts([300]), scale=0.125)
    assert isinstance(reference, Tensor)
    want = torch.autograd.grad(reference, wide, dout.double())
    ours = torch.autograd.grad(ops.attention(q, k, v, starts([300]), scale=0.125), [q, k, v], dout)
    moved = [x.transpose(0, 1)[None] for x in (q, k, v)]
    stock_out = torch.nn.functional.scaled_dot_product_attention(*moved, is_causal=True)[0].transpose(0, 1)
    stock = torch.autograd.grad(stock_out, [q, k, v], dout)
    for mine, theirs, expected in zip(ours, stock, want, strict=True):
        error, stock_error = (float((x.double() - expected).pow(2).mean().sqrt()) for x in (mine, theirs))
        assert error <= 1.05 * stock_error


def test_only_what_needs_a_gradient_gets_one() -> None:
    q, k = torch.randn(4, 2, 8, requires_grad=True), torch.randn(4, 1, 8)
    out, lse = ops.attention(q, k, k, starts([4]), scale=1.0, return_lse=True)
    assert out.requires_grad
    assert not lse.requires_grad
    (dq,) = torch.autograd.grad(out.sum(), [q])
    assert dq.shape == q.shape

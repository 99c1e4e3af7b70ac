"""moe: products per expert, the combine's order, expert and tensor parallelism, gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from logdiff_kernels import ops
from logdiff_kernels.contract.linear import row_leaves
from logdiff_kernels.errors import InputError, UnsupportedError
from logdiff_kernels.ops.reference import moe as exact
from torch import Tensor

from tests.kernels.ops import row_oracle
from tests.kernels.ops.row_laws import check_accuracy, check_rows, same, threads
from tests.kernels.oracle import array, same_bits

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
CLAMPED = ("swiglu_clamped", 1.702, 7.0)


def _case(
    tokens: int, k: int, experts: int, width: int, inner: int, dtype: torch.dtype, seed: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, width, generator=g).to(dtype)
    ids = torch.stack([torch.randperm(experts, generator=g)[:k] for _ in range(tokens)]).reshape(tokens, k)
    weights = torch.rand(tokens, k, generator=g)
    gate_up = (torch.randn(experts, 2 * inner, width, generator=g) * 0.2).to(dtype)
    down = (torch.randn(experts, width, inner, generator=g) * 0.2).to(dtype)
    return x, ids, weights, gate_up, down


def _by_slot(x: Tensor, ids: Tensor, gate_up: Tensor, down: Tensor, **kwargs: Any) -> Tensor:
    """y [T, k, H] by the operators of one expert at a time: linear, activation, linear_row."""
    bias, down_bias, activation = (
        kwargs.get("gate_up_bias"),
        kwargs.get("down_bias"),
        kwargs.get("activation", "swiglu"),
    )
    y = torch.empty(*ids.shape, down.shape[1], dtype=x.dtype)
    for t in range(ids.shape[0]):
        for j, e in enumerate(ids[t].tolist()):
            fused = ops.linear(x[t : t + 1], gate_up[e], None if bias is None else bias[e])
            gate, up = (fused[:, 0::2], fused[:, 1::2]) if kwargs.get("interleaved") else fused.chunk(2, dim=1)
            hidden = ops.swiglu_clamped(gate, up, *activation[1:]) if activation == CLAMPED else ops.swiglu(gate, up)
            y[t, j] = ops.linear_row(hidden, down[e], None if down_bias is None else down_bias[e])[0]
    return y


@settings(max_examples=25, deadline=None)
@given(
    tokens=st.integers(1, 6),
    k=st.integers(1, 4),
    inner=st.sampled_from([16, 24, 32, 128]),
    dtype=st.sampled_from(DTYPES),
    biased=st.booleans(),
    interleaved=st.booleans(),
    clamped=st.booleans(),
    transposed=st.booleans(),
    shared=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_moe_is_the_contract_to_the_bit(
    tokens: int,
    k: int,
    inner: int,
    dtype: torch.dtype,
    biased: bool,
    interleaved: bool,
    clamped: bool,
    transposed: bool,
    shared: bool,
    seed: int,
) -> None:
    x, ids, weights, gate_up, down = _case(tokens, k, 6, 40, inner, dtype, seed)
    if transposed:
        gate_up, down = (w.transpose(1, 2).contiguous().transpose(1, 2) for w in (gate_up, down))
    options: dict[str, Any] = {"interleaved": interleaved, "activation": CLAMPED if clamped else "swiglu"}
    if biased:
        options |= {"gate_up_bias": torch.randn(6, 2 * inner).to(dtype), "down_bias": torch.randn(6, 40).to(dtype)}
    last = torch.randn(tokens, 40).to(dtype) if shared else None
    found = ops.moe(x, ids, weights, gate_up, down, shared=last, **options)
    y = _by_slot(x, ids, gate_up, down, **options)
    expected = row_oracle.moe_combine(
        array(y), array(weights), ids.numpy(), None if last is None else array(last), dtype
    )
    assert same_bits(found, torch.from_numpy(expected).to(dtype))


def test_the_order_of_slots_does_not_matter_and_that_of_experts_does() -> None:
    y = torch.tensor([[[1e8], [-1e8], [1.0]]])
    ones = torch.ones(1, 3)
    assert ops.moe_combine_slots(y, ones, torch.tensor([[0, 1, 2]])).item() == 1.0
    assert ops.moe_combine_slots(y, ones, torch.tensor([[0, 2, 1]])).item() == 0.0
    swapped = y[:, [2, 0, 1]]
    assert ops.moe_combine_slots(swapped, ones, torch.tensor([[2, 0, 1]])).item() == 1.0
    replicas = torch.tensor([9, 9, 9, 1, 0, 2])  # rows 4, 3, 5 are the logical experts 0, 1, 2
    assert ops.moe_combine_slots(y, ones, torch.tensor([[4, 3, 5]]), replicas).item() == 1.0
    assert ops.moe_combine_slots(y, ones, torch.tensor([[3, 5, 4]]), replicas).item() == 0.0


def test_rows_are_independent_of_batch_threads_and_strides() -> None:
    x, ids, weights, gate_up, down = _case(60, 3, 8, 64, 48, torch.bfloat16, 1)
    check_rows(lambda a, w, i: ops.moe(a, i, w, gate_up, down), x, weights, ids)


@pytest.mark.parametrize("ranks", [2, 4])
def test_expert_parallel_ranks_give_the_bits_of_one(ranks: int) -> None:
    x, ids, weights, gate_up, down = _case(20, 3, 8, 64, 48, torch.bfloat16, 2)
    share = 8 // ranks
    y = torch.zeros(20, 3, 64, dtype=torch.bfloat16)
    for rank in range(ranks):
        here = (ids // share) == rank
        local = torch.where(here, ids - rank * share, -1)
        mine = slice(rank * share, (rank + 1) * share)
        names = torch.arange(8)[mine]
        for slot in range(3):  # one slot at a time with weight 1: this rank's rows
            only = torch.where(torch.arange(3) == slot, local, -1)
            rows = ops.moe(x, only, torch.ones(20, 3), gate_up[mine], down[mine], expert_ids=names)
            y[here[:, slot], slot] = rows[here[:, slot]]
    same(ops.moe_combine_slots(y, weights, ids), ops.moe(x, ids, weights, gate_up, down))


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_tensor_parallel_ranks_give_the_bits_of_one(ranks: int) -> None:
    inner = 128
    x, ids, weights, gate_up, down = _case(20, 3, 8, 64, inner, torch.bfloat16, 3)
    leaves, part = row_leaves(inner), inner // ranks
    assert leaves == 8
    parts = []
    for rank in range(ranks):
        mine = slice(rank * part, (rank + 1) * part)
        fused = torch.cat([gate_up[:, :inner][:, mine], gate_up[:, inner:][:, mine]], dim=1)
        parts.append(ops.moe_rows(x, ids, fused, down[:, :, mine], leaves // ranks))
    y = ops.tree_combine(torch.stack(parts), None, torch.bfloat16)
    same(ops.moe_combine_slots(y, weights, ids), ops.moe(x, ids, weights, gate_up, down))


@pytest.mark.parametrize("activation", ["swiglu", "geglu_tanh", CLAMPED])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_those_of_fp64(activation: Any, dtype: torch.dtype) -> None:
    x, ids, weights, gate_up, down = _case(30, 3, 5, 32, 48, dtype, 4)
    leaves = [
        x,
        weights,
        gate_up,
        down,
        torch.randn(5, 96).to(dtype),
        torch.randn(5, 32).to(dtype),
        torch.randn(30, 32).to(dtype),
    ]
    leaves = [t.requires_grad_() for t in leaves]
    wide = [t.detach().double().requires_grad_() for t in leaves]
    dy = torch.randn(30, 32).to(dtype)
    for moe, (a, w, g, d, gb, db, last) in ((ops.moe, leaves), (exact.moe, wide)):
        moe(a, ids, w, g, d, gb, db, activation, shared=last).backward(dy.to(a.dtype))
    step = {torch.float32: 4e-6, torch.bfloat16: 2e-2}[dtype]  # a bf16 chain rounds after each of its operators
    for ours, theirs in zip(leaves, wide, strict=True):
        assert (ours.grad - theirs.grad).abs().max() <= step * theirs.grad.abs().max()


def test_gradients_do_not_depend_on_threads() -> None:
    found = []
    for count in (1, 3):
        with threads(count):
            leaves = [
                t.requires_grad_() if t.is_floating_point() else t for t in _case(40, 3, 5, 64, 48, torch.bfloat16, 5)
            ]
            ops.moe(*leaves).float().square().sum().backward()
            found.append(tuple(t.grad for t in leaves if t.is_floating_point()))
    same(*found)


def test_training_and_compiled_give_the_bits_of_inference() -> None:
    x, ids, weights, gate_up, down = _case(9, 3, 8, 64, 48, torch.bfloat16, 6)
    expected = ops.moe(x, ids, weights, gate_up, down)
    same(ops.moe(x.clone().requires_grad_(), ids, weights, gate_up, down), expected)
    compiled = torch.compile(lambda a, w: ops.moe(a, ids, w, gate_up, down), backend="aot_eager")
    same(compiled(x, weights), expected)


def test_operators_pass_opcheck() -> None:
    x, ids, weights, *_ = _case(5, 3, 6, 16, 16, torch.float32, 7)
    _, order, position = torch.ops.logdiff.moe_sort(ids, 6, None)
    torch.library.opcheck(torch.ops.logdiff.moe_sort.default, (ids, 6, None))
    torch.library.opcheck(torch.ops.logdiff.moe_gather.default, (x.requires_grad_(), ids, order, position, None))
    y, last = torch.randn(15, 16).requires_grad_(), torch.randn(5, 16).requires_grad_()
    arguments = (y, weights.requires_grad_(), ids, position, torch.arange(6), last)
    torch.library.opcheck(torch.ops.logdiff.moe_combine.default, arguments)


@pytest.mark.parametrize("dtype", DTYPES)
def test_error_is_no_larger_than_that_of_torch(dtype: torch.dtype) -> None:
    x, ids, weights, gate_up, down = _case(64, 4, 8, 128, 128, dtype, 8)
    stock = torch.zeros(64, 128, dtype=dtype)
    for e in range(8):
        token, slot = torch.where(ids == e)
        gate, up = (x[token] @ gate_up[e].T).chunk(2, dim=1)
        y = (torch.nn.functional.silu(gate) * up) @ down[e].T
        stock.index_add_(0, token, (y * weights[token, slot, None]).to(dtype))
    check_accuracy(ops.moe(x, ids, weights, gate_up, down), stock, exact.moe(x, ids, weights, gate_up, down))


def test_what_is_not_covered_raises() -> None:
    x, ids, weights, gate_up, down = _case(4, 3, 8, 16, 16, torch.float32, 9)
    with pytest.raises(InputError, match="twice"):
        ops.moe(x, torch.zeros_like(ids), weights, gate_up, down)
    with pytest.raises(InputError, match="twice"):
        ops.moe(x, ids, weights, gate_up, down, expert_ids=torch.zeros(8, dtype=torch.int64))
    with pytest.raises(InputError, match="beyond"):
        ops.moe(x, ids + 8, weights, gate_up, down)
    with pytest.raises(UnsupportedError, match="activation"):
        ops.moe(x, ids, weights, gate_up, down, activation="relu2")
    with pytest.raises(InputError, match="shapes"):
        ops.moe(x, ids, weights, gate_up, down.transpose(1, 2)[:, :, :8])
    with pytest.raises(InputError, match="int64"):
        ops.moe(x, ids.int(), weights, gate_up, down)
    with pytest.raises(UnsupportedError, match="bfloat16"):
        ops.moe(x, ids, weights.bfloat16(), gate_up, down)


def test_tokens_without_a_local_expert_get_the_shared_one_or_zero() -> None:
    x, ids, weights, gate_up, down = _case(4, 3, 8, 16, 16, torch.float32, 10)
    away = torch.full_like(ids, -1)
    same(ops.moe(x, away, weights, gate_up, down), torch.zeros(4, 16))
    same(ops.moe(x, away, weights, gate_up, down, shared=x), x)

"""Every public operator per dtype, forward and backward, on small hard data: shapes that reach every loop's tail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from logdiff_kernels import ops
from logdiff_kernels.contract.router import RouterSpec

from tests.kernels.oracle import hard_values

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def _differentiate(function: Callable[..., Any], inputs: Sequence[torch.Tensor | None]) -> None:
    """The forward alone, then with a backward pass for every floating input."""
    function(*inputs)
    leaves = [x.detach().requires_grad_() if x is not None and x.is_floating_point() else x for x in inputs]
    outputs = function(*leaves)
    for i, out in enumerate(outputs if isinstance(outputs, tuple) else (outputs,)):
        if out.requires_grad:
            out.backward(hard_values(tuple(out.shape), out.dtype, 90 + i), retain_graph=True)


def run_every_operator() -> None:
    """Run them all."""
    for number, dtype in enumerate(DTYPES):
        products(dtype, 100 * number)
        rows(dtype, 100 * number + 30)
        attention(dtype, 100 * number + 60)
    scores()


def products(dtype: torch.dtype, seed: int) -> None:
    for rows, k, n in ((1, 64, 40), (5, 80, 33), (9, 48, 24), (70, 256, 65)):
        x = hard_values((rows, k), dtype, seed + rows, special=rows == 70)
        weight, bias = hard_values((n, k), dtype, seed + 1), hard_values((n,), dtype, seed + 2)
        _differentiate(ops.linear, [x, weight, bias])
        _differentiate(ops.linear_row, [x, weight, bias])
        _differentiate(lambda x, w, b: ops.lm_head(x, w, b, 0.5, 30.0), [x, weight, bias])
        # Plain values with no subnormals, where a bf16 dot product may be used; fp32 results, which hide no bit.
        clean, other = torch.randn(rows, k).to(dtype), torch.randn(n, k).to(dtype)
        ops.linear(clean, other, None, torch.float32)
        ops.linear(clean, other.t().contiguous().t(), None, torch.float32)
        partials = torch.stack([ops.linear_row_partial(x[:, i::2], weight[:, i::2], 1) for i in range(2)])
        ops.tree_combine(partials, bias, dtype)
    offsets = torch.tensor([0, 3, 3, 20, 21])
    x, weight = hard_values((21, 64), dtype, seed + 3), hard_values((4, 40, 64), dtype, seed + 4)
    for row in (False, True):
        _differentiate(lambda x, w, b, row=row: ops.grouped_linear(x, offsets, w, b, row), [x, weight, None])
    ids = torch.tensor([3, 0, 3, 7])
    _differentiate(lambda w: ops.embedding(ids, w, 1.25), [hard_values((8, 37), dtype, seed + 5)])


def rows(dtype: torch.dtype, seed: int) -> None:
    for n in (37, 64, 200):
        x, residual = hard_values((9, n), dtype, seed, special=n == 200), hard_values((9, n), dtype, seed + 1)
        weight = hard_values((n,), dtype, seed + 2)
        _differentiate(lambda x, w: ops.rms_norm(x, w, 1e-6), [x, weight])
        _differentiate(lambda x, r, w: ops.add_rms_norm(x, r, w, 1e-5, 1.0), [x, residual, weight])
        for gated in (ops.swiglu, ops.geglu_tanh, lambda g, u: ops.swiglu_clamped(g, u, 1.702, 7.0)):
            _differentiate(gated, [x, residual])
    angle = torch.rand(7, 10) * 6
    for interleaved in (False, True):
        _differentiate(
            lambda x, i=interleaved: ops.rope(x, angle.cos(), angle.sin(), i),
            [hard_values((7, 3, 26), dtype, seed + 3)],
        )
    ids = torch.tensor([[2, 0], [1, 3], [3, 2], [0, 1], [1, 2]])
    weights = torch.rand(5, 2)
    experts = [hard_values((4, 2 * 32, 48), dtype, seed + 4), hard_values((4, 48, 32), dtype, seed + 5)]
    for activation in ("swiglu", "geglu_tanh", ("swiglu_clamped", 1.702, 7.0)):
        _differentiate(
            lambda x, w, gate_up, down, a=activation: ops.moe(x, ids, w, gate_up, down, activation=a),
            [hard_values((5, 48), dtype, seed + 6), weights, *experts],
        )


def attention(dtype: torch.dtype, seed: int) -> None:
    cu = torch.tensor([0, 5, 5, 530], dtype=torch.int32)
    for dim, dim_v, window, cap in ((16, 16, 0, 0.0), (40, 24, 100, 5.0)):
        q = hard_values((530, 4, dim), dtype, seed)
        k, v = hard_values((530, 2, dim), dtype, seed + 1), hard_values((530, 2, dim_v), dtype, seed + 2)
        sinks = torch.randn(4) if cap else None
        _differentiate(
            lambda q, k, v, s, w=window, c=cap, d=dim: ops.attention(
                q, k, v, cu, scale=d**-0.5, window=w, softcap=c, sinks=s
            ),
            [q, k, v, sinks],
        )
        k_cache, v_cache = torch.zeros(40, 16, 2, dim, dtype=dtype), torch.zeros(40, 16, 2, dim_v, dtype=dtype)
        ops.store_kv(k[:530], v[:530], k_cache, v_cache, torch.arange(530) + 48)
        table = (torch.arange(40, dtype=torch.int32) + 3).clamp(max=39).repeat(2, 1)
        starts, lengths = torch.tensor([0, 1, 4], dtype=torch.int32), torch.tensor([525, 60], dtype=torch.int32)
        ops.paged_attention(
            q[:4], k_cache, v_cache, table, starts, lengths, scale=dim**-0.5, window=window, softcap=cap, sinks=sinks
        )


def scores() -> None:
    logits = hard_values((6, 300), torch.float32, 7)
    logits[5] = float("-inf")
    ids = torch.tensor([0, 299, 17, 64, 128, 5])
    for temperature in (1.0, 0.7, torch.tensor([1.0, 0.5, 0.7, 2.0, 1.0, 1.0])):
        _differentiate(lambda z, t=temperature: ops.logprob(z, ids, t, 290, True), [logits])
        _differentiate(lambda z, t=temperature: ops.log_softmax(z, t), [logits])
    parts = [ops.logprob_partial(logits[:, 160 * r : 160 * (r + 1)], ids, r, 2, 300) for r in range(2)]
    ops.logprob_merge(torch.stack(parts), entropy=False)
    for spec in (
        RouterSpec(4),
        RouterSpec(
            4,
            scoring="sigmoid",
            renormalize=True,
            renorm_eps=1e-20,
            scaling=2.5,
            groups=4,
            topk_groups=2,
            group_score="top2",
        ),
        RouterSpec(2, choose_on="logits"),
    ):
        _differentiate(lambda z, s=spec: ops.router(z, s)[0], [hard_values((9, 32), torch.float32, 8)])

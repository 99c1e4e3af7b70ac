"""Every public operator without gradients, given a function that puts a tensor on the device in question."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from logdiff_kernels import ops
from logdiff_kernels.contract.router import RouterSpec
from torch import Tensor

Put = Callable[[Tensor], Tensor]


def _random(seed: int, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _products(put: Put) -> Any:
    x, w, b = put(_random(1, 5, 64)), put(_random(2, 40, 64)), put(_random(3, 40))
    yield "linear", ops.linear(x, w, b)
    yield "linear, 3 dimensions", ops.linear(x[None], w, None, torch.float32)
    yield "linear_row", ops.linear_row(x, w, b)
    yield "lm_head", ops.lm_head(x, w, None, 0.5, 30.0)
    parts = torch.stack(
        [ops.linear_row_partial(x[:, 32 * i : 32 * (i + 1)], w[:, 32 * i : 32 * (i + 1)], 4) for i in (0, 1)]
    )
    yield "tree_combine", ops.tree_combine(parts, b)
    offsets = put(torch.tensor([0, 2, 2, 5]))
    yield "grouped_linear", ops.grouped_linear(x, offsets, put(_random(4, 3, 24, 64)))
    yield "embedding", ops.embedding(put(torch.tensor([3, 0, 7])), w, 1.25)


def _rows(put: Put) -> Any:
    x, r, w = put(_random(5, 7, 48)), put(_random(6, 7, 48)), put(_random(7, 48))
    yield "rms_norm", ops.rms_norm(x, w, 1e-6)
    yield "rms_norm, no weight", ops.rms_norm(x, None, 1e-6)
    yield "add_rms_norm", ops.add_rms_norm(x, r, w, 1e-5, 1.0)
    yield "swiglu", ops.swiglu(x, r)
    yield "geglu_tanh", ops.geglu_tanh(x, r)
    yield "swiglu_clamped", ops.swiglu_clamped(x, r, 1.702, 7.0)
    angle = _random(8, 7, 8, dtype=torch.float32)
    yield "rope", ops.rope(put(_random(9, 7, 3, 20)), put(angle.cos()), put(angle.sin()))


def _attention(put: Put) -> Any:
    q, k, v = put(_random(10, 23, 4, 32)), put(_random(11, 23, 2, 32)), put(_random(12, 23, 2, 32))
    starts = put(torch.tensor([0, 5, 5, 23], dtype=torch.int32))
    yield "attention", ops.attention(q, k, v, starts, scale=0.2)
    sinks = put(_random(13, 4, dtype=torch.float32))
    yield "attention, sinks", ops.attention(q, k, v, starts, scale=0.2, window=4, sinks=sinks, return_lse=True)
    k_cache, v_cache = (put(torch.zeros(4, 16, 2, 32, dtype=torch.bfloat16)) for _ in range(2))
    ops.store_kv(k, v, k_cache, v_cache, put(torch.arange(23) + 3))
    yield "store_kv", (k_cache, v_cache)
    table = put(torch.arange(4, dtype=torch.int32).repeat(2, 1))
    lengths = put(torch.tensor([26, 9], dtype=torch.int32))
    cu = put(torch.tensor([0, 1, 3], dtype=torch.int32))
    yield "paged_attention", ops.paged_attention(q[:3], k_cache, v_cache, table, cu, lengths, scale=0.2)


def _scores(put: Put) -> Any:
    logits, ids = put(_random(14, 6, 300, dtype=torch.float32)), put(torch.tensor([0, 289, 17, 64, 128, 5]))
    heat = put(torch.tensor([1.0, 0.5, 0.7, 2.0, 1.0, 1.0]))
    yield "logprob", ops.logprob(logits, ids, 0.7, 290)
    yield "logprob, entropy", ops.logprob(logits, ids, heat, entropy=True)
    yield "log_softmax", ops.log_softmax(logits, heat, 290)
    parts = [ops.logprob_partial(logits[:, 160 * i : 160 * (i + 1)], ids, i, 2, 300, entropy=True) for i in range(2)]
    yield "logprob_merge", ops.logprob_merge(torch.stack(parts), entropy=True)
    spec = RouterSpec(4, scoring="sigmoid", renormalize=True, groups=4, topk_groups=2, group_score="top2")
    yield "router", ops.router(put(_random(15, 9, 32, dtype=torch.float32)), spec, put(_random(16, 32).float()))


def _experts(put: Put) -> Any:
    x, ids = put(_random(17, 5, 48)), put(torch.tensor([[2, 0], [1, 3], [3, -1], [0, 1], [1, 2]]))
    weights = put(_random(18, 5, 2, dtype=torch.float32))
    gate_up, down = put(_random(19, 4, 64, 48)), put(_random(20, 4, 48, 32))
    yield "moe", ops.moe(x, ids, weights, gate_up, down, shared=put(_random(21, 5, 48)))
    logical = put(torch.tensor([3, 1, 0, 2]))
    yield "moe, clamped", ops.moe(
        x, ids, weights, gate_up, down, put(_random(22, 4, 64)), put(_random(23, 4, 48)),
        activation=("swiglu_clamped", 1.702, 7.0), interleaved=True, expert_ids=logical,
    )  # fmt: skip


def calls(put: Put) -> Iterator[tuple[str, list[Tensor]]]:
    """Names of calls and their results."""
    for part in (_products, _rows, _attention, _scores, _experts):
        for name, made in part(put):
            yield name, list(made) if isinstance(made, tuple | list) else [made]

"""The aligned operators of the numeric contract: on a CPU its library, on an NPU the Ascend C kernels."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from logdiff_kernels import ops
from logdiff_kernels.contract.linear import row_leaves
from logdiff_kernels.contract.router import RouterSpec
from logdiff_kernels.errors import RunnerError
from logdiff_kernels.ops import registry
from logdiff_kernels.probes import ranks
from logdiff_kernels.probes.families.kv_cache import PAGE
from logdiff_kernels.probes.families.linear import by_expert
from logdiff_kernels.probes.families.norms import EPS
from logdiff_kernels.probes.providers.sdpa import head_split
from logdiff_kernels.probes.providers.torch_eager import column_split
from logdiff_kernels.probes.records import AbsentError, Impl, Layout, Problem, Provider, Sequence


def _row_split(problem: Problem, count: int) -> Any:
    x, weight = problem.rows["x"], problem.fixed["weight"]
    leaves = row_leaves(x.shape[-1])
    if leaves % count:
        return None
    parts = [
        ops.linear_row_partial(a.contiguous(), b.contiguous(), leaves // count)
        for a, b in zip(x.chunk(count, dim=-1), weight.chunk(count, dim=-1), strict=True)
    ]
    return ops.tree_combine(torch.stack(parts), None, x.dtype)


def _grouped(x: Tensor, expert: Tensor, weight: Tensor) -> Tensor:
    return by_expert(lambda rows, offsets: ops.grouped_linear(rows, offsets, weight), x, expert, weight.shape[0])


def _rope(x: Tensor, position: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return ops.rope(x, cos[position], sin[position])


def _logprob(logits: Tensor, ids: Tensor) -> Tensor:
    return ops.logprob(logits.float(), ids)


def _vocabulary_split(problem: Problem, count: int) -> Any:
    logits, ids = problem.rows["logits"].float(), problem.rows["ids"]
    vocabulary = logits.shape[1]
    width = (vocabulary + 63) // 64 * 64 // count
    bounds = [min(rank * width, vocabulary) for rank in range(count)] + [vocabulary]
    parts = [
        ops.logprob_partial(logits[:, a:b].contiguous(), ids, rank, count, vocabulary)
        for rank, (a, b) in enumerate(pairwise(bounds))
    ]
    return ops.logprob_merge(torch.stack(parts))


def _router(scoring: str) -> Callable[..., Any]:
    def router(logits: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
        return ops.router(logits.float(), RouterSpec(top_k=top_k, scoring=scoring, renormalize=True))

    return router


def _expert_split(problem: Problem, count: int) -> Any:
    """Intermediate columns over ranks: each rank's part of every slot, the tree, the combine."""
    x, ids, weights = (problem.rows[name] for name in ("x", "ids", "weights"))
    gate_up, down = problem.fixed["gate_up"], problem.fixed["down"]
    inter = down.shape[2]
    leaves = row_leaves(inter)
    if leaves % count:
        return None
    gate, up = gate_up.chunk(2, dim=1)
    parts = []
    for rank in range(count):
        mine = slice(rank * inter // count, (rank + 1) * inter // count)
        fused = torch.cat([gate[:, mine], up[:, mine]], dim=1).contiguous()
        parts.append(ops.moe_rows(x, ids, fused, down[:, :, mine].contiguous(), leaves // count))
    return ops.moe_combine_slots(ops.tree_combine(torch.stack(parts), None, x.dtype), weights, ids)


def _combine(y: Tensor, ids: Tensor, weights: Tensor, experts: int) -> Tensor:
    return ops.moe_combine_slots(y, weights, ids)


def attend(listed: list[Sequence], layout: Layout, fixed: dict[str, Any]) -> list[Tensor]:
    """Packed sequences, or their keys and values in pages."""
    q, k, v = (torch.cat([one.parts[name] for one in listed]) for name in "qkv")
    if len(listed) == 1:
        q, k, v = (listed[0].parts[name] for name in "qkv")  # keeps the strides
    queries = [one.length for one in listed]
    keys = [one.parts["k"].shape[0] for one in listed]
    options = {name: fixed[name] for name in ("scale", "window", "softcap", "sinks")}
    cu_q = starts(queries, q.device)
    if layout.kind == "packed":
        out = ops.attention(q, k, v, cu_q, starts(keys, q.device), **options)
    else:
        table, slots, pages = paging(keys, layout.page, q.device)
        k_cache = torch.zeros(pages, layout.page, *k.shape[1:], dtype=k.dtype, device=k.device)
        v_cache = torch.zeros(pages, layout.page, *v.shape[1:], dtype=v.dtype, device=v.device)
        ops.store_kv(k, v, k_cache, v_cache, slots)
        lengths = torch.tensor(keys, dtype=torch.int32, device=q.device)
        out = ops.paged_attention(q, k_cache, v_cache, table, cu_q, lengths, **options)
    return list(torch.split(out, queries))


def starts(lengths: list[int], device: Any) -> Tensor:
    """int32 [len + 1]: where each sequence begins, and the end."""
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32, device=device)


def paging(lengths: list[int], page: int, device: Any) -> tuple[Tensor, Tensor, int]:
    """Pages for sequences, not in their order: block table int32 [B, most], slots int64, number of pages."""
    counts = [-(-n // page) for n in lengths]
    total = sum(counts)
    order = torch.randperm(total, generator=torch.Generator().manual_seed(total)).tolist()
    table = torch.zeros(len(lengths), max(counts), dtype=torch.int32)
    slots = []
    for row, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        mine = [order.pop() for _ in range(count)]
        table[row, :count] = torch.tensor(mine, dtype=torch.int32)
        slots += [mine[i // page] * page + i % page for i in range(length)]
    return table.to(device), torch.tensor(slots, dtype=torch.int64, device=device), total


def _store(k: Tensor) -> Tensor:
    _, slots, pages = paging([k.shape[0]], PAGE, k.device)
    cache = torch.zeros(pages, PAGE, *k.shape[1:], dtype=k.dtype, device=k.device)
    values = torch.zeros_like(cache)
    ops.store_kv(k, k, cache, values, slots)
    return cache.flatten(0, 1)[slots]


def _maker(call: Callable[..., Any], **fields: Any) -> Callable[[str, str], Impl]:
    def make(device: str, dtype: str) -> Impl:
        name = registry.CPU if device == "cpu" else registry.ASCENDC
        try:
            found = registry.provider(name)
        except RunnerError as error:
            raise AbsentError(f"{error.message}. {error.hint}".strip()) from None
        about = f"{found.contract} {found.isa or found.arch} {found.binary_hash[:16]}"
        return Impl(call, about=about, **fields)

    return make


def _reduced(op: str) -> Callable[[str, str], Impl]:
    def make(device: str, dtype: str) -> Impl:
        call = ranks.reducer(op, ranks.backend(device), aligned=True)
        return _maker(call, gradients=False)(device, dtype)

    return make


PROVIDERS = (
    Provider(
        "aligned",
        ("cpu", "npu"),
        {
            "linear": _maker(ops.linear, leading=True, split=column_split(ops.linear)),
            "linear_row": _maker(ops.linear_row, leading=True, split=_row_split),
            "lm_head": _maker(ops.lm_head, leading=True, split=column_split(ops.lm_head)),
            "grouped_linear": _maker(_grouped),
            "rms_norm": _maker(lambda x, weight: ops.rms_norm(x, weight, EPS), leading=True),
            "add_rms_norm": _maker(
                lambda x, residual, weight: ops.add_rms_norm(x, residual, weight, EPS), leading=True
            ),
            "rope": _maker(_rope),
            "swiglu": _maker(ops.swiglu, leading=True),
            "geglu_tanh": _maker(ops.geglu_tanh, leading=True),
            "log_softmax": _maker(lambda logits: ops.log_softmax(logits.float())),
            "logprob": _maker(_logprob, split=_vocabulary_split),
            "router": _maker(_router("softmax")),
            "router_sigmoid": _maker(_router("sigmoid")),
            "moe": _maker(ops.moe, split=_expert_split),
            "moe_combine": _maker(_combine),
            "embedding": _maker(ops.embedding, leading=True, gradients=False),
            "attention": _maker(attend, layouts=("packed", "paged"), split=head_split(attend, "packed")),
            "kv_store": _maker(_store, gradients=False),
            "all_reduce": _reduced("all_reduce"),
            "reduce_scatter": _reduced("reduce_scatter"),
        },
        "the operators of the numeric contract",
    ),
)

"""torch's own functions, called one by one as an eager model calls them; on any device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from logdiff_kernels.probes import ranks
from logdiff_kernels.probes.families.kv_cache import PAGE
from logdiff_kernels.probes.families.linear import by_expert, looped
from logdiff_kernels.probes.families.norms import EPS
from logdiff_kernels.probes.families.reductions import sorted_slots
from logdiff_kernels.probes.records import Impl, Problem, Provider


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """functional.linear."""
    return functional.linear(x, weight)


def lm_head(x: Tensor, weight: Tensor) -> Tensor:
    """functional.linear, then fp32, as engines do."""
    return functional.linear(x, weight).float()


def column_split(call: Callable[..., Any]) -> Callable[[Problem, int], Any]:
    """The products of each rank's columns side by side; None where they don't divide."""

    def split(problem: Problem, count: int) -> Any:
        weight = problem.fixed["weight"]
        if weight.shape[0] % count:
            return None
        return torch.cat([call(problem.rows["x"], part.contiguous()) for part in weight.chunk(count)], dim=-1)

    return split


def _row_split(problem: Problem, count: int) -> Any:
    """Each rank's product over its k, rounded to the dtype, and their sum in rank order, as an all-reduce adds."""
    x, weight = problem.rows["x"], problem.fixed["weight"]
    if x.shape[-1] % count:
        return None
    parts = [
        functional.linear(a.contiguous(), b.contiguous())
        for a, b in zip(x.chunk(count, dim=-1), weight.chunk(count, dim=-1), strict=True)
    ]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def grouped_linear(x: Tensor, expert: Tensor, weight: Tensor) -> Tensor:
    """Rows sorted by expert, one product each."""
    return by_expert(lambda rows, offsets: looped(rows, offsets, weight), x, expert, weight.shape[0])


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """functional.rms_norm."""
    return functional.rms_norm(x, (x.shape[-1],), weight, EPS)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The sum in the dtype, then functional.rms_norm."""
    total = x + residual
    return rms_norm(total, weight), total


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """functional.layer_norm."""
    return functional.layer_norm(x, (x.shape[-1],), weight, bias, EPS)


def rope(x: Tensor, position: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """In fp32, one cast at the end."""
    c, s = cos[position][:, None, :], sin[position][:, None, :]
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * c - second * s, second * c + first * s], dim=-1).to(x.dtype)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu in the dtype, then the product."""
    return functional.silu(gate) * up


def geglu_tanh(gate: Tensor, up: Tensor) -> Tensor:
    """gelu in the dtype, then the product."""
    return functional.gelu(gate, approximate="tanh") * up


def log_softmax(logits: Tensor) -> Tensor:
    """torch.log_softmax of fp32 logits."""
    return torch.log_softmax(logits.float(), dim=-1)


def logprob(logits: Tensor, ids: Tensor) -> Tensor:
    """log_softmax, then the chosen column."""
    return log_softmax(logits).gather(1, ids[:, None])[:, 0]


def _vocabulary_split(problem: Problem, count: int) -> Any:
    """Max and sum over each rank's columns, added in rank order: the formula of vocabulary-parallel cross entropies."""
    logits, ids = problem.rows["logits"].float(), problem.rows["ids"]
    if logits.shape[1] % count:
        return None
    shards = [shard.contiguous() for shard in logits.chunk(count, dim=-1)]
    top = torch.stack([shard.amax(-1) for shard in shards]).amax(0)
    total = torch.zeros_like(top)
    for shard in shards:
        total = total + (shard - top[:, None]).exp().sum(-1)
    return logits.gather(1, ids[:, None])[:, 0] - top - total.log()


def router(logits: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """softmax in fp32, topk, renormalised."""
    weights, ids = torch.softmax(logits.float(), dim=-1).topk(top_k, dim=-1)
    return weights / weights.sum(-1, keepdim=True), ids


def router_sigmoid(logits: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """sigmoid in fp32, topk, renormalised."""
    weights, ids = torch.sigmoid(logits.float()).topk(top_k, dim=-1)
    return weights / weights.sum(-1, keepdim=True), ids


def moe_combine(y: Tensor, ids: Tensor, weights: Tensor, experts: int) -> Tensor:
    """Weighted rows in order of their expert, added to their token by index_add in the dtype."""
    rows, slots = ids.shape
    order = torch.argsort(ids.reshape(-1), stable=True)
    token = torch.arange(rows, device=y.device).repeat_interleave(slots)[order]
    weighted = (y.reshape(rows * slots, -1)[order] * weights.reshape(-1)[order, None]).to(y.dtype)
    return torch.zeros(rows, y.shape[-1], dtype=y.dtype, device=y.device).index_add(0, token, weighted)


def moe(x: Tensor, ids: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """A loop over experts, as eager models have it."""
    rows, slots = ids.shape
    token = torch.arange(rows, device=x.device).repeat_interleave(slots)

    def experts(sorted_rows: Tensor, offsets: Tensor) -> Tensor:
        gate, up = looped(sorted_rows, offsets, gate_up).chunk(2, dim=-1)
        return looped(functional.silu(gate) * up, offsets, down)

    y = by_expert(experts, x[token], ids.reshape(-1), gate_up.shape[0])
    return moe_combine(y.view(rows, slots, -1), ids, weights, gate_up.shape[0])


def embedding(ids: Tensor, weight: Tensor) -> Tensor:
    """functional.embedding."""
    return functional.embedding(ids, weight)


def _owner_split(problem: Problem, count: int) -> Any:
    """Rows of other ranks are zero, and the ranks' results are summed, as vocabulary-parallel embeddings do."""
    ids, weight = problem.rows["ids"], problem.fixed["weight"]
    width = -(-weight.shape[0] // count)
    total = torch.zeros(ids.shape[0], weight.shape[1], dtype=weight.dtype, device=weight.device)
    for rank in range(count):
        mine = (ids >= rank * width) & (ids < (rank + 1) * width)
        total = total + functional.embedding(ids, weight).masked_fill(~mine[:, None], 0)
    return total


def index_add(y: Tensor, group: Tensor) -> Tensor:
    """index_add of slots in order of their group."""
    values, index = sorted_slots(y, group)
    return torch.zeros(y.shape[0], y.shape[2], dtype=y.dtype, device=y.device).index_add(0, index, values)


def scatter_add(y: Tensor, group: Tensor) -> Tensor:
    """scatter_add of slots in order of their group."""
    values, index = sorted_slots(y, group)
    zeros = torch.zeros(y.shape[0], y.shape[2], dtype=y.dtype, device=y.device)
    return zeros.scatter_add(0, index[:, None].expand(-1, y.shape[2]), values)


def _store(dtype: torch.dtype | None) -> Callable[..., Tensor]:
    def store(k: Tensor) -> Tensor:
        """Pages of `PAGE` rows, filled by an index copy and read back."""
        pages = -(-k.shape[0] // PAGE)
        kept = dtype or k.dtype
        cache = torch.zeros(pages * PAGE, *k.shape[1:], dtype=kept, device=k.device)
        slots = torch.arange(k.shape[0], device=k.device)
        if cache.element_size() == 1:
            cache.view(torch.uint8).index_copy_(0, slots, k.float().to(kept).view(torch.uint8))
        else:
            cache.index_copy_(0, slots, k.to(kept))
        return cache[slots].float().to(k.dtype) if dtype else cache[slots]

    return store


_LEADING: dict[str, Callable[..., Any]] = {
    "rms_norm": rms_norm, "add_rms_norm": add_rms_norm, "layer_norm": layer_norm, "swiglu": swiglu,
    "geglu_tanh": geglu_tanh, "log_softmax": log_softmax, "sum": lambda x: x.sum(-1), "mean": lambda x: x.mean(-1),
    "softmax": lambda x: torch.softmax(x, dim=-1),
}  # fmt: skip
_ROWS: dict[str, Callable[..., Any]] = {
    "grouped_linear": grouped_linear, "rope": rope, "router": router, "router_sigmoid": router_sigmoid, "moe": moe,
    "moe_combine": moe_combine, "index_add": index_add, "scatter_add": scatter_add,
}  # fmt: skip


def _maker(call: Callable[..., Any], **fields: Any) -> Callable[[str, str], Impl]:
    compiled = fields.pop("compiled", True)
    about = f"torch {torch.__version__}"
    return lambda device, dtype: Impl(call, about=about, base=call if compiled else None, **fields)


def _reduced(op: str) -> Callable[[str, str], Impl]:
    def make(device: str, dtype: str) -> Impl:
        backend = ranks.backend(device)
        return Impl(ranks.reducer(op, backend), gradients=False, about=f"torch {torch.__version__} {backend}")

    return make


PROVIDERS = (
    Provider(
        "torch",
        ("cpu", "cuda", "npu"),
        {
            "linear": _maker(linear, leading=True, split=column_split(linear)),
            "linear_row": _maker(linear, leading=True, split=_row_split),
            "lm_head": _maker(lm_head, leading=True, split=column_split(lm_head)),
            **{op: _maker(call, leading=True) for op, call in _LEADING.items()},
            **{op: _maker(call, compiled=False) for op, call in _ROWS.items()},
            "logprob": _maker(logprob, split=_vocabulary_split),
            "embedding": _maker(embedding, leading=True, split=_owner_split, gradients=False),
            "kv_store": _maker(_store(None), gradients=False, compiled=False),
            "kv_store_fp8": _maker(_store(torch.float8_e4m3fn), gradients=False, compiled=False),
            "all_reduce": _reduced("all_reduce"),
            "reduce_scatter": _reduced("reduce_scatter"),
        },
        "torch functions, eager",
    ),
)

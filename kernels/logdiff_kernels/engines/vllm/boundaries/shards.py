"""How the features of a linear layer's rows lie over tensor-parallel ranks, and the parts of a fused one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from logdiff_kernels.engines.vllm.boundaries.calls import WHOLE, Call, Shard
from logdiff_kernels.engines.vllm.linear_parts import row_parts


def split_parts(call: Call) -> list[tuple[str | int | None, torch.Tensor, Shard]]:
    """(name, rows, which features they are) of a projection's parts; one where it isn't fused or its class unknown."""
    try:
        parts = list(row_parts(call.module))
    except ValueError:
        return [(None, call.left[0], WHOLE)]
    if bool(getattr(call.module, "gather_output", False)) or sum(part.count for part in parts) != call.left[0].shape[1]:
        return [(None, call.left[0], WHOLE)] if len(parts) == 1 else _gathered(call, parts)
    return [
        (part.shard, call.left[0][:, part.local : part.local + part.count].contiguous(), _columns(part))
        for part in parts
    ]


def _gathered(call: Call, parts: Sequence[Any]) -> list[tuple[str | int | None, torch.Tensor, Shard]]:
    rows = call.left[0]
    if sum(part.total for part in parts) != rows.shape[1]:
        return [(None, rows, WHOLE)]
    return [
        (p.shard, rows[:, p.fused_start : p.fused_start + p.total].contiguous(), WHOLE)
        for p in parts
    ]  # fmt: skip


def _columns(part: Any) -> Shard:
    return WHOLE if part.count == part.total else Shard("columns", part.start, part.total)


def output_shard(call: Call) -> Shard:
    """How the output of a linear layer that is not fused lies over ranks."""
    from vllm.model_executor.layers.linear import ColumnParallelLinear, RowParallelLinear

    module = call.module
    if int(getattr(module, "tp_size", 1)) == 1:
        return WHOLE
    if isinstance(module, RowParallelLinear):
        return WHOLE if module.reduce_results else Shard("sum")
    if isinstance(module, ColumnParallelLinear) and not module.gather_output:
        return _columns(next(iter(row_parts(module))))
    return WHOLE


def input_shard(call: Call) -> Shard:
    """How the input of a linear layer lies over ranks."""
    from vllm.model_executor.layers.linear import RowParallelLinear

    module = call.module
    if not isinstance(module, RowParallelLinear) or int(module.tp_size) == 1 or not call.given:
        return WHOLE
    width = call.given[0].shape[1]
    return Shard("columns", int(module.tp_rank) * width, int(module.input_size))

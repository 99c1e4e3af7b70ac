"""Which rows of a (fused, sharded) vLLM linear layer belong to which checkpoint tensor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Rows:
    """Output rows of one checkpoint tensor in one rank's weight.

    Args:
        shard: "q", "k", "v", the index in a merged layer, or None for a layer that is not fused.
        local: first row in this rank's weight.
        start, count: which rows of the checkpoint tensor they are.
        total: rows of the checkpoint tensor.
        fused_start, fused_total: the tensor's first row, and all rows, where the checkpoint is fused too.
    """

    shard: str | int | None
    local: int
    start: int
    count: int
    total: int
    fused_start: int
    fused_total: int


def row_parts(layer: Any) -> Iterator[Rows]:
    """The parts of a vLLM linear layer on this rank, in row order.

    Key and value heads that several ranks hold (more ranks than heads) get the same `start` on each of them.

    Raises:
        ValueError: a layer class that is not known.
    """
    from vllm.model_executor.layers.linear import (
        ColumnParallelLinear,
        MergedColumnParallelLinear,
        QKVParallelLinear,
        ReplicatedLinear,
        RowParallelLinear,
    )

    rank, size = int(layer.tp_rank), int(layer.tp_size)
    if isinstance(layer, QKVParallelLinear):
        kv_heads, replicas = int(layer.num_kv_heads), int(layer.num_kv_head_replicas)
        head, value_head = int(layer.head_size), int(layer.v_head_size)
        counts = [int(layer.num_heads) * head, kv_heads * head, kv_heads * value_head]
        all_kv = int(layer.total_num_kv_heads)
        totals = [int(layer.total_num_heads) * head, all_kv * head, all_kv * value_head]
        yield from _stacked(("q", "k", "v"), counts, totals, (rank, rank // replicas, rank // replicas))
    elif isinstance(layer, MergedColumnParallelLinear):
        totals = [int(total) for total in layer.output_sizes]
        counts = [total // size for total in totals]
        yield from _stacked(range(len(totals)), counts, totals, [rank] * len(totals))
    elif isinstance(layer, ColumnParallelLinear):
        count, total = int(layer.output_size_per_partition), int(layer.output_size)
        yield Rows(None, 0, rank * count if count != total else 0, count, total, 0, total)
    elif isinstance(layer, (RowParallelLinear, ReplicatedLinear)):
        total = int(layer.output_size)
        yield Rows(None, 0, 0, total, total, 0, total)
    else:
        raise ValueError(f"unknown kind of linear layer: {type(layer).__name__}")


def weight_shape(layer: Any) -> tuple[int, int]:
    """(rows, columns) of a linear or embedding layer's weight on this rank."""
    rows = getattr(layer, "output_size_per_partition", None)
    columns = getattr(layer, "input_size_per_partition", None)
    return int(layer.output_size if rows is None else rows), int(layer.input_size if columns is None else columns)


def _stacked(
    shards: Sequence[str | int], counts: Sequence[int], totals: Sequence[int], ranks: Sequence[int]
) -> Iterator[Rows]:
    local = fused = 0
    for shard, count, total, rank in zip(shards, counts, totals, ranks, strict=True):
        yield Rows(shard, local, rank * count, count, total, fused, sum(totals))
        local += count
        fused += total

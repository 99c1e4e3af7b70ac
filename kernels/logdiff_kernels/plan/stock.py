"""How stock operators cut attention, as a model to compare schedules with. Only the cut: not their kernels.

Causal prefill and training (flash_attention_score): contiguous ranges of row tiles, their starts moved until the
heaviest core's load is as small as contiguity allows; keys are never split. Decode (incre_flash_attention): one task
for each (sequence, KV head); where those are fewer than 0.4 of the cores, the keys of every task are split into
cores // tasks parts of at least 512 keys, cut at pages: the cut, and with it the bits, depends on batch and cores.
Rules as described in the public sources of those operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from logdiff_kernels.plan.pipeline import SUB_TILE, Shape, Work

T = TypeVar("T")

SPLIT_BELOW = 0.4
"""Tasks per core under which decode splits keys."""

SHORTEST_PART = 512
"""Keys."""


def contiguous(items: Sequence[T], costs: Sequence[float], cores: int) -> list[list[T]]:
    """Ranges of items in their order, one for each core, with the smallest possible heaviest load.

    Args:
        items: row tiles in the order of sequence, head, row.
        costs: cost of each.
        cores: number of ranges; some may be empty.
    """
    low, high = max([*costs, sum(costs) / cores], default=0.0), sum(costs)
    for _ in range(60):
        bound = (low + high) / 2
        if len(_ranges(costs, bound)) - 1 <= cores:
            high = bound
        else:
            low = bound
    cuts = _ranges(costs, high)
    parts = [list(items[a:b]) for a, b in pairwise(cuts)]
    return parts + [[] for _ in range(cores - len(parts))]


def _ranges(costs: Sequence[float], bound: float) -> list[int]:
    cuts, load = [0], 0.0
    for i, cost in enumerate(costs):
        if load + cost > bound and i > cuts[-1]:
            cuts.append(i)
            load = 0.0
        load += cost
    return [*cuts, len(costs)]


def round_robin(items: Sequence[T], cores: int) -> list[list[T]]:
    """Item i on core i mod cores."""
    return [list(items[core::cores]) for core in range(cores)]


def longest_first(items: Sequence[T], costs: Sequence[float], cores: int) -> list[list[T]]:
    """Longest item first, each on the core with the least load: the greedy bound to compare static rules with."""
    parts: list[list[T]] = [[] for _ in range(cores)]
    load = [0.0] * cores
    for i in sorted(range(len(items)), key=lambda i: -costs[i]):
        core = load.index(min(load))
        parts[core].append(items[i])
        load[core] += costs[i]
    return parts


@dataclass(frozen=True, slots=True)
class Decode:
    """A decode launch: items of each core, and how many parts a task's keys were split into."""

    blocks: list[list[Work]]
    parts: int


DECODE_STEP = 2048
"""Keys of the inner step of decode: 2048 to 8192 by GQA ratio in the stock operator."""


def decode_shape(dim: int, dim_v: int) -> Shape:
    """Rows aren't padded to 128: 16 is the least that the cube takes as a matrix."""
    return Shape(dim, dim_v, step=DECODE_STEP, tile_rows=16)


def decode(lengths: Sequence[int], kv_heads: int, group: int, cores: int, page: int = 128) -> Decode:
    """Tasks of one decode step over sequences of these key lengths."""
    tasks = len(lengths) * kv_heads
    longest = max(lengths, default=0)
    parts = cores // tasks if 0 < tasks < SPLIT_BELOW * cores else 1
    parts = max(1, min(parts, longest // SHORTEST_PART))
    works = []
    for keys in lengths:
        pages = -(-keys // page)
        each = -(-pages // parts) * page
        for begin in range(0, keys, each):
            tiles = -(-min(each, keys - begin) // SUB_TILE)
            works += [Work(tiles, group, cold=1.0, state=parts > 1)] * kv_heads
    return Decode(round_robin(works, cores), parts)

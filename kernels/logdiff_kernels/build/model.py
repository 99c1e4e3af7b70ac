"""What the cost model says about the kernels of an architecture, for `logdiff kernels bench --provider twin`.

Cycles of a model that ranks schedules; not time, on hardware or in the twin.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from logdiff_kernels.plan import pipeline, plans, schedule
from logdiff_kernels.plan.cost import machine
from logdiff_kernels.plan.structs import BFLOAT16

NOTE = "cycles of a model that ranks schedules, not time: nothing here was run on hardware"
WHY_NO_TIME = "time in the twin says nothing about an NPU: it checks every instruction"


@dataclass(frozen=True, slots=True)
class Attention:
    """A batch of equal sequences in bf16, head size 128: `queries` new tokens each over `keys` keys."""

    case: str
    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int


CASES = (
    Attention("attention-prefill", 1, 8, 8, 4096, 4096),
    Attention("attention-prefill", 1, 32, 32, 8192, 8192),
    Attention("attention-prefill", 4, 32, 32, 2048, 2048),
    Attention("attention-prefill", 1, 4, 4, 32768, 32768),
    Attention("paged-decode", 1, 32, 8, 1, 32768),
    Attention("paged-decode", 64, 32, 8, 1, 4096),
)


def figures(arch: str, quick: bool = False) -> list[dict[str, Any]]:
    """One row per case: `case`, `shape`, `cores`, `cycles`, `over_bound` (against what no schedule can beat), `balance`
    (mean over longest core) and `busy` (share of each queue).

    Args:
        arch: `dav-2201` or `dav-3510`.
        quick: the smaller cases alone.
    """
    return [_figure(case, arch) for case in CASES if not quick or case.batch * case.heads * case.queries <= 2**16]


def _figure(case: Attention, arch: str) -> dict[str, Any]:
    cores = plans.default_cores(arch)
    plan = plans.attention(
        arch=plans.arch_number(arch),
        dtype=BFLOAT16,
        dim=128,
        dim_v=128,
        heads=case.heads,
        kv_heads=case.kv_heads,
        batch=case.batch,
        causal=1,
        cores=cores,
        allow_direct=1,
    )
    starts = np.arange(case.batch + 1, dtype=np.int32) * case.queries
    lengths = np.full(case.batch, case.keys, np.int32)
    table = schedule.attention_table(plan, starts, lengths)
    blocks = schedule.snake(pipeline.works_of(plan, table, starts, lengths), table.blocks)
    found, _ = pipeline.attention(blocks, pipeline.shape_of(plan), machine(arch, cores))
    return {
        "case": case.case,
        "shape": f"B {case.batch}, H {case.heads}:{case.kv_heads}, {case.queries} of {case.keys}, d 128",
        "cores": cores,
        "cycles": round(found.makespan),
        "over_bound": round(found.over_bound, 4),
        "balance": round(found.balance, 4),
        "busy": {name: round(share, 4) for name, share in found.busy.items()},
    }

"""What the cost model says about the kernels of an architecture, for `logdiff kernels bench --provider twin`.

Cycles of a model that ranks schedules; not time, on hardware or in the twin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from logdiff_kernels.errors import InputError
from logdiff_kernels.plan import pipeline, plans, schedule
from logdiff_kernels.plan.cost import machine
from logdiff_kernels.plan.structs import BFLOAT16

HEAD = 128

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


def figures(arch: str, quick: bool = False, cases: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """What the model says of each case (docs/speed-model.md).

    Args:
        arch: `dav-2201` or `dav-3510`.
        quick: the smaller cases alone.
        cases: names of cases; None or none: all.

    Returns:
        Rows of `case`, `shape`, `cores`, `cycles`, `over_bound` (the blocks' makespan over what no sharing out could
        beat: all work in one stream over cores, or the longest item), `balance` (mean over longest core) and `busy`
        (share of each queue).

    Raises:
        InputError: no such case.
    """
    known = tuple(dict.fromkeys(case.case for case in CASES))
    for name in cases or ():
        if name not in known:
            raise InputError("no such case of the cost model", value=name, hint=f"one of: {', '.join(known)}")
    chosen = [case for case in CASES if case.case in (cases or known)]
    return [_figure(case, arch) for case in chosen if not quick or case.batch * case.heads * case.queries <= 2**16]


def _figure(case: Attention, arch: str) -> dict[str, Any]:
    chip = machine(arch, plans.default_cores(arch))
    plan = plans.attention(
        arch=plans.arch_number(arch),
        dtype=BFLOAT16,
        dim=HEAD,
        dim_v=HEAD,
        heads=case.heads,
        kv_heads=case.kv_heads,
        batch=case.batch,
        causal=1,
        cores=chip.cores,
        block_size=0 if case.queries > 1 else 128,
    )
    starts = np.arange(case.batch + 1, dtype=np.int32) * case.queries
    lengths = np.full(case.batch, case.keys, np.int32)
    table = schedule.attention_table(plan, starts, lengths)
    blocks = schedule.snake(pipeline.works_of(plan, table, starts, lengths), chip.cores)
    tiles = pipeline.shape_of(plan)
    found, _ = pipeline.attention(blocks, tiles, chip)
    stream = pipeline.in_one_stream(blocks, tiles, chip) / chip.cores
    slots = int(table.combines["slots"].max()) if len(table.combines) else 0
    combining = pipeline.combine_cycles(int(table.combines["rows"].sum()), slots, HEAD, chip)
    return {
        "case": case.case,
        "shape": f"B {case.batch}, H {case.heads}:{case.kv_heads}, {case.queries} of {case.keys}, d {HEAD}",
        "cores": chip.cores,
        "cycles": round(found.makespan + combining),
        "over_bound": round(found.makespan / max(stream, pipeline.alone(blocks, tiles, chip)), 4),
        "balance": round(found.balance, 4),
        "busy": {name: round(share, 4) for name, share in found.busy.items()},
    }

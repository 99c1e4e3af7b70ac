"""The kernels' own instructions in the cost model: `python -m benchmarks.traces`.

Runs attention in the twin with a trace, schedules the trace, and puts beside it what `plan.pipeline` says by formula
for the same launch; then `linear` with tiles of either width. The model is not time on hardware (docs/speed-model.md).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from logdiff_kernels.ascendc import attention, linear
from logdiff_kernels.build.twin import TwinLauncher
from logdiff_kernels.plan import pipeline, plans, schedule, structs
from logdiff_kernels.plan.cost import Report, list_schedule, machine
from logdiff_kernels.plan.trace import records_of

QUEUES = ("aic.MTE2", "aic.M", "aic.FIX", "aiv0.V")


@dataclass(frozen=True)
class Case:
    """Causal self-attention over `batch` sequences of `length` tokens."""

    batch: int
    length: int
    heads: int
    kv_heads: int
    dim: int
    cores: int
    exact_exp: bool = False


CASES = (
    Case(1, 1024, 2, 2, 128, 2),
    Case(1, 1024, 2, 2, 128, 2, exact_exp=True),
    Case(1, 1024, 2, 2, 64, 2),
    Case(2, 700, 4, 1, 128, 4),
    Case(1, 512, 1, 1, 256, 1),
)


def compare(case: Case) -> tuple[Report, Report]:
    """By trace and by formula."""
    chip = machine("dav-2201", case.cores)
    tokens = case.batch * case.length
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(tokens, heads, case.dim, generator=generator).bfloat16()
        for heads in (case.heads, case.kv_heads, case.kv_heads)
    )
    starts = np.arange(case.batch + 1, dtype=np.int32) * case.length
    launcher = TwinLauncher(
        2201, cores=case.cores, trace=True, check_races=False, exact_exp=case.exact_exp
    )  # races have their own tests
    attention.attention(launcher, q, k, v, torch.from_numpy(starts), None, case.dim**-0.5, True, 0, 0.0, None, False)
    trace = next(result.trace for name, result in launcher.results if name == "attention")
    assert trace is not None
    traced, _ = list_schedule(records_of(trace, chip), chip)

    plan = plans.attention(
        arch=2201, dtype=structs.BFLOAT16, batch=case.batch, heads=case.heads, kv_heads=case.kv_heads, dim=case.dim,
        dim_v=case.dim, cores=case.cores, causal=1,
    )  # fmt: skip
    lengths = np.full(case.batch, case.length, np.int32)
    table = schedule.attention_table(plan, starts, lengths)
    # A trace doesn't tell what comes from HBM.
    works = [replace(work, cold=0.0) for work in pipeline.works_of(plan, table, starts, lengths)]
    shape = replace(pipeline.shape_of(plan), exact_exp=case.exact_exp)
    formula, _ = pipeline.attention(schedule.snake(works, plan.blocks), shape, chip)
    return traced, formula


CORES, DEPTH = 24, 1024
"""Of the products below: cube cores, and k."""

PRODUCTS = ((1, 1024), (1, 4096), (128, 1024), (128, 4096), (2048, 1024), (2048, 4096))
"""m and n."""

NARROW, WIDE = 128, 256


class _OfWidth(TwinLauncher):
    """Launches `linear` with tiles of a width, whatever its plan says; notes what that was."""

    def __init__(self, width: int) -> None:
        super().__init__(2201, cores=CORES, trace=True, check_races=False)
        self.width, self.planned = width, 0

    def launch(self, kernel: str, tensors: Sequence[torch.Tensor | None], plan: Any, blocks: int) -> None:
        self.planned, plan.tile_n = plan.tile_n, self.width
        plan.tiles_n = -(-plan.n // self.width)
        plan.blocks = min(plan.tiles_m * plan.tiles_n, self.cores)
        super().launch(kernel, tensors, plan, plan.blocks)


def width(m: int, n: int, tile: int) -> tuple[float, int]:
    """Cycles of a product of m rows and n columns with tiles of a width, and the width that its plan has."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(rows, DEPTH, generator=generator).bfloat16() for rows in (m, n))
    launcher = _OfWidth(tile)
    linear.matmul(launcher, a, b, None, torch.bfloat16)
    ((_, result),) = launcher.results
    assert result.trace is not None
    chip = machine("dav-2201", CORES)
    return list_schedule(records_of(result.trace, chip), chip)[0].makespan, launcher.planned


def main() -> int:
    """Print the tables."""
    print("| B, S, heads, KV heads, d | cores | exp | trace | formula | / trace | busy by trace | by formula |")
    print("| --- " * 8 + "|")
    for case in CASES:
        traced, formula = compare(case)
        busy = (", ".join(f"{one.busy[name]:.0%}" for name in QUEUES) for one in (traced, formula))
        shape = f"{case.batch}, {case.length}, {case.heads}, {case.kv_heads}, {case.dim}"
        ratio = f"{traced.makespan:.0f} | {formula.makespan:.0f} | {formula.makespan / traced.makespan:.2f}"
        print(f"| {shape} | {case.cores} | {'exp1' if case.exact_exp else 'Exp'} | {ratio} | {' | '.join(busy)} |")
    print(f"\nCycles; busy: {', '.join(QUEUES)}.")
    print(f"\n| linear, bf16, k {DEPTH}, {CORES} cores: m, n | {NARROW} wide | {WIDE} wide | / narrow | planned |")
    print("| --- " * 5 + "|")
    for m, n in PRODUCTS:
        (narrow, planned), (wide, _) = (width(m, n, tile) for tile in (NARROW, WIDE))
        print(f"| {m}, {n} | {narrow:.0f} | {wide:.0f} | {wide / narrow:.2f} | {planned} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())

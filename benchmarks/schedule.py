"""Schedules of attention by the cost model: `python -m benchmarks.schedule [--png FILE] [--quick] [--json]
[--sensitivity]`.

The model ranks schedules; it is not time on hardware (docs/speed-model.md). Tables: the model against published
figures, causal prefill under several ways of sharing row tiles out, decode against stock partitioning; then what
exact_exp costs. Exit 1 when a bar of the tables doesn't hold.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from logdiff_kernels.plan import pipeline, plans, schedule, stock, structs
from logdiff_kernels.plan.cost import Machine, Report, Timeline, machine
from logdiff_kernels.plan.pipeline import Shape, Work
from matplotlib.axes import Axes
from matplotlib.figure import Figure

CORES = 24
HEAD = 128
PREFILL = ((1, 8, 4096), (1, 32, 8192), (4, 32, 2048), (1, 4, 32768))
"""(batch, heads, sequence length)."""

DECODE = ((1, 32768), (4, 32768), (16, 32768), (64, 4096), (128, 1024))
"""(batch, keys), 32 query heads on 8 KV heads."""

PUBLISHED = {4096: 96.6, 8192: 117.0, 16384: 151.0, 32768: 168.5}
"""TFLOPS of a published kernel on 910B2: non-causal, one head of size 128, tiles of 128 queries and 256 keys."""


@dataclass(frozen=True)
class Fit:
    """A published figure and what the model says of that kernel's tiles."""

    length: int
    published: float
    model: float

    @property
    def error(self) -> float:
        """Relative."""
        return self.model / self.published - 1


def fit(length: int, chip: Machine) -> Fit:
    """The model's TFLOPS of the published kernel at one length."""
    tiles = Work(length // 128)
    blocks = [[tiles] * len(range(core, length // 128, chip.cores)) for core in range(chip.cores)]
    made, _ = pipeline.attention(blocks, Shape(HEAD, HEAD, step=256, slices=2), chip)
    return Fit(length, PUBLISHED[length], 4 * length**2 * HEAD / seconds(made.makespan, chip) / 1e12)


def seconds(cycles: float, chip: Machine) -> float:
    """Cycles and the launch."""
    return (cycles + chip.launch) / chip.clock


@dataclass(frozen=True)
class Prefill:
    """Causal prefill of one shape.

    Attributes:
        shape: batch, heads, length.
        balance: mean over max of the blocks' sub-tiles, by way of sharing out.
        simulated: the same of the blocks' ends in the model, for ours.
        over_bound: ours: makespan over max(all work in one stream / cores, longest item).
        over_queue: ours: makespan over the busiest queue's total / cores: what is lost inside the pipeline too.
        against_stock: makespan of ours over that of contiguous balanced ranges, same kernel.
        busy: ours: busy shares.
    """

    shape: tuple[int, int, int]
    balance: dict[str, float]
    simulated: float
    over_bound: float
    over_queue: float
    against_stock: float
    busy: dict[str, float]


def prefill_items(shape: tuple[int, int, int], cores: int = CORES) -> tuple[list[Work], list[Work], Shape]:
    """The launch's items, sorted as in its table; the same in the order of sequence, head and row; their pipeline."""
    batch, heads, length = shape
    plan = plans.attention(
        arch=2201, dtype=structs.BFLOAT16, batch=batch, heads=heads, kv_heads=heads, dim=HEAD, dim_v=HEAD, causal=1,
        cores=cores,
    )  # fmt: skip
    starts, lengths = np.arange(batch + 1, dtype=np.int32) * length, np.full(batch, length, np.int32)
    table = schedule.attention_table(plan, starts, lengths)
    works = pipeline.works_of(plan, table, starts, lengths)
    order = np.lexsort((table.items["row_tile"], table.items["kv_head"], table.items["sequence"]))
    return works, [works[i] for i in order], pipeline.shape_of(plan)


def balance(blocks: Iterable[Sequence[Work]]) -> float:
    """Mean over max of the blocks' sub-tiles."""
    loads = [sum(work.tiles for work in block) for block in blocks]
    return sum(loads) / len(loads) / max(loads)


def shares(works: list[Work], natural: list[Work], cores: int = CORES) -> dict[str, list[list[Work]]]:
    """Ways of sharing the same items out."""
    costs = [float(work.tiles) for work in natural]
    cuts = [len(natural) * core // cores for core in range(cores + 1)]
    return {
        "equal counts": [natural[a:b] for a, b in pairwise(cuts)],
        "contiguous, balanced": stock.contiguous(natural, costs, cores),
        "round robin": stock.round_robin(natural, cores),
        "sorted, boustrophedon": schedule.snake(works, cores),
        "longest first": stock.longest_first(natural, costs, cores),
    }


OURS, STOCK = "sorted, boustrophedon", "contiguous, balanced"


def prefill(shape: tuple[int, int, int], chip: Machine) -> Prefill:
    """One row of the prefill table."""
    works, natural, tiles = prefill_items(shape, chip.cores)
    ways = shares(works, natural, chip.cores)
    ours, _ = pipeline.attention(ways[OURS], tiles, chip)
    theirs, _ = pipeline.attention(ways[STOCK], tiles, chip)
    work = pipeline.in_one_stream(ways[OURS], tiles, chip) / chip.cores
    bound = max(work, pipeline.alone(ways[OURS], tiles, chip))
    return Prefill(
        shape,
        {name: balance(blocks) for name, blocks in ways.items()},
        ours.balance,
        ours.makespan / bound,
        ours.over_bound,
        ours.makespan / theirs.makespan,
        ours.busy,
    )


@dataclass(frozen=True)
class Decode:
    """One decode step, microseconds in the model.

    Attributes:
        batch: sequences.
        keys: of each.
        ours: our schedule, chunks combined.
        whole: our kernel without cutting at chunks.
        stock: stock partitioning, its parts combined; rows padded to 16 instead of 128.
        stock_whole: the same without flash decode.
        parts: parts of a task in stock.
        chunks: items of ours.
        memory: all keys and values at the chip's bandwidth.
    """

    batch: int
    keys: int
    ours: float
    whole: float
    stock: float
    stock_whole: float
    parts: int
    chunks: int
    memory: float


def decode(batch: int, keys: int, chip: Machine) -> Decode:
    """One row of the decode table: 32 query heads, 8 KV heads, head size 128."""
    kv_heads, group = 8, 4
    plan = plans.attention(
        arch=2201, dtype=structs.BFLOAT16, batch=batch, heads=kv_heads * group, kv_heads=kv_heads, dim=HEAD, dim_v=HEAD,
        causal=1, cores=chip.cores, block_size=128,
    )  # fmt: skip
    starts, lengths = np.arange(batch + 1, dtype=np.int32), np.full(batch, keys, np.int32)
    table = schedule.attention_table(plan, starts, lengths)
    tiles = pipeline.shape_of(plan)
    works = pipeline.works_of(plan, table, starts, lengths)
    slots = int(table.combines["slots"].max()) if len(table.combines) else 0
    rows = int(table.combines["rows"].sum())
    whole = [Work(-(-keys // 128), group, cold=1.0)] * (batch * kv_heads)
    theirs = stock.decode([keys] * batch, kv_heads, group, chip.cores)
    stock_rows = batch * kv_heads * group if theirs.parts > 1 else 0

    def microseconds(blocks: Sequence[Sequence[Work]], shape: Shape, rows: int = 0, slots: int = 0) -> float:
        made, _ = pipeline.attention(blocks, shape, chip)
        cycles = made.makespan + pipeline.combine_cycles(rows, slots, HEAD, chip)
        return seconds(cycles, chip) * 1e6

    stock_shape = stock.decode_shape(HEAD, HEAD)
    return Decode(
        batch,
        keys,
        microseconds(schedule.snake(works, chip.cores), tiles, rows, slots),
        microseconds(schedule.snake(whole, chip.cores), tiles),
        microseconds(theirs.blocks, stock_shape, stock_rows, theirs.parts),
        microseconds(stock.round_robin(whole, chip.cores), stock_shape),
        theirs.parts,
        len(works),
        batch * kv_heads * keys * 2 * HEAD * 2 / (chip.hbm * chip.clock) * 1e6,
    )


def draw(path: Path, chip: Machine, shape: tuple[int, int, int] = PREFILL[0]) -> None:
    """A PNG: the queues of one block over its first steps, and how even the blocks are for each way of sharing out."""
    works, natural, tiles = prefill_items(shape, chip.cores)
    ways = shares(works, natural, chip.cores)
    _, kept = pipeline.attention(ways[OURS][:1], tiles, replace(chip, cores=1), keep=1)
    figure = Figure(figsize=(11, 7.5), layout="constrained")
    upper, lower = figure.subplots(2, 1, height_ratios=[3, 2])
    _draw_queues(upper, kept)
    names = list(ways)
    width = 0.8 / len(names)
    for i, name in enumerate(names):
        loads = np.array(sorted((sum(work.tiles for work in block) for block in ways[name]), reverse=True))
        place = np.arange(chip.cores) + (i - (len(names) - 1) / 2) * width
        lower.bar(place, loads / loads.mean(), width, label=f"{name}: {balance(ways[name]):.1%}")
    lower.axhline(1.0, color="black", linewidth=0.8)
    batch, heads, length = shape
    lower.set_title(f"Load of each block over the mean, causal, batch {batch}, {heads} heads, {length} tokens")
    lower.set_xlabel("blocks, heaviest first")
    lower.set_ylabel("load / mean")
    lower.legend(title="balance (mean / max)", ncols=3, fontsize=8, title_fontsize=8)
    figure.savefig(path, dpi=110)


_STAGES = {
    "Q K": ("load Q", "load K", "Q to L0A", "K to L0B", "QK", "S out"),
    "softmax": ("load S", "mask", "softmax", "P out"),
    "P V": ("load V", "load P", "P to L0A", "V to L0B", "PV", "PV out"),
    "rescale": ("load PV", "rescale"),
    "result": ("Div", "out"),
}
_LANES = tuple(("aic", pipe) for pipe in ("MTE2", "MTE1", "M", "FIX")) + tuple(
    ("aiv0", pipe) for pipe in ("MTE2", "V", "MTE3")
)


def _draw_queues(axes: Axes, kept: Timeline, until: float = 60_000.0) -> None:
    for i, (stage, ops) in enumerate(_STAGES.items()):
        label: str | None = stage
        for lane, where in enumerate(_LANES):
            spans = [
                (span.start, span.end - span.start)
                for span in kept.spans
                if span.op in ops and (span.unit, span.pipe) == where and span.start < until
            ]
            if spans:
                axes.broken_barh(
                    spans, (lane - 0.4, 0.8), facecolor=f"C{i}", edgecolor="white", linewidth=0.4, label=label
                )
                label = None
    axes.set_yticks(range(len(_LANES)), [f"{unit} {pipe}" for unit, pipe in _LANES])
    axes.invert_yaxis()
    axes.set_xlim(0, until)
    axes.set_xlabel("cycles in the model (not run on hardware)")
    axes.set_title("Queues of one block over its first steps of 512 keys; vector work of one of its two vector cores")
    axes.legend(fontsize=8, loc="lower left")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [" | ".join(head), " | ".join("---" for _ in head), *(" | ".join(row) for row in rows)]
    return "\n".join(f"| {line} |" for line in lines)


def _prefill_table(rows: Sequence[Prefill]) -> str:
    ways = list(rows[0].balance)
    head = ["B, H, S", *ways, "simulated", "/ bound", "/ busiest queue", "/ stock cut", "FIX, V, M busy"]
    return _table(
        head,
        (
            [
                ", ".join(map(str, row.shape)),
                *(f"{row.balance[way]:.1%}" for way in ways),
                f"{row.simulated:.1%}",
                f"{row.over_bound:.3f}",
                f"{row.over_queue:.3f}",
                f"{row.against_stock:.3f}",
                ", ".join(f"{row.busy[name]:.0%}" for name in ("aic.FIX", "aiv0.V", "aic.M")),
            ]
            for row in rows
        ),
    )


def _decode_table(rows: Sequence[Decode]) -> str:
    head = [
        "B, S",
        "items",
        "ours",
        "ours, uncut",
        "stock",
        "stock, no split",
        "memory",
        "ours / stock",
        "ours / no split",
    ]
    return _table(
        head,
        (
            [
                f"{row.batch}, {row.keys}",
                str(row.chunks),
                *(f"{x:.0f}" for x in (row.ours, row.whole)),
                f"{row.stock:.0f} ({row.parts} parts)",
                *(f"{x:.0f}" for x in (row.stock_whole, row.memory)),
                f"{row.ours / row.stock:.2f}",
                f"{row.ours / row.stock_whole:.2f}",
            ]
            for row in rows
        ),
    )


def missed(prefills: Sequence[Prefill], decodes: Sequence[Decode]) -> list[str]:
    """The bars that don't hold, in words."""
    found = []
    for row in prefills:
        if row.balance[OURS] < 0.99 or row.simulated < 0.99:
            found.append(f"balance of {row.shape}: {row.balance[OURS]:.4f} by sub-tiles, {row.simulated:.4f} simulated")
        if row.over_bound > 1.05:
            found.append(f"makespan of {row.shape}: {row.over_bound:.3f} of the bound")
    for step in decodes:
        if (step.batch, step.keys) == (64, 4096) and step.ours > 1.10 * step.stock:
            found.append(f"decode at batch 64: {step.ours / step.stock:.2f} of stock")
        if (step.batch, step.keys) == (1, 32768) and step.ours >= min(step.whole, step.stock_whole):
            found.append("decode at batch 1: not faster than without a split")
    return found


def exact_exp_cost(shape: tuple[int, int, int], chip: Machine) -> float:
    """Makespan with exp1 from single instructions over that with the hardware's Exp."""
    works, _, tiles = prefill_items(shape, chip.cores)
    blocks = schedule.snake(works, chip.cores)
    run: Callable[[Shape], Report] = lambda used: pipeline.attention(blocks, used, chip)[0]  # noqa: E731
    return run(replace(tiles, exact_exp=True)).makespan / run(tiles).makespan


def sensitivity(chip: Machine) -> list[tuple[str, Prefill, Decode, Decode]]:
    """The smallest prefill and the two decode bars with each constant halved and doubled."""
    found = []
    for name in ("hbm", "read", "write", "store", "macs", "handover", "softmax"):
        for factor in (0.5, 2.0):
            if name == "softmax":
                changed = replace(chip, rates={**chip.rates, name: chip.rates[name] * factor})
            else:
                changed = replace(chip, **{name: getattr(chip, name) * factor})
            rows = prefill(PREFILL[0], changed), decode(64, 4096, changed), decode(1, 32768, changed)
            found.append((f"{name} x {factor:g}", *rows))
    return found


def _sensitivity_table(rows: Sequence[tuple[str, Prefill, Decode, Decode]]) -> str:
    head = [
        "constant",
        "simulated balance",
        "/ bound",
        "B 64: ours / stock",
        "B 1: ours / no split",
        "B 1: ours / stock",
    ]
    return _table(
        head,
        (
            [
                name,
                f"{row.simulated:.1%}",
                f"{row.over_bound:.3f}",
                f"{high.ours / high.stock:.2f}",
                f"{low.ours / low.stock_whole:.2f}",
                f"{low.ours / low.stock:.2f}",
            ]
            for name, row, high, low in rows
        ),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables; 1 if a bar doesn't hold."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.schedule", description=__doc__)
    parser.add_argument("--png", type=Path, help="draw a timeline and the balance into this file")
    parser.add_argument("--quick", action="store_true", help="leave out the shapes that take longest")
    parser.add_argument("--sensitivity", action="store_true", help="also with each constant halved and doubled")
    parser.add_argument("--json", action="store_true", help="rows as JSON")
    given = parser.parse_args(argv)
    chip = machine("dav-2201", CORES)
    fits = [fit(length, chip) for length in PUBLISHED if not (given.quick and length > 16384)]
    prefills = [prefill(shape, chip) for shape in PREFILL if not (given.quick and shape[1] * shape[2] ** 2 > 2**30)]
    decodes = [decode(batch, keys, chip) for batch, keys in DECODE]
    bad = missed(prefills, decodes)
    if given.png:
        draw(given.png, chip)
    if given.json:
        rows: dict[str, Sequence[Fit | Prefill | Decode]] = {"fit": fits, "prefill": prefills, "decode": decodes}
        print(json.dumps({name: [asdict(one) for one in found] for name, found in rows.items()} | {"missed": bad}))
        return 1 if bad else 0
    print(f"In the cost model, {CORES} cores; ranks schedules, not time on hardware.\n")
    print("Published kernel, non-causal, TFLOPS\n")
    lines = ([str(one.length), f"{one.published:.1f}", f"{one.model:.1f}", f"{one.error:+.1%}"] for one in fits)
    print(_table(["S", "published", "model", "error"], lines))
    print("\nCausal prefill, bf16, head size 128: balance by way of sharing out; the rest for ours\n")
    print(_prefill_table(prefills))
    print("\nDecode, 32 query heads on 8 KV heads, microseconds in the model\n")
    print(_decode_table(decodes))
    print(f"\nexact_exp: {exact_exp_cost(PREFILL[0], chip):.2f} times the makespan of {PREFILL[0]}")
    if given.sensitivity:
        print(f"\nEach constant halved and doubled: prefill {PREFILL[0]}, decode at (64, 4096) and (1, 32768)\n")
        print(_sensitivity_table(sensitivity(chip)))
    for words in bad:
        print(f"missed: {words}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

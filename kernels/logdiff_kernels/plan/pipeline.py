"""The operations of attention by formula: what a block's items make its queues do, without tracing a kernel.

Per step of keys: S = Q K on the cube core, softmax on the vector cores, P V on the cube core, rescaling of O on the
vector cores. QK runs `ahead` steps ahead of PV, also into the next item. Where the plan isn't `direct`, S, P and PV
go through GM (taken to be in L2). The two vector cores of a group do the same, so one is modelled, with half of the
rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from logdiff_kernels.contract import CHUNK, STEP
from logdiff_kernels.plan import plans, structs
from logdiff_kernels.plan.cost import Machine, Report, Timeline, report
from logdiff_kernels.plan.schedule import AttentionTable

SUB_TILE = 128
"""Keys of one QK product."""

TILE_ROWS = 128
"""Packed rows of a row tile."""

EXACT_EXP = 4.3
"""Softmax with exp1 over softmax with Exp: from traces of the kernel, 1024 tokens at head size 128."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What the cost of an item depends on beside its keys.

    Attributes:
        dim: head size of queries and keys.
        dim_v: head size of values.
        size: bytes of an element.
        direct: S and PV go to UB and P to L1.
        step: keys of a step, a multiple of 128.
        tile_rows: rows that a Mmad is padded to.
        slices: parts in which vector cores do a step, double-buffered.
        kv_buffers: K or V sub-tiles in L1.
        ahead: steps that QK runs ahead.
        exact_exp: exp1 from single instructions: softmax takes `EXACT_EXP` times as long.
    """

    dim: int
    dim_v: int
    size: int = 2
    direct: bool = False
    step: int = STEP
    tile_rows: int = TILE_ROWS
    slices: int = 4
    kv_buffers: int = 4
    ahead: int = 2
    exact_exp: bool = False


@dataclass(frozen=True, slots=True)
class Work:
    """One item.

    Attributes:
        tiles: sub-tiles of 128 keys, from the first to the last that a row sees.
        rows: rows that exist, at most those of a tile.
        masked: sub-tiles that only some rows see.
        first: number of the first sub-tile in its step, when a window begins there.
        cold: share of the keys and values that come from HBM; the rest is in L2, read before by another item.
        state: whether the item leaves (m, l, O) instead of the result.
    """

    tiles: int
    rows: int = 128
    masked: int = 0
    first: int = 0
    cold: float = 0.0
    state: bool = False


@dataclass(frozen=True, slots=True)
class _Step:
    work: Work
    tiles: int
    masked: int
    opens: bool
    closes: bool


def _steps(items: Iterable[Work], shape: Shape) -> list[_Step]:
    each = shape.step // SUB_TILE
    found = []
    for work in items:
        begin, end = work.first, work.first + work.tiles
        # Without a visible key an item still writes its rows: an empty step.
        cuts = [(max(begin, at), min(end, at + each)) for at in range(0, end, each) if at + each > begin] or [(0, 0)]
        for a, b in cuts:
            masked = max(0, b - max(a, end - work.masked))
            found.append(_Step(work, b - a, masked, (a, b) == cuts[0], (a, b) == cuts[-1]))
    return found


def _mmad(m: int, n: int, k: int, slow: float) -> float:
    def up(x: int) -> int:
        return -(-x // 16) * 16

    return up(m) * up(n) * up(k) * slow


class _Block:
    """One block's queues while its steps are issued."""

    def __init__(self, timeline: Timeline, core: int, shape: Shape) -> None:
        self.t, self.shape = timeline, shape
        self.load, self.feed, self.cube, self.fix = ((core, "aic", pipe) for pipe in ("MTE2", "MTE1", "M", "FIX"))
        self.fetch, self.vector, self.store = ((core, "aiv0", pipe) for pipe in ("MTE2", "V", "MTE3"))
        self.slow = timeline.chip.slow_mmad if shape.size == 4 else 1.0
        self.ring = shape.ahead + 1
        self.kv: list[int] = []  # Mmads that free a K or V buffer of L1
        self.l0c: list[int] = []  # Fixpipes that free an L0C buffer
        self.s_read: list[list[int]] = []  # per step: loads of S by the vector core
        self.s_ready: list[list[int]] = []
        self.p_ready: list[list[int]] = []
        self.p_read: list[list[int]] = []
        self.pv_ready: list[int] = []
        self.pv_read: list[int] = []
        self.v_done: list[int] = []  # slices, in order

    def _load_kv(self, name: str, dim: int, step: _Step) -> int:
        moved = SUB_TILE * dim * self.shape.size
        n = self.shape.kv_buffers
        free = self.kv[-n : len(self.kv) - n + 1] if len(self.kv) >= n else []
        return self.t.issue(self.load, name, moved=moved, cold=moved * step.work.cold, after=free)

    def _out_rows(self, step: _Step) -> int:
        return min(self.shape.tile_rows, -(-step.work.rows // 16) * 16)

    def qk(self, j: int, step: _Step) -> None:
        shape, t = self.shape, self.t
        q: list[int] = []
        if step.opens:
            moved = step.work.rows * shape.dim * shape.size
            q = [t.issue(self.load, "load Q", moved=moved, cold=moved)]
        # The ring entry is free when the vector core has read S of `ring` steps ago.
        free = self.s_read[j - self.ring] if j >= self.ring else []
        ready = []
        for i in range(step.tiles):
            load = self._load_kv("load K", shape.dim, step)
            a = t.issue(self.feed, "Q to L0A", moved=shape.tile_rows * shape.dim * shape.size, after=q)
            b = t.issue(self.feed, "K to L0B", moved=SUB_TILE * shape.dim * shape.size, after=[load])
            macs = _mmad(shape.tile_rows, SUB_TILE, shape.dim, self.slow)
            mmad = t.issue(self.cube, "QK", elements=macs, after=[a, b, *self.l0c[-2:-1]])
            self.kv.append(mmad)
            moved = self._out_rows(step) * SUB_TILE * 4
            last = t.chip.handover if i == step.tiles - 1 else 0.0
            out = t.issue(self.fix, "S out", moved=moved, extra=last, after=[mmad, *free])
            self.l0c.append(out)
            ready.append(out)
        self.s_ready.append(ready)

    def softmax(self, j: int, step: _Step) -> None:
        shape, t = self.shape, self.t
        rows, keys = step.work.rows / 2, step.tiles * SUB_TILE
        free = self.p_read[j - self.ring] if j >= self.ring else []
        reads, ready = [], []
        for i in range(shape.slices if step.tiles else 0):
            elements = rows * keys / shape.slices
            wait = [*self.s_ready[j], *self.v_done[-2:-1]]
            load = -1 if shape.direct else t.issue(self.fetch, "load S", moved=elements * 4, after=wait)
            if step.masked:
                masked = rows / shape.slices * step.masked * SUB_TILE
                t.issue(self.vector, "mask", elements=masked, after=[load, *wait])
            work = elements * (EXACT_EXP if shape.exact_exp else 1)
            done = t.issue(self.vector, "softmax", elements=work, after=[load, *wait])
            reads.append(done if shape.direct else load)
            last = t.chip.handover if i == shape.slices - 1 else 0.0
            out = t.issue(self.store, "P out", moved=elements * shape.size, extra=last, after=[done, *free])
            self.v_done.append(out)
            ready.append(out)
        self.s_read.append(reads)
        self.p_ready.append(ready)

    def pv(self, j: int, step: _Step) -> None:
        shape, t = self.shape, self.t
        free = self.pv_read[j - self.ring : j - self.ring + 1] if j >= self.ring else []
        reads, mmad = [], -1
        for i in range(step.tiles):
            load = self._load_kv("load V", shape.dim_v, step)
            moved = self._out_rows(step) * SUB_TILE * shape.size
            p = -1 if shape.direct else t.issue(self.load, "load P", moved=moved, after=self.p_ready[j])
            moved = shape.tile_rows * SUB_TILE * shape.size
            a = t.issue(self.feed, "P to L0A", moved=moved, after=[p, *self.p_ready[j]])
            b = t.issue(self.feed, "V to L0B", moved=SUB_TILE * shape.dim_v * shape.size, after=[load])
            macs = _mmad(shape.tile_rows, shape.dim_v, SUB_TILE, self.slow)
            buffer = self.l0c[-2:-1] if i == 0 else []
            mmad = t.issue(self.cube, "PV", elements=macs, after=[a, b, *buffer])
            self.kv.append(mmad)
            reads.append(a if shape.direct else p)
        out = -1
        if step.tiles:
            moved = self._out_rows(step) * shape.dim_v * 4
            out = t.issue(self.fix, "PV out", moved=moved, extra=t.chip.handover, after=[mmad, *free])
            self.l0c.append(out)
        self.p_read.append(reads)
        self.pv_ready.append(out)

    def rescale(self, j: int, step: _Step) -> None:
        shape, t = self.shape, self.t
        elements = step.work.rows / 2 * shape.dim_v
        read = -1
        if step.tiles:
            wait = [self.pv_ready[j]]
            load = -1 if shape.direct else t.issue(self.fetch, "load PV", moved=elements * 4, after=wait)
            done = t.issue(self.vector, "rescale", elements=elements, after=[load, *wait])
            read = done if shape.direct else load
        self.pv_read.append(read)
        if step.closes:
            last = t.issue(self.vector, "Div", elements=elements)
            size = 4 if step.work.state else shape.size
            t.issue(self.store, "out", moved=elements * size, after=[last])


def issue_attention(timeline: Timeline, core: int, items: Iterable[Work], shape: Shape) -> None:
    """Issue everything that a block does for its items, in its order."""
    block = _Block(timeline, core, shape)
    steps = _steps(items, shape)
    ahead = shape.ahead
    for j in range(len(steps) + ahead):
        if j < len(steps):
            block.qk(j, steps[j])
        # The vector core gets to step j - ahead + 1 before it needs PV of the step before.
        now = j - ahead + 1
        if 0 <= now < len(steps):
            block.softmax(now, steps[now])
        if 0 <= now - 1 < len(steps):
            block.pv(now - 1, steps[now - 1])
            block.rescale(now - 1, steps[now - 1])


def attention(
    blocks: Sequence[Sequence[Work]], shape: Shape, chip: Machine, *, keep: int = 0
) -> tuple[Report, Timeline]:
    """Cost of attention with these items on these blocks.

    Args:
        blocks: the items of each block, in its order; at most as many as the chip has cores.
        shape: head sizes and tiles.
        chip: constants.
        keep: number of blocks whose operations the timeline keeps.

    Returns:
        The report, which counts every core of the chip, and the timeline of the kept blocks.
    """
    active = max(1, sum(1 for items in blocks if items))
    total, kept = Timeline(chip, active), Timeline(chip, active, keep=True)
    for core, items in enumerate(blocks):
        issue_attention(total, core, items, shape)
        if core < keep:
            issue_attention(kept, core, items, shape)
    return report(total, chip.cores, alone(blocks, shape, chip)), kept


def alone(blocks: Sequence[Sequence[Work]], shape: Shape, chip: Machine) -> float:
    """Cycles of the longest item by itself: no schedule is shorter."""
    longest = max((work for items in blocks for work in items), key=lambda w: w.tiles, default=None)
    if longest is None:
        return 0.0
    timeline = Timeline(chip, max(1, sum(1 for items in blocks if items)))
    issue_attention(timeline, 0, [longest], shape)
    return max(timeline.finish().values())


def in_one_stream(blocks: Sequence[Sequence[Work]], shape: Shape, chip: Machine) -> float:
    """Cycles of one block that runs every item, with its share of HBM: the total work of the schedule."""
    timeline = Timeline(chip, max(1, sum(1 for items in blocks if items)))
    issue_attention(timeline, 0, [work for items in blocks for work in items], shape)
    return max(timeline.finish().values(), default=0.0)


def shape_of(plan: structs.LdAttentionPlan) -> Shape:
    """The shape of a plan's pipeline."""
    return Shape(
        plan.dim,
        plan.dim_v,
        structs.ELEMENT_BYTES[plan.dtype],
        bool(plan.direct),
        slices=max(1, 64 // plan.vector_rows),
        kv_buffers=plan.kv_buffers,
        ahead=plan.ring - 1,
    )


def works_of(
    plan: structs.LdAttentionPlan, table: AttentionTable, q_start: NDArray[np.int32], k_len: NDArray[np.int32]
) -> list[Work]:
    """The items of a table, in its order.

    Keys and values are counted as read from HBM once per (sequence, KV head) and from L2 by every further row tile.
    """
    found = []
    for item in table.items:
        sequence, slot = int(item["sequence"]), int(item["slot"])
        tokens = int(q_start[sequence + 1] - q_start[sequence])
        seen = plans.visible_keys(plan, tokens, int(k_len[sequence]), int(item["row_tile"]))
        begin = max(seen.start, int(item["first_chunk"]) * CHUNK)
        end = min(seen.stop, int(item["first_chunk"] + item["chunks"]) * CHUNK)
        tiles = max(0, -(-end // SUB_TILE) - begin // SUB_TILE)
        last = plan.causal and end == seen.stop and tokens > 1
        found.append(
            Work(
                tiles,
                int(item["rows"]),
                masked=min(tiles, 1 if last or end % SUB_TILE else 0),
                first=begin // SUB_TILE % (STEP // SUB_TILE),
                cold=1 / -(-tokens * plan.group // TILE_ROWS),
                state=slot != structs.NO_SLOT,
            )
        )
    return found


def combine_cycles(rows: int, slots: int, dim_v: int, chip: Machine) -> float:
    """Cycles of combining chunk states after all items: `rows` rows in all, of `slots` states each; 0 without rows.

    A barrier of all cores, taken as four handovers; then every vector core has whole rows, and per state two loads
    and the vector instructions of two factors, l and O.
    """
    if rows == 0:
        return 0.0
    timeline = Timeline(chip, chip.cores)
    for _ in range(-(-rows // (2 * chip.cores))):
        for _ in range(slots):
            o = timeline.issue((0, "aiv0", "MTE2"), "load O", moved=4 * dim_v)
            ml = timeline.issue((0, "aiv0", "MTE2"), "load m and l", moved=64)
            for op, elements in (("Max", 1), ("Sub", 1), ("Exp", 1), ("Sub", 1), ("Exp", 1), ("Mul", 1), ("Add", 1)):
                timeline.issue((0, "aiv0", "V"), op, elements=elements, after=[ml])
            for op in ("Mul", "Mul", "Add"):
                timeline.issue((0, "aiv0", "V"), op, elements=dim_v, after=[o])
    return 4 * chip.handover + max(timeline.finish().values())

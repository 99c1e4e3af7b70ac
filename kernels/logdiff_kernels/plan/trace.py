"""A trace of the twin as records of the cost model."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from logdiff_kernels.plan.cost import EVENTS, Machine, Record


class TwinTrace(Protocol):
    """What `twin.trace.Trace` has: see there."""

    @property
    def records(self) -> NDArray[np.void]: ...  # noqa: D102
    @property
    def edges(self) -> NDArray[np.void]: ...  # noqa: D102
    @property
    def cores(self) -> NDArray[np.void]: ...  # noqa: D102
    @property
    def names(self) -> tuple[str, ...]: ...  # noqa: D102


VECTORS = 2
"""Vector cores beside a cube core."""

_PIPES = ("S", "V", "M", "MTE1", "MTE2", "MTE3", "FIX", "ALL")
_MEMORIES = ("GM", "UB", "L1", "L0A", "L0B", "L0C", "BIAS", "FIXBUF")
_KINDS = ("op", *EVENTS)


@dataclass(slots=True)
class _Core:
    """Where a core's program has got to."""

    last: dict[str, int] = field(default_factory=dict)  # by pipe, its newest record
    held: int = -1  # record that every later one waits for
    joined: int = -1  # generation of the SyncAll that every later one waits for


def records_of(trace: TwinTrace, chip: Machine) -> list[Record]:
    """Records in the order of the trace, for `cost.list_schedule`.

    Every flag and barrier becomes an operation that takes no time. A block is a core of the cost model; blocks of a
    kernel without cube cores are vector cores, two to a core. A launch of more blocks than the chip has has no schedule
    there. Bytes in GM are all taken to be in L2. The scalar unit's own time isn't modelled; what it waits for is.
    """
    sources: dict[int, list[int]] = {}
    for before, to in trace.edges.tolist():
        sources.setdefault(to, []).append(before)
    cores = [_Core() for _ in trace.cores]
    arrived: dict[int, list[int]] = {}
    made: list[Record] = []
    cubes = bool(trace.cores["cube"].any())
    for number, row in enumerate(trace.records):
        core = cores[int(row["core"])]
        place = trace.cores[int(row["core"])]
        kind, pipe = _KINDS[int(row["event"])], _PIPES[int(row["pipe"])]
        after = [*sources.get(number, []), core.held, *arrived.get(core.joined, [])]
        everywhere = pipe == "ALL"
        if everywhere:
            after += core.last.values()
            pipe = "S"
        moved, elements, name = 0, 0, kind
        if kind == "op":
            name = trace.names[int(row["name"])]
            moved, elements, name = _work(name, pipe, row, chip)
        block, sub = int(place["block"]), int(place["sub"])
        block, sub = (block, sub) if cubes else divmod(block, VECTORS)
        unit = "aic" if place["cube"] else f"aiv{sub}"
        waits = tuple(sorted({one for one in after if one >= 0}))
        made.append(Record(block, unit, pipe, name, moved, elements, number, waits))
        core.last[pipe] = number
        if everywhere or (pipe == "S" and kind in ("wait_flag", "cross_wait")):
            core.held = number
        if kind == "sync_all":
            generation = int(row["detail"])
            arrived.setdefault(generation, []).append(number)
            core.joined = generation
    return made


def _work(name: str, pipe: str, row: np.void, chip: Machine) -> tuple[int, int, str]:
    """Bytes, elements and the name under which the operation is costed."""
    read = dict(zip(_MEMORIES, row["read"].tolist(), strict=True))
    written = dict(zip(_MEMORIES, row["written"].tolist(), strict=True))
    elements = int(row["elements"])
    if pipe == "MTE1":
        return (
            max(sum(written.values()), sum(read.values())),
            elements,
            name + (" to L0A" if written["L0A"] else " to L0B"),
        )
    if pipe == "M":
        return 0, int(elements * (chip.slow_mmad if _wide(elements, read, written) else 1)), name
    if pipe in ("MTE2", "MTE3", "FIX"):
        moved = written if pipe == "FIX" else read
        # What Fixpipe takes out of L0C is fp32; what it writes may be half of that.
        return int(read["L0C"] if pipe == "FIX" and read["L0C"] else max(moved.values())), elements, name
    return 0, elements, name


def _wide(macs: int, read: dict[str, int], written: dict[str, int]) -> bool:
    """Whether a Mmad's operands have 4 bytes: from m k and n k elements read for m n written and m n k multiplied."""
    outputs = written["L0C"] / 4
    if not macs or not outputs:
        return False
    return math.sqrt(read["L0A"] * read["L0B"] / outputs) > 3 * macs / outputs

"""A cost model that ranks schedules. It is **not time on hardware**: nothing here was run on an NPU.

Each core has in-order queues: cube (M) and vector (V) timelines and the DMA queues MTE2 (in), MTE1 (L1 to L0) and
MTE3 or FIX (out). An operation takes max(startup, bytes / bandwidth, elements / rate) cycles and starts when its
queue is free and everything in `after` has ended. Going through the operations in issue order is then the list
schedule; out come makespan, balance over cores and busy shares.

Operations come from a trace of the twin (`Record`, a list in JSON) or from `pipeline.attention`, which makes those of
attention by formula, for shapes that are too large to trace. Where the constants of `machine` come from, and how far
off the model is against published figures, stands in docs/speed-model.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from logdiff_kernels.errors import InputError
from logdiff_kernels.plan.plans import arch_number

PIPES = ("M", "V", "MTE1", "MTE2", "MTE3", "FIX", "S")

EVENTS = ("set_flag", "wait_flag", "barrier", "cross_set", "cross_wait", "sync_all")
"""Operations that only order others. They take no time, but for `cross_set` (a handover) and `sync_all` (four)."""


@dataclass(frozen=True, slots=True)
class Record:
    """One operation of a trace.

    Attributes:
        core: block that ran it.
        unit: `aic`, `aiv0` or `aiv1`: which core of the block's group.
        pipe: queue, one of `PIPES`.
        op: name of the instruction, or of a stage.
        bytes: bytes moved, 0 for arithmetic.
        elements: lanes of vector work; on M multiply-adds of 2-byte operands.
        id: unique, and larger than every id in `after`.
        after: operations that have to end before this one starts, beside the one before it in its queue.
        cold: bytes of `bytes` that come from HBM; the others are taken to be in L2.
    """

    core: int
    unit: str
    pipe: str
    op: str
    bytes: int
    elements: int
    id: int
    after: tuple[int, ...] = ()
    cold: int = 0


def record_from_json(entry: Mapping[str, Any]) -> Record:
    """A record from its JSON object.

    Raises:
        InputError: a field is missing or unknown, or the queue's name is.
    """
    try:
        made = Record(**{**entry, "after": tuple(entry.get("after", ()))})
    except TypeError as error:
        raise InputError(f"not a trace record: {error}", value=dict(entry)) from None
    if made.pipe not in PIPES:
        raise InputError(f"unknown pipe {made.pipe!r} in a trace", value=made.pipe, hint=f"one of {PIPES}")
    return made


@dataclass(frozen=True, slots=True)
class Machine:
    """Constants of a chip, in cycles of one clock and bytes or elements per cycle.

    Attributes:
        arch: `dav-2201` or `dav-3510`.
        cores: AIC groups (one cube core, two vector cores).
        clock: Hz.
        hbm: bytes per cycle of the whole chip, shared by the blocks that have work.
        read: bytes per cycle into one core from L2: its MTE2 port.
        write: bytes per cycle that Fixpipe moves out of L0C.
        store: bytes per cycle from UB by MTE3.
        load_a: bytes per cycle from L1 to L0A.
        load_b: bytes per cycle from L1 to L0B.
        macs: multiply-adds per cycle on 2-byte operands.
        slow_mmad: how many multiply-adds one of 4-byte operands counts as.
        rates: elements per cycle by operation on one vector core; every other one runs at `lanes`.
        lanes: fp32 lanes of a vector core.
        startup: least cycles of an operation by queue.
        handover: cycles that a cube core and its vector cores take to pass on a tile (flags, drained queues).
        launch: cycles from launch to the first instruction.
    """

    arch: str
    cores: int
    clock: float
    hbm: float
    read: float
    write: float
    store: float
    load_a: float
    load_b: float
    macs: float
    slow_mmad: float
    rates: Mapping[str, float]
    lanes: float
    startup: Mapping[str, float]
    handover: float
    launch: float

    def cost(self, pipe: str, op: str, moved: float, elements: float, cold: float, sharers: int) -> float:
        """Cycles of one operation; `sharers` blocks share HBM."""
        if op in EVENTS:
            return self.handover * {"cross_set": 1, "sync_all": 4}.get(op, 0)
        if pipe == "MTE2":
            share = min(self.read, self.hbm / sharers)
            work = (moved - cold) / self.read + cold / share
        elif pipe == "MTE1":
            work = moved / (self.load_a if op.endswith("A") else self.load_b)
        elif pipe == "FIX":
            work = moved / self.write
        elif pipe == "MTE3":
            work = moved / self.store
        elif pipe == "M":
            work = elements / self.macs
        else:
            work = elements / self.rates.get(op, self.lanes)
        return max(self.startup.get(pipe, 0.0), work)


_SLOW = 16.0
"""Elements per cycle of Exp, Ln, Div and Sqrt: with it, softmax built from single instructions costs 2560 cycles a tile
of 64 x 256, against 2489 published.
"""

_RATES = {
    "softmax": 64 * 256 / 2489,
    "rescale": 64 * 128 / 834,
    "mask": 32.0,
    **dict.fromkeys(("Exp", "Ln", "Div", "Sqrt"), _SLOW),
}


def machine(arch: str, cores: int = 24) -> Machine:
    """The chip that the model is made for: constants calibrated on 2201 (docs/speed-model.md).

    For 3510 nothing is published: it is 2201 with the direct paths, so only what changes the path may be compared.

    Raises:
        InputError: an unknown architecture.
    """
    arch_number(arch)
    clock = 1.8e9
    return Machine(
        arch=arch,
        cores=cores,
        clock=clock,
        hbm=1.6e12 / clock,
        # Published stages of a tile of 128 queries x 256 keys, head size 128: QK moves 128 KiB out in 2487 cycles, PV
        # moves 128 KiB in in 1617.
        read=128 * 1024 / 1617,
        write=128 * 1024 / 2487,
        store=128 * 1024 / 1617,
        load_a=256.0,
        load_b=128.0,
        macs=4096.0,
        slow_mmad=4.0,
        rates=_RATES,
        lanes=64.0,
        startup={"V": 20.0, "MTE1": 20.0, "MTE2": 100.0, "MTE3": 100.0, "FIX": 100.0},
        handover=250.0,
        launch=10_900.0,
    )


@dataclass(slots=True)
class Span:
    """When an operation ran."""

    core: int
    unit: str
    pipe: str
    op: str
    start: float
    end: float


@dataclass(slots=True)
class Timeline:
    """The queues of all cores while operations are issued.

    Args:
        chip: constants.
        sharers: blocks that share HBM.
        keep: whether to keep records and spans, for drawing and for traces.
    """

    chip: Machine
    sharers: int
    keep: bool = False
    records: list[Record] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    busy: dict[tuple[int, str, str], float] = field(default_factory=dict)
    _free: dict[tuple[int, str, str], float] = field(default_factory=dict)
    _end: list[float] = field(default_factory=list)
    _cost: dict[tuple[str, str, float, float, float], float] = field(default_factory=dict)

    def issue(
        self,
        where: tuple[int, str, str],
        op: str,
        *,
        moved: float = 0,
        elements: float = 0,
        cold: float = 0,
        extra: float = 0,
        after: Sequence[int] = (),
    ) -> int:
        """Put an operation at the end of queue `where` (core, unit, pipe).

        Args:
            where: core, unit and pipe.
            op: name.
            moved: bytes.
            elements: lanes or multiply-adds.
            cold: bytes of `moved` from HBM.
            extra: cycles on top, for handing over.
            after: what has to end first; a negative number is no operation.

        Returns:
            Its number, for `after` of later ones.
        """
        start = self._free.get(where, 0.0)
        ends = self._end
        for one in after:
            if one >= 0 and ends[one] > start:
                start = ends[one]
        key = (where[2], op, moved, elements, cold)
        took = self._cost.get(key)
        if took is None:
            took = self._cost[key] = self.chip.cost(*key, self.sharers)
        took += extra
        end = start + took
        self._free[where] = end
        self.busy[where] = self.busy.get(where, 0.0) + took
        ends.append(end)
        number = len(ends) - 1
        if self.keep:
            core, unit, pipe = where
            waited = tuple(one for one in after if one >= 0)
            self.records.append(Record(core, unit, pipe, op, int(moved), int(elements), number, waited, int(cold)))
            self.spans.append(Span(core, unit, pipe, op, start, end))
        return number

    def finish(self) -> dict[int, float]:
        """When each core is done."""
        done: dict[int, float] = {}
        for (core, _, _), end in self._free.items():
            done[core] = max(done.get(core, 0.0), end)
        return done


@dataclass(frozen=True, slots=True)
class Report:
    """What a schedule comes to.

    Attributes:
        makespan: cycles from the first instruction to the end of the last core.
        balance: mean over max of the cores' ends; cores without work count as 0 (in a trace, up to its last core).
        busy: by `unit.pipe`, its busy cycles over makespan, mean over all cores.
        bound: cycles that no schedule of the same operations can beat: the busiest queue's total over cores, or the
            longest item that can't be divided.
        ends: cycles when each core is done.
    """

    makespan: float
    balance: float
    busy: dict[str, float]
    bound: float
    ends: tuple[float, ...]

    @property
    def over_bound(self) -> float:
        """makespan / bound."""
        return self.makespan / self.bound if self.bound else 1.0


def report(timeline: Timeline, cores: int, longest: float = 0.0) -> Report:
    """Sum up what was issued. `longest` is the time of the longest indivisible item by itself."""
    done = timeline.finish()
    ends = tuple(done.get(core, 0.0) for core in range(cores))
    makespan = max(ends, default=0.0)
    totals: dict[str, float] = {}
    for (_, unit, pipe), cycles in timeline.busy.items():
        totals[f"{unit}.{pipe}"] = totals.get(f"{unit}.{pipe}", 0.0) + cycles
    shares = {name: total / cores / makespan for name, total in sorted(totals.items())} if makespan else {}
    bound = max([longest, *(total / cores for total in totals.values())])
    return Report(makespan, sum(ends) / cores / makespan if makespan else 1.0, shares, bound, ends)


def list_schedule(records: Sequence[Record], chip: Machine, *, keep: bool = False) -> tuple[Report, Timeline]:
    """The schedule of a trace.

    Args:
        records: in issue order.
        chip: constants; every core of the trace has to be one of its.
        keep: whether the timeline keeps spans.

    Raises:
        InputError: an operation waits for one that isn't there or comes later, an id occurs twice, or a core is
        unknown.
    """
    cores = {record.core for record in records}
    if cores and not 0 <= min(cores) <= max(cores) < chip.cores:
        raise InputError(f"the trace has cores beyond the chip's {chip.cores}", value=sorted(cores))
    timeline = Timeline(chip, max(1, len(cores)), keep)
    number: dict[int, int] = {}
    for record in records:
        missing = [one for one in record.after if one not in number]
        if missing or record.id in number:
            raise InputError(f"operation {record.id} comes twice or waits for a later one", value=missing or record.id)
        number[record.id] = timeline.issue(
            (record.core, record.unit, record.pipe),
            record.op,
            moved=record.bytes,
            elements=record.elements,
            cold=record.cold,
            after=[number[one] for one in record.after],
        )
    return report(timeline, max(cores, default=0) + 1), timeline

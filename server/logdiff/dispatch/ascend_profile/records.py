"""What a profile tells of one kind of device work, and of a whole side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Work(NamedTuple):
    """One kind of device work: everything that decides which kernel ran and on what. None: not recorded.

    Attributes:
        kind: "compute" or "communication".
        op_type: the operator's type, such as `MatMulV2`; the kernel's name where the type was not recorded.
        name: the kernel's name as launched, without a number at its end.
        input_shapes, output_shapes: "128,4096;4096,4096", one tensor after the other.
        input_types, output_types: "BF16;BF16", without the prefix `DT_` that some versions write.
        input_formats, output_formats: "ND;FRACTAL_NZ".
        core: `AI_CORE`, `AI_VECTOR_CORE`, `MIX_AIC`, `AI_CPU`, ...
        blocks, mix_blocks: cores that the task used, and those of the second kind of core of a mixed operator.
        state: "dynamic" or "static" shapes.
        hf32: whether HF32 was allowed ("YES", "NO").
        attributes: attributes and tiling, as recorded.
        grid: grid and block dimensions of SIMT kernels.
        algorithm: of a communication operator, such as `RING`.
    """

    kind: str
    op_type: str
    name: str | None = None
    input_shapes: str | None = None
    output_shapes: str | None = None
    input_types: str | None = None
    output_types: str | None = None
    input_formats: str | None = None
    output_formats: str | None = None
    core: str | None = None
    blocks: str | None = None
    mix_blocks: str | None = None
    state: str | None = None
    hf32: str | None = None
    attributes: str | None = None
    grid: str | None = None
    algorithm: str | None = None


FIELDS = Work._fields[2:]
"""Fields of `Work` that describe how an operator ran."""


@dataclass(slots=True)
class Tally:
    """How often and how long one kind of work ran, and what called it.

    Attributes:
        count: device tasks.
        time_ns: their durations together.
        least_ns, most_ns: the shortest and the longest.
        first_ns: when the first one began (the profiler's clock), None where unknown.
        streams: streams it ran on, at most eight.
        callers: torch operator and module -> tasks; None where not recorded. At most `MAX_CALLERS`.
    """

    count: int = 0
    time_ns: int = 0
    least_ns: int | None = None
    most_ns: int = 0
    first_ns: int | None = None
    streams: set[int] = field(default_factory=set)
    callers: dict[tuple[str | None, str | None], int] = field(default_factory=dict)

    def add(
        self, start_ns: int | None, duration_ns: int, stream: int | None, caller: tuple[str | None, str | None]
    ) -> None:
        """Count one task."""
        self.count += 1
        self.time_ns += duration_ns
        self.most_ns = max(self.most_ns, duration_ns)
        self.least_ns = duration_ns if self.least_ns is None else min(self.least_ns, duration_ns)
        if start_ns is not None and (self.first_ns is None or start_ns < self.first_ns):
            self.first_ns = start_ns
        if stream is not None and len(self.streams) < MAX_STREAMS:
            self.streams.add(stream)
        if caller in self.callers or len(self.callers) < MAX_CALLERS:
            self.callers[caller] = self.callers.get(caller, 0) + 1


MAX_STREAMS = 8
MAX_CALLERS = 32
MAX_KINDS = 200_000
"""Different kinds of work that one side may have; more are an error, not a crash for want of memory."""


class Task(NamedTuple):
    """One device task as a reader yields it.

    Attributes:
        work: what ran.
        start_ns: the profiler's clock, None where not recorded.
        duration_ns: at least 0.
        device: device id.
        stream: stream id.
        torch_op, module: what called it in torch, where recorded.
    """

    work: Work
    start_ns: int | None
    duration_ns: int
    device: int | None
    stream: int | None
    torch_op: str | None = None
    module: str | None = None


@dataclass(slots=True)
class Capture:
    """One capture: one rank, or one file.

    Attributes:
        label: "rank 3", or the file's name where no rank is recorded.
        files: what was read.
        rank, devices: as recorded.
        facts: name -> text: chip, versions, profiler level.
        work: kinds of work and how often they ran.
        others: device tasks that are neither (events, copies): task type -> number.
        torch_ops: (name, input shapes) -> [calls, host self ns, device self ns], of `operator_details.csv`.
        notes: what a reader of the result should know.
    """

    label: str
    files: list[str]
    rank: int | None = None
    devices: set[int] = field(default_factory=set)
    facts: dict[str, str] = field(default_factory=dict)
    work: dict[Work, Tally] = field(default_factory=dict)
    others: dict[str, int] = field(default_factory=dict)
    torch_ops: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def tasks(self) -> int:
        """Device tasks of operators."""
        return sum(tally.count for tally in self.work.values())


@dataclass(slots=True)
class Side:
    """One side: every capture that was found under its path."""

    name: str
    path: str
    captures: list[Capture]
    left_out: list[str]

    def work(self) -> Iterator[tuple[Work, Tally]]:
        """Kinds of work of all captures."""
        for capture in self.captures:
            yield from capture.work.items()

    def recorded(self) -> dict[str, bool]:
        """Which fields this side has anything in."""
        return {name: any(getattr(work, name) is not None for work, _ in self.work()) for name in FIELDS}


def plain(value: Any) -> str | None:
    """A recorded text as it is compared: no quotes, no `DT_`, None for what stands for nothing."""
    if value is None:
        return None
    text = str(value).strip().strip('"').strip()
    return None if text.upper() in NOTHING else text


NOTHING = frozenset({"", "N/A", "NA", "NULL", "NONE", "UNDEFINED", "4294967295", "18446744073709551615", "-1"})
"""What the profilers write where there is nothing (their own placeholders for 32 and 64 bits included)."""


def types(value: Any) -> str | None:
    """Data types without the prefix that some versions write before some of them."""
    text = plain(value)
    return None if text is None else ";".join(part.strip().removeprefix("DT_") for part in text.split(";"))

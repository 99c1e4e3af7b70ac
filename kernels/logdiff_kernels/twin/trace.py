"""The trace of a launch: which core issued what on which pipe, and which flag let it start."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MEMORIES = ("GM", "UB", "L1", "L0A", "L0B", "L0C", "BIAS", "FIXBUF")
PIPES = ("S", "V", "M", "MTE1", "MTE2", "MTE3", "FIX", "ALL")
EVENTS = ("op", "set_flag", "wait_flag", "barrier", "cross_set", "cross_wait", "sync_all")

RECORD = np.dtype(
    [
        ("core", "<u4"), ("name", "<u2"), ("event", "u1"), ("pipe", "u1"), ("detail", "<u4"), ("reserved", "<u4"),
        ("elements", "<u8"), ("read", "<u8", (len(MEMORIES),)), ("written", "<u8", (len(MEMORIES),)),
    ]
)  # fmt: skip
"""One instruction, flag or barrier, in the order of issue. `detail`: event id, cross-core flag, number of a SyncAll."""
EDGE = np.dtype([("set", "<u8"), ("wait", "<u8")])
CORE = np.dtype([("block", "<u4"), ("sub", "<u4"), ("cube", "<u4")])


@dataclass(frozen=True, slots=True)
class Trace:
    """What a launch did.

    Attributes:
        records: array of `RECORD`; a core's records are in its program order.
        edges: array of `EDGE`, indices into `records`: the wait can't end before the set is reached.
        cores: array of `CORE`, indexed by `records["core"]`.
        names: instruction and event names, indexed by `records["name"]`.
    """

    records: NDArray[np.void]
    edges: NDArray[np.void]
    cores: NDArray[np.void]
    names: tuple[str, ...]

    def count(self, name: str) -> int:
        """How many records have that name."""
        return int(np.count_nonzero(self.records["name"] == self.names.index(name))) if name in self.names else 0

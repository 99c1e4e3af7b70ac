"""What a recorder holds while passes go by: rows of one boundary, kinds of rows, the pass that runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from logdiff_kernels.observe.boundaries.rowhash import SKETCH, row_sketch
from logdiff_kernels.observe.boundaries.spool import Region, Spool

Index = npt.NDArray[np.int64]


class Kind:
    """Which of all N rows a boundary keeps: `place` int64 [N] among the `count` kept ones, -1 for the others."""

    def __init__(self, mask: npt.NDArray[np.bool_]) -> None:
        self.count = int(mask.sum())
        self.place: Index = np.where(mask, np.cumsum(mask) - 1, -1)
        self.rows: Index = np.flatnonzero(mask)


@dataclass(frozen=True, slots=True)
class Chosen:
    """Rows of one tensor that are kept: `source` in the tensor, `local` among the pass's kept rows, `slots` in the
    boundary."""

    source: Index
    local: Index
    slots: Index


class Pass:
    """The pass that runs.

    Args:
        number: counting from 0.
        count: rows of the flat batch.
        index: rows of it that are kept.
        slots: where they stand among all rows.
    """

    def __init__(self, number: int, count: int, index: Index, slots: Index) -> None:
        self.number, self.count, self.index, self.slots = number, count, index, slots
        self._local = np.full(count, -1, dtype=np.int64)
        self._local[index] = np.arange(len(index))
        self._seen: dict[str, tuple[Index, npt.NDArray[np.bool_]]] = {}

    def chosen(self, kind: Kind, at: Index | None) -> Chosen:
        """Rows to keep of a tensor that holds the rows `at` of the flat batch (None: all)."""
        if at is None:
            source, local = self.index, np.arange(len(self.index))
        else:
            source = np.flatnonzero(self._local[at] >= 0)
            local = self._local[at[source]]
        slots = kind.place[self.slots[local]]
        kept = slots >= 0
        return Chosen(source[kept], local[kept], slots[kept])

    def saw(self, name: str, local: Index, hashes: Index) -> None:
        """Remember the hashes of a boundary's rows."""
        full, has = self._seen.pop(name, (np.zeros(len(self.index), np.int64), np.zeros(len(self.index), np.bool_)))
        full[local], has[local] = hashes, True
        self._seen[name] = full, has

    def source_of(self, local: Index, hashes: Index, expected: str | None) -> str | None:
        """The boundary whose rows these are: `expected` if it is, else the latest one; None where there is none.

        Rows that a boundary doesn't keep can't be compared; at least one must be.
        """
        if expected in self._seen and self._are(str(expected), local, hashes):
            return expected
        return next((name for name in reversed(self._seen) if self._are(name, local, hashes)), None)

    def _are(self, name: str, local: Index, hashes: Index) -> bool:
        full, has = self._seen[name]
        if has[local[0]] and full[local[0]] != hashes[0]:
            return False
        known = has[local]
        return bool(known.any()) and bool((full[local][known] == hashes[known]).all())


class Columns:
    """Rows of one tensor: themselves, or hash and sketch of each."""

    def __init__(self, spool: Spool, count: int, width: int, dtype: torch.dtype, *, sketch: bool) -> None:
        self.width, self.dtype = width, dtype
        self._regions: dict[str, Region] = (
            {"#hash": spool.region(count, 1, torch.int64), "#sketch": spool.region(count, SKETCH, torch.float32)}
            if sketch
            else {"": spool.region(count, width, dtype)}
        )
        self.written = np.zeros(count, dtype=np.bool_)

    @staticmethod
    def size(count: int, width: int, dtype: torch.dtype, *, sketch: bool) -> int:
        """Bytes that it takes."""
        return count * (8 + 4 * SKETCH if sketch else width * dtype.itemsize)

    def put(self, slots: Index, rows: torch.Tensor, hashes: Index) -> int:
        """Write rows [n, width]. Returns how many of them were there already."""
        again = int(self.written[slots].sum())
        self.written[slots] = True
        for suffix, region in self._regions.items():
            if suffix == "#hash":
                region.put(slots, torch.from_numpy(hashes).unsqueeze(-1))
            else:
                region.put(slots, row_sketch(rows) if suffix == "#sketch" else rows)
        return again

    def copy(self, slots: Index, other: Columns, theirs: Index) -> None:
        """Write rows `theirs` of another tensor to `slots`."""
        for suffix, region in self._regions.items():
            region.put(slots, other._regions[suffix].get(theirs))
        self.written[slots] = True

    def tensors(self, key: str) -> dict[str, torch.Tensor]:
        """As the file has them, ascending; mapped."""
        slots = np.flatnonzero(self.written)
        found = {f"{key}{suffix}": region.packed(slots) for suffix, region in self._regions.items()}
        return {name: value.view(-1) if name.endswith("#hash") else value for name, value in found.items()}


@dataclass(slots=True)
class Held:
    """One boundary: its rows, and per argument of its operator the boundary that fed it (None: not resolved yet)."""

    name: str
    kind: Kind
    columns: Columns
    where: str
    facts: dict[str, Any]
    sources: dict[int, str | None] = field(default_factory=dict)
    given: dict[int, Columns] = field(default_factory=dict)
    """Rows of the arguments that no boundary's are."""

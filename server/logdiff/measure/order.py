"""Exact order statistics of more values than memory should hold."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import IO

import numpy as np
import numpy.typing as npt

from logdiff.errors import InputError

Floats = npt.NDArray[np.float64]

IN_MEMORY = 1 << 22
"""Values kept in memory (32 MiB) before the rest goes to an anonymous temporary file."""
_CHUNK = 1 << 19
_GATHER = 1 << 22
_DIGIT = 16
_HIGHEST = 64 - _DIGIT


class OrderStatistics:
    """Percentiles and tail sums of non-negative finite fp64 values, exact, with bounded memory.

    The bits of a non-negative double order as the number does, so that a rank is found by radix selection
    over 16-bit digits: one counting pass over the values, one pass that gathers the few buckets that hold
    the wanted ranks, further passes only where a bucket is too large (many equal values).
    """

    def __init__(self, in_memory: int | None = None) -> None:
        self._limit = IN_MEMORY if in_memory is None else in_memory
        self._held: list[Floats] = []
        self._held_count = 0
        self._file: IO[bytes] | None = None
        self.count = 0

    def add(self, values: Floats) -> None:
        """Take values (fp64, >= 0, finite; copied)."""
        self._held.append(np.array(values, dtype=np.float64))
        self._held_count += len(values)
        self.count += len(values)
        if self._held_count > self._limit:
            self._spill()

    def close(self) -> None:
        """Drop every value and the temporary file."""
        self._held = []
        if self._file is not None:
            self._file.close()
            self._file = None

    def percentiles(self, percents: tuple[float, ...]) -> list[float]:
        """Percentiles with linear interpolation, bit for bit those of `numpy.percentile`; NaN without values."""
        n = self.count
        if n == 0:
            return [float("nan")] * len(percents)
        places = [float(np.true_divide(p, 100)) * (n - 1) for p in percents]
        floors = [int(place) for place in places]
        value = self._at(sorted({*floors, *(min(f + 1, n - 1) for f in floors)}))
        return [
            _between(value[low], value[min(low + 1, n - 1)], place - low)
            for place, low in zip(places, floors, strict=True)
        ]

    def tail_sum(self, largest: int) -> float:
        """Sum of the `largest` largest values."""
        if self.count == 0 or largest <= 0:
            return 0.0
        edge_rank = max(self.count - largest, 0)
        edge = self._at([edge_rank])[edge_rank]
        above, total = 0, 0.0
        for chunk in self._chunks():
            over = chunk[chunk > edge]
            above += len(over)
            total += float(over.sum())
        return total + (min(largest, self.count) - above) * edge

    def _spill(self) -> None:
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="logdiff-")  # noqa: SIM115 - lives as long as this object
            for values in self._held:
                self._file.write(values.data)
        except OSError as error:
            raise InputError(
                f"the temporary file for order statistics can't be written: {error}",
                value=tempfile.gettempdir(),
                hint="free about 8 bytes per token and side pair there, or set TMPDIR to a larger disk",
            ) from error
        self._held, self._held_count = [], 0

    def _chunks(self) -> Iterator[Floats]:
        # One fixed chunk length from the first value on, so that sums don't depend on how the values arrived.
        if self._file is not None:
            self._spill()
            self._file.flush()
            self._file.seek(0)
            while data := self._file.read(_CHUNK * 8):
                yield np.frombuffer(data, dtype=np.float64)
            self._file.seek(0, 2)
        elif self._held:
            held = np.concatenate(self._held)
            for start in range(0, len(held), _CHUNK):
                yield held[start : start + _CHUNK]

    def _at(self, ranks: list[int]) -> dict[int, float]:
        """Value at each 0-based rank in ascending order."""
        if self._file is None:
            held = np.concatenate(self._held)
            parted = np.partition(held, ranks)
            return {rank: float(parted[rank]) for rank in ranks}
        bits = self._select([(rank, rank) for rank in ranks], 0, _HIGHEST)
        return {rank: float(np.uint64(b).view(np.float64)) for rank, b in bits.items()}

    def _select(self, wanted: list[tuple[int, int]], prefix: int, shift: int) -> dict[int, int]:
        """Bits at the ranks `wanted` [(name, rank)] among the values whose bits above this digit are `prefix`."""
        counts = np.zeros(1 << _DIGIT, dtype=np.int64)
        for values in self._under(prefix, shift):
            counts += np.bincount(_digit(values, shift), minlength=1 << _DIGIT)
        ends = np.cumsum(counts)
        buckets: dict[int, list[tuple[int, int]]] = {}
        for name, rank in wanted:
            bucket = int(np.searchsorted(ends, rank, side="right"))
            buckets.setdefault(bucket, []).append((name, rank - int(ends[bucket] - counts[bucket])))
        found: dict[int, int] = {}
        small: list[int] = []
        for bucket, inside in buckets.items():
            path = (prefix << _DIGIT) | bucket
            if shift == 0:
                found.update({name: path for name, _ in inside})
            elif counts[bucket] > _GATHER:
                found.update(self._select(inside, path, shift - _DIGIT))
            else:
                small.append(bucket)
        for group in _packed(small, counts):
            found.update(self._gather(group, buckets, counts, prefix, shift))
        return found

    def _gather(
        self,
        group: list[int],
        buckets: dict[int, list[tuple[int, int]]],
        counts: npt.NDArray[np.int64],
        prefix: int,
        shift: int,
    ) -> dict[int, int]:
        chosen = np.zeros(1 << _DIGIT, dtype=bool)
        chosen[group] = True
        gathered = np.concatenate([values[chosen[_digit(values, shift)]] for values in self._under(prefix, shift)])
        gathered.sort()
        found: dict[int, int] = {}
        start = 0
        for bucket in sorted(group):
            found.update({name: int(gathered[start + rank]) for name, rank in buckets[bucket]})
            start += int(counts[bucket])
        return found

    def _under(self, prefix: int, shift: int) -> Iterator[npt.NDArray[np.uint64]]:
        for chunk in self._chunks():
            bits = chunk.view(np.uint64)
            yield bits if shift == _HIGHEST else bits[(bits >> np.uint64(shift + _DIGIT)) == np.uint64(prefix)]


def _digit(bits: npt.NDArray[np.uint64], shift: int) -> npt.NDArray[np.int64]:
    return ((bits >> np.uint64(shift)) & np.uint64((1 << _DIGIT) - 1)).astype(np.int64)


def _packed(buckets: list[int], counts: npt.NDArray[np.int64]) -> Iterator[list[int]]:
    """Split buckets into groups that fit the gathering limit together."""
    group: list[int] = []
    for bucket in buckets:
        if group and counts[[*group, bucket]].sum() > _GATHER:
            yield group
            group = []
        group.append(bucket)
    if group:
        yield group


def _between(low: float, high: float, t: float) -> float:
    """Linear interpolation in the form that numpy uses, so that both ends are hit exactly."""
    return high - (high - low) * (1 - t) if t >= 0.5 else low + (high - low) * t

"""One temporary file in which rows of many boundaries lie until the boundary file is written: memory stays bounded."""

from __future__ import annotations

import itertools
import os
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

Index = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_ALIGN = 4096
_BLOCK = 8 << 20


class Region:
    """Rows [count, width] of one dtype in a spool; rows that were never written are holes."""

    def __init__(self, spool: Spool, start: int, count: int, width: int, dtype: torch.dtype) -> None:
        self._spool, self._start = spool, start
        self.count, self.width, self.dtype = count, width, dtype
        self.row_bytes = width * dtype.itemsize

    @property
    def bytes(self) -> int:
        """Its size."""
        return self.count * self.row_bytes

    def put(self, slots: Index, rows: torch.Tensor) -> None:
        """Write rows [n, width] to the places `slots` (int64 [n])."""
        if not len(slots) or not self.row_bytes:
            return
        raw = rows.detach().cpu().contiguous().view(torch.uint8).numpy().reshape(len(slots), self.row_bytes)
        for first, end in _runs(slots):
            self._spool.write(self._start + int(slots[first]) * self.row_bytes, raw[first:end])

    def get(self, slots: Index) -> torch.Tensor:
        """The rows at `slots`, as a copy."""
        return self._view(self.count)[torch.from_numpy(np.asarray(slots, dtype=np.int64))]

    def packed(self, slots: Index) -> torch.Tensor:
        """Rows at `slots` (ascending) moved to the region's start, mapped and not read into memory."""
        if len(slots) == self.count:
            return self._view(self.count)
        step = max(1, _BLOCK // max(self.row_bytes, 1))
        for start in range(0, len(slots), step):
            part = slots[start : start + step]
            self.put(np.arange(start, start + len(part)), self.get(part))
        return self._view(len(slots))

    def _view(self, count: int) -> torch.Tensor:
        if not count * self.row_bytes:
            return torch.zeros(count, self.width, dtype=self.dtype)
        raw = self._spool.mapped(self._start, count * self.row_bytes)
        return torch.from_numpy(raw).view(self.dtype).view(count, self.width)


class Spool:
    """An unnamed file beside the output.

    Args:
        folder: where it lies; made if it isn't there.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        self._file = tempfile.TemporaryFile(dir=folder, prefix=".boundaries-")  # noqa: SIM115 (lives with the recorder)
        self._size = 0

    def region(self, count: int, width: int, dtype: torch.dtype) -> Region:
        """Room for rows; takes no disk space before they are written."""
        start = self._size
        self._size += -(-count * width * dtype.itemsize // _ALIGN) * _ALIGN
        os.ftruncate(self._file.fileno(), self._size)
        return Region(self, start, count, width, dtype)

    def write(self, offset: int, raw: Bytes) -> None:
        """Write bytes."""
        data = raw.reshape(-1).data
        while data:
            written = os.pwrite(self._file.fileno(), data, offset)
            data, offset = data[written:], offset + written

    def mapped(self, offset: int, size: int) -> Bytes:
        """uint8 [size], mapped privately."""
        return np.asarray(np.memmap(self._file, dtype=np.uint8, mode="c", offset=offset, shape=(size,)))

    def close(self) -> None:
        """Give the space back."""
        self._file.close()


def _runs(slots: Index) -> list[tuple[int, int]]:
    """[first, end) of the runs of consecutive values."""
    edges = np.flatnonzero(np.diff(slots) != 1) + 1
    bounds = [0, *edges.tolist(), len(slots)]
    return list(itertools.pairwise(bounds))

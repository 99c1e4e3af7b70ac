"""Where single samples turn from near to far, and whether those places are multiples of a block."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from logdiff.verdict.table import Table

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def turns_inside(table: Table, u: Floats, at: int) -> tuple[float, int]:
    """Of samples with tokens on both sides of a place: share whose later ones are farther off, and their number."""
    late = table.place >= at
    n1 = np.bincount(table.row[late], minlength=table.samples)
    n0 = np.bincount(table.row[~late], minlength=table.samples)
    both = (n1 >= 4) & (n0 >= 4)
    if not both.any():
        return 0.0, 0
    s1 = np.bincount(table.row[late], weights=u[late], minlength=table.samples)
    s0 = np.bincount(table.row[~late], weights=u[~late], minlength=table.samples)
    shift = s1[both] / n1[both] - s0[both] / n0[both]
    return float(np.mean(shift > 0.15)), int(np.count_nonzero(both))


def shares_of_blocks(table: Table, u: Floats, sizes: list[int]) -> tuple[int, float, int] | None:
    """Do samples turn bad at a multiple of a block size? (size, share of onsets on a multiple, onsets), or None."""
    onsets = sample_onsets(table, u)
    if len(onsets) < 4:
        return None
    best: tuple[int, float, int] | None = None
    for size in sizes:
        on = float(np.mean(np.isin(onsets % size, (0, 1, size - 1)))) if size > 4 else 0.0
        if on >= 0.7 and (best is None or size > best[0]):
            best = (size, on, len(onsets))
    return best


def sample_onsets(table: Table, u: Floats) -> Ints:
    """Places at which samples turn from near to far, for those in which that is plain."""
    found: list[int] = []
    a = np.abs(table.d)
    starts = np.append(table.starts, table.tokens)
    for s in range(table.samples):
        begin, end = int(starts[s]), int(starts[s + 1])
        n = end - begin
        if n < 16:
            continue
        values = u[begin:end]
        k = np.arange(1, n)
        cumulative = np.cumsum(values)
        shift = (cumulative[-1] - cumulative[:-1]) / (n - k) - cumulative[:-1] / k
        score = shift * np.sqrt(k * (n - k) / n)
        score[:3] = score[-3:] = -1
        at = int(np.argmax(score))
        before, after = float(a[begin : begin + at + 1].mean()), float(a[begin + at + 1 : end].mean())
        if shift[at] > 0.25 and score[at] > 1.1 and after > 3 * before:
            found.append(int(table.place[begin + at + 1]))
    return np.array(found, dtype=np.int64)

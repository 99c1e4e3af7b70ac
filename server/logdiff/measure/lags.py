"""Correlation of one side with the other shifted by a few tokens: a shift by one shows as a peak beside lag 0."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from logdiff.measure.moments import OrderedSums, correlation
from logdiff.measure.window import Bools, Ints, Window

Floats = npt.NDArray[np.float64]

LAGS = (-3, -2, -1, 0, 1, 2, 3)
_SUMS = ("n", "x", "y", "xx", "yy", "xy")


class LagScan:
    """Pearson correlation of first[i] with second[i + lag], both inside one sample and both compared tokens."""

    def __init__(self) -> None:
        self._sums = {lag: OrderedSums(_SUMS) for lag in LAGS}
        self._shift: tuple[float, float] | None = None

    def update(self, w: Window) -> None:
        """Take one window."""
        if self._shift is None:
            self._shift = (float(w.first[0]), float(w.second[0]))
        lengths = np.diff(w.full_ends, prepend=0)
        x, y = w.full_first.astype(np.float64) - self._shift[0], w.full_second.astype(np.float64) - self._shift[1]
        if w.valid is not None:
            x, y = np.where(w.valid, x, 0.0), np.where(w.valid, y, 0.0)
        starts = (w.full_ends - lengths)[lengths > 0]
        xx, yy = x * x, y * y
        for lag in LAGS:
            self._sums[lag].add(_lagged(lag, x, y, xx, yy, w.valid, w.full_ends, starts))

    def as_dict(self) -> dict[str, Any]:
        """Lag (as a string, for JSON) -> correlation, NaN where undefined."""
        result = {}
        for lag, sums in self._sums.items():
            s = sums.totals()
            result[str(lag)] = correlation(s["n"], s["x"], s["y"], s["xx"], s["yy"], s["xy"])
        return result


def _lagged(
    lag: int, x: Floats, y: Floats, xx: Floats, yy: Floats, valid: Bools | None, ends: Ints, starts: Ints
) -> dict[str, Floats]:
    size, reach = len(x), abs(lag)
    paired = np.ones(size, dtype=bool)
    # the earlier token of a pair must not be among the last `reach` of its sample
    for back in range(1, reach + 1):
        paired[ends[ends >= back] - back] = False
    early, late = slice(0, max(size - reach, 0)), slice(min(reach, size), size)
    left, right = (early, late) if lag >= 0 else (late, early)
    keep = paired[early]
    if valid is not None:
        keep = keep & valid[early] & valid[late]
    pad = np.zeros(size - len(keep))

    def per_sample(values: npt.NDArray[Any]) -> Floats:
        return np.add.reduceat(np.concatenate([values * keep, pad]), starts)

    sums = {
        "n": per_sample(np.ones(len(keep))),
        "x": per_sample(x[left]),
        "y": per_sample(y[right]),
        "xx": per_sample(xx[left]),
        "yy": per_sample(yy[right]),
        "xy": per_sample(x[left] * y[right]),
    }
    paired_samples = sums["n"] > 0
    return {name: values[paired_samples] for name, values in sums.items()}

"""Sums over samples that do not depend on how the samples arrived, and what follows from them."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_BLOCK = 4096


class OrderedSums:
    """Column sums over a stream of per-sample rows.

    A sample is never split over batches, and rows are added up in blocks of a fixed number of samples, so the
    result has the same bits however the stream was cut into batches. Within a block the sum is numpy's
    pairwise one, over blocks it is exactly rounded.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._block = np.zeros((len(names), _BLOCK))
        self._filled = 0
        self._sums: list[Floats] = []

    def add(self, rows: dict[str, Floats]) -> None:
        """Append rows: every name -> fp64 [S]."""
        matrix = np.stack([rows[name] for name in self._names])
        start = 0
        while start < matrix.shape[1]:
            take = min(_BLOCK - self._filled, matrix.shape[1] - start)
            self._block[:, self._filled : self._filled + take] = matrix[:, start : start + take]
            self._filled += take
            start += take
            if self._filled == _BLOCK:
                self._close_block()

    def totals(self) -> dict[str, float]:
        """The sums so far."""
        if self._filled:
            self._close_block()
        if not self._sums:
            return dict.fromkeys(self._names, 0.0)
        columns = np.stack(self._sums, axis=1)
        return {name: _sum(column) for name, column in zip(self._names, columns, strict=True)}

    def _close_block(self) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            self._sums.append(np.ascontiguousarray(self._block[:, : self._filled]).sum(axis=1))
        self._filled = 0


def _sum(values: Floats) -> float:
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):  # beyond fp64, or inf - inf: say so instead of stopping
        with np.errstate(over="ignore", invalid="ignore"):
            return float(values.sum())


def ratio(above: float, below: float) -> float:
    """`above / below`; 0/0 is NaN, x/0 an infinity."""
    if below == 0:
        return math.nan if above == 0 or math.isnan(above) else math.copysign(math.inf, above)
    return above / below


def variance(n: float, total: float, squares: float) -> float:
    """Unbiased variance from count, sum and sum of squares (about any fixed shift); NaN for fewer than two values."""
    if n < 2:
        return math.nan
    if math.isinf(squares):
        return math.inf
    return max(squares - total * total / n, 0.0) / (n - 1)


def standard_error(n: float, total: float, squares: float) -> float:
    """Standard error of the mean, values taken as independent; NaN for fewer than two values."""
    return math.sqrt(variance(n, total, squares) / n) if n >= 2 else math.nan


def correlation(n: float, x: float, y: float, xx: float, yy: float, xy: float) -> float:
    """Pearson correlation from sums (about any fixed shifts); NaN where a side does not vary."""
    if n < 2:
        return math.nan
    var_x, var_y = xx - x * x / n, yy - y * y / n
    # A remainder at rounding level of the sums is no variance.
    if not (var_x > 1e-13 * xx and var_y > 1e-13 * yy):
        return math.nan
    return max(-1.0, min(1.0, (xy - x * y / n) / (math.sqrt(var_x) * math.sqrt(var_y))))


def clustered_error(n: float, total: float, squares: float, cross: float, sizes: float) -> float:
    """Standard error of a token mean with whole samples as the independent unit.

    Args:
        n: tokens.
        total: sum over tokens.
        squares: sum over samples of (sample sum)^2.
        cross: sum over samples of (sample sum) * (sample tokens).
        sizes: sum over samples of (sample tokens)^2.
    """
    if n == 0:
        return math.nan
    mean = total / n
    return math.sqrt(max(squares - 2 * mean * cross + mean * mean * sizes, 0.0)) / n

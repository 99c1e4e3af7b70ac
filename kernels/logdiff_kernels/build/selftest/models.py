"""What may go on inside one Mmad, in numpy: models to recognise a chip by.

Each takes factors x and y [..., K] that broadcast against each other and gives their sums of products over K, `steps`
instructions of K / steps each into one accumulator.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from logdiff_kernels.build.selftest.bits import Array

Model = Callable[[Array, Array, Array], Array]
"""(x, y, accumulator) -> accumulator, of one instruction."""


def multiply(model: Model, x: Array, y: Array, steps: int) -> Array:
    """fp32 sums from +0."""
    x, y = x.astype(np.float32), y.astype(np.float32)
    shape = np.broadcast_shapes(x.shape[:-1], y.shape[:-1])
    total = np.zeros(shape, np.float32)
    with np.errstate(all="ignore"):
        for step in range(steps):
            size = x.shape[-1] // steps
            part = slice(step * size, (step + 1) * size)
            total = model(x[..., part], y[..., part], total)
    return total


def fma(a: Any, b: Any, c: Any) -> Array:
    """a*b + c with one rounding. The product is exact in fp64; the sum is rounded to odd there, then to fp32.

    Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums", IEEE Transactions on Computers 57 (2008).
    """
    product = np.asarray(a, np.float64) * np.asarray(b, np.float64)
    return _odd_sum(product, np.asarray(c, np.float64)).astype(np.float32)


def _odd_sum(a: Array, b: Array) -> Array:
    """a + b in fp64, rounded to odd: nothing is lost that the rounding to fp32 would see."""
    total = np.asarray(a + b)
    back = total - a
    error = (a - (total - back)) + (b - back)  # TwoSum: total + error is exact
    word = total.view(np.int64)
    step = np.where((error > 0) == (total > 0), 1, -1)
    even = np.isfinite(total) & (error != 0) & (word & 1 == 0)
    return np.asarray(np.where(even, word + step, word).view(np.float64))


def ascending(x: Array, y: Array, total: Array) -> Array:
    """Fused, k ascending: the numeric contract."""
    for k in range(x.shape[-1]):
        total = fma(x[..., k], y[..., k], total)
    return total


def pairwise(x: Array, y: Array, total: Array, group: int = 16) -> Array:
    """Rounded products of `group` neighbours as a tree, the trees' sums added in order."""
    for first in range(0, x.shape[-1], group):
        level = [np.asarray(x[..., k] * y[..., k]) for k in range(first, min(first + group, x.shape[-1]))]
        level += [np.zeros_like(total)] * (group - len(level))
        while len(level) > 1:
            level = [np.asarray(level[i] + level[i + 1]) for i in range(0, len(level), 2)]
        total = np.asarray(total + level[0])
    return total


def fp64(x: Array, y: Array, total: Array) -> Array:
    """All of the instruction in fp64, rounded once."""
    return joined(x, y, total, x.shape[-1])


def joined(x: Array, y: Array, total: Array, group: int) -> Array:
    """The accumulator and `group` products summed in fp64 and rounded, group after group."""
    for first in range(0, x.shape[-1], group):
        wide = total.astype(np.float64)
        for k in range(first, min(first + group, x.shape[-1])):
            wide = wide + x[..., k].astype(np.float64) * y[..., k].astype(np.float64)
        total = wide.astype(np.float32)
    return total


def apart(x: Array, y: Array, total: Array, group: int) -> Array:
    """`group` products summed in fp64 and rounded, then added to the accumulator, group after group."""
    for first in range(0, x.shape[-1], group):
        wide = np.zeros(total.shape, np.float64)
        for k in range(first, min(first + group, x.shape[-1])):
            wide = wide + x[..., k].astype(np.float64) * y[..., k].astype(np.float64)
        total = np.asarray(total + wide.astype(np.float32))
    return total


MODELS: dict[str, Model] = {
    "ascending": ascending,
    "pairwise16": pairwise,
    "fp64": fp64,
    **{f"joined{group}": partial(joined, group=group) for group in (4, 8, 16, 32)},
    **{f"apart{group}": partial(apart, group=group) for group in (4, 8, 16, 32)},
}
"""The twin's three models, then others that matrix units have been found to follow."""

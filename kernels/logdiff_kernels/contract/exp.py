"""exp1 in numpy, and what the contract makes of it: fp32, plain Mul and Add."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]

LOG2E = np.float32(1.4426950408889634)
LN2_HIGH = np.float32(0.693359375)
LN2_LOW = np.float32(-2.12194440e-4)
OVERFLOW = np.float32(88.72283)
UNDERFLOW = np.float32(-87.33654)
POLYNOMIAL = tuple(
    np.float32(c)
    for c in (0.5, 0.1666666716337204, 0.041666269302368164, 0.008333264850080013, 0.0013946190010756254,
              0.000199179703486152)
)  # fmt: skip
"""Coefficients of q from r^0 up."""


def exp1(x: NDArray[Any]) -> FloatArray:
    """The contract's exponential: fp32 in, fp32 out, any shape."""
    x = np.asarray(x, np.float32)
    with np.errstate(all="ignore"):
        inside = np.clip(np.where(np.isnan(x), np.float32(0), x), UNDERFLOW, OVERFLOW)
        n = np.rint(inside * LOG2E)
        r = (inside - n * LN2_HIGH) - n * LN2_LOW
        q = np.full_like(r, POLYNOMIAL[-1])
        for coefficient in POLYNOMIAL[-2::-1]:
            q = q * r + coefficient
        y = np.asarray(((r * r) * q + r) + np.float32(1), np.float32)
        shifted = (y.view(np.uint32) + (n.astype(np.int32) << 23).view(np.uint32)).view(np.float32)
        shifted = np.where(x > OVERFLOW, np.float32(np.inf), shifted)
        shifted = np.where(x < UNDERFLOW, np.float32(0), shifted)
        return np.asarray(np.where(np.isnan(x), x, shifted), np.float32)


def sigmoid1(x: NDArray[Any]) -> FloatArray:
    """1 / (1 + exp1(-x)): fp32, any shape."""
    one = np.float32(1)
    with np.errstate(all="ignore"):
        return np.asarray(one / (one + exp1(-np.asarray(x, np.float32))), np.float32)


def tanh1(x: NDArray[Any]) -> FloatArray:
    """(1 - t) / (1 + t) with the sign of x, t = exp1(-2 |x|): fp32, any shape."""
    x = np.asarray(x, np.float32)
    one = np.float32(1)
    with np.errstate(all="ignore"):
        t = exp1(np.float32(-2) * np.abs(x))
        return np.asarray(np.copysign((one - t) / (one + t), x), np.float32)

"""exp1, ln1 and what the contract makes of them, in numpy: fp32, plain Mul, Add and Div."""

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

ATANH = tuple(np.float32(c) for c in (0.6666666865, 0.4000012279, 0.2855082154, 0.2333046794))
"""ln((1 + s) / (1 - s)) / s - 2 by powers of s^2 from the first, at the Chebyshev points of |s| <= (sqrt 2 - 1)^2."""

_SQRT_HALF = 0x3F3504F3
"""Bits of sqrt(1/2), the lower end of the mantissas that ln1 works on."""


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


def ln1(x: NDArray[Any]) -> FloatArray:
    """The natural logarithm as the CPU backend defines it: fp32 in, fp32 out, any shape.

    x = m 2^k with m in [sqrt(1/2), sqrt 2), f = m - 1, s = f / (2 + f), R = the polynomial `ATANH` of s^2:
    ln x = (f - (f^2/2 - (s (f^2/2 + R) + k ln2_low))) + k ln2_high.
    """
    x = np.asarray(x, np.float32)
    one, half = np.float32(1), np.float32(0.5)
    with np.errstate(all="ignore"):
        subnormal = (x > 0) & (x < np.float32(2.0**-126))
        scaled = np.where(subnormal, x * np.float32(2.0**25), x)
        moved = np.ascontiguousarray(scaled).view(np.uint32) + np.uint32(0x3F800000 - _SQRT_HALF)
        k = np.where(subnormal, np.float32(-25), np.float32(0))
        k = k + ((moved >> np.uint32(23)).astype(np.int32) - 127).astype(np.float32)
        mantissa = ((moved & np.uint32(0x007FFFFF)) + np.uint32(_SQRT_HALF)).view(np.float32)
        f = mantissa - one
        s = f / (np.float32(2) + f)
        z = s * s
        r = np.full_like(z, ATANH[-1])
        for coefficient in ATANH[-2::-1]:
            r = r * z + coefficient
        square = (f * f) * half
        rest = s * (square + r * z) + k * LN2_LOW
        y = (f - (square - rest)) + k * LN2_HIGH
        y = np.where(x == 0, np.float32(-np.inf), y)
        y = np.where(x < 0, np.float32(np.nan), y)
        return np.asarray(np.where(np.isnan(x) | (x == np.inf), x, y), np.float32)

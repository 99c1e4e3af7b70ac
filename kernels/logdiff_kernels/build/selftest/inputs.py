"""Operands of the bit tables, the same on every host: all 16-bit values, what lies around them, and fp32 samples.

Random words come from a counter hashed by splitmix64 (Steele, Lea and Flood, OOPSLA 2014), so they don't depend on the
version of a library.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

SPECIAL = np.array(
    [
        *(0x00000000, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00000, 0x7F800001),  # zeros, infinities, NaN
        *(0x00000001, 0x80000001, 0x000FFFFF, 0x007FFFFF, 0x807FFFFF, 0x00800000, 0x80800000),  # around the subnormals
        *(0x7F7FFFFF, 0xFF7FFFFF, 0x7F000000, 0x3F800000, 0xBF800000, 0x3F7FFFFF, 0x3F800001),  # the largest, around 1
        *(0x4B800000, 0x4B7FFFFF, 0x4B000001, 0x33800000, 0x34000000, 0x3F000000, 0x40490FDB),  # 2^24, 2^-24, 1/2, pi
        *(0x42B17217, 0x42B17218, 0xC2AEAC4F, 0xC2AEAC50, 0xC2CFF1B4, 0xC2CFF1B5, 0x1E3CE508),  # ends of exp, 1e-20
    ],
    np.uint32,
).view(np.float32)
"""Values at which units have gone wrong before."""


def random_words(count: int, stream: int) -> NDArray[np.uint32]:
    """`count` words; another `stream` gives others."""
    with np.errstate(over="ignore"):
        x = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        x += np.uint64(stream) * np.uint64(0xD1B54A32D192ED03)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((x ^ (x >> np.uint64(31))) >> np.uint64(16)).astype(np.uint32)


def uniform(count: int, stream: int, low: float, high: float) -> Floats:
    """Values between `low` and `high`."""
    share = random_words(count, stream).astype(np.float64) / 2.0**32
    return (low + share * (high - low)).astype(np.float32)


def normal(shape: tuple[int, ...], stream: int, spread: int = 6) -> Floats:
    """Values of both signs whose exponents are spread evenly over `spread` powers of two below 1 or above."""
    bits = random_words(int(np.prod(shape)), stream)
    exponent = 127 - spread // 2 + (bits >> 8) % spread
    return (
        ((bits & 0x80000000) | (exponent.astype(np.uint32) << 23) | (bits & 0x7FFFFF)).view(np.float32).reshape(shape)
    )


@cache
def all_bfloat16() -> NDArray[np.uint16]:
    """Every bf16, in the order of their bits."""
    return np.arange(65536, dtype=np.uint32).astype(np.uint16)


@cache
def all_float16() -> NDArray[np.float16]:
    """Every fp16, in the order of their bits."""
    return np.arange(65536, dtype=np.uint32).astype(np.uint16).view(np.float16)


def widened_bfloat16() -> Floats:
    """Every bf16 as fp32."""
    return (all_bfloat16().astype(np.uint32) << 16).view(np.float32)


def widened_float16() -> Floats:
    """Every fp16 as fp32."""
    return all_float16().astype(np.float32)


def around_bfloat16() -> Floats:
    """Around every bf16: the value, just below, at and above the middle to the next one, and the last before that."""
    low = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    return ((all_bfloat16().astype(np.uint32) << 16)[:, None] | low).reshape(-1).view(np.float32)


def around_float16() -> Floats:
    """Around every finite fp16: the value, and fp32 just below, at and above the middle to the next one."""
    bits = np.arange(0x7BFF + 1, dtype=np.uint16)
    low = bits.view(np.float16).astype(np.float64)
    step = np.where(bits < 0x0800, 2.0**-24, 2.0 ** ((bits >> 10).astype(np.float64) - 25))
    middle = (low + step / 2).astype(np.float32)  # exact: 12 bits
    near = [low.astype(np.float32), np.nextafter(middle, np.float32(0)), middle, np.nextafter(middle, np.float32(1e9))]
    positive = np.stack(near, 1).reshape(-1)
    return np.asarray(np.concatenate([positive, -positive]), np.float32)


def sample(count: int) -> Floats:
    """The special values, then any bits, every 8th made subnormal."""
    bits = random_words(count, 1)
    tiny = np.arange(count) % 8 == 5
    return np.concatenate([SPECIAL, np.where(tiny, bits & 0x807FFFFF, bits).view(np.float32)])


def around(low: float, high: float, count: int, stream: int) -> Floats:
    """Values between `low` and `high`, evenly, and the special ones."""
    return np.concatenate([SPECIAL, uniform(count, stream, low, high)])


SUMS, PRODUCTS, QUOTIENTS = (0, 2), (-1, 128), (1, 126)
"""`towards` of `pairs`: how the exponent of b follows from that of a where the result is near 2^-126."""


def pairs(count: int, towards: tuple[int, int]) -> tuple[Floats, Floats]:
    """Operands a, b: special values with each other, any bits, exponents close to each other, and exponents such that
    results fall among the subnormals.

    Args:
        count: about how many.
        towards: SUMS, PRODUCTS or QUOTIENTS.
    """
    a, b = (x.reshape(-1) for x in np.meshgrid(SPECIAL, SPECIAL, indexing="ij"))
    third = count // 3
    x, y = random_words(third, 2), random_words(third, 3)
    exponent = (x >> 23) & 0xFF
    near = np.clip(exponent.astype(np.int64) + (y >> 9) % 7 - 3, 0, 254).astype(np.uint32)
    sign_of_exponent, offset = towards
    tiny = np.clip(offset + sign_of_exponent * exponent.astype(np.int64) + (y >> 9) % 24 - 12, 0, 254)
    drawn = [y, (y & 0x807FFFFF) | (near << 23), (y & 0x807FFFFF) | (tiny.astype(np.uint32) << 23)]
    left = [x, x, x & 0x81FFFFFF if towards == SUMS else x]
    first, second = (
        np.concatenate([head, *(bits.view(np.float32) for bits in rest)]) for head, rest in ((a, left), (b, drawn))
    )
    return first, second

"""The oracle's own parts against exact rational arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from tests.kernels import oracle


def _nearest_fp32(value: Fraction) -> np.float32:
    """Nearest even by comparing exact distances to three neighbours."""
    guess = np.float32(float(value))
    best = [np.nextafter(guess, np.float32(-np.inf)), guess, np.nextafter(guess, np.float32(np.inf))]
    return min(best, key=lambda f: (abs(Fraction(float(f)) - value), int(f.view(np.uint32)) & 1))


def test_fma_is_the_nearest_fp32_of_the_exact_value() -> None:
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal(4000).astype(np.float32) for _ in range(2))
    # addends that put the product's tail on or next to a midpoint of fp32, and ones far away
    c = (-(a.astype(np.float64) * b) * (1 + rng.choice([0, 2.0**-23, 2.0**-30, 1.0, -3.0], 4000))).astype(np.float32)
    scale = np.float32(2.0) ** rng.integers(-60, 1, 4000).astype(np.float32)
    got = oracle.fma(a * scale, b * scale, c)
    exact = [
        Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        for x, y, z in zip(a * scale, b * scale, c, strict=True)
    ]
    assert all(g == _nearest_fp32(e) for g, e in zip(got, exact, strict=True))


def test_fma_resolves_a_double_rounding() -> None:
    """2^-24 (1 - 2^-46) on top of 1 + 2^-23 lies just below a midpoint; fp64 rounds it onto the midpoint first."""
    a, b = np.float32(2.0**-24 * (1 + 2.0**-23)), np.float32(1 - 2.0**-23)
    c = np.float32(1 + 2.0**-23)
    twice = np.float32(np.float64(a) * np.float64(b) + np.float64(c))
    assert twice == np.float32(1 + 2.0**-22)
    assert oracle.fma(a, b, c) == c


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_cast_is_the_rounding_of_torch(dtype: torch.dtype) -> None:
    x = torch.randint(-(2**31), 2**31 - 1, (200_000,), dtype=torch.int32).view(torch.float32)
    assert oracle.same_bits(oracle.cast(x.numpy(), dtype), x.to(dtype).float())

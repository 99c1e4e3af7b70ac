"""exp1, ln1, R64 and the casts of the library: over fp32, against fp64, numpy and torch."""

from __future__ import annotations

import ctypes
from ctypes import c_int32, c_int64, c_void_p
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from logdiff_kernels.contract import exp
from logdiff_kernels.cpu import library
from numpy.typing import NDArray

from tests.kernels import oracle

EXP1, LN1, SIGMOID1, TANH1 = range(4)


@dataclass(frozen=True)
class Scan:
    worst_ulp: float
    at: float
    descents: int
    broken: int
    apart: int
    seen: int


def _scan(which: int, stride: int, begin: int = 0) -> Scan:
    out = (ctypes.c_double * 6)()
    status = library.function("ld_scan", [c_int32, c_int64, c_int64, c_int64, c_void_p])(
        which, begin, 1 << 32, stride, ctypes.addressof(out)
    )
    assert status == 0
    return Scan(out[0], out[1], *map(int, out[2:]))


def _apply(which: int, x: NDArray[np.float32], scalar: bool = False) -> NDArray[np.float32]:
    y = np.empty_like(x)
    call = library.function("ld_elementwise", [c_int32, c_void_p, c_void_p, c_int64, c_int32])
    assert call(which, x.ctypes.data, y.ctypes.data, x.size, int(scalar)) == 0
    return y


def _random_floats(count: int, seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).integers(0, 2**32, count, dtype=np.uint32).view(np.float32)


@pytest.mark.parametrize("which", [EXP1, LN1])
def test_every_211th_float_is_within_one_ulp_ordered_and_by_the_rules(which: int) -> None:
    scan = _scan(which, 211)
    assert scan.seen == -(-(2**32) // 211)
    assert 0.5 < scan.worst_ulp <= 1, scan  # below 0.5 would mean that the comparison is with itself
    assert (scan.descents, scan.broken, scan.apart) == (0, 0, 0)


@pytest.mark.slow(seconds=200)
@pytest.mark.parametrize("which", [EXP1, LN1])
def test_every_float_is_within_one_ulp_ordered_and_by_the_rules(which: int) -> None:
    scan = _scan(which, 1)
    assert scan.seen == 2**32
    assert 0.5 < scan.worst_ulp <= 1, scan
    assert (scan.descents, scan.broken, scan.apart) == (0, 0, 0)


def test_scalar_functions_are_the_contracts_transcription() -> None:
    edges = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, exp.OVERFLOW, exp.UNDERFLOW, -87.3, 88.7, 1e-45], np.float32)
    ordinary = np.random.default_rng(2).standard_normal(100_000).astype(np.float32) * 40
    x = np.concatenate([edges, _random_floats(100_000, 1), ordinary])
    for which, transcribed in ((EXP1, exp.exp1), (SIGMOID1, exp.sigmoid1), (TANH1, exp.tanh1), (LN1, exp.ln1)):
        expected = transcribed(x)
        assert oracle.same_bits(_apply(which, x), expected)
        assert oracle.same_bits(_apply(which, x, scalar=True), expected)


def test_logarithm_at_its_edges() -> None:
    x = np.array([1.0, np.nextafter(np.float32(1), np.float32(2)), 0.0, -0.0, np.inf, -1.0, np.nan, 1e-45], np.float32)
    y = _apply(LN1, x)
    assert y[0].view(np.uint32) == 0
    assert y[1] > 0
    assert y[2] == y[3] == -np.inf
    assert y[4] == np.inf
    assert np.isnan(y[5])
    assert np.isnan(y[6])
    assert y[7] == pytest.approx(np.log(2.0**-149), rel=1e-7)


@pytest.mark.parametrize("n", [0, 1, 31, 63, 64, 65, 100, 127, 128, 129, 576, 1000])
def test_r64_is_the_contracts_transcription(n: int) -> None:
    x = oracle.array(oracle.hard_values((5, n + 3), torch.float32, n, special=n == 1000))
    out = np.empty(5, np.float32)
    call = library.function("ld_r64", [c_void_p, c_int64, c_int64, c_int64, c_void_p])
    assert call(x.ctypes.data, 5, n, n + 3, out.ctypes.data) == 0
    assert oracle.same_bits(out, oracle.r64(x[:, :n]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_casts_round_to_nearest_even_and_keep_nan(dtype: torch.dtype) -> None:
    halves = torch.arange(-(2**15), 2**15, dtype=torch.int16)
    every = halves.view(dtype).float()
    # every value of the dtype, the midpoints to the next one, and random fp32
    x = torch.cat([every, (every[:-1] + every[1:]) / 2, torch.from_numpy(_random_floats(200_003, 3))])
    narrow = torch.empty(x.numel(), dtype=dtype)
    call = library.function("ld_cast", [c_void_p, c_void_p, c_int64, c_int32, c_int32])
    code = library.dtype_code(dtype)
    assert call(x.data_ptr(), narrow.data_ptr(), x.numel(), code, 0) == 0
    assert oracle.same_bits(narrow, x.to(dtype))
    nans = narrow[x.isnan()].view(torch.int16)
    quiet = 0x40 if dtype == torch.bfloat16 else 0x200
    assert bool((nans & quiet).all())
    wide = torch.empty(2**16)
    assert call(halves.data_ptr(), wide.data_ptr(), 2**16, code, 1) == 0
    assert oracle.same_bits(wide, every)

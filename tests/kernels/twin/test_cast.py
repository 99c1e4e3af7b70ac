"""Cast: every 16-bit input of every pair and rounding mode, and fp32 and integers with ties, edges and specials."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.kernels.twin.instructions import (
    TYPES,
    Array,
    Call,
    Instructions,
    elementwise,
    random_arena,
    same,
    size_of,
    storage,
    widen,
)

MODES = ("none", "rint", "floor", "ceil", "round", "trunc", "odd")
DIRECTED = ("rint", "floor", "ceil", "round", "trunc")
FLOATS = ("float16", "bfloat16", "float32")

BOTH: dict[tuple[str, str], tuple[str, ...]] = {  # source, destination
    ("int8", "float16"): ("none",),
    ("uint8", "float16"): ("none",),
    ("int16", "float32"): ("none",),
    ("float16", "int16"): DIRECTED,
    ("float16", "int32"): DIRECTED,
    ("float16", "float32"): ("none",),
    ("bfloat16", "int32"): DIRECTED,
    ("bfloat16", "float32"): ("none",),
    ("int32", "int16"): ("none",),
    ("int32", "int64"): ("none",),
    ("int64", "int32"): ("none",),
    ("int64", "float32"): DIRECTED,
    ("float32", "int16"): DIRECTED,
    ("float32", "float16"): (*DIRECTED, "odd", "none"),
    ("float32", "bfloat16"): DIRECTED,
    ("float32", "int32"): DIRECTED,
    ("float32", "float32"): DIRECTED,
    ("float32", "int64"): DIRECTED,
}
PAIRS: dict[int, dict[tuple[str, str], tuple[str, ...]]] = {
    2201: {
        **BOTH,
        ("int16", "float16"): (*DIRECTED, "none"),
        ("float16", "int8"): (*DIRECTED, "none"),
        ("float16", "uint8"): (*DIRECTED, "none"),
        ("int32", "float32"): (*DIRECTED, "none"),
    },
    3510: {
        **BOTH,
        ("int16", "float16"): DIRECTED,
        ("float16", "int8"): DIRECTED,
        ("float16", "uint8"): DIRECTED,
        ("int32", "float32"): DIRECTED,
        ("float16", "bfloat16"): DIRECTED,
        ("bfloat16", "float16"): DIRECTED,
        ("int8", "int16"): ("none",),
        ("int8", "int32"): ("none",),
        ("uint8", "uint16"): ("none",),
        ("uint8", "uint32"): ("none",),
        ("int16", "uint8"): ("none",),
        ("int16", "int32"): ("none",),
        ("int16", "uint32"): ("none",),
        ("uint16", "uint8"): ("none",),
        ("uint16", "uint32"): ("none",),
        ("int32", "uint8"): ("none",),
        ("int32", "uint16"): ("none",),
        ("uint32", "uint8"): ("none",),
        ("uint32", "int16"): ("none",),
        ("uint32", "uint16"): ("none",),
    },
}
"""The data type tables of the Cast page, without the types that the twin doesn't have."""


@cache
def _grid(dtype: str) -> tuple[Array, Array]:
    """Non-negative finite values of a float type, ascending, and whether their last bit is odd."""
    largest = {"float16": 0x7BFF, "bfloat16": 0x7F7F}[dtype]
    bits = np.arange(largest + 1, dtype=np.uint16)
    stored = bits.view(np.float16) if dtype == "float16" else bits
    return widen(stored, dtype).astype(np.float64), bits % 2 == 1


def _to_float(x: Array, dtype: str, mode: str, *, saturate: bool) -> Array:
    """fp64 holding x exactly, to the neighbour in `dtype` that the mode names: by search among all of its values."""
    if dtype == "float32":
        return _to_fp32(x, mode)
    values, odd = _grid(dtype)
    size = np.abs(x)
    low = np.clip(np.searchsorted(values, size, side="right") - 1, 0, len(values) - 1)
    gap = values[-1] - values[-2]
    high = np.append(values, values[-1] + gap)[low + 1]
    exact = values[low] == size
    middle = (values[low] + high) / 2
    up = {
        "rint": (size > middle) | ((size == middle) & odd[low]),
        "round": size >= middle,
        "floor": x < 0,
        "ceil": x > 0,
        "trunc": np.zeros(x.shape, bool),
        "odd": ~odd[low],
    }["rint" if mode == "none" else mode]
    result = np.where(exact | ~up, values[low], high)
    over = size > values[-1] + gap  # beyond the next step only the direction counts
    away = {"floor": x < 0, "ceil": x > 0, "trunc": False, "odd": False}.get(mode, True)
    result = np.where(over, np.where(away, np.inf, values[-1]), result)
    result = np.where(result > values[-1], np.inf, result)
    result = np.where(np.isinf(x), np.inf, result)
    result = np.copysign(result, x)
    if saturate:
        result = np.where(np.isnan(x), 0.0, np.clip(result, -values[-1], values[-1]))
    return np.where(np.isnan(x) & (not saturate), np.nan, result)


def _to_fp32(x: Array, mode: str) -> Array:
    """Integers (exact in Python) to fp32 by the neighbours of the nearest one."""
    nearest = x.astype(np.float32).astype(np.float64)
    if mode in ("none", "rint"):
        return nearest
    result = []
    for exact, near in zip(x.tolist(), nearest.tolist(), strict=True):
        down = float(np.nextafter(np.float32(near), np.float32(-np.inf))) if int(near) > exact else near
        up = float(np.nextafter(np.float32(near), np.float32(np.inf))) if int(near) < exact else near
        if mode == "round":
            below, above = abs(exact - int(down)), abs(int(up) - exact)
            picked = near if below != above else max(down, up, key=abs)
        else:
            picked = {"floor": down, "ceil": up, "trunc": min(down, up, key=abs)}[mode]
        result.append(picked)
    return np.array(result)


def _integral(x: Array, mode: str) -> Array:
    with np.errstate(invalid="ignore"):
        return {
            "none": np.rint,
            "rint": np.rint,
            "floor": np.floor,
            "ceil": np.ceil,
            "trunc": np.trunc,
            "round": lambda v: np.copysign(np.floor(np.abs(v) + 0.5), v),
        }[mode](x)


def expected_cast(values: Array, source: str, target: str, mode: str, *, saturate: bool) -> Array:
    """Stored results of stored values, by the page on precision conversion."""
    if target in FLOATS:
        if source in FLOATS:
            with np.errstate(invalid="ignore"):  # signalling NaN
                x = widen(values, source).astype(np.float64)
            if source == target == "float32":
                result = _integral(x, mode)
            elif target == "float32":
                result = x
            else:
                result = _to_float(x, target, mode, saturate=saturate)
        else:
            exact = values.astype(np.int64 if target == "float32" else np.float64)
            result = _to_float(exact, target, mode, saturate=saturate)
        with np.errstate(invalid="ignore"):
            narrow32 = result.astype(np.float32)
            if target == "bfloat16":
                return np.where(np.isnan(narrow32), 0x7FC0, narrow32.view(np.uint32) >> 16).astype(np.uint16)
            return narrow32.astype(storage(target))
    limits = np.iinfo(target)
    if source in FLOATS:
        with np.errstate(invalid="ignore"):
            x = _integral(widen(values, source).astype(np.float64), mode)
        top = float(limits.max)
        clipped = np.nan_to_num(np.clip(x, float(limits.min), top), nan=0.0)
        result = np.where(clipped >= top, 0, clipped).astype(np.int64)
        return np.where(clipped >= top, limits.max, result).astype(target)
    wide = values.astype(object)
    return np.array([min(max(int(v), limits.min), limits.max) for v in wide], target)


def _inputs(source: str, seed: int) -> Array:
    """All values of 8 and 16 bits; else random bits, ties of every target, edges."""
    if size_of(source) < 4:
        return np.arange(1 << 8 * size_of(source), dtype=f"uint{8 * size_of(source)}").view(storage(source))
    rng = np.random.default_rng(seed)
    if source == "float32":
        bits = rng.integers(0, 1 << 32, 30000, np.uint32, endpoint=False)
        ties = bits[:6000].copy()
        ties[:3000] = ties[:3000] & 0xFFFF0000 | 0x8000  # of bfloat16
        half_ties = rng.integers(100, 145, 3000) << 23 | rng.integers(0, 1024, 3000) << 13 | 0x1000
        ties[3000:] = half_ties.astype(np.uint32)
        near = (rng.standard_normal(6000) * np.exp2(rng.integers(-3, 20, 6000))).astype(np.float32)
        halves = (rng.integers(-70000, 70000, 4000) + 0.5).astype(np.float32)
        edges = np.array(
            [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-40, 65504, 65519.996, 65520, 65536, 3.4e38, -3.4e38,
             2.0**31, -(2.0**31), 2.0**63, -(2.0**63), 32767.5, -32768.5, 5.9604645e-08, 2.9802322e-08,
             2.98023259e-08, 0.5, -0.5, 1.5, 2.5, 2.0**-126, 6.1e-5], np.float32,
        )  # fmt: skip
        return np.concatenate([bits.view(np.float32), ties.view(np.float32), near, -near, halves, edges])
    limits = np.iinfo(source)
    edges = np.array([limits.min, limits.max, 0, 1, limits.min + 1, limits.max - 1], source)
    scale = rng.integers(0, 8 * size_of(source) - 1, 6000)
    spread = rng.integers(limits.min, limits.max, 6000, source, endpoint=True) >> scale.astype(source)
    ties = (rng.integers(1 << 22, 1 << 23, 500, np.int64) * 4 + 2).astype(source)  # half a unit of fp32
    return np.concatenate([edges, spread, ties, np.array([0], source) - ties if limits.min < 0 else ties])


def _run(vector: Instructions, values: Array, source: str, target: str, mode: str, *, saturate: bool) -> Array:
    """Results of all values, a UB full at a time."""
    batch = 8192
    out = []
    for first in range(0, len(values), batch):
        part = values[first : first + batch]
        dst = -(-batch * size_of(source) // 32) * 32
        arena = np.zeros(dst + batch * size_of(target), np.uint8)
        arena[: part.nbytes] = part.view(np.uint8)
        call = Call(
            "Cast", target, source, count=len(part), src0=0, dst=dst, mode=MODES.index(mode), saturate=saturate
        )  # fmt: skip
        out.append(vector.run(arena, call)[dst:].view(storage(target))[: len(part)].copy())
    return np.concatenate(out)


@pytest.mark.parametrize("source", sorted({source for source, _ in PAIRS[3510]}))
def test_values_of_every_pair_and_mode(vector: Instructions, source: str) -> None:
    for (begin, target), modes in PAIRS[vector.arch].items():
        if begin != source:
            continue
        values = _inputs(source, len(source) + len(target))
        for saturate in (False, True) if target in ("float16", "bfloat16") else (False,):  # what the mode governs
            for mode in modes:
                actual = _run(vector, values, source, target, mode, saturate=saturate)
                expected = expected_cast(values, source, target, mode, saturate=saturate)
                if not same(actual.view(np.uint8), expected.view(np.uint8), target):
                    wrong = np.flatnonzero(actual != expected)
                    at = wrong[0]
                    what = f"to {target}, {mode}: {len(wrong)} differ; {values[at]!r}"
                    pytest.fail(f"{what} gives {actual[at]!r}, not {expected[at]!r}")


def test_no_other_pair_exists(vector: Instructions) -> None:
    arena = np.zeros(2048, np.uint8)
    for source in TYPES[:-1]:
        for target in TYPES[:-1]:
            mode = MODES.index(PAIRS[vector.arch].get((source, target), ("none",))[0])
            call = Call("Cast", target, source, count=8, dst=0, src0=1024, mode=mode)
            if (source, target) in PAIRS[vector.arch]:
                vector.run(arena, call)
            else:
                assert "no such pair" in vector.error(arena, call).reason, (source, target)


@pytest.mark.parametrize(
    ("source", "target", "mode"),
    [
        ("float16", "float32", "rint"),
        ("float32", "bfloat16", "none"),
        ("float32", "bfloat16", "odd"),
        ("float32", "int32", "none"),
        ("bfloat16", "float32", "trunc"),
        ("int32", "int16", "rint"),
    ],
)
def test_a_rounding_mode_that_the_pair_lacks(vector: Instructions, source: str, target: str, mode: str) -> None:
    call = Call("Cast", target, source, count=8, dst=0, src0=512, mode=MODES.index(mode))
    error = vector.error(np.zeros(1024, np.uint8), call)
    assert error.check == "overload"
    assert mode.upper() in error.reason


@pytest.mark.parametrize(
    ("source", "target", "mode"), [("float32", "bfloat16", 1), ("bfloat16", "float32", 0), ("float32", "float16", 1)]
)
def test_masks_go_by_the_wider_type(vector: Instructions, source: str, target: str, mode: int) -> None:
    rng = np.random.default_rng(3)
    arena = random_arena(rng, 48 * 1024, source)
    wide = {"float32": 8, "bfloat16": 4, "float16": 4}
    for form, mask in [(1, 64), (1, 50), (2, 0xF0F0F0F0F0F0F0F1), (2, 0x8000000000000001)]:
        strides = (2, 1, 1, 2 * wide[target], wide[source], 8)
        call = Call("Cast", target, source, form=form, mask=mask, repeats=5, dst=0, src0=24 * 1024, mode=mode)
        call.strides = strides
        assert same(vector.run(arena, call), elementwise(arena, call, 1, lambda a: a), target), (form, mask)
    call = Call("Cast", target, source, form=1, mask=65, dst=0, src0=24 * 1024, mode=mode)
    assert vector.error(arena, call).check == "mask"


def test_a_cast_into_its_own_source_is_refused(vector: Instructions) -> None:
    for source, target, mode in [("float32", "bfloat16", 1), ("bfloat16", "float32", 0)]:
        call = Call("Cast", target, source, count=64, dst=0, src0=0, mode=mode)
        assert vector.error(np.zeros(1024, np.uint8), call).check == "overlap"


def test_casts_to_16_bit_floats_need_the_saturation_mode(vector: Instructions) -> None:
    fields: dict[str, Any] = {"count": 8, "dst": 0, "src0": 512, "mode": 1, "unset": True}
    assert vector.error(np.zeros(1024, np.uint8), Call("Cast", "bfloat16", "float32", **fields)).check == "state"
    other = vector.error(np.zeros(1024, np.uint8), Call("Cast", "int32", "float32", **fields))
    assert other.op == "DataCopy", "nothing is missing but the atomic mode, when the result is stored"


def test_integers_out_of_range_keep_their_low_bits_on_a_chip_in_the_other_mode(vector: Instructions) -> None:
    arena = np.zeros(1024, np.uint8)
    arena[512:].view(np.float32)[:3] = [3e9, -3e9, 1.0]
    call = Call("Cast", "int32", "float32", count=3, dst=0, src0=512, mode=1)
    assert list(vector.run(arena, call).view(np.int32)[:3]) == [2**31 - 1, -(2**31), 1]
    assert list(vector.run(arena, call, perturb=True).view(np.int32)[:3]) == [3000000000 - 2**32, 2**32 - 3000000000, 1]

"""Compare, CompareScalar and Select: masks of one bit per element, in every form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kernels.twin.instructions import (
    Call,
    Instructions,
    elementwise,
    lanes_of,
    random_arena,
    same,
    scalar_bits,
    size_of,
)

ARENA = 48 * 1024
PLACES = {"dst": 0, "src0": 16 * 1024, "src1": 32 * 1024}


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_compare_packs_bits(vector: Instructions, dtype: str) -> None:
    rng = np.random.default_rng(9)
    arena = random_arena(rng, ARENA, dtype)
    elements = arena.view(dtype)
    at0, at1 = PLACES["src0"] // size_of(dtype), PLACES["src1"] // size_of(dtype)
    n = 3 * lanes_of(dtype)
    elements[at1 : at1 + n : 3] = elements[at0 : at0 + n : 3]
    a, b = elements[at0 : at0 + n], elements[at1 : at1 + n]
    modes: list[Any] = [np.less, np.greater, np.equal, np.less_equal, np.greater_equal, np.not_equal]
    first = int(a[:1].view(f"uint{8 * size_of(dtype)}")[0])
    for mode, function in enumerate(modes):
        call = Call("Compare", dtype, count=n, mode=mode, **PLACES)
        if dtype == "int32" and vector.arch == 2201 and mode != 2:
            assert vector.error(arena, call).check == "overload"
            continue
        expected = arena.copy()
        with np.errstate(invalid="ignore"):
            expected[: n // 8] = np.packbits(function(a, b), bitorder="little")
        assert np.array_equal(vector.run(arena, call), expected), mode
        one = Call("CompareScalar", dtype, count=n, mode=mode, scalar=first, **PLACES)
        with np.errstate(invalid="ignore"):
            expected[: n // 8] = np.packbits(function(a, a[0]), bitorder="little")
        assert np.array_equal(vector.run(arena, one), expected), mode
    part = Call("Compare", dtype, count=n - 8, mode=2, **PLACES)
    assert vector.error(arena, part).check == "repeat"


def test_a_mask_of_compare_counts_on_950_only(vector: Instructions) -> None:
    arena = np.zeros(ARENA, np.uint8)
    call = Call("Compare", "float32", form=1, mask=28, repeats=2, mode=2, **PLACES)
    bits = vector.run(arena, call)[:16]
    kept = [255, 255, 255, 15, 0, 0, 0, 0]
    assert list(bits) == ([255] * 16 if vector.arch == 2201 else kept * 2)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_select_by_bits(vector: Instructions, dtype: str) -> None:
    rng = np.random.default_rng(10)
    arena = random_arena(rng, ARENA, dtype)
    bits_at, n, lanes = 46 * 1024, 333, lanes_of(dtype)
    bits = np.unpackbits(arena[bits_at : bits_at + 64], bitorder="little")
    words = f"uint{8 * size_of(dtype)}"
    view = arena.view(words)
    at0, at1 = PLACES["src0"] // size_of(dtype), PLACES["src1"] // size_of(dtype)
    scalar = scalar_bits(-np.inf, dtype)
    index = np.arange(n)
    choices = {
        (0, "Select"): (bits[index % lanes], view[at1 : at1 + n]),
        (1, "SelectScalar"): (bits[:n], np.full(n, scalar, words)),
        (2, "Select"): (bits[:n], view[at1 : at1 + n]),
    }
    for (mode, op), (chosen, other) in choices.items():
        expected = arena.copy()
        expected.view(words)[:n] = np.where(chosen == 1, view[at0 : at0 + n], other)
        call = Call(op, dtype, count=n, mode=mode, extra=bits_at, scalar=scalar, **PLACES)
        assert np.array_equal(vector.run(arena, call), expected), mode
        call.op = "SelectScalar" if op == "Select" else "Select"
        assert vector.error(arena, call).check == "overload"


def test_select_of_repeats_leaves_masked_lanes(vector: Instructions) -> None:
    rng = np.random.default_rng(11)
    arena = random_arena(rng, ARENA, "float32")
    call = Call(
        "Select", "float32", form=1, mask=40, repeats=3, mode=2, extra=46 * 1024, strides=(1, 2, 1, 9, 16, 8), **PLACES
    )
    bits = np.unpackbits(arena[46 * 1024 :][:24], bitorder="little").reshape(3, 64)
    rows = iter(bits)
    expected = elementwise(arena, call, 2, lambda a, b: np.where(next(rows)[:40] == 1, a, b))
    assert same(vector.run(arena, call), expected, "float32")

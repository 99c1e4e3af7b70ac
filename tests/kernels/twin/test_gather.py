"""Gather, GatherMask, Sort32, Transpose and TransDataTo5HD."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kernels.twin.instructions import Array, Call, Instructions, lanes_of, random_arena, size_of

ARENA = 48 * 1024
PLACES = {"dst": 0, "src0": 16 * 1024, "src1": 32 * 1024}


def _arena(seed: int, dtype: str) -> Array:
    return random_arena(np.random.default_rng(seed), ARENA, dtype, special=False)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gather_takes_byte_offsets(vector: Instructions, dtype: str) -> None:
    rng = np.random.default_rng(1)
    arena = _arena(1, dtype)
    size, count = size_of(dtype), 500
    offsets = arena[PLACES["src1"] :].view(np.uint32)[:count]
    offsets[:] = rng.integers(0, 1000, count) * size
    offsets[100:200] = np.arange(100) * size
    view = arena.view(f"uint{8 * size}")
    call = Call("Gather", dtype, count=count, scalar=8 * size, **PLACES)
    expected = arena.copy()
    expected.view(view.dtype)[:count] = view[PLACES["src0"] // size + 8 + offsets // size]
    assert np.array_equal(vector.run(arena, call), expected)
    offsets[7] += 1
    assert vector.error(arena, call).check == "alignment"
    offsets[7] = 40000 * size
    assert vector.error(arena, call).check == "range"
    call.dst = PLACES["src0"]
    offsets[7] = 0
    assert vector.error(arena, call).check == "overlap"


def test_gather_reads_only_what_it_takes(vector: Instructions) -> None:
    arena = np.zeros(4096, np.uint8)
    arena[2048:].view(np.uint32)[:8] = 0
    call = Call("Gather", "float32", count=8, dst=0, src0=4096 - 64, src1=2048, hole=32)
    vector.run(arena, call)
    arena[2048:].view(np.uint32)[3] = 32
    assert vector.error(arena, call).check == "poison"


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_gather_mask_packs_what_the_bits_choose(vector: Instructions, dtype: str) -> None:
    arena = _arena(2, dtype)
    size, lanes = size_of(dtype), lanes_of(dtype)
    view = arena.view(f"uint{8 * size}")
    source = view[PLACES["src0"] // size :]
    taken: dict[int, Any] = {1: slice(0, None, 2), 2: slice(1, None, 2), 7: slice(None)}
    taken.update({3 + i: slice(i, None, 4) for i in range(4)})
    extra = 46 * 1024
    for pattern, chosen in taken.items():
        call = Call(
            "GatherMaskFixed", dtype, repeats=3, scalar=pattern, extra=extra, strides=(1, 1, 1, 8, 8, 0), **PLACES
        )
        picked = source[: 3 * lanes].reshape(3, lanes)[:, chosen].ravel()
        expected = arena.copy()
        expected.view(view.dtype)[: picked.size] = picked
        expected[extra : extra + 8].view(np.uint64)[0] = picked.size
        assert np.array_equal(vector.run(arena, call), expected), pattern
    bits = np.unpackbits(arena[PLACES["src1"] :][:64], bitorder="little")
    call = Call("GatherMask", dtype, repeats=2, mode=1, mask=70, extra=extra, strides=(1, 1, 1, 8, 10, 1), **PLACES)
    rows = []
    for r in range(2):
        row = source[r * 10 * 32 // size :][:70]
        rows.append(row[bits[256 * r : 256 * r + 70] == 1])
    picked = np.concatenate(rows)
    actual = vector.run(arena, call)
    assert np.array_equal(actual.view(view.dtype)[: picked.size], picked)
    assert actual[extra : extra + 8].view(np.uint64)[0] == picked.size


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_sort32_puts_earlier_equals_first(vector: Instructions, dtype: str) -> None:
    rng = np.random.default_rng(3)
    arena = _arena(3, dtype)
    size, n = size_of(dtype), 96
    scores = arena[PLACES["src0"] :].view(dtype)[:n]
    scores[:] = rng.integers(-4, 4, n)
    indices = arena[PLACES["src1"] :].view(np.uint32)[:n]
    out = vector.run(arena, Call("Sort32", dtype, repeats=3, **PLACES))[: 8 * n].reshape(n, 8)
    for first in range(0, n, 32):
        order = np.argsort(-scores[first : first + 32].astype(np.float32), kind="stable") + first
        assert np.array_equal(out[first : first + 32, :size].copy().view(dtype)[:, 0], scores[order])
        assert np.array_equal(out[first : first + 32, 4:].copy().view(np.uint32)[:, 0], indices[order])
    scores[5] = np.nan
    assert vector.error(arena, Call("Sort32", dtype, repeats=3, **PLACES)).check == "range"


def test_transpose_of_a_square(vector: Instructions) -> None:
    arena = _arena(4, "uint16")
    expected = arena.copy()
    square = arena[PLACES["src0"] :].view(np.uint16)[:256].reshape(16, 16)
    expected[:512] = np.ascontiguousarray(square.T).view(np.uint8).ravel()
    assert np.array_equal(vector.run(arena, Call("Transpose", "uint16", **PLACES)), expected)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("repeats", [1, 3])
def test_lists_of_blocks_are_transposed(vector: Instructions, dtype: str, repeats: int) -> None:
    """16 rows of blocks that lie 5 apart, each repeat one block further to the right."""
    arena = _arena(5, dtype)
    size, per_block = size_of(dtype), 32 // size_of(dtype)
    step = 0 if repeats == 1 else 1
    call = Call("TransData", dtype, repeats=repeats, strides=(1, 5, 1, 16 * step, step, 0), **PLACES)
    expected = arena.copy()
    out = expected.view(f"uint{8 * size}")
    source = arena.view(out.dtype)[PLACES["src0"] // size :]
    for r in range(repeats):
        rows = np.stack([source[(5 * i + r) * per_block :][:per_block] for i in range(16)])
        turned = rows.T if size == 2 else rows.T.reshape(16, 8)  # 32 bits: a row of 16 is two blocks
        out[r * 16 * per_block :][: 16 * per_block] = turned.ravel()
    assert np.array_equal(vector.run(arena, call), expected)

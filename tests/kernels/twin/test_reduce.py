"""Reductions: orders of the sums by form and chip, extremes with their indices, lanes that take no part."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kernels.twin.instructions import (
    Array,
    Call,
    Instructions,
    lanes_of,
    narrow,
    random_arena,
    same,
    size_of,
    widen,
)

ARENA = 64 * 1024
SRC, TMP = 16 * 1024, 60 * 1024
PLACES = {"dst": 0, "src0": SRC, "src1": TMP}


def _rounded(values: Array, dtype: str) -> Array:
    return widen(narrow(values, dtype), dtype)


def _tree(values: Array, dtype: str) -> Array:
    """Neighbours added in pairs, over the last axis, whose length is a power of two."""
    while values.shape[-1] > 1:
        with np.errstate(all="ignore"):
            values = _rounded(values[..., 0::2] + values[..., 1::2], dtype)
    return values[..., 0]


def _chunks(arena: Array, dtype: str, count: int) -> Array:
    """Repeats of `count` source elements, padded with zeros."""
    lanes = lanes_of(dtype)
    values = np.zeros(-(-count // lanes) * lanes, np.float32)
    stored = arena.view(dtype)[SRC // size_of(dtype) :][:count]
    values[:count] = widen(stored, dtype)
    return values.reshape(-1, lanes)


def _expected_sum(arena: Array, dtype: str, count: int, arch: int, *, counted: bool) -> Array:
    chunks = _chunks(arena, dtype, count)
    lanes = lanes_of(dtype)
    if counted and arch == 3510 and count * size_of(dtype) <= 1024:
        column = chunks[0]
        for chunk in chunks[1:]:
            column = _rounded(column + chunk, dtype)
        return _tree(column, dtype)
    sums = _tree(chunks, dtype)
    if counted and arch == 2201:
        total = sums[0]
        for one in sums[1:]:
            total = _rounded(total + one, dtype)
        return total
    while sums.size > 1:
        padded = np.zeros(-(-sums.size // lanes) * lanes, np.float32)
        padded[: sums.size] = sums
        sums = _tree(padded.reshape(-1, lanes), dtype)
    return sums[0]


def _finite_arena(seed: int, dtype: str) -> Array:
    return random_arena(np.random.default_rng(seed), ARENA, dtype, special=False)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_reduce_sum_adds_in_the_documented_order(vector: Instructions, dtype: str) -> None:
    arena = _finite_arena(1, dtype)
    if dtype == "float16":
        arena = (np.clip(arena.view(dtype).astype(np.float32), -40, 40)).astype(dtype).view(np.uint8)
    lanes = lanes_of(dtype)
    for count in (1, lanes - 1, lanes, lanes + 1, 4 * lanes, 4 * lanes + 1, 70 * lanes):
        actual = vector.run(arena, Call("ReduceSum", dtype, count=count, **PLACES))
        expected = narrow(_expected_sum(arena, dtype, count, vector.arch, counted=True), dtype)
        assert actual.view(dtype)[0] == expected, count
    for repeats in (1, 3, 70):
        call = Call("ReduceSum", dtype, form=1, mask=lanes, repeats=repeats, **PLACES)
        expected = narrow(_expected_sum(arena, dtype, repeats * lanes, vector.arch, counted=False), dtype)
        assert vector.run(arena, call).view(dtype)[0] == expected, repeats


def test_the_same_call_has_other_bits_on_another_chip_and_in_another_form() -> None:
    """Why kernels write their order themselves."""
    arena = _finite_arena(2, "float32")
    sums = {
        (arch, counted): float(_expected_sum(arena, "float32", 640, arch, counted=counted))
        for arch in (2201, 3510)
        for counted in (False, True)
    }
    assert len(set(sums.values())) > 1


GROUPS = {"PairReduceSum": 2, "BlockReduceSum": 0, "BlockReduceMax": 0, "BlockReduceMin": 0, "WholeReduceSum": -1}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("op", list(GROUPS))
def test_groups_of_lanes(vector: Instructions, op: str, dtype: str) -> None:
    rng = np.random.default_rng([len(op), size_of(dtype)])
    arena = _finite_arena(3, dtype)
    lanes, size = lanes_of(dtype), size_of(dtype)
    group = GROUPS[op] or 32 // size
    group = lanes if group < 0 else group
    for _ in range(12):
        mask = int.from_bytes(rng.bytes(lanes // 8), "little") | 1
        bits = rng.random() < 0.5 and op != "WholeReduceSum"
        call = Call(
            op, dtype, form=2 if bits else 1, mask=mask if bits else int(rng.integers(1, lanes + 1)),
            repeats=int(rng.integers(1, 7)),
            strides=(1, int(rng.integers(1, 3)), 1, int(rng.integers(1, 4)), int(rng.integers(0, 20)), 8), **PLACES,
        )  # fmt: skip
        expected = arena.copy()
        out = expected.view(dtype)
        for r, active in enumerate(call.lanes(lanes)):
            values = np.full(lanes, np.nan, np.float32)
            values[active] = widen(arena.view(dtype)[call.at(1, dtype, r, active)], dtype)
            row = values.reshape(-1, group)
            idle = np.isnan(row).all(axis=1)
            if op.endswith("Sum"):
                results = _tree(np.nan_to_num(row), dtype)
            else:
                fill = -np.inf if op.endswith("Max") else np.inf
                filled = np.where(np.isnan(row), np.float32(fill), row)
                results = filled.max(axis=1) if op.endswith("Max") else filled.min(axis=1)
            first = r * call.strides[3] * (lanes // group)
            keep = idle & (vector.arch == 2201)
            out[first : first + lanes // group][~keep] = narrow(results, dtype)[~keep]
        assert same(vector.run(arena, call), expected, dtype), call


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("op", ["WholeReduceMax", "WholeReduceMin"])
def test_extremes_of_repeats_with_the_first_index(vector: Instructions, op: str, dtype: str) -> None:
    lanes, size = lanes_of(dtype), size_of(dtype)
    arena = _finite_arena(4, dtype)
    values = arena.view(dtype)[SRC // size :][: 5 * lanes].reshape(5, lanes)
    values[...] = np.round(values)  # many ties
    largest = op.endswith("Max")
    for order in range(4):
        for mask in (1, lanes // 2 + 3, lanes):
            call = Call(op, dtype, form=1, mask=mask, repeats=5, mode=order, strides=(1, 1, 1, 2, 8, 8), **PLACES)
            rows = values[:, :mask]
            index = rows.argmax(axis=1) if largest else rows.argmin(axis=1)
            best = rows[np.arange(5), index]
            expected = arena.copy()
            unit = {0: 2 * size, 1: 2 * size, 2: size, 3: 4}[order]
            for r in range(5):
                value = best[r : r + 1].tobytes()
                bits = np.array([index[r]], f"uint{8 * size}").tobytes()
                piece = {0: value + bits, 1: bits + value, 2: value, 3: np.uint32(index[r]).tobytes()}[order]
                expected[2 * r * unit : 2 * r * unit + unit] = np.frombuffer(piece, np.uint8)
            assert np.array_equal(vector.run(arena, call), expected), (order, mask)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin"])
def test_the_extreme_of_all_with_its_first_index(vector: Instructions, op: str, dtype: str) -> None:
    arena = _finite_arena(5, dtype)
    values = arena.view(dtype)[SRC // size_of(dtype) :]
    values[:2000] = np.round(values[:2000])
    for count in (1, 63, 64, 1000, 1999):
        index = values[:count].argmax() if op == "ReduceMax" else values[:count].argmin()
        out = vector.run(arena, Call(op, dtype, count=count, mode=1, **PLACES))
        assert out.view(dtype)[0] == values[index]
        assert out.view(f"uint{8 * size_of(dtype)}")[1] == index
        plain = vector.run(arena, Call(op, dtype, count=count, mode=0, **PLACES))
        assert plain.view(dtype)[1] == arena.view(dtype)[1], "without an index only the value is written"


def test_scratch_holds_nothing_afterwards_on_2201(vector: Instructions) -> None:
    """Its bytes are used, so what a later instruction reads there is undefined: the store of the arena fails."""
    arena = _finite_arena(6, "float32")
    call = Call("ReduceMax", "float32", count=1000, dst=0, src0=SRC, src1=TMP)
    if vector.arch == 2201:
        error = vector.error(arena, Call(**{**vars(call), "extra": 1}))
        assert (error.check, error.op) == ("poison", "DataCopy")
    else:
        vector.run(arena, Call(**{**vars(call), "extra": 1}))


@pytest.mark.parametrize(
    ("fields", "check"),
    [
        ({"op": "PairReduceSum", "dst": 16}, "alignment"),
        ({"op": "BlockReduceSum", "dst": 16}, "alignment"),
        ({"op": "WholeReduceSum", "dst": 4}, None),
        ({"op": "WholeReduceMax", "dst": 4}, "alignment"),  # a pair needs 8 bytes
        ({"op": "WholeReduceMax", "dst": 4, "mode": 2}, None),
        ({"op": "WholeReduceSum", "dst": SRC}, "overlap"),
        ({"op": "PairReduceSum", "dst": SRC}, "overlap"),
        ({"op": "PairReduceSum", "strides": (1, 1, 1, 70000, 8, 8)}, "stride"),
        ({"op": "WholeReduceSum", "repeats": 256}, "repeat"),
        ({"op": "WholeReduceSum", "mask": 65}, "mask"),
        ({"op": "ReduceSum", "src1": TMP + 8}, None),
    ],
)
def test_arguments_of_reductions(vector: Instructions, fields: dict[str, Any], check: str | None) -> None:
    call = Call(**{"op": "", "dtype": "float32", "form": 1, "mask": 64, "repeats": 2, **PLACES, **fields})
    arena = _finite_arena(7, "float32")
    if fields["op"] == "ReduceSum":  # only 2201 uses, and so checks, the scratch
        check = "alignment" if vector.arch == 2201 else None
    if check:
        assert vector.error(arena, call).check == check
    else:
        vector.run(arena, call)

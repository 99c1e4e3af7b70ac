"""Element-wise vector instructions against references that go lane by lane, on both architectures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.kernels.twin.instructions import (
    REPEAT,
    Array,
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


def _calls(op: str, dtype: str, rng: np.random.Generator, cases: int, **more: Any) -> Iterator[Call]:
    """Counts, lane counts and lane bits with strides of every kind."""
    lanes = lanes_of(dtype)
    for _ in range(cases):
        form = int(rng.integers(3))
        strides = [
            int(rng.integers(1, 4)), *map(int, rng.integers(0, 3, 2)), *map(int, rng.integers(0, 20, 3)),
        ]  # fmt: skip
        mask = int(rng.integers(1, lanes + 1))
        if form == 2:
            mask = int.from_bytes(rng.bytes(lanes // 8), "little") | 1
        yield Call(
            op, dtype, form=form, count=int(rng.integers(1, 900)), repeats=int(rng.integers(1, 9)), mask=mask,
            strides=strides, **PLACES, **more,
        )  # fmt: skip


def _larger(a: Array, b: Array) -> Array:
    return np.where(np.isnan(a) | np.isnan(b), np.nan, np.where(a > b, a, b)).astype(a.dtype)


def _smaller(a: Array, b: Array) -> Array:
    return np.where(np.isnan(a) | np.isnan(b), np.nan, np.where(a < b, a, b)).astype(a.dtype)


def _fused(a: Array, b: Array, c: Array) -> Array:
    return (a.astype(np.longdouble) * b + c).astype(np.float32)  # 64 bits of sum: rounds as one fma but in 2^-40


BINARY: dict[str, Callable[..., Array]] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Max": _larger, "Min": _smaller,
}  # fmt: skip
FLOATS: dict[str, tuple[int, bool, Callable[..., Array]]] = {  # sources, whether dst is read, function
    "Div": (2, False, np.divide),
    "MulAddDst": (2, True, lambda a, b, d: _fused(a, b, d)),
    "FusedMulAdd": (2, True, lambda a, b, d: _fused(a, d, b)),
    "Sqrt": (1, False, np.sqrt),
    "Abs": (1, False, np.abs),
    "Relu": (1, False, lambda a: np.where(np.isnan(a), a, np.where(a > 0, a, np.float32(0)))),
}


@pytest.mark.parametrize("op", list(BINARY))
def test_sums_products_and_extremes(vector: Instructions, op: str) -> None:
    for dtype in ("float32", "float16", "int32", "int16", *(("bfloat16",) if vector.arch == 3510 else ())):
        rng = np.random.default_rng([vector.arch, len(op), size_of(dtype)])
        arena = random_arena(rng, ARENA, dtype)
        for call in _calls(op, dtype, rng, 25):
            assert same(vector.run(arena, call), elementwise(arena, call, 2, BINARY[op]), dtype), call


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "int16"])
@pytest.mark.parametrize("op", ["Adds", "Muls", "Maxs", "Mins"])
def test_a_scalar_as_second_operand(vector: Instructions, op: str, dtype: str) -> None:
    rng = np.random.default_rng([vector.arch, len(op), size_of(dtype)])
    arena = random_arena(rng, ARENA, dtype)
    for call in _calls(op, dtype, rng, 15, scalar=scalar_bits(-3, dtype)):
        second = np.array(-3, np.float32 if dtype.startswith("float") else dtype)
        expected = elementwise(arena, call, 1, lambda a, s=second: BINARY[op[:-1]](a, np.broadcast_to(s, a.shape)))
        assert same(vector.run(arena, call), expected, dtype), call


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("op", list(FLOATS))
def test_functions_of_floats(vector: Instructions, op: str, dtype: str) -> None:
    rng = np.random.default_rng([vector.arch, len(op), size_of(dtype)])
    sources, updates, f = FLOATS[op]
    arena = random_arena(rng, ARENA, dtype)
    if vector.arch == 3510 and op in ("Div", "Sqrt") and dtype == "float32":
        values = arena.view(np.float32)
        values[np.abs(values) < 1e-30] = 1.0  # the plain forms of 950 flush subnormals: tested below
    for call in _calls(op, dtype, rng, 15):
        if updates:  # a destination that later repeats read again isn't defined
            call.strides = [*call.strides[:3], 8 * call.strides[0] + 1, *call.strides[4:]]
        expected = elementwise(arena, call, sources, f, updates=updates)
        actual = vector.run(arena, call)
        assert same(_flushed(actual, vector, op), _flushed(expected, vector, op), dtype), call


def _flushed(arena: Array, vector: Instructions, op: str) -> Array:
    if vector.arch == 2201 or op != "Div":
        return arena
    values = arena.view(np.float32).copy()
    values[np.abs(values) < 2.0**-126] = 0.0
    return values.view(np.uint8)


def test_axpy_rounds_once(vector: Instructions) -> None:
    rng = np.random.default_rng(1)
    arena = random_arena(rng, ARENA, "float32")
    call = Call("Axpy", "float32", count=1000, scalar=scalar_bits(1.1, "float32"), **PLACES)
    fused = elementwise(arena, call, 1, lambda a, d: _fused(a, np.float32(1.1), d), updates=True)
    twice = elementwise(arena, call, 1, lambda a, d: np.float32(1.1) * a + d, updates=True)
    actual = vector.run(arena, call)
    assert same(actual, fused, "float32")
    assert not same(actual, twice, "float32"), "a mutant that fuses Mul and Add has to show"


@pytest.mark.parametrize("perturb", [False, True])
@pytest.mark.parametrize(("op", "f"), [("Exp", np.exp), ("Ln", np.log)])
def test_exp_and_ln_are_within_their_units(vector: Instructions, op: str, f: Any, perturb: bool) -> None:
    rng = np.random.default_rng(2)
    arena = random_arena(rng, ARENA, "float32")
    values = arena.view(np.float32)
    values[: 3 * 4096] = np.abs(values[: 3 * 4096]) if op == "Ln" else values[: 3 * 4096]
    values[4096:4104] = [0.0, -0.0, -np.inf, np.inf, np.nan, 1.0, 1e-40, -104.0]
    call = Call(op, "float32", count=4000, **PLACES)
    actual = vector.run(arena, call, perturb=perturb)[:16000].view(np.float32)
    x = values[4096:8096].astype(np.float64)
    flush = vector.arch == 3510
    if flush:
        x[np.abs(x) < 2.0**-126] = 0.0
    with np.errstate(all="ignore"):
        exact = f(x)
        expected = exact.astype(np.float32)
    if flush:
        expected[np.abs(expected) < 2.0**-126] = 0.0
    special = ~np.isfinite(expected) | (expected == 0) | (x == 0) | (x == 1)
    assert np.array_equal(actual[special & (x != 1)], expected[special & (x != 1)], equal_nan=True)
    rest = ~special & (np.abs(expected) >= 2.0**-120)
    units = np.abs(actual[rest] - exact[rest]) / np.spacing(np.abs(expected[rest]))
    assert units.max() <= (1.0 if perturb else 0.5)
    assert (units.max() > 0.5) == perturb
    if op == "Ln":
        assert actual[5] == 0.0
    else:
        assert actual[0] == actual[1] == 1.0


def test_the_plain_division_and_root_of_950_flush_subnormals_and_the_exact_ones_do_not(vector: Instructions) -> None:
    if vector.arch != 3510:
        pytest.skip("an algorithm of 950")
    arena = np.zeros(1024, np.uint8)
    values = arena.view(np.float32)
    values[64:72] = [1e-40, 1e-38, 3.0, 4.0, 2.0**126, 2.0**127, 1e-45, 9.0]
    values[128:136] = [1.0, 4.0, 7.0, 1e-39, 1.0, 1.0, 1.0, 3.0]
    places = {"dst": 0, "src0": 256, "src1": 512}
    with np.errstate(divide="ignore", over="ignore"):
        expected = values[64:72] / values[128:136]
        roots = np.sqrt(values[64:72])
    exact = vector.run(arena, Call("DivExact", "float32", count=8, **places)).view(np.float32)[:8]
    plain = vector.run(arena, Call("Div", "float32", count=8, **places)).view(np.float32)[:8]
    assert np.array_equal(exact, expected)
    assert plain[0] == plain[1] == plain[6] == 0.0
    assert plain[3] == np.inf
    assert plain[2] == expected[2]
    root = vector.run(arena, Call("SqrtExact", "float32", count=8, **places)).view(np.float32)[:8]
    assert np.array_equal(root, np.where(values[64:72] > 2.0**126, 0, roots))


def test_half_saturates_only_in_that_mode(vector: Instructions) -> None:
    arena = np.zeros(1024, np.uint8)
    halves = arena.view(np.float16)
    halves[128:132] = [60000, np.nan, -60000, np.inf]
    halves[256:260] = [60000, 1, -60000, 1]
    call = Call("Add", "float16", dst=0, src0=256, src1=512, count=4)
    kept = [np.inf, np.nan, -np.inf, np.inf]
    assert np.array_equal(vector.run(arena, call).view(np.float16)[:4], kept, equal_nan=True)
    call.saturate = True
    assert np.array_equal(vector.run(arena, call).view(np.float16)[:4], [65504, 0, -65504, 65504])


def test_max_may_lose_a_nan_on_another_chip(vector: Instructions) -> None:
    arena = np.zeros(1024, np.uint8)
    values = arena.view(np.float32)
    values[64:66], values[128:130] = [np.nan, 1.0], [2.0, np.nan]
    call = Call("Max", "float32", dst=0, src0=256, src1=512, count=2)
    assert np.isnan(vector.run(arena, call).view(np.float32)[:2]).all()
    assert np.array_equal(vector.run(arena, call, perturb=True).view(np.float32)[:2], [2.0, 1.0])


@pytest.mark.parametrize("op", ["And", "Or", "Not", "ShiftLeft", "ShiftRight"])
def test_bits(vector: Instructions, op: str) -> None:
    functions: dict[str, tuple[int, Any]] = {
        "And": (2, np.bitwise_and), "Or": (2, np.bitwise_or), "Not": (1, np.bitwise_not),
        "ShiftLeft": (1, lambda a: a << np.array(5, a.dtype)), "ShiftRight": (1, lambda a: a >> np.array(5, a.dtype)),
    }  # fmt: skip
    wide = ("int32", "uint32") if vector.arch == 3510 or op.startswith("Shift") else ()
    for dtype in ("int16", "uint16", *wide):
        rng = np.random.default_rng([vector.arch, len(op)])
        arena = random_arena(rng, ARENA, dtype)
        for call in _calls(op, dtype, rng, 10, scalar=5):
            assert same(vector.run(arena, call), elementwise(arena, call, *functions[op]), dtype), call
        if op.startswith("Shift"):
            far = Call(op, dtype, count=8, scalar=8 * size_of(dtype) + 1, **PLACES)
            assert vector.error(arena, far).check == "range"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int16"])
def test_duplicate_fills_its_lanes(vector: Instructions, dtype: str) -> None:
    rng = np.random.default_rng(5)
    arena = random_arena(rng, ARENA, dtype)
    bits = scalar_bits(7, dtype)
    for call in _calls("Duplicate", dtype, rng, 20, scalar=bits):
        expected = arena.copy()
        for repeat, lanes in enumerate(call.lanes(lanes_of(dtype))):
            expected.view(f"uint{8 * size_of(dtype)}")[call.at(0, dtype, repeat, lanes)] = bits
        assert np.array_equal(vector.run(arena, call), expected), call


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_brcb_gives_each_element_a_block(vector: Instructions, dtype: str) -> None:
    arena = random_arena(np.random.default_rng(6), ARENA, dtype, special=False)
    per_block = 32 // size_of(dtype)
    for block, step, repeats in [(1, 8, 3), (2, 16, 2), (1, 11, 5)]:
        call = Call("Brcb", dtype, repeats=repeats, strides=(block, 1, 1, step, 8, 8), **PLACES)
        expected = arena.copy()
        view = expected.view(f"uint{8 * size_of(dtype)}")
        for r in range(repeats):
            for j in range(8):
                first = (r * step + j * block) * per_block
                view[first : first + per_block] = view[PLACES["src0"] // size_of(dtype) + 8 * r + j]
        assert np.array_equal(vector.run(arena, call), expected)
    inside = Call("Brcb", dtype, repeats=2, dst=0, src0=256)
    assert vector.error(arena, inside).check == "overlap"


def test_indices_count_up(vector: Instructions) -> None:
    arena = np.zeros(ARENA, np.uint8)
    integers = vector.run(arena, Call("CreateVecIndex", "int32", count=77, scalar=scalar_bits(-5, "int32")))
    assert np.array_equal(integers.view(np.int32)[:78], [*range(-5, 72), 0])
    floats = vector.run(arena, Call("CreateVecIndex", "float32", count=9, scalar=scalar_bits(0.5, "float32")))
    assert np.array_equal(floats.view(np.float32)[:10], [*np.arange(9) + 0.5, 0])


def test_counter_mode_takes_the_mask_as_a_count_and_keeps_the_strides(vector: Instructions) -> None:
    arena = random_arena(np.random.default_rng(8), ARENA, "float32")
    for mask in (1, 64, 130, 200):
        call = Call("Add", "float32", form=1, counter=True, mask=mask, strides=(2, 1, 1, 16, 8, 8), **PLACES)
        assert same(vector.run(arena, call), elementwise(arena, call, 2, np.add), "float32"), mask


def test_each_repeat_sees_the_sum_of_those_before(vector: Instructions) -> None:
    """The one overlap of repeats that the API allows: a running sum over chunks in a single instruction."""
    rng = np.random.default_rng(12)
    for repeats in (2, 7, 255):
        size = 512 + repeats * REPEAT
        arena = random_arena(rng, size, "float32")
        chunks = arena.view(np.float32).reshape(-1, 64).copy()
        total = chunks[0]
        for chunk in chunks[1 : repeats + 1]:
            with np.errstate(all="ignore"):
                total = chunk + total
        call = Call("Add", "float32", form=1, mask=64, repeats=repeats, dst=0, src0=256, src1=0)
        call.strides = (1, 1, 1, 0, 8, 0)
        expected = arena.copy()
        expected.view(np.float32)[:64] = total
        assert same(vector.run(arena, call), expected, "float32")


@pytest.mark.parametrize(
    ("change", "operand"),
    [
        ({"src0": 0, "src1": 256, "strides": (1, 1, 1, 0, 0, 8)}, "src0"),  # first source instead of the second
        ({"op": "Div"}, "src1"),  # not one of the five functions
        ({"strides": (1, 1, 1, 8, 8, 8), "dst": 256, "src0": 4096, "src1": 0}, "src1"),  # neither stride is 0
        ({"dtype": "int16"}, "src1"),  # not one of the three types
    ],
)
def test_no_other_overlap_of_repeats(vector: Instructions, change: dict[str, Any], operand: str) -> None:
    fields: dict[str, Any] = {
        "op": "Add", "dtype": "float32", "form": 1, "mask": 64, "repeats": 3, "dst": 0, "src0": 256, "src1": 0,
        "strides": (1, 1, 1, 0, 8, 0),
    }  # fmt: skip
    error = vector.error(np.zeros(8192, np.uint8), Call(**{**fields, **change}))
    assert (error.check, error.operand) == ("overlap", operand)


def test_a_shift_by_less_than_a_repeat_is_no_copy(vector: Instructions) -> None:
    arena = np.zeros(4096, np.uint8)
    assert vector.error(arena, Call("Adds", "float32", count=64, dst=32, src0=0)).check == "overlap"
    in_place = Call("Adds", "float32", count=64, dst=32, src0=32, scalar=scalar_bits(1, "float32"))
    assert same(vector.run(arena, in_place), elementwise(arena, in_place, 1, lambda a: a + np.float32(1)), "float32")


@pytest.mark.parametrize(
    ("fields", "check"),
    [
        ({"form": 1, "mask": 65}, "mask"),
        ({"form": 2, "mask": 1 << 64 | 1, "dtype": "float32"}, None),  # the second word isn't looked at
        ({"form": 1, "mask": 64, "repeats": 256}, "repeat"),
        ({"form": 1, "mask": 64, "strides": (1, 1, 1, 256, 8, 8)}, "stride"),
        ({"form": 1, "mask": 64, "strides": (0, 1, 1, 8, 8, 8)}, "stride"),
        ({"dst": 16}, "alignment"),
        ({"src0": 16400}, "alignment"),
        ({"count": -1}, "repeat"),
        ({"count": 9000}, "range"),
        ({"unset": True, "form": 1, "mask": 64}, "state"),
    ],
)
def test_arguments_out_of_their_range(vector: Instructions, fields: dict[str, Any], check: str | None) -> None:
    call = Call(**{"op": "Add", "dtype": "float32", "count": 64, **PLACES, **fields})
    arena = np.zeros(ARENA, np.uint8)
    if check is None:
        vector.run(arena, call)
    else:
        assert vector.error(arena, call).check == check


@pytest.mark.parametrize("fields", [{"count": 0}, {"form": 1, "mask": 64, "repeats": 0}, {"form": 1, "mask": 0}])
def test_nothing_to_do_is_fine_on_2201_and_an_error_on_950(vector: Instructions, fields: dict[str, Any]) -> None:
    arena = random_arena(np.random.default_rng(13), ARENA, "float32")
    call = Call("Add", "float32", **PLACES, **fields)
    if vector.arch == 2201:
        assert np.array_equal(vector.run(arena, call), arena)
    else:
        assert vector.error(arena, call).check == "repeat"


def test_only_active_lanes_have_to_be_written_before(vector: Instructions) -> None:
    arena = np.zeros(4096, np.uint8)
    call = Call("Adds", "float32", form=1, mask=32, dst=0, src0=4096 - 128 - 128, hole=128)
    vector.run(arena, call)
    call.mask = 33
    error = vector.error(arena, call)
    assert (error.check, error.operand) == ("poison", "src")

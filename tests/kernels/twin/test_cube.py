"""The cube: layouts of fractals, loads, Mmad by each model of its inner order, Fixpipe, and what they refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from logdiff_kernels.twin import build
from logdiff_kernels.twin.errors import TwinError
from logdiff_kernels.twin.library import Library, Mmad

from tests.kernels.twin.cube import DTYPES, Cube, columns_of, nz, product, some_values
from tests.kernels.twin.instructions import Array, narrow, size_of, widen

FRACTAL = 512


@pytest.fixture(scope="module", params=[2201, 3510])
def cube(request: pytest.FixtureRequest) -> Cube:
    return Cube(Library(build.ensure_library(Path(__file__).parent / "cube_kernels.cpp", request.param)), request.param)


def agree(found: dict[int, Array], expected: Array) -> None:
    for i, fractal in found.items():
        assert np.array_equal(fractal, expected[i]), f"fractal {i}"


def blamed(error: TwinError, fault: str) -> None:
    """`fault`: the check, and words of its reason."""
    check, _, words = fault.partition(": ")
    assert error.check == check
    assert words in error.reason


@pytest.mark.parametrize("dtype", DTYPES)
def test_l1_holds_what_was_copied_in(cube: Cube, dtype: str) -> None:
    """The way by which the tests below look at fractals."""
    values = some_values(np.random.default_rng(1), dtype, 60, 16, columns_of(dtype))
    agree(cube.fractals("Nothing", dtype, into="L1", wanted=range(60), l1=values), values)


@pytest.mark.parametrize("dtype", DTYPES)
def test_blocks_of_gm_with_gaps_come_into_l1(cube: Cube, dtype: str) -> None:
    rng = np.random.default_rng(14)
    c0 = columns_of(dtype)
    for _ in range(5):
        blocks, length, source_gap, gap = (int(x) for x in rng.integers((1, 1, 0, 0), (9, 9, 5, 5)))
        first, skip = int(rng.integers(0, 9)), int(rng.integers(0, 30))
        source, expected = some_values(rng, dtype, 3000), some_values(rng, dtype, 10 * 16 * c0)
        found = cube.fractals(
            "Blocks",
            dtype,
            (blocks, length, source_gap, gap),
            into="L1",
            wanted=range(10),
            l1=expected,
            other=source,
            dst=32 * first,
            src=skip * size_of(dtype),
        )
        for i in range(blocks):
            to, start = (first + i * (length + gap)) * c0, skip + i * (length + source_gap) * c0
            expected[to : to + length * c0] = source[start : start + length * c0]
        agree(found, expected.reshape(-1, 16, c0))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_gm_become_fractals(cube: Cube, dtype: str) -> None:
    """Element (i, n, d): see the page of Nd2NzParams. What no element falls on stays, the end of a row is 0."""
    rng = np.random.default_rng(2)
    size, c0 = size_of(dtype), columns_of(dtype)
    for case in range(12):
        matrices, rows, width = (int(x) for x in rng.integers(1, (4, 30, 60)))
        pitch = width + int(rng.integers(0, 9))
        apart = rows * pitch + int(rng.integers(0, 9))
        step = int(rng.integers(1, 3))  # data blocks from row to row
        column = rows * step + int(rng.integers(0, 4)) if case % 2 else -(-rows // 16) * 16 * step
        blocks = -(-width // c0)
        target = (blocks * column + int(rng.integers(0, 3))) * c0
        dst, src = 32 * int(rng.integers(0, 9)), size * int(rng.integers(0, 9))
        source = some_values(rng, dtype, src // size + matrices * apart)
        fractals = -(-(dst + matrices * target * size) // FRACTAL)
        if fractals > 126:
            continue
        expected = some_values(rng, dtype, fractals * 16 * c0)
        found = cube.fractals(
            "Nd2Nz",
            dtype,
            (matrices, rows, width, apart, pitch, column, step, target),
            into="L1",
            wanted=range(fractals),
            l1=expected,
            other=source,
            dst=dst,
            src=src,
        )
        for i in range(matrices):
            for n in range(rows):
                for d in range(blocks * c0):
                    at = dst // size + i * target + d // c0 * column * c0 + n * step * c0 + d % c0
                    expected[at] = source[src // size + i * apart + n * pitch + d] if d < width else 0.0
        agree(found, expected.reshape(-1, 16, c0))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("into", ["L0A", "L0B"])
@pytest.mark.parametrize("turned", [False, True])
def test_fractals_are_loaded_by_number(cube: Cube, dtype: str, into: str, turned: bool) -> None:
    if turned and size_of(dtype) == 4:
        error = cube.refused("Load", dtype, (0, 1, 1, 0), l1=np.ones(512), turned=True)
        assert error.check == "overload"
        return
    rng = np.random.default_rng(3)
    values = some_values(rng, dtype, 90, 16, columns_of(dtype))
    for _ in range(8):
        start, repeats, stride = (int(x) for x in rng.integers((0, 1, 1), (9, 12, 5)))
        gap = int(rng.integers(0, 4)) if cube.arch == 2201 else 0
        first, offset = int(rng.integers(0, 5)), int(rng.integers(0, 9))
        expected = {}
        for i in range(repeats):
            fractal = values[offset + start + i * stride]
            expected[first + i * (gap + 1)] = fractal.T if turned else fractal
        found = cube.fractals(
            "Load",
            dtype,
            (start, repeats, stride, gap),
            into=into,
            wanted=expected,
            l1=values,
            dst=first * FRACTAL,
            src=offset * FRACTAL,
            turned=turned,
        )
        for i, fractal in expected.items():
            assert np.array_equal(found[i], fractal)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("into", ["L0A", "L0B"])
def test_squares_are_transposed_on_the_way_on_910(cube: Cube, dtype: str, into: str) -> None:
    """16 x 16 elements: one fractal of 16 bits; of 32 bits two neighbours, whose halves go `dstFracGap` apart."""
    if cube.arch != 2201:
        pytest.skip("950 transposes in LoadData")
    rng = np.random.default_rng(4)
    c0 = columns_of(dtype)
    per_square = 16 // c0
    values = some_values(rng, dtype, 90, 16, c0)
    for _ in range(8):
        start, repeats, stride, gap = (int(x) for x in rng.integers((0, 1, 1, 0), (5, 7, 4, 3)))
        apart = int(rng.integers(0, 3)) if per_square == 1 else repeats * (gap + 1) - 1
        expected = {}
        for i in range(repeats):
            at = (start + i * stride) * per_square
            square = np.concatenate(list(values[at : at + per_square]), 1).T
            for half in range(per_square):
                expected[i * (gap + 1) + half * (apart + 1)] = square[:, half * c0 : (half + 1) * c0]
        fields = (start, repeats, stride, gap, apart)
        found = cube.fractals("LoadTransposed", dtype, fields, into=into, wanted=expected, l1=values)
        for i, fractal in expected.items():
            assert np.array_equal(found[i], fractal)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("turned", [False, True])
def test_a_block_of_a_matrix_is_loaded_or_its_transpose_on_950(cube: Cube, dtype: str, turned: bool) -> None:
    if cube.arch != 3510:
        pytest.skip("910 loads fractals by number")
    rng = np.random.default_rng(5)
    c0 = columns_of(dtype)
    for into in ("L0A", "L0B") * 4:
        height, width = int(rng.integers(1, 6)), 2 * int(rng.integers(1, 4))  # fractals
        matrix = some_values(rng, dtype, 16 * height, c0 * width)
        top, left = int(rng.integers(height)), int(rng.integers(0, width // 2)) * 2
        rows, columns = int(rng.integers(1, height - top + 1)), int(rng.integers(1, (width - left) // 2 + 1)) * 2
        block = matrix[16 * top : 16 * (top + rows), c0 * left : c0 * (left + columns)]
        block = block.T if turned else block
        step = block.shape[0] // 16 + int(rng.integers(0, 3))
        fractals = nz(block, dtype).reshape(block.shape[1] // c0, -1, 16, c0)
        expected = {j * step + i: fractal for j, column in enumerate(fractals) for i, fractal in enumerate(column)}
        found = cube.fractals(
            "LoadBlock",
            dtype,
            (top, left, rows, columns, height, step),
            into=into,
            wanted=expected,
            l1=nz(matrix, dtype),
            turned=turned,
        )
        for i, fractal in expected.items():
            assert np.array_equal(found[i], fractal)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [0, 1])  # InitConstValue, and Fill, as newer releases call it
def test_blocks_of_l1_and_fractals_of_l0_are_filled_with_a_value(cube: Cube, dtype: str, name: int) -> None:
    values = some_values(np.random.default_rng(6), dtype, 8 * 16 * columns_of(dtype))
    repeats, blocks, gap, dst = 3, 5, 7, 96
    expected = values.copy().reshape(-1, columns_of(dtype))
    for i in range(repeats):
        first = dst // 32 + i * (blocks + gap)
        expected[first : first + blocks] = -2.5
    found = cube.fractals(
        "Fill", dtype, (repeats, blocks, gap), into="L1", wanted=range(8), l1=values, dst=dst, value=-2.5, mode=name
    )
    agree(found, expected.reshape(-1, 16, columns_of(dtype)))
    for memory in ("L0A", "L0B"):
        if cube.arch == 3510:
            assert cube.refused("Fill", dtype, (1, 1, 0), into=memory, mode=name).check == "overload"
            continue
        wanted = [2, 3, 6, 7, 10, 11]
        found = cube.fractals(
            "Fill", dtype, (3, 2, 2), into=memory, wanted=wanted, dst=2 * FRACTAL, value=-2.5, mode=name
        )
        assert all((fractal == -2.5).all() for fractal in found.values())
        error = cube.refused("Fill", dtype, (3, 2, 2), into=memory, wanted=[4], dst=2 * FRACTAL, mode=name)
        assert error.check == "poison"  # the gap is left alone


SHAPES = [(16, 16, 16), (32, 48, 32), (20, 40, 24), (128, 16, 40), (17, 33, 50), (64, 64, 128)]


@pytest.mark.parametrize("model", Mmad)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_product_has_the_order_of_its_model(cube: Cube, dtype: str, model: Mmad) -> None:
    """From row-major GM to row-major GM, each factor as it is or transposed on the way."""
    rng = np.random.default_rng(7)
    for i, (m, n, k) in enumerate(SHAPES):
        a, b = some_values(rng, dtype, m, k), some_values(rng, dtype, n, k)
        expected = product(np.zeros((m, n), np.float32), a, b, model)
        for turned in [(False, False), (True, True)] if i % 2 else [(True, False), (False, True)]:
            found = cube.product(a, b, dtype, turned=turned, model=model)
            assert np.array_equal(found.reshape(m, n), expected), (m, n, k, turned)


def test_the_models_differ_where_the_order_matters(cube: Cube) -> None:
    """2^24, then ones: an accumulator of fp32 that adds them one by one loses each."""
    a = np.ones((16, 32), np.float32)
    a[:, 0] = 2.0**12
    b = np.ones((16, 32), np.float32)
    b[:, 0] = 2.0**12
    found = {model: float(cube.product(a, b, "float16", model=model)[0]) for model in Mmad}
    assert found[Mmad.ASCENDING] == 2.0**24
    # 2^24 + 1 ties to even, then pairs and fours and eights of ones: 2 + 4 + 8, and 16 of the next tree
    assert found[Mmad.PAIRWISE16] == 2.0**24 + 14 + 16
    assert found[Mmad.FP64] == 2.0**24 + 32  # 31 more: a tie, to even


@pytest.mark.parametrize("model", Mmad)
def test_a_second_mmad_goes_on_from_the_tile(cube: Cube, model: Mmad) -> None:
    rng = np.random.default_rng(8)
    a, b = some_values(rng, "bfloat16", 32, 40), some_values(rng, "bfloat16", 48, 40)
    expected = np.zeros((32, 48), np.float32)
    for _ in range(3):
        expected = product(expected, a, b, model)
    assert np.array_equal(cube.product(a, b, "bfloat16", times=3, model=model).reshape(32, 48), expected)


def test_mmads_into_a_small_tile_need_a_barrier(cube: Cube) -> None:
    """(m / 16)(n / 16) >= 10 is in order by itself (Mmad page)."""
    for m, n, ordered in [(48, 48, False), (159, 16, False), (32, 80, True), (160, 16, True)]:
        a, b = np.ones((m, 16), np.float32), np.ones((n, 16), np.float32)
        if ordered:
            found = cube.product(a, b, "float16", variant="no barrier", times=2)
            assert (found == 32).all()
        else:
            error = cube.refused_product((m, n, 16), variant="no barrier", times=2)
            assert (error.check, error.op) == ("race", "Mmad")


def test_hf32_rounds_the_factors(cube: Cube) -> None:
    """To 12 significant bits on 910, 11 on 950, nearest even; fp16 and bf16 are left alone."""
    rng = np.random.default_rng(9)
    a, b = some_values(rng, "float32", 32, 24), some_values(rng, "float32", 32, 24)

    def rounded(x: Array) -> Array:
        fraction, exponent = np.frexp(x.astype(np.float64))
        bits = 12 if cube.arch == 2201 else 11
        return np.ldexp(np.rint(np.ldexp(fraction, bits)), exponent - bits).astype(np.float32)

    zero = np.zeros((32, 32), np.float32)
    expected = product(zero, rounded(a), rounded(b), Mmad.ASCENDING)
    assert np.array_equal(cube.product(a, b, "float32", hf32=True).reshape(32, 32), expected)
    assert not np.array_equal(expected, product(zero, a, b, Mmad.ASCENDING))
    a, b = (widen(narrow(x, "float16"), "float16") for x in (a, b))
    assert np.array_equal(cube.product(a, b, "float16", hf32=True), cube.product(a, b, "float16"))


def test_rows_and_columns_beyond_m_and_n_are_unspecified(cube: Cube) -> None:
    for options in ({"m": 32}, {"n": 32}):
        error = cube.refused_product((20, 20, 16), elements=32 * 32, dst_stride=32, **options)
        assert (error.check, error.op) == ("poison", "Fixpipe"), options


@pytest.mark.parametrize(("m", "n"), [(20, 32), (32, 20)])
def test_a_smaller_product_spoils_the_rest_of_its_fractals(cube: Cube, m: int, n: int) -> None:
    """What an earlier product has left there isn't kept."""
    error = cube.refused_product(variant="second of another shape", times=2, shape=(m, n, 32))
    assert (error.check, error.op) == ("poison", "Fixpipe")
    a, b = np.ones((32, 32), np.float32), np.ones((32, 32), np.float32)
    found = cube.product(
        a, b, "float16", variant="second of another shape", times=2, shape=(m, n, 32), m=m, n=n, src_stride=32
    )
    assert (found[: m * n] == 32).all()
    found = cube.product(a, b, "float16", variant="second of another shape", times=2, shape=(16, 16, 32))
    assert (found == 32).all()  # whole fractals: the others stay


def test_what_was_not_loaded_is_not_multiplied(cube: Cube) -> None:
    for shape in ((48, 32, 32), (32, 48, 32), (32, 32, 48)):
        assert cube.refused_product(shape=shape).check == "poison", shape
    assert cube.refused_product((128, 16, 16), shape=(128, 16, 512)).check == "range"  # more than L0A has


def test_a_product_of_nothing_writes_nothing(cube: Cube) -> None:
    for shape in ((0, 32, 32), (32, 0, 32), (32, 32, 0)):
        error = cube.refused_product(shape=shape)
        assert (error.check, error.op) == ("poison", "Fixpipe"), shape


def test_transposed_floats_need_k_aligned_to_16_on_910(cube: Cube) -> None:
    """Their fractals come in pairs, so rows of A in L0A are a multiple of 16 long."""
    rng = np.random.default_rng(10)
    a, b = some_values(rng, "float32", 32, 24), some_values(rng, "float32", 16, 24)
    expected = product(np.zeros((32, 16), np.float32), a, b, Mmad.ASCENDING)
    assert np.array_equal(cube.product(a, b, "float32", turned=(True, False)).reshape(32, 16), expected)
    if cube.arch == 2201:
        found = cube.product(a, b, "float32", turned=(True, False), variant="k not aligned").reshape(32, 16)
        assert np.array_equal(found[:16], expected[:16])
        assert not np.array_equal(found[16:], expected[16:])
        assert cube.refused_product(variant="k aligned to 16").check == "overload"  # for float alone
    else:
        assert cube.refused_product(dtype="float32", variant="k aligned to 16").check == "overload"


def test_one_row_is_refused_where_it_switches_to_matrix_vector_mode(cube: Cube) -> None:
    assert cube.refused_product((1, 32, 32)).check == "overload"
    if cube.arch == 3510:
        assert (cube.product(np.ones((1, 32)), np.ones((32, 32)), "float16", variant="no GEMV") == 32).all()


MMADS: dict[str, tuple[dict[str, Any], str]] = {
    "m of 4096": ({"shape": (4096, 32, 32)}, "range: m, n, k are 4096, 32, 32"),
    "n of 4096": ({"shape": (32, 4096, 32)}, "range: m, n, k are 32, 4096, 32"),
    "k of 4096": ({"shape": (32, 32, 4096)}, "range: m, n, k are 32, 32, 4096"),
    "unit flag": ({"variant": "unit flag"}, "overload: unitFlag"),
    "bias buffer": ({"variant": "bias"}, "overload: bias"),
    "factors swapped": ({"variant": "swapped"}, "overload: L0B, L0A"),
    "dst between fractals": ({"variant": "dst between fractals"}, "alignment: multiple of"),
    "modes of an earlier kernel": ({"unset": True}, "state: saturation"),
}


@pytest.mark.parametrize("case", MMADS)
def test_what_mmad_refuses(cube: Cube, case: str) -> None:
    options, fault = MMADS[case]
    blamed(cube.refused_product(**options), fault)


def rounded(x: Array, out: str, saturate: bool) -> Array:
    """fp32 in the type, nearest even; saturated: the largest value for infinities, 0 for NaN."""
    with np.errstate(all="ignore"):
        result = narrow(np.ascontiguousarray(x), out).reshape(x.shape)
    if not saturate or out == "float32":
        return result
    most = {"float16": np.float32(65504), "bfloat16": np.float32(255 / 128 * 2.0**127)}[out]
    wide = widen(result, out)
    clipped = np.where(np.isnan(wide), np.float32(0), np.clip(wide, -most, most)).astype(np.float32)
    return narrow(np.ascontiguousarray(clipped), out).reshape(x.shape)


@pytest.mark.parametrize("out", DTYPES)
@pytest.mark.parametrize("saturate", [False, True])
@pytest.mark.parametrize("relu", [False, True])
def test_fixpipe_rounds_once_to_the_type_of_gm(cube: Cube, out: str, saturate: bool, relu: bool) -> None:
    """Any fp32 by a product with the identity: ties, subnormals, values beyond the type's largest."""
    rng = np.random.default_rng(11)
    x = (rng.standard_normal((48, 32)) * np.exp2(rng.integers(-30, 17, (48, 32)))).astype(np.float32)
    x[:16] = (x[:16].view(np.uint32) & 0xFFFFF000 | 0x1000).view(np.float32)  # halfway between two halves
    x[16:24] = (x[16:24].view(np.uint32) & 0xFFFF0000 | 0x8000).view(np.float32)  # and bf16
    x[24, :8] = [65504, 65519.996, 65520, -65536, 6e-8, -3e-8, 3.39e38, -3.4e38]
    expected = np.where(x > 0, x, np.float32(0)) if relu else x
    found = cube.product(x, np.eye(32, dtype=np.float32), "float32", out=out, saturate=saturate, variant="relu" * relu)
    wanted = rounded(expected, out, saturate)
    assert np.array_equal(widen(found.reshape(48, 32), out), widen(wanted, out))
    assert relu or out == "float32" or np.isinf(widen(wanted, out)).any() != saturate


@pytest.mark.parametrize("out", DTYPES)
@pytest.mark.parametrize("saturate", [False, True])
def test_infinities_and_nans_leave_l0c_as_the_saturation_mode_says(cube: Cube, out: str, saturate: bool) -> None:
    a = np.ones((16, 16), np.float32)
    a[1], a[2], a[3, 5] = 3e38, -3e38, np.nan  # a row of NaN, and sums that overflow
    found = widen(cube.product(a, np.ones((16, 16), np.float32), "float32", out=out, saturate=saturate), out)
    most = {"float16": 65504.0, "bfloat16": 255 / 128 * 2.0**127, "float32": float(np.finfo(np.float32).max)}[out]
    wanted = [16.0, most, -most, 0.0] if saturate else [16.0, np.inf, -np.inf, np.nan]
    assert np.array_equal(found.reshape(16, 16)[:4, 0], np.array(wanted, np.float32), equal_nan=True)


@pytest.mark.parametrize("out", DTYPES)
def test_fixpipe_takes_a_part_of_the_tile_to_rows_with_gaps(cube: Cube, out: str) -> None:
    rng = np.random.default_rng(12)
    x = some_values(rng, out, 80, 64)
    eye = np.eye(64, dtype=np.float32)
    for n, m, first, pitch in [(64, 80, 0, 64), (50, 31, 16, 53), (16, 7, 32, 40), (3, 48, 32, 3), (33, 1, 48, 90)]:
        elements = (m - 1) * pitch + n + 5
        found = cube.product(
            x, eye, "float32", out=out, n=n, m=m, first_row=first, src_stride=80, dst_stride=pitch, elements=elements
        )
        expected = np.full(elements, np.nan, np.float32)
        for row in range(m):
            expected[row * pitch : row * pitch + n] = x[first + row, :n]
        assert np.array_equal(widen(found, out), expected, equal_nan=True), (n, m, first, pitch)


@pytest.mark.parametrize("out", DTYPES)
def test_fixpipe_takes_several_tiles(cube: Cube, out: str) -> None:
    """Two tiles of 16 rows one below the other; their distance is fractals of 1024 bytes on 910, rows on 950."""
    x = some_values(np.random.default_rng(13), out, 64, 32)
    count, m, n, pitch, apart = 3, 16, 20, 24, 500
    step = 1 if cube.arch == 2201 else 16
    found = cube.product(
        x, np.eye(32, dtype=np.float32), "float32", out=out, n=n, m=m, src_stride=64, dst_stride=pitch,
        tiles=(count, step, apart), elements=3 * apart,
    )  # fmt: skip
    expected = np.full(3 * apart, np.nan, np.float32)
    for tile in range(count):
        for row in range(m):
            at = tile * apart + row * pitch
            expected[at : at + n] = x[16 * tile + row, :n]
    assert np.array_equal(widen(found, out), expected, equal_nan=True)


FIXPIPES: dict[str, tuple[dict[str, Any], str]] = {
    "unit flag": ({"variant": "unit flag of Fixpipe"}, "overload: unitFlag"),
    "channel split": ({"variant": "channel split"}, "overload: channel split"),
    "fp32 to half without a conversion": ({"variant": "other quant", "out": "float16"}, "overload: quantPre"),
    "n of 4096": ({"n": 4096}, "range: nSize 4096"),
    "rows onto each other": ({"dst_stride": 31}, "overlap: 31 apart"),
    "a source stride of no fractal": ({"src_stride": 40}, "stride: srcStride 40"),
    "column blocks onto each other": ({"src_stride": 16}, "stride: srcStride 16"),
    "beyond the argument": ({"dst_stride": 33}, "range: GM tensor"),
    "a start that is no row of 16": ({"first_row": 32}, "poison: nothing has written"),
}


@pytest.mark.parametrize("case", FIXPIPES)
def test_what_fixpipe_refuses(cube: Cube, case: str) -> None:
    options, fault = FIXPIPES[case]
    blamed(cube.refused_product(**options), fault)


def test_fixpipe_takes_at_most_8192_rows_on_910(cube: Cube) -> None:
    fault = "range: mSize 8193 exceeds 8192" if cube.arch == 2201 else "range: L0C tensor"
    blamed(cube.refused_product(m=8193, src_stride=8208, elements=8193 * 32), fault)


Refusal = tuple[tuple[str, tuple[int, ...]], dict[str, Any], str]
"""Instruction and fields, options of `Cube.fractals`, check and words of the reason."""

LOADS: dict[str, Refusal] = {
    "dst between fractals": (("Load", (0, 1, 1, 0)), {"dst": 256}, "alignment: multiple of"),
    "source between data blocks": (("Load", (0, 1, 1, 0)), {"src": 16}, "alignment: L1 address 16"),
    "256 repeats": (("Load", (0, 256, 1, 0)), {}, "repeat: 256 does not fit"),
    "a start of 65536": (("Load", (65536, 1, 1, 0)), {}, "stride: 65536 does not fit"),
    "addresses that go down": (("Load", (0, 1, 1, 0)), {"mode": 1}, "overload: addrMode"),
    "from L1 to L1": (("Load", (0, 1, 1, 0)), {"into": "L1"}, "overload: from L1 to L1"),
    "beyond L0": (("Load", (0, 2, 1, 0)), {"dst": 127 * FRACTAL}, "range: L0A tensor"),
    "what nothing has written": (("Load", (3, 2, 1, 0)), {"hole": FRACTAL}, "poison: nothing has written"),
    "L1 to GM": (("Out", ()), {"into": "L1", "writable": True}, "overload: from L1 to GM"),
    "Nd2Nz into L0": (("Nd2Nz", (1, 16, 16, 0, 16, 16, 1, 0)), {}, "overload: Nd2Nz into L0A"),
    "Nd2Nz between data blocks": (
        ("Nd2Nz", (1, 16, 16, 0, 16, 16, 1, 0)),
        {"into": "L1", "dst": 16},
        "alignment: L1 address 16",
    ),
    "Nd2Nz of 4096 matrices": (("Nd2Nz", (4096, 1, 16, 0, 16, 16, 1, 0)), {"into": "L1"}, "range: ndNum is 4096"),
    "Nd2Nz of 16385 rows": (("Nd2Nz", (1, 16385, 16, 0, 16, 16, 1, 0)), {"into": "L1"}, "range: nValue is 16385"),
    "Nd2Nz with a pitch of 0": (("Nd2Nz", (1, 2, 16, 0, 0, 16, 1, 0)), {"into": "L1"}, "range: srcDValue is 0"),
    "Nd2Nz with columns 0 apart": (("Nd2Nz", (1, 2, 16, 0, 16, 0, 1, 0)), {"into": "L1"}, "range: dstNzC0Stride is 0"),
    "Nd2Nz with columns 16385 apart": (
        ("Nd2Nz", (1, 2, 16, 0, 16, 16385, 1, 0)),
        {"into": "L1"},
        "range: dstNzC0Stride is 16385",
    ),
    "Nd2Nz with rows 0 apart": (("Nd2Nz", (1, 2, 16, 0, 16, 16, 0, 0)), {"into": "L1"}, "range: dstNzNStride is 0"),
    "Nd2Nz with columns onto each other": (
        ("Nd2Nz", (1, 16, 32, 0, 32, 15, 1, 0)),
        {"into": "L1"},
        "overlap: columns 15",
    ),
    "Nd2Nz with rows between the rows of columns": (
        ("Nd2Nz", (1, 9, 32, 0, 32, 16, 2, 0)),
        {"into": "L1"},
        "overlap: rows 2, columns 16",
    ),
    "Nd2Nz with matrices onto each other": (
        ("Nd2Nz", (2, 4, 16, 0, 16, 16, 1, 0)),
        {"into": "L1"},
        "overlap: matrices 0",
    ),
    "Nd2Nz with matrices one row too near": (
        ("Nd2Nz", (3, 4, 32, 0, 32, 16, 1, 48)),
        {"into": "L1"},
        "overlap: matrices 3",
    ),
    "Nd2Nz with a matrix onto another column": (
        ("Nd2Nz", (3, 4, 32, 0, 32, 10, 1, 80)),
        {"into": "L1"},
        "overlap: matrices 5",
    ),
    "Nd2Nz with matrices between data blocks": (
        ("Nd2Nz", (2, 4, 16, 0, 16, 16, 1, 72)),
        {"into": "L1"},
        "alignment: dstNzMatrixStride 72",
    ),
    "Nd2Nz with matrices 16400 apart": (
        ("Nd2Nz", (2, 4, 16, 0, 16, 16, 1, 16400)),
        {"into": "L1"},
        "range: dstNzMatrixStride is 16400",
    ),
    "Nd2Nz beyond GM": (("Nd2Nz", (1, 17, 16, 0, 16, 32, 1, 0)), {"into": "L1"}, "range: GM tensor"),
    "Fill of 32768 blocks": (("Fill", (1, 32768, 0)), {"into": "L1"}, "range: blockNum is 32768"),
    "Fill of 32768 runs": (("Fill", (32768, 1, 0)), {"into": "L1"}, "range: repeatTimes is 32768"),
    "Fill between data blocks": (("Fill", (1, 1, 0)), {"into": "L1", "dst": 8}, "alignment: L1 address 8"),
}


@pytest.mark.parametrize("case", LOADS)
def test_what_loads_refuse(cube: Cube, case: str) -> None:
    (instruction, fields), options, fault = LOADS[case]
    options = {"dtype": "float16", "l1": np.ones(5 * 256), "other": np.ones(256), **options}
    blamed(cube.refused(instruction, fields=fields, **options), fault)


LOADS_OF: dict[int, dict[str, Refusal]] = {
    2201: {
        "a pitch of 65536": (
            ("Nd2Nz", (1, 2, 16, 0, 65536, 16, 1, 0)),
            {"into": "L1"},
            "stride: 65536 does not fit",
        ),
        "rows of 65536": (
            ("Nd2Nz", (1, 1, 65536, 0, 16, 16, 1, 0)),
            {"into": "L1"},
            "stride: 65536 does not fit",
        ),
        "transposed, 256 repeats": (("LoadTransposed", (0, 256, 1, 0, 0)), {}, "repeat: 256 does not fit"),
        "transposed, dst between fractals": (
            ("LoadTransposed", (0, 1, 1, 0, 0)),
            {"dst": 32},
            "alignment: L0A address 32",
        ),
        "transposed, addresses that go down": (
            ("LoadTransposed", (0, 1, 1, 0, 0)),
            {"mode": 1},
            "overload: addrMode",
        ),
        "transposed, into L1": (
            ("LoadTransposed", (0, 1, 1, 0, 0)),
            {"into": "L1"},
            "overload: from L1 to L1",
        ),
    },
    3510: {
        "a gap in L0": (("Load", (0, 1, 1, 1)), {}, "stride: dstGap"),
        "a block of 256 fractals": (("LoadBlock", (0, 0, 256, 1, 1, 256)), {}, "range: mStep is 256"),
        "a block of 256 columns": (("LoadBlock", (0, 0, 1, 256, 1, 1)), {}, "range: kStep is 256"),
        "a negative stride": (("LoadBlock", (0, 0, 1, 1, -1, 1)), {}, "stride: negative srcStride"),
        "columns onto each other": (("LoadBlock", (0, 0, 2, 2, 2, 1)), {}, "overlap: 1 apart"),
        "half a square of floats": (
            ("LoadBlock", (0, 0, 1, 1, 1, 2)),
            {"dtype": "float32", "turned": True},
            "range: pairs of columns",
        ),
        "a block into L1": (("LoadBlock", (0, 0, 1, 1, 1, 1)), {"into": "L1"}, "overload: from L1 to L1"),
        "a block, dst between fractals": (
            ("LoadBlock", (0, 0, 1, 1, 1, 1)),
            {"dst": 32},
            "alignment: L0A address 32",
        ),
    },
}


def test_what_loads_of_one_architecture_refuse(cube: Cube) -> None:
    for (instruction, fields), options, fault in LOADS_OF[cube.arch].values():
        options = {"dtype": "float16", "l1": np.ones(5 * 256), "other": np.ones(256), **options}
        blamed(cube.refused(instruction, fields=fields, **options), fault)

"""The kernels of cube_kernels.cpp, layouts of fractals, and a product by each model of Mmad's inner order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from logdiff_kernels.twin.errors import TwinError
from logdiff_kernels.twin.library import Argument, Library, Mmad, Options

from tests.kernels.twin.instructions import TYPES, Array, Plan, narrow, scalar_bits, size_of, storage, widen

DTYPES = ("float16", "bfloat16", "float32")
INSTRUCTIONS = ("Nothing", "Nd2Nz", "Fill", "Load", "LoadBlock", "LoadTransposed", "Out", "Blocks")
MEMORIES = ("L0A", "L0B", "L1")
VARIANTS = (
    "", "no barrier", "relu", "unit flag", "unit flag of Fixpipe", "other quant", "k not aligned", "bias",
    "k aligned to 16", "channel split", "no GEMV", "swapped", "dst between fractals", "second of another shape",
)  # fmt: skip


def columns_of(dtype: str) -> int:
    """Elements of a row of a fractal."""
    return 32 // size_of(dtype)


def some_values(rng: np.random.Generator, dtype: str, *shape: int) -> Array:
    """fp32 values that the type holds, none of them zero."""
    values = rng.standard_normal(shape).astype(np.float32) * np.exp2(rng.integers(-4, 5, shape)).astype(np.float32)
    values[values == 0] = 1.0
    return widen(narrow(values, dtype), dtype).reshape(shape)


def stored(values: Array, dtype: str) -> Array:
    """fp32 values as bytes."""
    return np.ascontiguousarray(narrow(values.astype(np.float32), dtype)).reshape(-1).view(np.uint8)


def nz(matrix: Array, dtype: str) -> Array:
    """Fractals of a matrix, column block by column block: [columns / c0 * rows / 16, 16, c0]; 0 where it ends."""
    c0 = columns_of(dtype)
    rows, columns = -(-matrix.shape[0] // 16) * 16, -(-matrix.shape[1] // c0) * c0
    whole = np.zeros((rows, columns), np.float32)
    whole[: matrix.shape[0], : matrix.shape[1]] = matrix
    return whole.reshape(rows // 16, 16, columns // c0, c0).transpose(2, 0, 1, 3).reshape(-1, 16, c0)


@dataclass(frozen=True)
class Cube:
    library: Library
    arch: int

    def fractals(
        self,
        instruction: str,
        dtype: str,
        fields: Sequence[int] = (),
        *,
        into: str,
        wanted: Iterable[int],
        l1: Array | None = None,
        other: Array | None = None,
        dst: int = 0,
        src: int = 0,
        turned: bool = False,
        mode: int = 0,
        value: float = 0.0,
        hole: int = 0,
        writable: bool = False,
    ) -> dict[int, Array]:
        """The wanted fractals [16, c0] of a memory after one instruction.

        Args:
            instruction: of `INSTRUCTIONS`.
            fields: of its record, in order.
            into: memory that it writes, and that is looked at.
            l1: values in L1 beforehand. `other`: a tensor in GM.
            dst, src: offsets in bytes.
            mode: addrMode; for Fill: by which name it is called.
            hole: bytes at the end of `l1` that are not loaded.
        """
        before = stored(np.zeros(0, np.float32) if l1 is None else l1, dtype)
        c0 = columns_of(dtype)
        plan = Plan(INSTRUCTIONS.index(instruction), TYPES.index(dtype), form=MEMORIES.index(into), bytes=before.size)
        plan.dst, plan.src0, plan.mode, plan.hole = dst, src, int(turned), hole
        plan.count = mode
        if instruction == "Fill":
            plan.mode = mode
        plan.strides[: len(fields)] = [field & 2**32 - 1 for field in fields]
        plan.scalar = scalar_bits(value, dtype)
        wanted = list(wanted)
        plan.mask[:] = [sum(1 << i for i in wanted if i < 64), sum(1 << i - 64 for i in wanted if i >= 64)]
        after = torch.zeros(127, 16, 16)
        arguments = [
            Argument(torch.from_numpy(before) if before.size else torch.zeros(32, dtype=torch.uint8), "before"),
            Argument(after, "after", initialised=False),
            Argument(torch.from_numpy(stored(np.eye(16, c0, dtype=np.float32), dtype)), "identity", writable=False),
            Argument(
                torch.zeros(512, dtype=torch.uint8) if other is None else torch.from_numpy(stored(other, dtype)),
                "other",
                writable=writable,
            ),
        ]
        self.library.launch("cube_instruction", arguments, plan, 1, Options())
        return {i: after[i].numpy()[:, :c0] if into == "L0A" else after[i].numpy().T[:, :c0] for i in wanted}

    def product(
        self,
        a: Array,
        b: Array,
        dtype: str,
        *,
        out: str = "float32",
        turned: tuple[bool, bool] = (False, False),
        variant: str = "",
        times: int = 1,
        model: Mmad = Mmad.ASCENDING,
        shape: tuple[int, int, int] | None = None,
        n: int = 0,
        m: int = 0,
        src_stride: int = 0,
        dst_stride: int = 0,
        first_row: int = 0,
        tiles: Sequence[int] = (1, 1, 0),
        elements: int | None = None,
        saturate: bool = False,
        hf32: bool = False,
        unset: bool = False,
        **options: Any,
    ) -> Array:
        """a [m, k] times b [n, k] through L1, L0 and L0C to GM, row-major; NaN of the canary where nothing is stored.

        Args:
            turned: give a as [k, m], b as [k, n] in GM.
            times: Mmads into one tile.
            shape: another m, n, k for Mmad.
            n, m, src_stride, dst_stride, first_row, tiles: of Fixpipe; 0: as the tile's own.
            elements: of the result.
        """
        rows, columns, depth = a.shape[0], b.shape[0], a.shape[1]
        plan = Plan(VARIANTS.index(variant), TYPES.index(out), TYPES.index(dtype), mode=int(hf32), repeats=times)
        plan.strides[:] = [rows, columns, depth, *map(int, turned), *tiles]
        plan.dst, plan.extra, plan.src0, plan.src1, plan.count = dst_stride, src_stride, first_row, m, n
        plan.saturate, plan.unset = int(saturate), int(unset)
        if shape is not None:
            plan.mask[:] = [shape[0] | shape[1] << 16 | shape[2] << 32, 1]
        left, right = (stored(x.T if turn else x, dtype) for x, turn in zip((a, b), turned, strict=True))
        size = size_of(out)
        result = torch.full(((elements or rows * columns) * size,), 0xFF, dtype=torch.uint8)  # NaN of every type
        arguments = [
            Argument(torch.from_numpy(left), "a", writable=False),
            Argument(torch.from_numpy(right), "b", writable=False),
            Argument(result, "c"),
        ]
        self.library.launch("matmul_tile", arguments, plan, 1, Options(mmad=model, **options))
        return result.numpy().view(storage(out))

    def refused(self, *arguments: Any, **options: Any) -> TwinError:
        """The error of an instruction on raw fractals."""
        options = {"into": "L0A", "wanted": (), **options}
        with pytest.raises(TwinError) as caught:
            self.fractals(*arguments, **options)
        return caught.value

    def refused_product(
        self, tile: tuple[int, int, int] = (32, 32, 32), dtype: str = "float16", **options: Any
    ) -> TwinError:
        """The error of a product of ones; `tile`: its m, n, k."""
        m, n, k = tile
        a, b = np.ones((m, k), np.float32), np.ones((n, k), np.float32)
        with pytest.raises(TwinError) as caught:
            self.product(a, b, dtype, **options)
        return caught.value


def product(c: Array, a: Array, b: Array, model: Mmad) -> Array:
    """c [m, n] + a [m, k] times b [n, k] transposed in the order of a model."""
    with np.errstate(all="ignore"):
        return {Mmad.ASCENDING: _ascending, Mmad.PAIRWISE16: _pairwise, Mmad.FP64: _wide}[model](c, a, b)


def _ascending(c: Array, a: Array, b: Array) -> Array:
    for k in range(a.shape[1]):
        c = _fma(np.multiply.outer(a[:, k].astype(np.float64), b[:, k].astype(np.float64)), c)
    return c


def _fma(exact: Array, c: Array) -> Array:
    """fp32 of exact + c, rounded once: rounding the fp64 sum to odd keeps what the second rounding has to know."""
    total = exact + c
    part = total - exact
    error = (exact - (total - part)) + (c.astype(np.float64) - part)
    odd = total.view(np.int64) & 1 == 1
    nudged = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
    return np.where((error != 0) & np.isfinite(total) & ~odd, nudged, total).astype(np.float32)


def _pairwise(c: Array, a: Array, b: Array) -> Array:
    for first in range(0, a.shape[1], 16):
        terms = a[:, None, first : first + 16] * b[None, :, first : first + 16]
        terms = np.concatenate([terms, np.zeros((*c.shape, 16 - terms.shape[2]), np.float32)], 2)
        while terms.shape[2] > 1:
            terms = terms[:, :, 0::2] + terms[:, :, 1::2]
        c = c + terms[:, :, 0]
    return c


def _wide(c: Array, a: Array, b: Array) -> Array:
    total = c.astype(np.float64)
    for k in range(a.shape[1]):
        total = total + np.multiply.outer(a[:, k].astype(np.float64), b[:, k].astype(np.float64))
    return total.astype(np.float32)

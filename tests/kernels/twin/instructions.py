"""One instruction on an arena: the plan of instruction_plan.h, and references that go lane by lane.

The arena is a piece of UB (or of L1) that is loaded from GM, worked on by one instruction and stored again. A test
computes the whole arena after the instruction from the documented rule, so a lane written in error shows as well.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from logdiff_kernels.twin.errors import TwinError
from logdiff_kernels.twin.library import Argument, Library, Options

Array = npt.NDArray[Any]
BLOCK, REPEAT = 32, 256

TYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "float16", "bfloat16", "float32", "uint64")
_GROUPS = {
    0: ("Add", "Sub", "Mul", "Div", "Max", "Min", "MulAddDst", "FusedMulAdd", "And", "Or"),
    20: ("Adds", "Muls", "Maxs", "Mins", "Axpy", "ShiftLeft", "ShiftRight"),
    40: ("Exp", "Ln", "Sqrt", "Abs", "Relu", "Not", "DivExact", "SqrtExact"),
    60: ("Duplicate", "Brcb", "CreateVecIndex"),
    70: ("Compare", "CompareScalar", "Select", "SelectScalar"),
    80: ("Gather", "GatherMask", "GatherMaskFixed", "Sort32", "Transpose", "TransData"),
    100: ("PairReduceSum", "BlockReduceSum", "BlockReduceMax", "BlockReduceMin", "WholeReduceSum"),
    105: ("WholeReduceMax", "WholeReduceMin", "ReduceSum", "ReduceMax", "ReduceMin"),
    200: ("Cast",),
}
OPERATIONS = {name: first + i for first, names in _GROUPS.items() for i, name in enumerate(names)}


class Plan(ctypes.Structure):
    """`InstructionPlan` of instruction_plan.h."""

    _fields_ = [
        *((name, ctypes.c_uint32) for name in ("op", "dst_type", "src_type", "form", "bytes")),
        *((name, ctypes.c_uint32) for name in ("dst", "src0", "src1", "extra")),
        *((name, ctypes.c_int32) for name in ("count", "repeats", "mode")),
        ("strides", ctypes.c_uint32 * 8),
        ("mask", ctypes.c_uint64 * 2),
        ("scalar", ctypes.c_uint64),
        *((name, ctypes.c_uint32) for name in ("saturate", "counter", "unset", "hole")),
    ]


def storage(dtype: str) -> np.dtype[Any]:
    """How elements lie in the arena: bfloat16 as its bits."""
    return np.dtype("uint16" if dtype == "bfloat16" else dtype)


def size_of(dtype: str) -> int:
    return storage(dtype).itemsize


def lanes_of(dtype: str) -> int:
    return REPEAT // size_of(dtype)


def widen(values: Array, dtype: str) -> Array:
    """Elements as fp32 (bfloat16, float16) or as they are."""
    if dtype == "bfloat16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32) if dtype == "float16" else values


def narrow(values: Array, dtype: str) -> Array:
    """fp32 to storage, nearest even."""
    if dtype == "bfloat16":
        return torch.from_numpy(np.ascontiguousarray(values)).to(torch.bfloat16).view(torch.uint16).numpy()
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(storage(dtype))


@dataclass
class Call:
    """An instruction: names, byte offsets, and the form's arguments. `mask` is a lane count, or bits of the lanes."""

    op: str
    dtype: str
    src_type: str = ""
    form: int = 0
    dst: int = 0
    src0: int = 0
    src1: int = 0
    extra: int = 0
    count: int = 0
    repeats: int = 1
    mode: int = 0
    strides: Sequence[int] = (1, 1, 1, 8, 8, 8)  # dst, src0, src1 within a repeat; dst, src0, src1 between repeats
    mask: int = 0
    scalar: int = 0
    saturate: bool = False
    counter: bool = False
    unset: bool = False
    hole: int = 0

    def lanes(self, lanes: int) -> list[Array]:
        """Active lanes of each repeat."""
        total = self.count if self.form == 0 else self.mask
        if self.form == 0 or self.counter:
            full = [np.arange(lanes)] * (total // lanes)
            return [*full, np.arange(total % lanes)] if total % lanes else full
        bits = self.mask if self.form == 2 else (1 << self.mask) - 1
        return [np.array([lane for lane in range(lanes) if bits >> lane & 1])] * self.repeats

    def at(self, operand: int, dtype: str, repeat: int, lanes: Array) -> Array:
        """Element indices in the arena of the lanes of a repeat; operand 0 dst, 1 src0, 2 src1."""
        size, offset = size_of(dtype), (self.dst, self.src0, self.src1)[operand]
        if self.form == 0 and not self.counter:
            wide = max(size_of(self.dtype), size_of(self.src_type or self.dtype))
            block, step = 1, REPEAT // BLOCK * size // wide
        else:
            block, step = self.strides[operand], self.strides[3 + operand]
        per_block = BLOCK // size
        data_blocks = repeat * step + lanes // per_block * block
        found: Array = offset // size + data_blocks * per_block + lanes % per_block
        return found

    def plan(self, size: int) -> Plan:
        plan = Plan(
            OPERATIONS[self.op], TYPES.index(self.dtype), TYPES.index(self.src_type or self.dtype), self.form, size
        )
        for name in ("dst", "src0", "src1", "extra", "count", "repeats", "mode", "scalar", "hole"):
            setattr(plan, name, getattr(self, name))
        for name in ("saturate", "counter", "unset"):
            setattr(plan, name, int(getattr(self, name)))
        plan.strides[:] = [*self.strides, *[0] * (8 - len(self.strides))]
        plan.mask[:] = [self.mask & (1 << 64) - 1, self.mask >> 64]
        return plan


@dataclass(frozen=True)
class Instructions:
    """The instructions of one source, built for one architecture."""

    library: Library
    arch: int
    kernel: str = field(default="vector_instruction")

    def run(self, arena: Array, call: Call, **options: Any) -> Array:
        """The arena after the instruction."""
        before = torch.from_numpy(arena.copy())
        after = torch.zeros_like(before)
        arguments = [Argument(before, "before", writable=False), Argument(after, "after")]
        self.library.launch(self.kernel, arguments, call.plan(arena.size), 1, Options(**options))
        return after.numpy()

    def error(self, arena: Array, call: Call, **options: Any) -> TwinError:
        with pytest.raises(TwinError) as caught:
            self.run(arena, call, **options)
        return caught.value


def elementwise(arena: Array, call: Call, sources: int, f: Callable[..., Array], *, updates: bool = False) -> Array:
    """The arena after dst = f(src0, ...), repeat by repeat; sources and results as fp32 or integers."""
    after = arena.copy()
    source = call.src_type or call.dtype
    wide = max(size_of(source), size_of(call.dtype))
    for repeat, lanes in enumerate(call.lanes(REPEAT // wide)):
        at = call.at(0, call.dtype, repeat, lanes)
        values = [
            widen(after.view(storage(source))[call.at(1 + k, source, repeat, lanes)], source) for k in range(sources)
        ]
        if updates:
            values.append(widen(after.view(storage(call.dtype))[at], call.dtype))
        with np.errstate(all="ignore"):
            after.view(storage(call.dtype))[at] = narrow(f(*values), call.dtype)
    return after


def same(actual: Array, expected: Array, dtype: str) -> bool:
    """Equal bits of two arenas; any NaN equals any NaN of the dtype."""
    a, b = actual.view(storage(dtype)), expected.view(storage(dtype))
    equal = a == b
    if dtype in ("float16", "bfloat16", "float32"):
        bits = np.uint16 if size_of(dtype) == 2 else np.uint32
        equal = actual.view(bits) == expected.view(bits)
        with np.errstate(invalid="ignore"):
            equal |= np.isnan(widen(a, dtype)) & np.isnan(widen(b, dtype))
    return bool(equal.all())


def random_arena(rng: np.random.Generator, size: int, dtype: str, *, special: bool = True) -> Array:
    """Random elements, with subnormals, zeros, infinities and NaN among floats."""
    count = size // size_of(dtype)
    if dtype.startswith(("int", "uint")):
        low, high = np.iinfo(storage(dtype)).min, np.iinfo(storage(dtype)).max
        return rng.integers(low, high, count, storage(dtype), endpoint=True).view(np.uint8)
    values = (rng.standard_normal(count) * np.exp2(rng.integers(-12, 12, count))).astype(np.float32)
    if special:
        picks = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-45, 6e-8, 3e38, 65504.0, -1.0], np.float32)
        where = rng.random(count) < 0.05
        values[where] = rng.choice(picks, int(where.sum()))
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(narrow(values, dtype)).view(np.uint8)


def scalar_bits(value: float, dtype: str) -> int:
    """Bits of a scalar argument."""
    if dtype.startswith(("int", "uint")):
        return int(np.array(value).astype(storage(dtype)).view(f"uint{8 * size_of(dtype)}"))
    stored = narrow(np.array([value], np.float32), dtype)
    return int(stored.view(f"uint{8 * size_of(dtype)}")[0])

"""Probes of single instructions for the self-test: small kernels that no operator uses.

Arrays go in and out as tensors of any shape on the launcher's device; the functions here pad them to whole tiles.
"""

from __future__ import annotations

import ctypes
import enum

import torch
from torch import Tensor

from logdiff_kernels.ascendc.kernel import FP32, Kernel
from logdiff_kernels.build.launcher import Launcher
from logdiff_kernels.cpu.library import DTYPE_CODES
from logdiff_kernels.errors import InputError

_U32 = ctypes.c_uint32

TILE = 2048
"""Elements of a tile of `vector`."""

PITCH = 64
"""Results of a row of `reduce`, most of them padding."""

MMAD_M = 128
"""Most rows of one Mmad, and the m of every kernel."""


class LdVectorProbePlan(ctypes.Structure):
    """One instruction on tiles (csrc/probe_plan.h)."""

    _fields_ = (
        *((name, _U32) for name in ("dtype", "op", "form", "tiles")),
        ("scalar", ctypes.c_float),
        ("reserved", _U32),
    )


class LdReduceProbePlan(ctypes.Structure):
    """One reduction of rows (csrc/probe_plan.h)."""

    _fields_ = tuple((name, _U32) for name in ("dtype", "op", "rows", "length"))


class LdMmadProbePlan(ctypes.Structure):
    """Mmads into one accumulator (csrc/probe_plan.h)."""

    _fields_ = tuple((name, _U32) for name in ("dtype", "out_dtype", "m", "n", "k", "steps", "tiles", "buffer"))


PLANS: tuple[type[ctypes.Structure], ...] = (LdVectorProbePlan, LdReduceProbePlan, LdMmadProbePlan)

KERNELS = (
    Kernel("probe_vector", "self-test: one vector instruction", LdVectorProbePlan, ("a", "b"), ("out",), dtypes=FP32),
    Kernel("probe_reduce", "self-test: one reduction", LdReduceProbePlan, ("x",), ("out",), dtypes=FP32),
    Kernel("probe_mmad", "self-test: Mmad alone", LdMmadProbePlan, ("a", "b"), ("c",), kind="cube"),
)


class VectorOp(enum.IntEnum):
    """What `vector` does with an element (csrc/probe_plan.h)."""

    ADD = 0
    SUB = 1
    MUL = 2
    DIV = 3
    MAX = 4
    MIN = 5
    ADDS = 6
    MULS = 7
    MAXS = 8
    MINS = 9
    ABS = 10
    SQRT = 11
    EXP = 12
    LN = 13
    EXP1 = 14
    LN1 = 15
    TO_BFLOAT16 = 16
    TO_FLOAT16 = 17
    FROM_BFLOAT16 = 18
    FROM_FLOAT16 = 19
    ROUND_TO_INT = 20
    FROM_INT = 21
    FLOOR = 22
    EQUAL = 23
    LESS = 24
    LESS_EQUAL = 25
    GREATER = 26
    GREATER_EQUAL = 27
    NOT_EQUAL = 28


_OUT_DTYPES = {
    VectorOp.TO_BFLOAT16: torch.bfloat16,
    VectorOp.TO_FLOAT16: torch.float16,
    VectorOp.ROUND_TO_INT: torch.int32,
}


class ReduceOp(enum.IntEnum):
    """What `reduce` does with a row (csrc/probe_plan.h)."""

    PAIR_REDUCE_SUM = 0
    BLOCK_REDUCE_SUM = 1
    WHOLE_REDUCE_SUM = 2
    REDUCE_SUM_COUNTED = 3
    REDUCE_SUM_REPEATED = 4
    R64 = 5
    TREE8 = 6
    WHOLE_REDUCE_MAX = 7


def vector(
    launcher: Launcher,
    op: VectorOp,
    a: Tensor,
    b: Tensor | None = None,
    *,
    scalar: float = 0.0,
    repeated: bool = False,
) -> Tensor:
    """`op` on each element.

    Args:
        launcher: runs it.
        op: the instruction.
        a: fp32; for FROM_* the type that is widened, for FROM_INT int32.
        b: the second operand, of the same shape; None where there is one.
        scalar: the second operand of ADDS, MULS, MAXS and MINS.
        repeated: ADD, SUB, MUL and DIV told by mask and repeats instead of a count.
    """
    count = a.numel()
    tiles = max(1, -(-count // TILE))
    x = _padded(a, tiles)
    y = x if b is None else _padded(b, tiles)
    out = torch.empty(tiles * TILE, dtype=_OUT_DTYPES.get(op, torch.float32), device=a.device)
    plan = LdVectorProbePlan(op=op, form=int(repeated), tiles=tiles, scalar=scalar)
    blocks = min(tiles, launcher.cores * launcher.vectors_per_core)
    launcher.launch("probe_vector", [x, y, out], plan, blocks)
    return out[:count].view(a.shape)


def _padded(x: Tensor, tiles: int) -> Tensor:
    whole = torch.ones(tiles * TILE, dtype=x.dtype, device=x.device)
    whole[: x.numel()] = x.reshape(-1)
    return whole


def reduce(launcher: Launcher, op: ReduceOp, x: Tensor) -> Tensor:
    """`op` on each row of fp32 x [rows, length], length a multiple of 64: its results [rows, up to 64], +0 behind them.

    Raises:
        InputError: another length, or more results than 64.
    """
    rows, length = x.shape
    most = {ReduceOp.PAIR_REDUCE_SUM: 128, ReduceOp.BLOCK_REDUCE_SUM: 512, ReduceOp.TREE8: 64}.get(op, 4096)
    if length % 64 or not 64 <= length <= most:
        raise InputError(f"{op.name}: length of a row", value=length, hint=f"a multiple of 64 up to {most}")
    out = torch.empty((rows, PITCH), dtype=torch.float32, device=x.device)
    plan = LdReduceProbePlan(op=op, rows=rows, length=length)
    blocks = min(rows, launcher.cores * launcher.vectors_per_core)
    launcher.launch("probe_reduce", [x.contiguous(), out], plan, blocks)
    return out


def mmad(
    launcher: Launcher,
    a: Tensor,
    b: Tensor,
    *,
    steps: int = 1,
    buffer: int = 0,
    out_dtype: torch.dtype = torch.float32,
    blocks: int | None = None,
) -> Tensor:
    """a [tiles, m, k] times b [tiles, n, k] transposed: [tiles, m, n], each tile `steps` Mmads with m as it is.

    Args:
        launcher: runs it.
        a: 2 to 128 rows in each tile.
        b: 16 to 128 rows in each tile, a multiple of 16.
        steps: Mmads that share k evenly; each has a multiple of 16, at most 128 (64 in fp32).
        buffer: 0 or 1, which half of L0A, L0B and L0C is used.
        out_dtype: fp32, or what Fixpipe rounds to.
        blocks: cores that share the tiles; None: all that there are.

    Raises:
        InputError: shapes out of these ranges.
    """
    (tiles, m, depth), n = a.shape, b.shape[1]
    k = depth // steps
    most = 64 if a.dtype == torch.float32 else 128
    fits = 2 <= m <= MMAD_M and 16 <= n <= 128 and n % 16 == 0 and 16 <= k <= most and k % 16 == 0
    if not fits or k * steps != depth or b.shape != (tiles, n, depth) or a.dtype != b.dtype:
        raise InputError("probe_mmad: shapes", value=(tuple(a.shape), tuple(b.shape), steps))
    c = torch.empty((tiles, m, n), dtype=out_dtype, device=a.device)
    plan = LdMmadProbePlan(
        dtype=DTYPE_CODES[a.dtype],
        out_dtype=DTYPE_CODES[out_dtype],
        m=m,
        n=n,
        k=k,
        steps=steps,
        tiles=tiles,
        buffer=buffer,
    )
    shared = min(tiles, blocks or launcher.cores)
    launcher.launch("probe_mmad", [a.contiguous(), b.contiguous(), c], plan, shared)
    return c

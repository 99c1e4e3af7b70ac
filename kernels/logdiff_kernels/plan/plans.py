"""Making plans: the caller gives the problem's fields, the C functions of csrc/ add tiles, buffers and blocks.

Tiles depend on kernel, dtype and lengths of a row alone; only `blocks`, work tables and workspace depend on the
device's cores and on the batch. Field names are those of `structs`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

from logdiff_kernels.errors import InputError
from logdiff_kernels.plan import library, structs

ARCHES = {"dav-2201": 2201, "dav-3510": 3510}
"""Names that the compiler takes, and the numbers in plans and in `__NPU_ARCH__`."""


class RowKernel(IntEnum):
    """`ld::plan::RowKernel`: kernels that work row by row."""

    RMS_NORM = 0
    RMS_NORM_BACKWARD = 1
    ROPE = 2
    GLU = 3
    GLU_BACKWARD = 4
    LOGPROB = 5
    LOGPROB_BACKWARD = 6
    ROUTER = 7
    ROUTER_BACKWARD = 8
    GATHER = 9
    COMBINE = 10
    COMBINE_BACKWARD = 11
    TREE_COMBINE = 12
    COLUMN_SUM = 13
    SCALE_CAP = 14


class Pieces(IntEnum):
    """`ld::plan::LinearPieces`: how the k of a product is cut."""

    ONE = 0
    LEAVES = 1
    BLOCKS = 2


class Grouping(IntEnum):
    """`ld::plan::LinearGroups`: what the offsets of a grouped product cut."""

    NONE = 0
    ROWS = 1
    K = 2


def arch_number(arch: str) -> int:
    """2201 or 3510.

    Raises:
        InputError: another name.
    """
    if arch not in ARCHES:
        raise InputError(f"unknown architecture {arch!r}", value=arch, hint=f"one of {sorted(ARCHES)}")
    return ARCHES[arch]


def capacity(arch: str) -> structs.Usage:
    """Bytes that a kernel may use in each memory of a core."""
    out = structs.Usage()
    function = library.function("ld_plan_capacity", (ctypes.c_uint32, ctypes.POINTER(structs.Usage)))
    library.check(function(arch_number(arch), out), "capacity", arch, arch)
    return out


def default_cores(arch: str) -> int:
    """Cube cores to plan for where no device can be asked; each has two vector cores."""
    return int(library.function("ld_plan_default_cores", (ctypes.c_uint32,), ctypes.c_uint32)(arch_number(arch)))


def dtype_name(code: int) -> str:
    """Name of a dtype's code."""
    return structs.DTYPE_NAMES.get(code, f"dtype {code}")


def rows(
    kernel: RowKernel, dtype: int, count: int, length: int, vector_cores: int, *, strided: bool = False
) -> structs.LdRows:
    """How `count` rows of `length` elements are cut over vector cores: contiguous parts, or every n-th row.

    Raises:
        InputError: an unknown dtype, or no core.
    """
    cut = structs.LdRows()
    function = library.function("ld_plan_rows", (ctypes.POINTER(structs.LdRows), *[ctypes.c_uint32] * 6))
    status = function(cut, int(kernel), dtype, count, length, vector_cores, int(strided))
    library.check(status, kernel.name.lower(), (count, length, vector_cores), f"{dtype_name(dtype)} rows of {length}")
    return cut


def rows_of_block(cut: structs.LdRows, block: int) -> range:
    """The rows that a vector core has."""
    kinds = (ctypes.POINTER(structs.LdRows), ctypes.c_uint32)
    walk = library.function("ld_plan_row_walk", kinds, structs.RowWalk)(cut, block)
    return range(walk.first, walk.first + walk.stride * walk.count, walk.stride)


def linear(**fields: Any) -> structs.LdLinearPlan:
    """Plan of a matrix product. `bias_dtype` defaults to none, `leaves` to those of `linear_row` for k.

    Raises:
        InputError: an unknown field, dtype or an impossible shape.
    """
    plan = structs.LdLinearPlan(bias_dtype=structs.NO_DTYPE)
    library.filled(plan, fields)
    if plan.kind == Pieces.LEAVES and not plan.leaves:
        plan.leaves = row_leaves(plan.k)
    status = library.plan_function("ld_plan_linear", structs.LdLinearPlan)(plan)
    library.check(status, "linear", (plan.m, plan.n, plan.k), f"{dtype_name(plan.dtype)}, k {plan.k}")
    return plan


def row_leaves(k: int) -> int:
    """Leaves of `linear_row` for an unsharded k."""
    return int(library.function("ld_plan_row_leaves", (ctypes.c_uint32,), ctypes.c_uint32)(k))


def linear_pieces(plan: structs.LdLinearPlan, k: int) -> list[range]:
    """The pieces of a k of that length, each with an accumulator of its own, in the order of their combination."""
    kinds = (ctypes.POINTER(structs.LdLinearPlan), ctypes.c_uint32)
    count = library.function("ld_plan_linear_pieces", kinds, ctypes.c_uint32)(plan, k)
    piece = library.function("ld_plan_linear_piece", (*kinds, ctypes.c_uint32), structs.Range)
    found = [piece(plan, k, i) for i in range(count)]
    return [range(one.begin, one.end) for one in found]


def linear_place(index: int, tiles_m: int, tiles_n: int) -> tuple[int, int]:
    """Row and column of output tile `index`; block b takes the tiles b, b + blocks, ..."""
    place = library.function("ld_plan_linear_place", (ctypes.c_uint32,) * 3, structs.TilePlace)(index, tiles_m, tiles_n)
    return place.m, place.n


def attention(**fields: Any) -> structs.LdAttentionPlan:
    """Plan of attention without its work table, which `schedule.attention_table` adds.

    Raises:
        UnsupportedError: the tiles of that dtype and head size don't fit.
        InputError: an unknown field, or a shape that attention doesn't take (head sizes are multiples of 16).
    """
    plan = structs.LdAttentionPlan()
    library.filled(plan, fields)
    status = library.plan_function("ld_plan_attention", structs.LdAttentionPlan)(plan)
    library.check(status, "attention", (plan.dim, plan.dim_v), _heads(plan))
    return plan


def attention_backward(dout_row: int = 0, dout_head: int = 0, **fields: Any) -> structs.LdAttentionBackwardPlan:
    """Plan of attention's gradients without its work tables; `fields` are those of the forward plan.

    Raises:
        UnsupportedError: the tiles of that dtype and head size don't fit.
        InputError: an unknown field, or a shape that attention doesn't take.
    """
    plan = structs.LdAttentionBackwardPlan(dout_row=dout_row, dout_head=dout_head)
    library.filled(plan.forward, fields)
    status = library.plan_function("ld_plan_attention_backward", structs.LdAttentionBackwardPlan)(plan)
    library.check(status, "attention_backward", (plan.forward.dim, plan.forward.dim_v), _heads(plan.forward))
    return plan


def visible_keys(plan: structs.LdAttentionPlan, tokens: int, keys: int, row_tile: int) -> range:
    """Keys that some row of a row tile sees, in a sequence of `keys` keys whose last `tokens` are queries."""
    kinds = (ctypes.POINTER(structs.LdAttentionPlan), ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint32)
    seen = library.function("ld_plan_visible_keys", kinds, structs.Range)(plan, tokens, keys, row_tile)
    return range(seen.begin, seen.end)


def _heads(plan: structs.LdAttentionPlan) -> str:
    size = plan.dim if plan.dim == plan.dim_v else f"{plan.dim}/{plan.dim_v}"
    return f"{dtype_name(plan.dtype)}, head size {size}"


def usage(plan: ctypes.Structure) -> structs.Usage:
    """Bytes that the tiles of a plan take in each memory of a core."""
    names: Sequence[tuple[type[ctypes.Structure], str]] = (
        (structs.LdLinearPlan, "ld_plan_linear_usage"),
        (structs.LdAttentionPlan, "ld_plan_attention_usage"),
        (structs.LdAttentionBackwardPlan, "ld_plan_attention_backward_usage"),
    )
    for kind, name in names:
        if isinstance(plan, kind):
            return library.function(name, (ctypes.POINTER(kind),), structs.Usage)(plan)  # type: ignore[no-any-return]
    if isinstance(plan, structs.LdRows):
        raise InputError("the budget of a row plan needs its dtype", value="LdRows", hint="row_usage(cut, dtype)")
    raise InputError(f"{type(plan).__name__} has no budget", value=type(plan).__name__)


def row_usage(cut: structs.LdRows, dtype: int) -> structs.Usage:
    """The same for a row kernel: UB only."""
    kinds = (ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_uint64)
    function = library.function("ld_plan_row_ub_bytes", kinds, ctypes.c_uint64)
    return structs.Usage(ub=function(cut.kernel, dtype, cut.tile, cut.tile_rows))

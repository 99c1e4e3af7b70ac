"""Which block does which piece of attention work. Pure assignment: no choice made here changes a bit of a result.

Row tiles are sorted by how many keys they see and dealt out boustrophedon (there, back, there ...), which keeps every
row tile whole and needs no atomics. A row tile that is long against a block's even share (decode of few sequences) may
be cut at the chunks of 4096 keys that the contract has anyway; then the chunk states are combined after it, ascending.
The C++ side (csrc/schedule.h) makes the table that a launch uses; `snake` is the same rule for lists in Python.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from logdiff_kernels.errors import InputError
from logdiff_kernels.plan import library, structs

T = TypeVar("T")

_I32 = ctypes.POINTER(ctypes.c_int32)
_VOID = ctypes.c_void_p


@dataclass(frozen=True, slots=True)
class AttentionTable:
    """Work of one launch.

    Attributes:
        items: structured array with the fields of `LdAttentionItem`, sorted by falling cost.
        combines: the same of `LdAttentionCombine`; empty if no row tile was cut.
        blocks: AIC groups; block b has items b of the first round, blocks - 1 - b of the second, and so on.
    """

    items: NDArray[np.void]
    combines: NDArray[np.void]
    blocks: int


def attention_table(
    plan: structs.LdAttentionPlan, q_start: NDArray[np.int32], k_len: NDArray[np.int32]
) -> AttentionTable:
    """The work table of a launch; also completes `plan` (items, combines, blocks, slots, workspace).

    Args:
        plan: made by `plans.attention`.
        q_start: int32 [batch + 1], first query row of every sequence and the end.
        k_len: int32 [batch], keys of every sequence.

    Raises:
        InputError: lengths that don't fit the plan's batch, or that fall.
    """
    starts, lengths = _lengths(plan, q_start, k_len)
    room = (ctypes.c_uint64 * 2)()
    kind = ctypes.POINTER(structs.LdAttentionPlan)
    library.function("ld_plan_attention_room", (kind, _I32, _I32, _VOID), None)(plan, _at(starts), _at(lengths), room)
    items = np.zeros(room[0], np.dtype(structs.LdAttentionItem))
    combines = np.zeros(room[1], np.dtype(structs.LdAttentionCombine))
    kinds = (kind, _I32, _I32, _VOID, ctypes.c_uint64, _VOID, ctypes.c_uint64)
    status = library.function("ld_plan_attention_table", kinds)(
        plan, _at(starts), _at(lengths), items.ctypes.data, len(items), combines.ctypes.data, len(combines)
    )
    library.check(status, "attention", plan.batch, f"a batch of {plan.batch}")
    return AttentionTable(items[: plan.items], combines[: plan.combines], plan.blocks)


@dataclass(frozen=True, slots=True)
class BackwardTable:
    """Work of the attention backward: structured arrays with the fields of `LdAttentionGradItem`, sorted by cost.

    Attributes:
        dq: items of dQ, one for every row tile.
        dkv: items of dK and dV, one for every key tile.
        dq_blocks: AIC groups that have items of dQ.
        dkv_blocks: AIC groups that have items of dK and dV.
    """

    dq: NDArray[np.void]
    dkv: NDArray[np.void]
    dq_blocks: int
    dkv_blocks: int


def backward_table(
    plan: structs.LdAttentionBackwardPlan, q_start: NDArray[np.int32], k_len: NDArray[np.int32]
) -> BackwardTable:
    """The work tables of the backward; also completes `plan`. Arguments as of `attention_table`.

    Raises:
        InputError: as of `attention_table`; also a sequence with more queries than keys, unless causal.
    """
    starts, lengths = _lengths(plan.forward, q_start, k_len)
    room = (ctypes.c_uint64 * 2)()
    kind = ctypes.POINTER(structs.LdAttentionBackwardPlan)
    counting = library.function("ld_plan_attention_backward_room", (kind, _I32, _I32, _VOID), None)
    counting(plan, _at(starts), _at(lengths), room)
    dq, dkv = (np.zeros(count, np.dtype(structs.LdAttentionGradItem)) for count in room)
    kinds = (kind, _I32, _I32, _VOID, ctypes.c_uint64, _VOID, ctypes.c_uint64)
    status = library.function("ld_plan_attention_backward_table", kinds)(
        plan, _at(starts), _at(lengths), dq.ctypes.data, len(dq), dkv.ctypes.data, len(dkv)
    )
    library.check(status, "attention_backward", plan.forward.batch, f"a batch of {plan.forward.batch}")
    return BackwardTable(dq[: plan.dq_items], dkv[: plan.dkv_items], plan.dq_blocks, plan.dkv_blocks)


def snake_items(count: int, block: int, blocks: int) -> list[int]:
    """Indices of a sorted list of `count` items that a block takes, in its order."""
    found = []
    for turn in range(-(-count // blocks)):
        item = turn * blocks + (block if turn % 2 == 0 else blocks - 1 - block)
        if item < count:
            found.append(item)
    return found


def snake(items: Sequence[T], blocks: int) -> list[list[T]]:
    """Sorted items for each of `blocks` blocks."""
    return [[items[i] for i in snake_items(len(items), block, blocks)] for block in range(blocks)]


def _lengths(
    plan: structs.LdAttentionPlan, q_start: NDArray[np.int32], k_len: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    starts, lengths = (np.ascontiguousarray(x, dtype=np.int32) for x in (q_start, k_len))
    if starts.shape != (plan.batch + 1,) or lengths.shape != (plan.batch,):
        raise InputError(
            f"q_start needs batch + 1 and k_len batch entries for a batch of {plan.batch}",
            value=(starts.shape, lengths.shape),
        )
    if starts[0] != 0 or (np.diff(starts) < 0).any() or (lengths < 0).any():
        raise InputError("q_start has to run from 0 upwards, and lengths can't be negative", value=starts.tolist())
    return starts, lengths


def _at(array: NDArray[np.int32]) -> ctypes._Pointer[ctypes.c_int32]:
    return array.ctypes.data_as(_I32)

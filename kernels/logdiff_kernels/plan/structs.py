"""The plan structs as ctypes, field by field as in csrc/*.h, where each field is described.

Passed to a kernel by value, so names, order and sizes have to be those of C++; tests/kernels/plan/test_structs.py
compares them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

_I64, _U64, _U32, _F32 = ctypes.c_int64, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_float

FLOAT32, BFLOAT16, FLOAT16, NO_DTYPE = 0, 1, 2, 255
"""Codes of dtypes, those of the CPU backend."""

DTYPE_NAMES = {FLOAT32: "float32", BFLOAT16: "bfloat16", FLOAT16: "float16"}
ELEMENT_BYTES = {FLOAT32: 4, BFLOAT16: 2, FLOAT16: 2}

NO_SLOT = 0xFFFFFFFF
"""`LdAttentionItem.slot` of an item that finishes its rows itself."""


def _fields(kind: Any, names: str) -> Sequence[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


class Usage(ctypes.Structure):
    """Bytes in each memory of a core."""

    _fields_ = [*_fields(_U64, "ub l1 l0a l0b l0c bias fixpipe")]


class Range(ctypes.Structure):
    """Half-open range."""

    _fields_ = [*_fields(_U32, "begin end")]


class RowWalk(ctypes.Structure):
    """Rows first + i * stride for i in [0, count)."""

    _fields_ = [*_fields(_U32, "first stride count")]


class TilePlace(ctypes.Structure):
    """Row and column of an output tile."""

    _fields_ = [*_fields(_U32, "m n")]


class LdRows(ctypes.Structure):
    """How the rows of a launch are cut."""

    _fields_ = [*_fields(_U32, "rows length tile pieces tile_rows blocks split kernel")]


class LdNormPlan(ctypes.Structure):
    """rms_norm, add_rms_norm and their backward."""

    _fields_ = [
        *_fields(_I64, "x_stride residual_stride y_stride"),
        *_fields(_U32, "dtype weight_dtype"),
        ("rows", LdRows),
        *_fields(_F32, "eps offset"),
        *_fields(_U32, "add keep extra reserved"),
    ]


class LdRopePlan(ctypes.Structure):
    """Rotary embedding and its backward."""

    _fields_ = [
        *_fields(_I64, "x_token x_head y_token y_head"),
        *_fields(_U32, "dtype tokens heads dim rotary interleaved backward reserved"),
        ("rows", LdRows),
    ]


class LdGluPlan(ctypes.Structure):
    """act(gate) * up, and its backward."""

    _fields_ = [
        *_fields(_I64, "gate_stride up_stride y_stride"),
        *_fields(_U32, "dtype kind"),
        *_fields(_F32, "alpha limit"),
        *_fields(_U32, "step reserved"),
        ("rows", LdRows),
    ]


class LdLogprobPlan(ctypes.Structure):
    """Log-probabilities, their statistics and gradient."""

    _fields_ = [
        *_fields(_I64, "stride"),
        *_fields(_U32, "dtype tokens columns vocabulary leaves leaf first_leaf has_temperature entropy mode"),
        ("rows", LdRows),
    ]


class LdRouterPlan(ctypes.Structure):
    """Choice of experts and its backward."""

    _fields_ = [
        *_fields(_U32, "dtype tokens experts top_k groups top_groups flags has_bias"),
        *_fields(_F32, "renorm_eps scaling"),
        ("rows", LdRows),
    ]


class LdMoePlan(ctypes.Structure):
    """Permute, combine and their backward; embedding."""

    _fields_ = [
        *_fields(_I64, "x_stride y_stride"),
        *_fields(_U32, "dtype tokens top_k hidden source_rows has_weights other_dtype has_logical"),
        *_fields(_F32, "scale"),
        *_fields(_U32, "has_scale"),
        ("rows", LdRows),
    ]


class LdColumnSumPlan(ctypes.Structure):
    """Sums over rows in blocks of 512."""

    _fields_ = [
        *_fields(_I64, "a_stride b_stride"),
        *_fields(_U32, "dtype out_dtype tokens columns groups mode"),
        ("rows", LdRows),
    ]


class LdTreePlan(ctypes.Structure):
    """T(count) over partial results."""

    _fields_ = [
        *_fields(_I64, "partial_stride row_stride"),
        *_fields(_U32, "dtype bias_dtype count reserved"),
        ("rows", LdRows),
    ]


class LdScalePlan(ctypes.Structure):
    """Scale and soft cap of logits."""

    _fields_ = [
        ("count", _U64),
        ("dtype", _U32),
        *_fields(_F32, "scale cap"),
        ("reserved", _U32),
        ("rows", LdRows),
    ]


class LdLinearPlan(ctypes.Structure):
    """linear, linear_row, grouped linear and gradients."""

    _fields_ = [
        *_fields(_I64, "a_m a_k b_n b_k c_m b_group c_group"),
        *_fields(_U32, "dtype out_dtype bias_dtype m n k kind leaves grouping groups cores"),
        *_fields(_U32, "blocks tiles_m tiles_n tile_k l1_k l1_buffers l0_buffers l0c_buffers mix ring tile_n"),
        ("workspace", _U64),
    ]


class LdAttentionItem(ctypes.Structure):
    """One piece of attention work."""

    _fields_ = [*_fields(_U32, "sequence kv_head row_tile first_chunk chunks slot rows cost")]


class LdAttentionCombine(ctypes.Structure):
    """A row tile whose chunks lie in slots."""

    _fields_ = [*_fields(_U32, "sequence kv_head row_tile slot slots rows reserved0 reserved1")]


class LdAttentionPlan(ctypes.Structure):
    """attention: training, prefill and paged decode."""

    _fields_ = [
        *_fields(_I64, "q_row q_head k_row k_head v_row v_head out_row out_head k_block v_block table_row"),
        *_fields(_U32, "dtype arch batch heads kv_heads dim dim_v block_size causal window"),
        *_fields(_F32, "scale softcap"),
        *_fields(_U32, "has_sinks want_lse cores allow_direct"),
        *_fields(_U32, "group qk_k pv_n pv_k q_buffers kv_buffers p_buffers l0_buffers l0c_buffers"),
        *_fields(_U32, "direct resident vector_rows vector_buffers ring"),
        *_fields(_U32, "items combines blocks slots slot_rows reserved"),
        ("workspace", _U64),
    ]


class LdStoreKvPlan(ctypes.Structure):
    """store_kv: rows into a paged cache."""

    _fields_ = [
        *[(name, _I64 * 2) for name in ("token", "head", "cache_block", "cache_row", "cache_head")],
        *_fields(_U32, "dtype tokens heads"),
        ("dim", _U32 * 2),
        *_fields(_U32, "block_size blocks reserved"),
    ]


class LdAttentionGradItem(ctypes.Structure):
    """One piece of work of the attention backward."""

    _fields_ = [*_fields(_U32, "sequence kv_head tile rows first_step steps cost reserved")]


class LdAttentionBackwardPlan(ctypes.Structure):
    """attention's gradients."""

    _fields_ = [
        ("forward", LdAttentionPlan),
        *_fields(_I64, "dout_row dout_head"),
        *_fields(_U32, "vector_rows resident own_buffers operand_width operand_buffers dim_n dim_v_n ring"),
        *_fields(_U32, "tokens dq_items dkv_items dq_blocks dkv_blocks reserved"),
        ("dots", LdRows),
        ("workspace", _U64),
    ]


STRUCTS: tuple[type[ctypes.Structure], ...] = (
    LdRows,
    LdNormPlan,
    LdRopePlan,
    LdGluPlan,
    LdLogprobPlan,
    LdRouterPlan,
    LdMoePlan,
    LdColumnSumPlan,
    LdTreePlan,
    LdScalePlan,
    LdLinearPlan,
    LdAttentionItem,
    LdAttentionCombine,
    LdAttentionPlan,
    LdStoreKvPlan,
    LdAttentionGradItem,
    LdAttentionBackwardPlan,
)
"""Every struct that a kernel reads."""

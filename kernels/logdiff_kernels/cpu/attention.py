"""Attention on the CPU backend: tensors to the kernels of csrc/attention*.cpp, with the checks that they leave out."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import torch

from logdiff_kernels.cpu.library import DTYPE_CODES, address, check, function
from logdiff_kernels.errors import InputError, UnsupportedError

_POINTER, _INT64, _INT32, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_float


class _Arguments(ctypes.Structure):
    """`ld_attention_args` of csrc/attention.h."""

    _fields_ = [
        *[
            (name, _POINTER)
            for name in ("q", "k", "v", "out", "lse", "sinks", "q_start", "k_start", "k_len", "block_table")
        ],
        *[(name, _INT64) for name in ("batch", "heads", "kv_heads", "dim", "dim_v", "q_rows", "k_rows")],
        *[(name, _INT64) for name in ("q_row", "q_head", "k_row", "k_head", "v_row", "v_head", "out_row", "out_head")],
        *[(name, _INT64) for name in ("k_block", "v_block", "block_size", "table_row", "table_columns", "window")],
        ("scale", _FLOAT),
        ("softcap", _FLOAT),
        ("dtype", _INT32),
        ("causal", _INT32),
        ("narrow", _INT32),
    ]


class _GradArguments(ctypes.Structure):
    """`ld_attention_grad_args` of csrc/attention.h."""

    _fields_ = [
        *[(name, _POINTER) for name in ("dout", "dq", "dk", "dv", "dsinks")],
        *[(name, _INT64) for name in ("dout_row", "dout_head")],
    ]


class _StoreSide(ctypes.Structure):
    """`ld_store_side` of csrc/attention_cache.cpp."""

    _fields_ = [
        ("source", _POINTER),
        ("cache", _POINTER),
        *[(name, _INT64) for name in ("dim", "row", "head", "cache_block", "cache_row", "cache_head")],
    ]


class _StoreArguments(ctypes.Structure):
    """`ld_store_args` of csrc/attention_cache.cpp."""

    _fields_ = [
        ("side", _StoreSide * 2),
        ("slots", _POINTER),
        *[(name, _INT64) for name in ("tokens", "heads", "block_size", "capacity")],
        ("bytes", _INT32),
        ("narrow", _INT32),
    ]


def dense_rows(x: torch.Tensor) -> torch.Tensor:
    """`x` with adjacent elements in its last dimension, copied if it has none."""
    return x if x.stride(-1) == 1 or x.shape[-1] <= 1 else x.contiguous()


@functools.lru_cache(maxsize=1024)
def _layout(
    shapes: tuple[torch.Size, ...],
    strides: tuple[tuple[int, ...], ...],
    dtypes: tuple[torch.dtype, ...],
    sinks: torch.Size | None,
    scale: float,
    causal: bool,
    window: int,
    softcap: float,
) -> bytes:
    """The argument record without its pointers, for q, k, v and out of these shapes; everything is checked here."""
    (q, k, v, out), dtype = shapes, dtypes[0]
    if dtype not in DTYPE_CODES or any(other != dtype for other in dtypes):
        raise UnsupportedError(
            "attention: q, k, v (or the cache) and out need one dtype that the contract covers",
            value=[str(x) for x in dtypes],
            hint="bfloat16, float16 and float32 are covered; a quantised KV cache is not",
        )
    if len(q) != 3 or len(k) not in (3, 4) or len(v) != len(k):
        raise InputError("attention: q is [tokens, heads, head size]", value=[tuple(x) for x in shapes])
    (_, heads, dim), kv_heads, dim_v = q, k[-2], v[-1]
    if k[-1] != dim or v[-2] != kv_heads or (len(k) == 4 and k[:2] != v[:2]):
        raise InputError("attention: q, k and v don't fit each other", value=[tuple(x) for x in shapes])
    if kv_heads == 0 or heads == 0 or heads % kv_heads:
        raise InputError("attention: query heads are no positive multiple of the key heads", value=(heads, kv_heads))
    if tuple(out) != (q[0], heads, dim_v):
        raise InputError("attention: out has another shape than the result", value=tuple(out))
    if any(stride[-1] != 1 and shape[-1] > 1 for shape, stride in zip(shapes, strides, strict=True)):
        raise UnsupportedError("attention: cache and out need adjacent elements in the last dimension", value=strides)
    if sinks is not None and tuple(sinks) != (heads,):
        raise InputError("attention: sinks are one value per query head", value=tuple(sinks))
    if window < 0:
        raise InputError("attention: window is a number of keys, 0 for none", value=window)
    if not softcap >= 0:
        raise InputError("attention: softcap is positive, 0 for none", value=softcap)
    sq, sk, sv, so = strides
    record = _Arguments(heads=heads, kv_heads=kv_heads, dim=dim, dim_v=dim_v, q_rows=q[0], k_rows=min(k[0], v[0]))
    record.q_row, record.q_head = sq[:2]
    record.k_row, record.k_head = sk[-3:-1]
    record.v_row, record.v_head = sv[-3:-1]
    record.out_row, record.out_head = so[:2]
    if len(k) == 4:
        record.k_block, record.v_block, record.block_size = sk[0], sv[0], k[1]
    record.window, record.scale, record.softcap = window, scale, softcap
    record.dtype, record.causal = DTYPE_CODES[dtype], int(causal)
    return bytes(record)


def checked(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    scale: float,
    causal: bool,
    window: int,
    softcap: float,
    sinks: torch.Tensor | None,
) -> _Arguments:
    """The argument record without its pointers, for tensors of any device.

    Raises:
        InputError: shapes or numbers that don't fit.
        UnsupportedError: a dtype or layout that the contract doesn't cover.
    """
    template = _layout(
        (q.shape, k.shape, v.shape, out.shape),
        (q.stride(), k.stride(), v.stride(), out.stride()),
        (q.dtype, k.dtype, v.dtype, out.dtype),
        None if sinks is None else sinks.shape,
        scale,
        causal,
        window,
        softcap,
    )
    return _Arguments.from_buffer_copy(template)


def _record(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    scale: float,
    causal: bool,
    window: int,
    softcap: float,
    sinks: torch.Tensor | None,
) -> _Arguments:
    if not (q.is_cpu and k.is_cpu and v.is_cpu and out.is_cpu):
        raise UnsupportedError("attention: a tensor is not on the CPU", hint="aligned-cpu takes CPU tensors")
    record = checked(q, k, v, out, scale, causal, window, softcap, sinks)
    record.q, record.k, record.v, record.out = q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr()
    return record


def _starts(cu: torch.Tensor, name: str) -> torch.Tensor:
    if cu.dim() != 1 or cu.numel() < 1 or cu.is_floating_point():
        raise InputError(f"attention: {name} is a vector of batch + 1 integers", value=tuple(cu.shape))
    return cu.to(torch.int64).contiguous()


def _sinks32(sinks: torch.Tensor | None) -> torch.Tensor | None:
    return None if sinks is None else sinks.detach().to(torch.float32).contiguous()


REFUSED = {
    -11: "cu_q does not run from 0 upwards to at most the rows of q",
    -12: "cu_k does not run from 0 upwards to at most the rows of k and v",
    -13: "a sequence is longer than its row of the block table",
    -14: "the block table names a block that the cache doesn't have",
    -15: "a slot lies beyond the cache",
}


@functools.cache
def _function(name: str, pointers: int) -> Any:
    return function(name, [_POINTER] * pointers)


def _run(name: str, *records: ctypes.Structure) -> None:
    status = _function(name, len(records))(*map(ctypes.addressof, records))
    if status in REFUSED:
        raise InputError(f"attention: {REFUSED[status]}", value=name)
    check(name, status)


def _packed_starts(cu_q: torch.Tensor, cu_k: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """First query rows [B + 1], first key rows [B + 1] and key counts [B], int64."""
    starts_q = _starts(cu_q, "cu_q")
    starts_k = starts_q if cu_k is None else _starts(cu_k, "cu_k")
    if starts_k.numel() != starts_q.numel():
        raise InputError("cu_k has another number of sequences than cu_q", value=(starts_k.numel(), starts_q.numel()))
    return starts_q, starts_k, starts_k.diff()


def _point_packed(
    record: _Arguments,
    starts: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    sinks: torch.Tensor | None,
    lse: torch.Tensor | None,
) -> None:
    starts_q, starts_k, lengths = starts
    record.q_start, record.k_start, record.k_len = starts_q.data_ptr(), starts_k.data_ptr(), lengths.data_ptr()
    record.batch, record.sinks, record.lse = lengths.numel(), address(sinks), address(lse)


def _clear_tail(x: torch.Tensor, rows: int) -> None:
    if rows < x.shape[0]:
        x[rows:] = 0


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_q: torch.Tensor,
    cu_k: torch.Tensor | None,
    scale: float,
    causal: bool,
    window: int,
    softcap: float,
    sinks: torch.Tensor | None,
    lse: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Packed attention: `out [T, Hq, Dv]` and, if asked for, `lse` fp32 [T, Hq]. Rows past cu_q[-1] are zeros."""
    if q.dim() != 3 or k.dim() != 3 or v.dim() != 3:
        raise InputError(
            "attention: q, k and v are [tokens, heads, head size]", value=[tuple(x.shape) for x in (q, k, v)]
        )
    q, k, v, sinks32 = dense_rows(q), dense_rows(k), dense_rows(v), _sinks32(sinks)
    out = torch.empty((q.shape[0], q.shape[1], v.shape[2]), dtype=q.dtype)
    record = _record(q, k, v, out, scale, causal, window, softcap, sinks32)
    starts = _packed_starts(cu_q, cu_k)
    lse_out = torch.empty(q.shape[:2], dtype=torch.float32) if lse else None
    _point_packed(record, starts, sinks32, lse_out)
    _run("ld_attention", record)
    used = int(starts[0][-1])
    _clear_tail(out, used)
    if lse_out is not None and used < lse_out.shape[0]:
        lse_out[used:] = -torch.inf
    return out, lse_out


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    cu_q: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    causal: bool,
    window: int,
    softcap: float,
    sinks: torch.Tensor | None,
    out: torch.Tensor | None,
) -> torch.Tensor:
    """Attention over a paged cache; rows past cu_q[-1] are zeros in a new result and untouched in a given `out`."""
    if q.dim() != 3 or k_cache.dim() != 4 or v_cache.dim() != 4:
        raise InputError(
            "paged_attention: q is [tokens, heads, head size], the caches are [blocks, block, heads, head size]",
            value=[tuple(x.shape) for x in (q, k_cache, v_cache)],
        )
    q, sinks32 = dense_rows(q), _sinks32(sinks)
    result = torch.empty((q.shape[0], q.shape[1], v_cache.shape[3]), dtype=q.dtype) if out is None else out
    record = _record(q, k_cache, v_cache, result, scale, causal, window, softcap, sinks32)
    batch = cu_q.numel() - 1
    if (
        cu_q.dim() != 1
        or batch < 0
        or seq_lens.dim() != 1
        or seq_lens.is_floating_point()
        or block_table.is_floating_point()
        or seq_lens.numel() < batch
        or block_table.dim() != 2
        or block_table.shape[0] < batch
    ):
        raise InputError(
            "paged_attention: seq_lens and block_table are integers of at least the sequences of cu_q",
            value=(tuple(seq_lens.shape), tuple(block_table.shape), tuple(cu_q.shape)),
        )
    narrow = cu_q.dtype == torch.int32 and seq_lens.dtype == torch.int32
    if not narrow:
        cu_q, seq_lens = _starts(cu_q, "cu_q"), seq_lens.to(torch.int64)
    cu_q, seq_lens = cu_q.contiguous(), seq_lens.contiguous()
    if block_table.dtype != torch.int32 or block_table.stride(1) != 1:
        if block_table.dtype == torch.int64:  # what 32 bits can't hold becomes a block that isn't there
            block_table = block_table.clamp(-1, 2**31 - 1)
        block_table = block_table.to(torch.int32).contiguous()
    record.narrow, record.batch, record.sinks = int(narrow), batch, address(sinks32)
    record.q_start, record.k_len, record.block_table = cu_q.data_ptr(), seq_lens.data_ptr(), block_table.data_ptr()
    record.table_row, record.table_columns = block_table.stride(0), block_table.shape[1]
    _run("ld_attention", record)
    if out is None:
        _clear_tail(result, int(cu_q[-1]))
    return result


def attention_backward(
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    cu_q: torch.Tensor,
    cu_k: torch.Tensor | None,
    scale: float,
    causal: bool,
    window: int,
    softcap: float,
    sinks: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Gradients of `attention` for q, k, v (their dtype) and sinks (fp32); `lse` is the one that it returned."""
    dout, lse, sinks32 = dense_rows(dout.to(q.dtype)), lse.contiguous(), _sinks32(sinks)
    q, k, v, out = dense_rows(q), dense_rows(k), dense_rows(v), dense_rows(out)
    record = _record(q, k, v, out, scale, causal, window, softcap, sinks32)
    starts = _packed_starts(cu_q, cu_k)
    _point_packed(record, starts, sinks32, lse)
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype) for x in (q, k, v))
    dsinks = None if sinks is None else torch.empty(sinks.shape, dtype=torch.float32)
    rows, key_rows = int(starts[0][-1]), int(starts[1][-1])
    g = _GradArguments(
        dout=dout.data_ptr(),
        dq=dq.data_ptr(),
        dk=dk.data_ptr(),
        dv=dv.data_ptr(),
        dsinks=address(dsinks),
        dout_row=dout.stride(0),
        dout_head=dout.stride(1),
    )
    _run("ld_attention_backward", record, g)
    _clear_tail(dq, rows)
    _clear_tail(dk, key_rows)
    _clear_tail(dv, key_rows)
    return dq, dk, dv, dsinks


@functools.lru_cache(maxsize=1024)
def _store_layout(
    shapes: tuple[torch.Size, ...],
    strides: tuple[tuple[int, ...], ...],
    dtypes: tuple[torch.dtype, ...],
    tokens: int,
) -> bytes:
    """The record of `store_kv` without its pointers; everything but the slots' values is checked here."""
    if dtypes[0] not in DTYPE_CODES or any(other != dtypes[0] for other in dtypes):
        raise UnsupportedError(
            "store_kv: rows and caches need one dtype that the contract covers",
            value=[str(x) for x in dtypes],
            hint="bfloat16, float16 and float32 are covered; a quantised KV cache is not",
        )
    listed = [tuple(x) for x in shapes]
    if any(len(x) != 3 for x in shapes[:2]) or any(len(x) != 4 for x in shapes[2:]):
        raise InputError("store_kv: rows are [T, heads, size], caches [blocks, block, heads, size]", value=listed)
    k, v, k_cache, v_cache = shapes
    if k_cache[2:] != k[1:] or v_cache[2:] != v[1:] or k[1] != v[1] or k_cache[1] != v_cache[1]:
        raise InputError("store_kv: rows and caches don't have the same heads and blocks", value=listed)
    if tokens > min(k[0], v[0]):
        raise InputError("store_kv: more slots than rows", value=(tokens, k[0], v[0]))
    if any(stride[-1] != 1 and shape[-1] > 1 for shape, stride in zip(shapes, strides, strict=True)):
        raise UnsupportedError("store_kv: a cache needs adjacent elements in its last dimension", value=strides)
    record = _StoreArguments(tokens=tokens, heads=k[1], block_size=k_cache[1])
    record.capacity, record.bytes = min(k_cache[0], v_cache[0]) * k_cache[1], dtypes[0].itemsize
    for side, row, cache, shape in zip(record.side, strides[:2], strides[2:], shapes, strict=False):
        side.dim, side.row, side.head = shape[2], row[0], row[1]
        side.cache_block, side.cache_row, side.cache_head = cache[:3]
    return bytes(record)


def checked_store(
    k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slots: torch.Tensor
) -> _StoreArguments:
    """The record of `store_kv` without its pointers, for tensors of any device; the slots' values aren't looked at.

    Raises:
        InputError: shapes that don't fit.
        UnsupportedError: a dtype or layout that the contract doesn't cover.
    """
    if slots.dim() != 1 or slots.dtype not in (torch.int32, torch.int64):
        raise InputError("store_kv: slots is a vector of int32 or int64", value=(tuple(slots.shape), str(slots.dtype)))
    template = _store_layout(
        (k.shape, v.shape, k_cache.shape, v_cache.shape),
        (k.stride(), v.stride(), k_cache.stride(), v_cache.stride()),
        (k.dtype, v.dtype, k_cache.dtype, v_cache.dtype),
        slots.shape[0],
    )
    return _StoreArguments.from_buffer_copy(template)


def store_kv(
    k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slots: torch.Tensor
) -> None:
    """Row t of k and v into slot `slots[t]` (block slot // block size) of the caches; negative slots are skipped."""
    if not all(x.is_cpu for x in (k, v, k_cache, v_cache, slots)):
        raise UnsupportedError("store_kv: a tensor is not on the CPU", hint="aligned-cpu takes CPU tensors")
    k, v, slots = dense_rows(k), dense_rows(v), slots.contiguous()
    record = checked_store(k, v, k_cache, v_cache, slots)
    keys, values = record.side
    keys.source, keys.cache = k.data_ptr(), k_cache.data_ptr()
    values.source, values.cache = v.data_ptr(), v_cache.data_ptr()
    record.slots, record.narrow = slots.data_ptr(), int(slots.dtype == torch.int32)
    _run("ld_store_kv", record)

"""Attention on the CPU backend: tensors to the kernels of csrc/attention*.cpp, with the checks that they leave out."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import torch

from logdiff_kernels.cpu.library import DTYPE_CODES, check, function
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
        *[(name, _INT64) for name in ("k_block", "v_block", "block_size", "table_row", "window")],
        ("scale", _FLOAT),
        ("softcap", _FLOAT),
        ("dtype", _INT32),
        ("causal", _INT32),
    ]


class _GradArguments(ctypes.Structure):
    """`ld_attention_grad_args` of csrc/attention.h."""

    _fields_ = [
        *[(name, _POINTER) for name in ("dout", "dq", "dk", "dv", "dsinks")],
        *[(name, _INT64) for name in ("dout_row", "dout_head")],
    ]


def _dense_rows(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(-1) == 1 or x.shape[-1] <= 1 else x.contiguous()


def _starts(cu: torch.Tensor, name: str) -> torch.Tensor:
    if cu.dim() != 1 or cu.numel() < 1 or cu.is_floating_point():
        raise InputError(f"attention: {name} is a vector of batch + 1 integers", value=tuple(cu.shape))
    return cu.to(torch.int64).contiguous()


def _check_common(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor | None, window: int, softcap: float
) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.device.type != "cpu":
            raise UnsupportedError(f"attention: {name} is not on the CPU", value=str(x.device))
        if x.dtype not in DTYPE_CODES:
            raise UnsupportedError(
                f"attention: {name} has a dtype that the contract doesn't cover",
                value=str(x.dtype),
                hint="bfloat16, float16 and float32 are covered; a quantised KV cache is not",
            )
        if x.dtype != q.dtype:
            raise UnsupportedError(f"attention: {name} has another dtype than q", value=f"{x.dtype}, q has {q.dtype}")
    heads, kv_heads, dim = q.shape[-2], k.shape[-2], q.shape[-1]
    if k.shape[-1] != dim:
        raise InputError("attention: q and k have different head sizes", value=(dim, k.shape[-1]))
    if v.shape[-2] != kv_heads:
        raise InputError("attention: k and v have different numbers of heads", value=(kv_heads, v.shape[-2]))
    if kv_heads == 0 or heads % kv_heads:
        raise InputError("attention: query heads are no multiple of the key heads", value=(heads, kv_heads))
    if sinks is not None and tuple(sinks.shape) != (heads,):
        raise InputError("attention: sinks are one value per query head", value=tuple(sinks.shape))
    if window < 0:
        raise InputError("attention: window is a number of keys, 0 for none", value=window)
    if not softcap >= 0:
        raise InputError("attention: softcap is positive, 0 for none", value=softcap)


def _sinks32(sinks: torch.Tensor | None) -> torch.Tensor | None:
    return None if sinks is None else sinks.detach().to(torch.float32).contiguous()


def _pointer(x: torch.Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


def _new_out(q: torch.Tensor, dim_v: int, out: torch.Tensor | None) -> torch.Tensor:
    if out is None:
        return torch.empty((q.shape[0], q.shape[1], dim_v), dtype=q.dtype)
    if tuple(out.shape) != (q.shape[0], q.shape[1], dim_v) or out.dtype != q.dtype:
        raise InputError("attention: out has another shape or dtype than the result", value=tuple(out.shape))
    if out.stride(-1) != 1 and dim_v > 1:
        raise UnsupportedError("attention: out needs adjacent elements in its last dimension", value=out.stride())
    return out


class _Call:
    """The filled argument record together with the tensors that its pointers need."""

    def __init__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        cu_q: torch.Tensor,
        k_len: torch.Tensor,
        scale: float,
        causal: bool,
        window: int,
        softcap: float,
        sinks: torch.Tensor | None,
    ) -> None:
        q = _dense_rows(q)
        sinks = _sinks32(sinks)
        self.kept: list[torch.Tensor | None] = [q, k, v, out, cu_q, k_len, sinks]
        a = _Arguments()
        a.q, a.k, a.v, a.out = q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr()
        a.sinks, a.q_start, a.k_len = _pointer(sinks), cu_q.data_ptr(), k_len.data_ptr()
        a.batch, a.heads, a.kv_heads = cu_q.numel() - 1, q.shape[1], k.shape[-2]
        a.dim, a.dim_v = q.shape[2], v.shape[-1]
        a.q_rows, a.k_rows = q.shape[0], k.shape[0]
        a.q_row, a.q_head = q.stride(0), q.stride(1)
        a.k_row, a.k_head = k.stride(-3), k.stride(-2)
        a.v_row, a.v_head = v.stride(-3), v.stride(-2)
        a.out_row, a.out_head = out.stride(0), out.stride(1)
        a.window, a.scale, a.softcap = window, scale, softcap
        a.dtype, a.causal = DTYPE_CODES[q.dtype], int(causal)
        self.arguments = a

    def keep(self, x: torch.Tensor) -> int:
        self.kept.append(x)
        return x.data_ptr()

    def run(self) -> None:
        _run("ld_attention", self.arguments)


_REFUSED = {
    -11: "cu_q does not run from 0 upwards to at most the rows of q",
    -12: "cu_k does not run from 0 upwards to at most the rows of k and v",
    -13: "a sequence is longer than its row of the block table",
    -14: "the block table names a block that the cache doesn't have",
}


@functools.cache
def _function(name: str, pointers: int) -> Any:
    return function(name, [_POINTER] * pointers)


def _run(name: str, *records: ctypes.Structure) -> None:
    status = _function(name, len(records))(*map(ctypes.addressof, records))
    if status in _REFUSED:
        raise InputError(f"attention: {_REFUSED[status]}", value=name)
    check(name, status)


def _packed(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    cu_q: torch.Tensor,
    cu_k: torch.Tensor | None,
    scale: float,
    causal: bool,
    window: int,
    softcap: float,
    sinks: torch.Tensor | None,
) -> _Call:
    k, v = _dense_rows(k), _dense_rows(v)
    starts_q = _starts(cu_q, "cu_q")
    starts_k = starts_q if cu_k is None else _starts(cu_k, "cu_k")
    if starts_k.numel() != starts_q.numel():
        raise InputError("cu_k has another number of sequences than cu_q", value=(starts_k.numel(), starts_q.numel()))
    call = _Call(q, k, v, out, starts_q, starts_k.diff(), scale, causal, window, softcap, sinks)
    call.arguments.k_start = call.keep(starts_k)
    call.arguments.k_rows = min(k.shape[0], v.shape[0])
    return call


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
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != 3:
            raise InputError(f"attention: {name} is [tokens, heads, head size]", value=tuple(x.shape))
    _check_common(q, k, v, sinks, window, softcap)
    out = _new_out(q, v.shape[-1], None)
    call = _packed(q, k, v, out, cu_q, cu_k, scale, causal, window, softcap, sinks)
    lse_out = torch.empty(q.shape[:2], dtype=torch.float32) if lse else None
    call.arguments.lse = _pointer(lse_out)
    call.run()
    used = int(cu_q[-1])
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
    for name, x in (("k_cache", k_cache), ("v_cache", v_cache)):
        if x.dim() != 4:
            raise InputError(f"paged_attention: {name} is [blocks, block, heads, head size]", value=tuple(x.shape))
        if x.stride(-1) != 1 and x.shape[-1] > 1:
            raise UnsupportedError(
                f"paged_attention: {name} needs adjacent elements in its last dimension", value=x.stride()
            )
    if q.dim() != 3:
        raise InputError("paged_attention: q is [tokens, heads, head size]", value=tuple(q.shape))
    if k_cache.shape[:2] != v_cache.shape[:2]:
        raise InputError(
            "paged_attention: k_cache and v_cache have different blocks",
            value=(tuple(k_cache.shape), tuple(v_cache.shape)),
        )
    _check_common(q, k_cache, v_cache, sinks, window, softcap)
    starts = _starts(cu_q, "cu_q")
    batch, block = starts.numel() - 1, k_cache.shape[1]
    if seq_lens.dim() != 1 or seq_lens.numel() < batch or block_table.dim() != 2 or block_table.shape[0] < batch:
        raise InputError(
            "paged_attention: seq_lens and block_table have fewer sequences than cu_q",
            value=(tuple(seq_lens.shape), tuple(block_table.shape), batch),
        )
    lengths = seq_lens[:batch].to(torch.int64).contiguous()
    table = block_table if block_table.dtype == torch.int32 else block_table.to(torch.int32)
    if table.stride(-1) != 1:
        table = table.contiguous()
    given = out is not None
    out = _new_out(q, v_cache.shape[-1], out)
    call = _Call(q, k_cache, v_cache, out, starts, lengths, scale, causal, window, softcap, sinks)
    a = call.arguments
    a.block_table, a.table_row = call.keep(table), table.stride(0) if batch > 1 else table.shape[1]
    a.k_block, a.v_block, a.block_size = k_cache.stride(0), v_cache.stride(0), block
    call.run()
    if not given:
        _clear_tail(out, int(starts[-1]))
    return out


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
    out, lse = _dense_rows(out), lse.contiguous()
    dout = _dense_rows(dout.to(q.dtype))
    call = _packed(q, k, v, out, cu_q, cu_k, scale, causal, window, softcap, sinks)
    call.arguments.lse = call.keep(lse)
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype) for x in (q, k, v))
    dsinks = None if sinks is None else torch.empty(sinks.shape, dtype=torch.float32)
    rows, key_rows = int(cu_q[-1]), int((cu_q if cu_k is None else cu_k)[-1])
    g = _GradArguments(
        dout=dout.data_ptr(),
        dq=dq.data_ptr(),
        dk=dk.data_ptr(),
        dv=dv.data_ptr(),
        dsinks=_pointer(dsinks),
        dout_row=dout.stride(0),
        dout_head=dout.stride(1),
    )
    _run("ld_attention_backward", call.arguments, g)
    _clear_tail(dq, rows)
    _clear_tail(dk, key_rows)
    _clear_tail(dv, key_rows)
    return dq, dk, dv, dsinks


def store_kv(
    k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slots: torch.Tensor
) -> None:
    """Row t of k and v into slot `slots[t]` (block slot // block size) of the caches; negative slots are skipped."""
    slots = slots.to(torch.int64).contiguous()
    for name, x, cache in (("k", k, k_cache), ("v", v, v_cache)):
        if cache.dtype != x.dtype or x.dtype not in DTYPE_CODES:
            raise UnsupportedError(
                f"store_kv: the cache of {name} has another dtype", value=f"{cache.dtype}, {name} has {x.dtype}"
            )
        if x.dim() != 3 or cache.dim() != 4 or cache.shape[2:] != x.shape[1:]:
            raise InputError(
                f"store_kv: {name} and its cache don't have the same heads", value=(tuple(x.shape), tuple(cache.shape))
            )
        if cache.stride(-1) != 1 and cache.shape[-1] > 1:
            raise UnsupportedError(
                f"store_kv: the cache of {name} needs adjacent elements in its last dimension", value=cache.stride()
            )
        if slots.dim() != 1 or slots.numel() > x.shape[0]:
            raise InputError(f"store_kv: more slots than rows of {name}", value=(tuple(slots.shape), x.shape[0]))
    capacity = min(cache.shape[0] * cache.shape[1] for cache in (k_cache, v_cache))
    if slots.numel() and int(slots.max()) >= capacity:
        raise InputError("store_kv: a slot lies beyond the cache", value=(int(slots.max()), capacity))
    call = function("ld_store_kv", [_POINTER] * 3 + [_INT64] * 9 + [_INT32])
    for x, cache in ((k, k_cache), (v, v_cache)):
        x = _dense_rows(x)
        status = call(
            x.data_ptr(),
            cache.data_ptr(),
            slots.data_ptr(),
            slots.numel(),
            x.shape[1],
            x.shape[2],
            x.stride(0),
            x.stride(1),
            cache.shape[1],
            cache.stride(0),
            cache.stride(1),
            cache.stride(2),
            DTYPE_CODES[x.dtype],
        )
        check("ld_store_kv", status)

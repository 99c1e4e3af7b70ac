"""Attention of the numeric contract: training varlen, prefill and paged decode are one definition.

Called on plain tensors the functions go straight to the backend; with autograd, under torch.compile or on fake
tensors they are the operators `torch.ops.logdiff.*`.
"""

from __future__ import annotations

from typing import Any, Literal, overload

import torch
from torch import Tensor

from logdiff_kernels.cpu import attention as cpu
from logdiff_kernels.ops.definition import define
from logdiff_kernels.ops.devices import Kernels
from logdiff_kernels.ops.direct import direct

_kernels = Kernels(cpu)


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_q: Tensor,
    cu_k: Tensor | None = ...,
    *,
    scale: float,
    causal: bool = ...,
    window: int = ...,
    softcap: float = ...,
    sinks: Tensor | None = ...,
    return_lse: Literal[False] = ...,
) -> Tensor: ...


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_q: Tensor,
    cu_k: Tensor | None = ...,
    *,
    scale: float,
    causal: bool = ...,
    window: int = ...,
    softcap: float = ...,
    sinks: Tensor | None = ...,
    return_lse: Literal[True],
) -> tuple[Tensor, Tensor]: ...


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_q: Tensor,
    cu_k: Tensor | None = None,
    *,
    scale: float,
    causal: bool = True,
    window: int = 0,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention over packed sequences.

    Args:
        q: [T, Hq, D] bf16, fp16 or fp32; any strides.
        k: [Tk, Hk, D], Hk dividing Hq; query head h reads key head h // (Hq / Hk).
        v: [Tk, Hk, Dv]; Dv may differ from D (MLA's absorbed form: v a slice of k).
        cu_q: int32 or int64 [B + 1], first query row of each sequence, from 0.
        cu_k: the same for keys; None when keys are those of the queries. The queries of a sequence are its last
            positions: query i sits at len_k - len_q + i.
        scale: factor of q.k, rounded once to fp32.
        causal: a query sees keys up to its own position.
        window: it sees only keys j > position - window; 0 for no window.
        softcap: s = softcap * tanh(s / softcap); 0 for none.
        sinks: [Hq], one more logit per head without a value; neither scaled nor capped.
        return_lse: also give fp32 [T, Hq], the log of the softmax denominator (sink included), -inf for a row that
            sees no key. It has no gradient.

    Returns:
        [T, Hq, Dv] like q; +0 for a row that sees no key. Differentiable in q, k, v and sinks.

    Raises:
        InputError: shapes that don't fit each other.
        UnsupportedError: a dtype or device that the contract doesn't cover.
    """
    if not direct(q, k, v, sinks):
        out, lse = torch.ops.logdiff.attention(q, k, v, cu_q, cu_k, scale, causal, window, softcap, sinks)
        return (out, lse) if return_lse else out
    run = _kernels.of(q).attention
    out, lse_or_none = run(q, k, v, cu_q, cu_k, scale, causal, window, softcap, sinks, return_lse)
    return out if lse_or_none is None else (out, lse_or_none)


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    cu_q: Tensor,
    seq_lens: Tensor,
    *,
    scale: float,
    causal: bool = True,
    window: int = 0,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Attention of new tokens over a paged cache that already holds their keys and values.

    Args:
        q: [T, Hq, D], the last tokens of each sequence: decode (one each), prefill or a chunk of one.
        k_cache: [blocks, block, Hk, D]; any strides with adjacent elements in D.
        v_cache: [blocks, block, Hk, Dv]; the same.
        block_table: integers [B or more, max]; key j of sequence b is row j % block of block_table[b, j // block].
        cu_q: int32 or int64 [B + 1].
        seq_lens: integers [B or more], keys of each sequence, the new tokens included.
        out: where to write [T, Hq, Dv]; rows past cu_q[-1] stay as they are.
        scale, causal, window, softcap, sinks: as in `attention`.

    Returns:
        [T, Hq, Dv] like q, with the bits of `attention` on the same keys. No gradient.

    Raises:
        InputError: shapes or table entries that don't fit.
        UnsupportedError: a dtype, device or cache layout that the contract doesn't cover.
    """
    if out is None and not direct(q, k_cache, v_cache, sinks):
        result: Tensor = torch.ops.logdiff.paged_attention(
            q, k_cache, v_cache, block_table, cu_q, seq_lens, scale, causal, window, softcap, sinks
        )
        return result
    result = _kernels.of(q).paged_attention(
        q, k_cache, v_cache, block_table, cu_q, seq_lens, scale, causal, window, softcap, sinks, out
    )
    return result


def store_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    """Write new keys and values into a paged cache.

    Args:
        k, v: [T, Hk, D] and [T, Hk, Dv]; any strides.
        k_cache, v_cache: [blocks, block, Hk, D] and [..., Dv], as in `paged_attention`; changed in place.
        slots: integers [up to T]; row t goes to row slot % block of block slot // block; negative slots are skipped.

    Raises:
        InputError: shapes that don't fit, a slot beyond the cache.
        UnsupportedError: a cache of another dtype.
    """
    if torch.compiler.is_compiling():
        torch.ops.logdiff.store_kv(k, v, k_cache, v_cache, slots)
    else:
        _kernels.of(k).store_kv(k, v, k_cache, v_cache, slots)


def _gradients(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *rest: Any) -> tuple[Any, ...]:
    dq, dk, dv, dsinks = _kernels.of(q).attention_backward(dout, q, k, v, out, lse, *rest)
    return dq, dk, dv, lse.new_empty(0) if dsinks is None else dsinks


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, cu_q, cu_k, scale, causal, window, softcap, sinks = inputs
    out, lse = output
    ctx.mark_non_differentiable(lse)
    ctx.save_for_backward(q, k, v, out, lse, cu_q, cu_k, sinks)
    ctx.options = (scale, causal, window, softcap)


def _backward(ctx: Any, dout: Tensor, _dlse: Tensor | None) -> tuple[Tensor | None, ...]:
    q, k, v, out, lse, cu_q, cu_k, sinks = ctx.saved_tensors
    dq, dk, dv, dsinks = torch.ops.logdiff.attention_backward(dout, q, k, v, out, lse, cu_q, cu_k, *ctx.options, sinks)
    return dq, dk, dv, None, None, None, None, None, None, None if sinks is None else dsinks.to(sinks.dtype)


_RULE = "float scale, bool causal, SymInt window, float softcap, Tensor? sinks"

define(
    f"attention(Tensor q, Tensor k, Tensor v, Tensor cu_q, Tensor? cu_k, {_RULE}) -> (Tensor, Tensor)",
    lambda q, *rest: _kernels.of(q).attention(q, *rest, lse=True),
    lambda q, k, v, *rest: (
        q.new_empty((q.shape[0], q.shape[1], v.shape[2])),
        q.new_empty(q.shape[:2], dtype=torch.float32),
    ),
    _setup_context,
    _backward,
)
define(
    "attention_backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor cu_q, Tensor? cu_k,"
    f" {_RULE}) -> (Tensor, Tensor, Tensor, Tensor)",
    _gradients,
    lambda dout, q, k, v, out, lse, cu_q, cu_k, scale, causal, window, softcap, sinks: (
        q.new_empty(q.shape),
        k.new_empty(k.shape),
        v.new_empty(v.shape),
        lse.new_empty(0 if sinks is None else sinks.shape[0]),
    ),
)
define(
    "paged_attention(Tensor q, Tensor k_cache, Tensor v_cache, Tensor block_table, Tensor cu_q, Tensor seq_lens,"
    f" {_RULE}) -> Tensor",
    lambda q, *rest: _kernels.of(q).paged_attention(q, *rest, out=None),
    lambda q, k_cache, v_cache, *rest: q.new_empty((q.shape[0], q.shape[1], v_cache.shape[3])),
)
define(
    "store_kv(Tensor k, Tensor v, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor slots) -> ()",
    lambda k, *rest: _kernels.of(k).store_kv(k, *rest),
    lambda k, v, k_cache, v_cache, slots: None,
    mutates=("k_cache", "v_cache"),
)

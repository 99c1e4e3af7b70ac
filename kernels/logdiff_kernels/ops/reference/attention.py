"""Attention in fp64, from its formula: what rounding errors are measured against."""

from __future__ import annotations

import torch
from torch import Tensor


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
    """`ops.attention` in fp64: arguments as there, results fp64; differentiable by torch's autograd."""
    q, k, v = q.double(), k.double(), v.double()
    starts_q = [int(x) for x in cu_q]
    starts_k = starts_q if cu_k is None else [int(x) for x in cu_k]
    group = q.shape[1] // k.shape[1]
    outs, lses = [], []
    for q0, q1, k0, k1 in zip(starts_q, starts_q[1:], starts_k, starts_k[1:], strict=False):
        keys = k[k0:k1].repeat_interleave(group, dim=1)
        values = v[k0:k1].repeat_interleave(group, dim=1)
        scores = torch.einsum("qhd,khd->hqk", q[q0:q1], keys) * scale
        if softcap > 0:
            scores = softcap * torch.tanh(scores / softcap)
        position = torch.arange(q1 - q0)[:, None] + (k1 - k0) - (q1 - q0)
        key = torch.arange(k1 - k0)[None, :]
        visible = torch.ones(q1 - q0, k1 - k0, dtype=torch.bool)
        if causal:
            visible &= key <= position
        if window > 0:
            visible &= key > position - window
        scores = scores.masked_fill(~visible, -torch.inf)
        seen = visible.any(dim=1)
        if sinks is not None:
            sink = sinks.double()[:, None, None].expand(-1, q1 - q0, 1)
            scores = torch.cat([scores, sink], dim=-1)
        lse = torch.logsumexp(scores, dim=-1).masked_fill(~seen, -torch.inf)
        weights = torch.exp(scores - lse.masked_fill(~seen, 0.0)[..., None])[..., : k1 - k0]
        weights = weights.masked_fill(~visible, 0.0)
        outs.append(torch.einsum("hqk,khd->qhd", weights, values))
        lses.append(lse.transpose(0, 1))
    tail = q.shape[0] - starts_q[-1]
    outs.append(q.new_zeros(tail, q.shape[1], v.shape[2]))
    lses.append(q.new_full((tail, q.shape[1]), -torch.inf))
    out, lse = torch.cat(outs), torch.cat(lses)
    return (out, lse) if return_lse else out


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
) -> Tensor:
    """`ops.paged_attention` in fp64: the cache's rows are gathered, then `attention`."""
    block = k_cache.shape[1]
    keys, values, lengths = [], [], [0]
    for b in range(cu_q.numel() - 1):
        j = torch.arange(int(seq_lens[b]))
        pages = block_table[b].long()[j // block]
        keys.append(k_cache[pages, j % block])
        values.append(v_cache[pages, j % block])
        lengths.append(lengths[-1] + j.numel())
    result = attention(
        q,
        torch.cat(keys),
        torch.cat(values),
        cu_q,
        torch.tensor(lengths),
        scale=scale,
        causal=causal,
        window=window,
        softcap=softcap,
        sinks=sinks,
    )
    assert isinstance(result, Tensor)
    return result


def store_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    """`ops.store_kv`, row by row."""
    block = k_cache.shape[1]
    for row, slot in enumerate(slots.tolist()):
        if slot >= 0:
            k_cache[slot // block, slot % block] = k[row]
            v_cache[slot // block, slot % block] = v[row]

"""Inputs of attention's cases: n keys of the longest sequence, beside shorter ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from logdiff_kernels.contract import CHUNK
from logdiff_kernels.cpu import attention as cpu

if TYPE_CHECKING:
    from logdiff_kernels.ascendc.cases import Make, Source

DTYPES = (torch.bfloat16, torch.float16)


def starts(lengths: list[int]) -> Tensor:
    """int32 [B + 1] of the lengths of B sequences."""
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)


def training(
    heads: int,
    kv_heads: int,
    dim: int,
    dim_v: int,
    *,
    causal: bool = True,
    window: int = 0,
    softcap: float = 0.0,
    sinks: bool = False,
) -> Make:
    """Packed sequences of n, 3 and n // 3 tokens; q, k and v are slices of one tensor, as a fused projection gives."""

    def make(source: Source, n: int, dtype: torch.dtype) -> tuple[Any, ...]:
        lengths = [n, 3, n // 3]
        widths = [heads * dim, kv_heads * dim, kv_heads * dim_v]
        rows = source.floats(sum(lengths), sum(widths), dtype=dtype)
        q, k, v = torch.split(rows, widths, 1)
        q, k, v = q.view(-1, heads, dim), k.view(-1, kv_heads, dim), v.view(-1, kv_heads, dim_v)
        extra = source.floats(heads) if sinks else None
        return q, k, v, starts(lengths), None, dim**-0.5, causal, window, softcap, extra, True

    return make


def backward(forward: Make) -> Make:
    """What the gradients take for another case: its inputs, the CPU's results and a gradient of the output."""

    def make(source: Source, n: int, dtype: torch.dtype) -> tuple[Any, ...]:
        inputs = forward(source, n, dtype)  # the last one asks for lse
        out, lse = cpu.attention(*inputs)
        return source.floats(*out.shape, dtype=dtype), *inputs[:3], out, lse, *inputs[3:-1]

    return make


def chunked(source: Source, n: int, dtype: torch.dtype) -> tuple[Any, ...]:
    """The last 9 tokens of n, and 7 of a sequence that has only 5 keys: two rows see nothing."""
    queries, keys = [min(n, 9), 7], [n, 5]
    q, k, v = (source.floats(sum(x), h, 64, dtype=dtype) for x, h in ((queries, 4), (keys, 2), (keys, 2)))
    return q, k, v, starts(queries), starts(keys), 0.125, True, 0, 0.0, source.floats(4), True


def last_chunk(tokens: int, *, sinks: bool = False) -> Make:
    """The last tokens of a chunk and n more keys: cut at its chunks for several cores from about 129 more."""

    def make(source: Source, n: int, dtype: torch.dtype) -> tuple[Any, ...]:
        keys = CHUNK + n
        q, k, v = (source.floats(rows, h, 64, dtype=dtype) for rows, h in ((tokens, 4), (keys, 2), (keys, 2)))
        extra = source.floats(4) if sinks else None
        return q, k, v, starts([tokens]), starts([keys]), 0.125, True, 0, 0.0, extra, True

    return make


def paged(heads: int, kv_heads: int, dim: int, block: int, queries: int, *, window: int = 0, latent: int = 0) -> Make:
    """The last `queries` tokens of sequences of n, 1 and n // 2 keys in shuffled pages; `latent`: values are the first
    elements of keys (MLA). Pages of nobody hold NaN."""

    def make(source: Source, n: int, dtype: torch.dtype) -> tuple[Any, ...]:
        keys = [n, 1, max(1, n // 2)]
        tokens = [min(queries, count) for count in keys]
        pages = [-(-count // block) for count in keys]
        order = torch.randperm(sum(pages) + 2, generator=source.generator)
        cache = source.floats(len(order), 2, block, kv_heads, dim, dtype=dtype)
        cache[order[sum(pages) :]] = torch.nan
        k_cache = cache[:, 0]
        v_cache = k_cache[..., :latent] if latent else cache[:, 1]
        table = torch.full((3, max(pages) + 1), -1, dtype=torch.int32)
        for row, ids in zip(table, torch.split(order[: sum(pages)], pages), strict=True):
            row[: len(ids)] = ids
        q = source.floats(sum(tokens), heads, dim, dtype=dtype)
        lengths = torch.tensor(keys, dtype=torch.int32)
        return q, k_cache, v_cache, table, starts(tokens), lengths, dim**-0.5, True, window, 0.0, None, None

    return make


def store(source: Source, n: int, dtype: torch.dtype) -> tuple[Any, ...]:
    """n tokens into a cache of pages of 16; k and v are slices of one tensor, one token in ten has no slot."""
    rows = source.floats(n, 3, 40 + 24, dtype=dtype)
    cache = source.floats(n // 16 + 2, 2, 16, 3, 40, dtype=dtype)
    slots = torch.randperm(cache.shape[0] * 16, generator=source.generator)[:n]
    slots[::10] = -1
    return rows[..., :40], rows[..., 40:], cache[:, 0], cache[:, 1, ..., :24], slots

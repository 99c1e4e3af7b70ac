"""Random attention problems: packed sequences, their pages, chunks and options."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch
from logdiff_kernels import ops
from torch import Tensor

from tests.kernels.ops.attention_oracle import Options
from tests.kernels.oracle import hard_values

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
LENGTHS = (0, 1, 2, 15, 16, 17, 33, 63, 64, 65, 100, 127, 128, 129, 300, 511, 512, 513, 640)


@dataclass
class Case:
    """Packed q [T, Hq, D], k, v [Tk, Hk, ...] with the starts of the sequences."""

    q: Tensor
    k: Tensor
    v: Tensor
    cu_q: Tensor
    cu_k: Tensor
    sinks: Tensor | None
    options: Options

    @property
    def arguments(self) -> dict[str, Any]:
        o = self.options
        return {"scale": o.scale, "causal": o.causal, "window": o.window, "softcap": o.softcap, "sinks": self.sinks}

    def run(self, **changes: Any) -> tuple[Tensor, Tensor]:
        return ops.attention(
            changes.pop("q", self.q),
            changes.pop("k", self.k),
            changes.pop("v", self.v),
            changes.pop("cu_q", self.cu_q),
            changes.pop("cu_k", self.cu_k),
            return_lse=True,
            **{**self.arguments, **changes},
        )

    def sequences(self) -> list[tuple[slice, slice]]:
        q, k = self.cu_q.tolist(), self.cu_k.tolist()
        return [(slice(q[b], q[b + 1]), slice(k[b], k[b + 1])) for b in range(len(q) - 1)]


def starts(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0)


def draw(
    seed: int,
    *,
    lengths: tuple[int, ...] = LENGTHS,
    sequences: int = 3,
    chunked: bool = False,
    causal: bool | None = None,
    special: bool = False,
) -> Case:
    """A case whose every choice follows from the seed; `chunked`: fewer queries than keys."""
    rng = random.Random(seed)
    dtype, kv_heads, group = rng.choice(DTYPES), rng.choice([1, 2, 3]), rng.choice([1, 2, 3, 4, 5, 8])
    dim = rng.choice([16, 32, 48, 64, 80, 96, 128, 256, 7, 33])
    dim_v = dim if rng.random() < 0.7 else rng.choice([16, 24, 40, 64, 5])
    keys = [rng.choice(lengths) for _ in range(rng.randint(1, sequences))]
    queries = [min(n, rng.choice([0, 1, 2, 7, 40])) if chunked and rng.random() < 0.7 else n for n in keys]
    cu_q, cu_k = starts(queries), starts(keys)
    options = Options(
        scale=dim**-0.5,
        causal=rng.random() < 0.8 if causal is None else causal,
        window=rng.choice([0, 0, 1, 7, 64, 130, 600]),
        softcap=rng.choice([0.0, 0.0, 2.0, 50.0]),
    )
    return Case(
        hard_values((int(cu_q[-1]), kv_heads * group, dim), dtype, seed, special=special),
        hard_values((int(cu_k[-1]), kv_heads, dim), dtype, seed + 1),
        hard_values((int(cu_k[-1]), kv_heads, dim_v), dtype, seed + 2),
        cu_q,
        cu_k,
        hard_values((kv_heads * group,), torch.float32, seed + 3) if rng.random() < 0.5 else None,
        options,
    )


@dataclass
class Pages:
    k: Tensor
    v: Tensor
    table: Tensor
    block: int

    def slots(self, sequence: int, begin: int, end: int) -> Tensor:
        j = torch.arange(begin, end)
        return self.table[sequence, j // self.block].long() * self.block + j % self.block


def pages_for(case: Case, seed: int, *, block: int | None = None) -> Pages:
    """An empty cache (filled with NaN) with a shuffled table for the keys of the case; one of three layouts."""
    rng = random.Random(seed)
    block = block or rng.choice([16, 32, 64, 128, 5])
    counts = [-(-(k.stop - k.start) // block) for _, k in case.sequences()]
    total, heads, dim, dim_v = sum(counts) + 2, case.k.shape[1], case.k.shape[2], case.v.shape[2]
    order = rng.sample(range(total), total)
    table = torch.full((len(counts), max(1, *counts)), -1, dtype=torch.int32)
    for b, n in enumerate(counts):
        table[b, :n] = torch.tensor([order.pop() for _ in range(n)], dtype=torch.int32)
    nan, layout = float("nan"), rng.choice(["separate", "heads first", "interleaved"])
    if layout == "interleaved":
        both = torch.full((total, block, heads, dim + dim_v), nan, dtype=case.q.dtype)
        return Pages(both[..., :dim], both[..., dim:], table, block)
    if layout == "heads first":
        k, v = (torch.full((total, heads, block, n), nan, dtype=case.q.dtype).transpose(1, 2) for n in (dim, dim_v))
        return Pages(k, v, table, block)
    k, v = (torch.full((total, block, heads, n), nan, dtype=case.q.dtype) for n in (dim, dim_v))
    return Pages(k, v, table, block)

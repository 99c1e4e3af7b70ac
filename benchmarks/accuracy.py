"""Law 10 of the numeric contract: rms error of every operator against fp64, beside stock torch on the same data.

`python -m benchmarks.accuracy [--json]`. Bars: results in bf16 and fp16 at most 1.05 times stock's error; `linear` in
fp32 at most sqrt(K) 2^-24 of |x||w|; everything else in fp32 at most twice stock's or 2^-22 of the result. Errors are
relative to the rms of the fp64 result (`linear` in fp32: of |x||w|). Exit 1 when one is over its bar.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from logdiff_kernels import ops
from logdiff_kernels.contract.router import RouterSpec
from logdiff_kernels.ops.reference import activation as exact_activation
from logdiff_kernels.ops.reference import attention as exact_attention
from logdiff_kernels.ops.reference import embedding as exact_embedding
from logdiff_kernels.ops.reference import linear as exact_linear
from logdiff_kernels.ops.reference import logprob as exact_logprob
from logdiff_kernels.ops.reference import moe as exact_moe
from logdiff_kernels.ops.reference import norm as exact_norm
from logdiff_kernels.ops.reference import rope as exact_rope
from logdiff_kernels.ops.reference import router as exact_router
from torch import Tensor
from torch.nn import functional

ROWS = 128
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True)
class Case:
    """Results of one operator on one data set: ours, stock torch's, in fp64.

    Attributes:
        norm: what errors are relative to; None: the rms of the exact result.
        terms: K of a `linear` in fp32, whose bar needs no stock; else 0.
    """

    operator: str
    ours: Tensor
    stock: Tensor
    exact: Tensor
    norm: Tensor | None = None
    terms: int = 0

    def row(self, dtype: torch.dtype) -> dict[str, Any]:
        """{operator, dtype, ours, stock, ratio, bar, ok}; `bar` bounds `ours`."""
        size = _rms(self.exact if self.norm is None else self.norm)
        ours, stock = (_rms(found.double() - self.exact) / size for found in (self.ours, self.stock))
        if self.ours.dtype is not torch.float32:
            bar = 1.05 * stock
        elif self.terms:
            bar = self.terms**0.5 * 2.0**-24
        else:
            bar = max(2 * stock, 2.0**-22)
        name = str(dtype).removeprefix("torch.")
        ratio = ours / stock if stock else float(ours > 0)
        return {
            "operator": self.operator,
            "dtype": name,
            "ours": ours,
            "stock": stock,
            "ratio": ratio,
            "bar": bar,
            "ok": ours <= bar,
        }


def cases(dtype: torch.dtype) -> Iterator[Case]:
    """Every operator with arithmetic of its own, on normal data with a few large columns."""
    torch.manual_seed(20240607)
    yield from _linear(dtype)
    yield from _row_wise(dtype)
    yield from _attention(dtype)
    yield from _mixture(dtype)


def _linear(dtype: torch.dtype) -> Iterator[Case]:
    for k, n in ((576, 1536), (4096, 512)):
        x, w, b = _rows(ROWS, k, dtype), _weight(dtype, n, k), _weight(dtype, n)
        norm = (x.double().norm(dim=1)[:, None] * w.double().norm(dim=1)[None]) if dtype is torch.float32 else None
        terms = k if dtype is torch.float32 else 0
        yield Case(
            f"linear {k}x{n}",
            ops.linear(x, w, b),
            functional.linear(x, w, b),
            exact_linear.linear(x, w, b),
            norm,
            terms,
        )
        yield Case(
            f"linear_row {k}x{n}",
            ops.linear_row(x, w),
            functional.linear(x, w),
            exact_linear.linear_row(x, w),
            norm,
            terms,
        )
    x, w = _rows(ROWS, 576, dtype), _weight(dtype, 4096, 576)
    norm, terms = x.double().norm(dim=1)[:, None] * w.double().norm(dim=1)[None], 576
    exact = exact_linear.lm_head(x, w)
    yield Case("lm_head", ops.lm_head(x, w), functional.linear(x.float(), w.float()), exact, norm, terms)
    ids, table = torch.randint(0, 4096, (ROWS,)), w
    yield Case(
        "embedding", ops.embedding(ids, table), functional.embedding(ids, table), exact_embedding.embedding(ids, table)
    )


def _row_wise(dtype: torch.dtype) -> Iterator[Case]:
    for n in (576, 4096):
        x, r, w = _rows(ROWS, n, dtype), _rows(ROWS, n, dtype), 1 + _weight(dtype, n)
        exact = exact_norm.rms_norm(x, w, 1e-6)
        yield Case(f"rms_norm {n}", ops.rms_norm(x, w, 1e-6), functional.rms_norm(x, (n,), w, 1e-6), exact)
        total = x + r
        yield Case(
            f"add_rms_norm {n}",
            ops.add_rms_norm(x, r, w, 1e-6)[0],
            functional.rms_norm(total, (n,), w, 1e-6),
            exact_norm.rms_norm(total, w, 1e-6),
        )
    x, angle = torch.randn(ROWS, 9, 64).to(dtype), torch.rand(ROWS, 32) * 6
    cos, sin = angle.cos(), angle.sin()
    wide_cos, wide_sin = (torch.cat([t, t], dim=1)[:, None].to(dtype) for t in (cos, sin))
    half = torch.cat((-x[..., 32:], x[..., :32]), dim=-1)
    yield Case("rope", ops.rope(x, cos, sin), x * wide_cos + half * wide_sin, exact_rope.rope(x, cos, sin))
    gate, up = _rows(ROWS, 1536, dtype), _rows(ROWS, 1536, dtype)
    yield Case("swiglu", ops.swiglu(gate, up), functional.silu(gate) * up, exact_activation.swiglu(gate, up))
    yield Case(
        "geglu_tanh",
        ops.geglu_tanh(gate, up),
        functional.gelu(gate, approximate="tanh") * up,
        exact_activation.geglu_tanh(gate, up),
    )
    g, u = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
    yield Case(
        "swiglu_clamped",
        ops.swiglu_clamped(gate, up, 1.702, 7.0),
        (u + 1) * (g * torch.sigmoid(g * 1.702)),
        exact_activation.swiglu_clamped(gate, up, 1.702, 7.0),
    )
    if dtype is torch.float32:  # its input is fp32 logits whatever the model's dtype
        for vocabulary in (49152, 151936):
            logits, chosen = torch.randn(ROWS, vocabulary) * 4, torch.randint(0, vocabulary, (ROWS,))
            stock = torch.log_softmax(logits, -1).gather(1, chosen[:, None])[:, 0]
            yield Case(
                f"logprob {vocabulary}", ops.logprob(logits, chosen), stock, exact_logprob.logprob(logits, chosen)
            )


def _attention(dtype: torch.dtype) -> Iterator[Case]:
    for length, heads, kv_heads, dim in ((530, 9, 3, 64), (1100, 8, 2, 128)):
        q, k, v = (torch.randn(length, h, dim).to(dtype) for h in (heads, kv_heads, kv_heads))
        starts = torch.tensor([0, length], dtype=torch.int32)
        exact = exact_attention.attention(q, k, v, starts, scale=dim**-0.5)
        assert isinstance(exact, Tensor)
        wide = (q, k.repeat_interleave(heads // kv_heads, 1), v.repeat_interleave(heads // kv_heads, 1))
        moved = (x.transpose(0, 1)[None] for x in wide)
        stock = functional.scaled_dot_product_attention(*moved, is_causal=True)[0].transpose(0, 1)
        name = f"attention {heads}:{kv_heads}x{dim} L{length}"
        yield Case(name, ops.attention(q, k, v, starts, scale=dim**-0.5), stock, exact)


def _mixture(dtype: torch.dtype) -> Iterator[Case]:
    logits = torch.randn(ROWS, 8) * 2
    weights, experts = ops.router(logits, RouterSpec(top_k=2, renormalize=True))
    if dtype is torch.float32:
        best = torch.softmax(logits, -1).topk(2, dim=-1).values
        exact = exact_router.router(logits, RouterSpec(top_k=2, renormalize=True))[0]
        yield Case("router", weights, best / best.sum(-1, keepdim=True), exact.double())
    x, fused, down = _rows(ROWS, 256, dtype), _weight(dtype, 8, 512, 256), _weight(dtype, 8, 256, 256)
    stock = torch.zeros(ROWS, 256, dtype=dtype)
    for expert in range(8):
        row, slot = (experts == expert).nonzero(as_tuple=True)
        gate, up = functional.linear(x[row], fused[expert]).chunk(2, dim=-1)
        y = functional.linear(functional.silu(gate) * up, down[expert])
        stock.index_add_(0, row, (y * weights[row, slot, None]).to(dtype))
    yield Case("moe", ops.moe(x, experts, weights, fused, down), stock, exact_moe.moe(x, experts, weights, fused, down))


def _rows(count: int, width: int, dtype: torch.dtype) -> Tensor:
    values = torch.randn(count, width)
    values[:, ::97] *= 8
    return values.to(dtype)


def _weight(dtype: torch.dtype, *shape: int) -> Tensor:
    return (torch.randn(shape) * shape[-1] ** -0.5).to(dtype)


def _rms(values: Tensor) -> float:
    return float(values.double().pow(2).mean().sqrt())


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with torch.no_grad():
        rows = [case.row(dtype) for dtype in DTYPES for case in cases(dtype)]
    if options.json:
        print(json.dumps({"benchmark": "accuracy", "rows": rows}, indent=1))
    else:
        print("| operator | dtype | ours | stock | ours / stock | bar | |\n| --- | --- | --- | --- | --- | --- | --- |")
        for row in rows:
            figures = f"{row['ours']:.3g} | {row['stock']:.3g} | {row['ratio']:.3f} | {row['bar']:.3g}"
            print(f"| {row['operator']} | {row['dtype']} | {figures} | {'holds' if row['ok'] else 'OVER'} |")
    return 0 if all(row["ok"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())

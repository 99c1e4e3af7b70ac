"""Linear layers against torch: decode (few rows, weights out of cache) and prefill, bf16; torch in fp32 for prefill.

Before timing, each case is compared with the fp64 reference. `linear-experts` is a mixture's decode: a loop of
`functional.linear` over the experts that have rows is its peer.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import torch
from logdiff_kernels import ops
from logdiff_kernels.ops.reference import linear as exact
from torch import Tensor
from torch.nn import functional

from benchmarks.operators.timing import check, compare

Row = dict[str, Any]
DECODE_ROWS = (1, 2, 4, 8)
DECODE = ((576, 576), (1536, 576), (576, 1536), (2048, 2048), (4096, 4096), (14336, 4096), (4096, 14336))  # N, K
PREFILL = ((512, 576, 576), (2048, 1536, 576), (512, 2048, 2048), (1024, 4096, 4096))  # M, N, K
FLUSH_BYTES = 64 << 20  # copies of a weight that are cycled through, so that it comes from memory as in a model


def decode(seconds: float = 0.4) -> list[Row]:
    """`linear` of 1 to 8 rows against oneDNN's bf16 product."""
    rows = []
    for n, k in DECODE:
        copies = [_random(n, k) for _ in range(max(1, min(32, FLUSH_BYTES // (2 * n * k))))]
        for m in DECODE_ROWS:
            x = _random(m, k)
            check(ops.linear(x, copies[0]), exact.linear(x, copies[0]))
            mine, theirs = itertools.cycle(copies), itertools.cycle(copies)
            ours = lambda x=x, w=mine: ops.linear(x, next(w))  # noqa: E731
            peers = {"torch-bf16": lambda x=x, w=theirs: functional.linear(x, next(w))}
            rows += compare("linear-decode", f"{m}x{n}x{k}", ours, peers, seconds=seconds)
    return rows


def prefill(seconds: float = 1.0) -> list[Row]:
    """`linear` and `linear_row` of many rows against torch's product in bf16 and in fp32."""
    rows = []
    for m, n, k in PREFILL:
        x, w = _random(m, k), _random(n, k)
        wide_x, wide_w = x.float(), w.float()
        peers = {
            "torch-bf16": lambda x=x, w=w: functional.linear(x, w),
            "torch-fp32": lambda x=wide_x, w=wide_w: functional.linear(x, w),
        }
        for name, product in (("", ops.linear), ("-row", ops.linear_row)):
            check(product(x, w), exact.linear(x, w))
            ours = lambda x=x, w=w, f=product: f(x, w)  # noqa: E731
            rows += compare("linear-prefill", f"{m}x{n}x{k}{name}", ours, peers, seconds=seconds)
    return rows


def experts(seconds: float = 0.4) -> list[Row]:
    """`grouped_linear` of a few tokens over 128 experts, top-8."""
    rows = []
    w = _random(128, 1536, 1024)
    for tokens in DECODE_ROWS:
        chosen = torch.stack([torch.randperm(128)[:8] for _ in range(tokens)]).flatten().sort().values
        offsets = torch.searchsorted(chosen, torch.arange(129))
        x = _random(len(chosen), 1024)
        check(ops.grouped_linear(x, offsets, w), exact.grouped_linear(x, offsets, w))
        bounds = offsets.tolist()
        peers = {"torch-bf16": lambda x=x, o=bounds: _loop(x, o, w)}
        ours = lambda x=x, o=offsets: ops.grouped_linear(x, o, w)  # noqa: E731
        rows += compare("linear-experts", f"{tokens}x128x8x1536x1024", ours, peers, seconds=seconds)
    return rows


CASES: dict[str, Callable[..., list[Row]]] = {
    "linear-decode": decode,
    "linear-prefill": prefill,
    "linear-experts": experts,
}


def run(cases: tuple[str, ...] = tuple(CASES), quick: bool = False) -> list[Row]:
    """Rows {case, ours_ms, peer, peer_ms, ratio, spread, shape} of the named cases; shape is MxNxK.

    `quick` spends a tenth of a second on each comparison.
    """
    options = {"seconds": 0.1} if quick else {}
    with torch.no_grad():
        return [row for case in cases for row in CASES[case](**options)]


def _random(*shape: int) -> Tensor:
    return torch.randn(shape).bfloat16()


def _loop(x: Tensor, offsets: list[int], weight: Tensor) -> Tensor:
    spans = [(e, a, b) for e, (a, b) in enumerate(itertools.pairwise(offsets)) if b > a]
    return torch.cat([functional.linear(x[a:b], weight[e]) for e, a, b in spans])


if __name__ == "__main__":
    for line in run():
        print(json.dumps(line))

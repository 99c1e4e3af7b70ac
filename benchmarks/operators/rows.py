"""Norms, RoPE, gated activations and log-probabilities against torch; decode and prefill sizes, bf16.

Peers: what a model runs without us. Each case is first compared with the fp64 reference.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch
from logdiff_kernels import ops
from logdiff_kernels.ops.reference import activation as exact_activation
from logdiff_kernels.ops.reference import logprob as exact_logprob
from logdiff_kernels.ops.reference import norm as exact_norm
from logdiff_kernels.ops.reference import rope as exact_rope
from torch import Tensor
from torch.nn import functional

from benchmarks.operators.timing import check, compare

Row = dict[str, Any]
TOKENS = (1, 8, 2048)


def rms_norm(seconds: float = 0.4) -> list[Row]:
    """rms_norm and add_rms_norm against `torch.nn.functional.rms_norm` and the eager form of Llama."""
    rows = []
    for tokens in TOKENS:
        for width in (576, 4096):
            x, r, w = _random(tokens, width), _random(tokens, width), _random(width)
            check(ops.rms_norm(x, w, 1e-6), exact_norm.rms_norm(x, w, 1e-6))
            peers = {
                "torch": lambda x=x, w=w, n=width: functional.rms_norm(x, (n,), w, 1e-6),
                "eager": lambda x=x, w=w: _llama_norm(x, w),
            }
            ours = lambda x=x, w=w: ops.rms_norm(x, w, 1e-6)  # noqa: E731
            rows += compare("rms_norm", f"{tokens}x{width}", ours, peers, seconds=seconds)
            peers = {"torch": lambda x=x, r=r, w=w, n=width: functional.rms_norm(x + r, (n,), w, 1e-6)}
            ours = lambda x=x, r=r, w=w: ops.add_rms_norm(x, r, w, 1e-6)  # noqa: E731
            rows += compare("rms_norm", f"add-{tokens}x{width}", ours, peers, seconds=seconds)
    return rows


def rope(seconds: float = 0.4) -> list[Row]:
    """rope against the rotation of Llama in torch, tables given."""
    rows = []
    for tokens in TOKENS:
        for heads, dim in ((9, 64), (32, 128)):
            x, angle = _random(tokens, heads, dim), torch.rand(tokens, dim // 2) * 6
            cos, sin = angle.cos(), angle.sin()
            wide_cos, wide_sin = (torch.cat([t, t], dim=1)[:, None].bfloat16() for t in (cos, sin))
            check(ops.rope(x, cos, sin), exact_rope.rope(x, cos, sin))
            peers = {"torch": lambda x=x, c=wide_cos, s=wide_sin: x * c + _rotate_half(x) * s}
            ours = lambda x=x, c=cos, s=sin: ops.rope(x, c, s)  # noqa: E731
            rows += compare("rope", f"{tokens}x{heads}x{dim}", ours, peers, seconds=seconds)
    return rows


def swiglu(seconds: float = 0.4) -> list[Row]:
    """swiglu against `act_fn(gate) * up` of a Llama MLP, gate and up from projections of their own."""
    rows, act = [], torch.nn.SiLU()
    for tokens in TOKENS:
        for width in (1536, 11008):
            gate, up = _random(tokens, width), _random(tokens, width)
            check(ops.swiglu(gate, up), exact_activation.swiglu(gate, up))
            peers = {"torch": lambda g=gate, u=up: act(g) * u}
            ours = lambda g=gate, u=up: ops.swiglu(g, u)  # noqa: E731
            rows += compare("swiglu", f"{tokens}x{width}", ours, peers, seconds=seconds)
    return rows


def logprob(seconds: float = 0.4) -> list[Row]:
    """logprob against fp32 log_softmax and gather."""
    rows = []
    for tokens in (1, 8, 256):
        for vocabulary in (49152, 151936):
            logits, ids = torch.randn(tokens, vocabulary) * 4, torch.randint(0, vocabulary, (tokens,))
            check(ops.logprob(logits, ids), exact_logprob.logprob(logits, ids), 1e-5)
            peers = {"torch": lambda x=logits, i=ids: torch.log_softmax(x, dim=-1).gather(1, i[:, None])}
            ours = lambda x=logits, i=ids: ops.logprob(x, i)  # noqa: E731
            rows += compare("logprob", f"{tokens}x{vocabulary}", ours, peers, seconds=seconds)
    return rows


CASES: dict[str, Callable[[float], list[Row]]] = {
    "rms_norm": rms_norm,
    "rope": rope,
    "swiglu": swiglu,
    "logprob": logprob,
}


def run(cases: tuple[str, ...] = tuple(CASES), quick: bool = False) -> list[Row]:
    """Rows {case, ours_ms, peer, peer_ms, ratio, spread, shape}; `quick` spends 0.1 s instead of 0.4 on each."""
    with torch.no_grad():
        return [row for case in cases for row in CASES[case](0.1 if quick else 0.4)]


def _random(*shape: int) -> Tensor:
    return torch.randn(shape).bfloat16()


def _llama_norm(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def _rotate_half(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


if __name__ == "__main__":
    for line in run():
        print(json.dumps(line))

"""Times of the operators on an NPU, against what torch runs on the same NPU. Not run on hardware."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from logdiff_kernels import ops
from logdiff_kernels.errors import InputError

Call = Callable[[], Tensor]

BOUND = 3e-2
"""Largest difference from the peer, relative to its largest value: a case that is further off is not timed."""

_ROUNDS = 15


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the cases, those of a model of 7 to 8 billion parameters."""

    tokens: tuple[int, ...] = (1, 2048)
    width: int = 4096
    hidden: int = 14336
    vocabulary: int = 128256
    heads: int = 32
    kv_heads: int = 8
    dim: int = 128
    keys: int = 4096
    batches: tuple[int, ...] = (1, 16)
    page: int = 128


@dataclass(frozen=True, slots=True)
class Case:
    """Ours and torch's call of one shape."""

    case: str
    shape: str
    ours: Call
    peer: Call


CASES = ("rms_norm", "swiglu", "linear", "logprob", "attention-prefill", "paged-decode")


def run(
    device: torch.device,
    wait: Callable[[], None],
    wanted: Sequence[str] = (),
    *,
    quick: bool = False,
    sizes: Sizes | None = None,
    on_case: Callable[[int, int, str], None] | None = None,
) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """Rows of `logdiff-bench/1`, and what was skipped with the reason.

    Args:
        device: of the NPU.
        wait: returns when everything that was started on it has ended.
        wanted: names of `CASES`; none: all.
        quick: a quarter of the time.
        on_case: called as (done, total, name) before each name.

    Raises:
        InputError: no such case.
    """
    for name in wanted:
        if name not in CASES:
            raise InputError("no such benchmark on an NPU", value=name, hint=f"one of: {', '.join(CASES)}")
    chosen = [name for name in CASES if name in (wanted or CASES)]
    results: list[dict[str, Any]] = []
    skipped: list[dict[str, str]] = []
    with torch.no_grad():
        for done, name in enumerate(chosen):
            if on_case is not None:
                on_case(done, len(chosen), name)
            for case in _MAKERS[name](device, sizes or Sizes()):
                reason = _far(case)
                if reason:
                    skipped.append({"case": case.case, "reason": f"{case.shape}: {reason}"})
                else:
                    results.append(_compare(case, wait, 0.1 if quick else 0.4))
    return results, skipped


def _far(case: Case) -> str:
    """Why a case is not timed: torch can't run it there, or the results are apart."""
    ours = case.ours().float()
    try:
        theirs = case.peer().float()
    except (RuntimeError, NotImplementedError) as error:
        return f"torch can't run its side: {str(error).splitlines()[0][:200]}"
    apart = float((ours - theirs).abs().max() / theirs.abs().max())
    return "" if apart < BOUND else f"differs from torch's by {apart:.3g} of its largest value"


def _compare(case: Case, wait: Callable[[], None], seconds: float) -> dict[str, Any]:
    """Medians over rounds in which both take turns; `spread`: half the 10 to 90 percent range of their ratios."""
    calls = (case.ours, case.peer)
    repeats = [max(1, int(seconds / _ROUNDS / 2 / max(_time(call, 3, wait), 1e-7))) for call in calls]
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(_ROUNDS):
        for i in (0, 1) if turn % 2 else (1, 0):
            times[i].append(_time(calls[i], repeats[i], wait))
    ratios = sorted(peer / mine for mine, peer in zip(*times, strict=True))
    middle = statistics.median(ratios)
    low, high = ratios[_ROUNDS // 10], ratios[-1 - _ROUNDS // 10]
    return {
        "case": case.case,
        "shape": case.shape,
        "ours_ms": statistics.median(times[0]) * 1e3,
        "peer": "torch",
        "peer_ms": statistics.median(times[1]) * 1e3,
        "ratio": middle,
        "spread": (high - low) / 2 / middle,
    }


def _time(call: Call, repeats: int, wait: Callable[[], None]) -> float:
    wait()
    begin = time.perf_counter()
    for _ in range(repeats):
        call()
    wait()
    return (time.perf_counter() - begin) / repeats


def _random(device: torch.device, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))).to(dtype).to(device)


def _rms_norm(device: torch.device, sizes: Sizes) -> Iterator[Case]:
    for tokens in sizes.tokens:
        x, w = _random(device, tokens, sizes.width), _random(device, sizes.width)
        peer = partial(functional.rms_norm, x, (sizes.width,), w, 1e-6)
        yield Case("rms_norm", f"{tokens}x{sizes.width}", partial(ops.rms_norm, x, w, 1e-6), peer)


def _swiglu(device: torch.device, sizes: Sizes) -> Iterator[Case]:
    def peer(gate: Tensor, up: Tensor) -> Tensor:
        return functional.silu(gate) * up

    for tokens in sizes.tokens:
        gate, up = (_random(device, tokens, sizes.hidden) for _ in range(2))
        yield Case("swiglu", f"{tokens}x{sizes.hidden}", partial(ops.swiglu, gate, up), partial(peer, gate, up))


def _linear(device: torch.device, sizes: Sizes) -> Iterator[Case]:
    for tokens in sizes.tokens:
        x, w = _random(device, tokens, sizes.width), _random(device, sizes.hidden, sizes.width)
        shape = f"{tokens}x{sizes.width} to {sizes.hidden}"
        yield Case("linear", shape, partial(ops.linear, x, w), partial(functional.linear, x, w))


def _logprob(device: torch.device, sizes: Sizes) -> Iterator[Case]:
    def peer() -> Tensor:
        return torch.log_softmax(x, dim=-1).gather(1, ids[:, None])[:, 0]

    tokens = min(256, sizes.tokens[-1])
    x = _random(device, tokens, sizes.vocabulary, dtype=torch.float32)
    ids = (torch.arange(tokens) * 7919 % sizes.vocabulary).to(device)
    yield Case("logprob", f"{tokens}x{sizes.vocabulary}", partial(ops.logprob, x, ids), peer)


def _prefill(device: torch.device, sizes: Sizes) -> Iterator[Case]:
    def peer() -> Tensor:
        out: Tensor = functional.scaled_dot_product_attention(wide[0], wide[1], wide[2], is_causal=True)
        return out[0].transpose(0, 1)

    n = sizes.tokens[-1]
    q, k, v = (_random(device, n, heads, sizes.dim) for heads in (sizes.heads, sizes.kv_heads, sizes.kv_heads))
    starts = torch.tensor([0, n], dtype=torch.int32)
    wide = [x.repeat_interleave(sizes.heads // x.shape[1], 1).transpose(0, 1)[None].contiguous() for x in (q, k, v)]
    shape = f"{sizes.heads}:{sizes.kv_heads}x{sizes.dim} {n}"
    yield Case("attention-prefill", shape, partial(ops.attention, q, k, v, starts, scale=sizes.dim**-0.5), peer)


def _decode(device: torch.device, sizes: Sizes) -> Iterator[Case]:
    """torch has its keys side by side and a copy for each head, ours have pages."""

    def peer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out: Tensor = functional.scaled_dot_product_attention(q, k, v)
        return out[:, :, 0]

    pages = sizes.keys // sizes.page
    for batch in sizes.batches:
        q = _random(device, batch, sizes.heads, sizes.dim)
        k, v = (_random(device, batch * pages, sizes.page, sizes.kv_heads, sizes.dim) for _ in range(2))
        table = torch.arange(batch * pages, dtype=torch.int32).view(batch, pages).to(device)
        starts = torch.arange(batch + 1, dtype=torch.int32)
        lengths = torch.full((batch,), sizes.keys, dtype=torch.int32)
        dense = [x.reshape(batch, sizes.keys, sizes.kv_heads, sizes.dim).transpose(1, 2) for x in (k, v)]
        wide_k, wide_v = (x.repeat_interleave(sizes.heads // sizes.kv_heads, 1).contiguous() for x in dense)
        yield Case(
            "paged-decode",
            f"{sizes.heads}:{sizes.kv_heads}x{sizes.dim} {batch}x{sizes.keys}",
            partial(ops.paged_attention, q, k, v, table, starts, lengths, scale=sizes.dim**-0.5),
            partial(peer, q[:, :, None], wide_k, wide_v),
        )


_MAKERS = dict(zip(CASES, (_rms_norm, _swiglu, _linear, _logprob, _prefill, _decode), strict=True))

"""Bounds as in `fp64_bounds`, of attention and its gradients: some rows and keys of each sequence are compared."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from logdiff_kernels.contract import CHUNK, STEP
from torch import Tensor

from tests.kernels.ascendc.fp64_bounds import TINY, Expected, U, gamma

EXP = 2.0**-23
"""exp1's and ln1's relative error: less than one ulp (docs/kernels.md)."""

FLUSHED = 2.0**-125
"""More than an exponential that exp1 has made 0."""

PICKED = 48
"""Rows (or keys) of a sequence that are compared at most."""


@dataclass(frozen=True)
class Options:
    """As in the calls."""

    scale: float
    causal: bool
    window: int
    softcap: float


@dataclass(frozen=True)
class Scores:
    """[heads, rows, keys] in fp64.

    Attributes:
        value: after scale and cap; -inf where not visible.
        error: of `value`, from the product, the scale and the cap.
        slope: of the cap.
        slope_error: of `slope` as the kernels compute it.
    """

    value: Tensor
    error: Tensor
    slope: Tensor
    slope_error: Tensor


def _picked(count: int) -> Tensor:
    found: Tensor = torch.unique(torch.linspace(0, count - 1, min(count, PICKED)).round().long())
    return found


def _wide(x: Tensor, heads: int) -> Tensor:
    """[heads, rows, size] in fp64: each KV head for all of its query heads."""
    return x.double().repeat_interleave(heads // x.shape[1], 1).transpose(0, 1)


def _least(dtype: torch.dtype) -> float:
    """Half of the least positive number."""
    return torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps / 2


def _scores(q: Tensor, k: Tensor, positions: Tensor, keys: Tensor, options: Options) -> Scores:
    """q [heads, rows, dim] at absolute positions, k [heads, keys, dim]."""
    factor = float(torch.tensor(options.scale, dtype=torch.float32))
    dot, size = q @ k.mT, q.abs() @ k.mT.abs()
    value, roundings = dot * factor, q.shape[-1] + 2
    error = gamma(roundings) * size * abs(factor) + roundings * TINY
    slope, slope_error = torch.ones_like(value), torch.zeros_like(value)
    if cap := options.softcap:
        # tanh1 is (1 - t) / (1 + t), t = exp1(-2|x|) at most 1: t, both sums and the quotient, in units of 1
        tanh, tanh_error = torch.tanh(value / cap), 2 * EXP + 4 * U + (error + U * value.abs()) / cap
        value, error = cap * tanh, cap * tanh_error + U * cap
        slope, slope_error = 1 - tanh * tanh, (2 + tanh_error) * tanh_error + 2 * U
    seen = torch.ones(len(positions), len(keys), dtype=torch.bool)
    if options.causal:
        seen &= keys[None] <= positions[:, None]
    if options.window:
        seen &= keys[None] > positions[:, None] - options.window
    return Scores(value.masked_fill(~seen, -torch.inf), error.masked_fill(~seen, 0.0), slope, slope_error)


def _forward(
    q: Tensor, k: Tensor, v: Tensor, options: Options, sinks: Tensor | None, first: int, lse: bool
) -> Iterator[Expected]:
    """Rows of the last q.shape[0] positions of a sequence; they stand at `first` in the results.

    The weights of a step are exp1(s - m), m the maximum so far, cast for P V but not for their sum l; each later step
    multiplies l and O by exp1 of how far m has risen, and so does each chunk that joins. With H the error of such a
    weight's exponent, l is off by a factor within 1 +- d and a value's share by expm1(H).
    """
    (length, heads), keys = q.shape[:2], k.shape[0]
    if not length:
        return
    rows = _picked(length)
    scores = _scores(_wide(q[rows], heads), _wide(k, heads), rows + keys - length, torch.arange(keys), options)
    s = scores.value
    top = s.amax(-1, keepdim=True)
    sink = None if sinks is None else sinks.double()[:, None, None]
    top = (top if sink is None else torch.maximum(top, sink)).masked_fill(top == -torch.inf, 0.0)
    steps, chunks = -(-keys // STEP), -(-keys // CHUNK)
    factors, joined = (1 + steps + 2 * chunks) * (EXP + U), steps + 2 * chunks
    exponent = scores.error + 2 * U * torch.where(s == -torch.inf, 0.0, top - s) + factors
    h_sum = exponent + gamma(13 + joined)  # R64 of a step: 7 lanes, 6 halvings
    h_value = exponent + torch.finfo(q.dtype).eps / 2 + gamma(min(keys, STEP) + 1 + joined)
    weight = torch.exp(s - top)
    total = weight.sum(-1, keepdim=True)
    wrong = (weight * torch.expm1(h_sum)).sum(-1, keepdim=True) + keys * FLUSHED
    if sink is not None:
        total = total + torch.exp(sink - top)
        wrong = wrong + torch.exp(sink - top) * torch.expm1(factors + gamma(joined) + 2 * U * (top - sink))
    blank = (s == -torch.inf).all(-1, keepdim=True)
    total = total.masked_fill(total == 0, 1.0)
    d, values = wrong / total, _wide(v, heads)
    exact = weight / total @ values
    spread = (weight * torch.expm1(h_value) + (_least(q.dtype) + FLUSHED) * (s > -torch.inf)) / total @ values.abs()
    error = (spread + exact.abs() * d) / (1 - d) * (1 + 2 * U) + 2 * U * exact.abs() + TINY
    yield Expected(0, first + rows, exact.transpose(0, 1), error.transpose(0, 1))
    if lse:
        value = top + torch.log(total)
        off = d / (1 - d) + 2 * EXP * torch.log(total).abs() + 2 * U * value.abs()
        value, off = value.masked_fill(blank, -torch.inf), off.masked_fill(blank, 0.0)
        yield Expected(1, first + rows, value[..., 0].transpose(0, 1), off[..., 0].transpose(0, 1))


@dataclass(frozen=True)
class Sides:
    """What the gradients of a sequence are made of, [heads, rows or keys, ...] in fp64."""

    dout: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    lse: Tensor
    dots: Tensor
    dots_error: Tensor
    dtype: torch.dtype


def _weights(sides: Sides, rows: Tensor, keys: Tensor, options: Options) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """P and its error, dS and its error, both after their cast, of some rows and keys."""
    shift = sides.k.shape[1] - sides.q.shape[1]
    scores = _scores(sides.q[:, rows], sides.k[:, keys], rows + shift, keys, options)
    lse, eps = sides.lse[:, rows, None], torch.finfo(sides.dtype).eps / 2
    seen = (scores.value > -torch.inf) & (lse > -torch.inf)
    exponent = torch.where(seen, scores.value - lse, -torch.inf)
    p = torch.exp(exponent)
    p_error = p * torch.expm1(scores.error + EXP + 2 * U * torch.where(seen, exponent, 0.0).abs()) + FLUSHED
    dout, v = sides.dout[:, rows], sides.v[:, keys]
    x = dout @ v.mT - sides.dots[:, rows, None]
    x_error = gamma(v.shape[-1] + 1) * (dout.abs() @ v.mT.abs()) + sides.dots_error[:, rows, None]
    x_error = x_error * (1 + U) + U * x.abs() + v.shape[-1] * TINY
    y = p * x
    y_error = (p * x_error + p_error * (x.abs() + x_error)) * (1 + U) + U * y.abs() + TINY
    ds = y * scores.slope
    ds_error = y_error * (scores.slope + scores.slope_error) + y.abs() * scores.slope_error
    if options.softcap:
        ds_error = ds_error * (1 + U) + U * ds.abs() + TINY
    least = _least(sides.dtype)
    p_error, ds_error = p_error * (1 + eps) + eps * p + least, ds_error * (1 + eps) + eps * ds.abs() + least
    return tuple(x.masked_fill(~seen, 0.0) for x in (p, p_error, ds, ds_error))  # type: ignore[return-value]


def _sum(weight: Tensor, error: Tensor, values: Tensor, roundings: int) -> tuple[Tensor, Tensor]:
    """weight @ values, summed in any order with that many roundings."""
    size = (weight.abs() + error) @ values.abs()
    return weight @ values, error @ values.abs() + gamma(roundings) * size + roundings * TINY


def _backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, options: Options, q0: int, k0: int
) -> Iterator[Expected]:
    """dq, dk and dv of a sequence, which begin at rows `q0` and `k0` of the results."""
    (length, heads), (keys, kv_heads) = q.shape[:2], k.shape[:2]
    if not length or not keys:
        return
    product = _wide(dout, heads) * _wide(out, heads)
    dots_error = gamma(-(-v.shape[2] // 64) + 8) * product.abs().sum(-1)  # R64: lanes, 6 halvings, the product
    dots_error = dots_error + v.shape[2] * TINY
    wide_dout, wide_q, wide_k, wide_v = (_wide(x, heads) for x in (dout, q, k, v))
    sides = Sides(wide_dout, wide_q, wide_k, wide_v, lse.double().t(), product.sum(-1), dots_error, q.dtype)
    factor = float(torch.tensor(options.scale, dtype=torch.float32))

    rows, all_keys = _picked(length), torch.arange(keys)
    _, _, ds, ds_error = _weights(sides, rows, all_keys, options)
    value, error = _sum(ds, ds_error, sides.k, min(keys, STEP) + 1 + -(-keys // STEP))
    yield Expected(
        0, q0 + rows, *((x * abs(factor)).transpose(0, 1) for x in (value, error * (1 + U) + U * value.abs()))
    )

    some, all_rows = _picked(keys), torch.arange(length)
    p, p_error, ds, ds_error = _weights(sides, all_rows, some, options)
    group = heads // kv_heads
    roundings = min(length, STEP) + 1 + group * (-(-keys // STEP) + 1)
    for result, weight, weight_error, of, scale in (
        (1, ds, ds_error, sides.q, factor),
        (2, p, p_error, sides.dout, 1.0),
    ):
        value, error = _sum(weight.mT, weight_error.mT, of, roundings)
        value, error = (x.reshape(kv_heads, group, *x.shape[1:]).sum(1) for x in (value, error))
        yield _gradient(result, k0 + some, value, error, scale)


def _gradient(result: int, rows: Tensor, value: Tensor, error: Tensor, scale: float) -> Expected:
    """A sum [heads, rows, size], once rounded by its scale."""
    value, error = value * scale, abs(scale) * error
    return Expected(result, rows, value.transpose(0, 1), (error * (1 + U) + U * value.abs() + TINY).transpose(0, 1))


def _spans(cu: Tensor) -> list[tuple[int, int]]:
    ends = cu.tolist()
    return list(itertools.pairwise(ends))


def _attention(q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor | None, *rest: Any) -> Iterator[Expected]:
    *options, sinks, lse = rest
    for (q0, q1), (k0, k1) in zip(_spans(cu_q), _spans(cu_q if cu_k is None else cu_k), strict=True):
        yield from _forward(q[q0:q1], k[k0:k1], v[k0:k1], Options(*options), sinks, q0, lse)


def _paged_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, table: Tensor, cu_q: Tensor, lengths: Tensor, *rest: Any
) -> Iterator[Expected]:
    *options, sinks, _ = rest
    block = k_cache.shape[1]
    for (q0, q1), pages, count in zip(_spans(cu_q), table.long(), lengths.tolist(), strict=True):
        key = torch.arange(count)
        k, v = (x[pages[key // block], key % block] for x in (k_cache, v_cache))
        yield from _forward(q[q0:q1], k, v, Options(*options), sinks, q0, False)


def _attention_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    cu_q: Tensor,
    cu_k: Tensor | None,
    *rest: Any,
) -> Iterator[Expected]:
    # The sinks' gradient has no Mmad, and the bits of the CPU under all of its models.
    *options, _ = rest
    for (q0, q1), (k0, k1) in zip(_spans(cu_q), _spans(cu_q if cu_k is None else cu_k), strict=True):
        rows, keys = slice(q0, q1), slice(k0, k1)
        tensors = (dout[rows], q[rows], k[keys], v[keys], out[rows], lse[rows])
        yield from _backward(*tensors, Options(*options), q0, k0)


ATTENTION: dict[str, Callable[..., Iterator[Expected]]] = {
    "attention.attention": _attention,
    "attention.paged_attention": _paged_attention,
    "attention.attention_backward": _attention_backward,
}
"""Bounds of attention, by module and function."""

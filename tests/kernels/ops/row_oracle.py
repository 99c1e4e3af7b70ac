"""Row operators of the numeric contract, transcribed in numpy one rounding after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from logdiff_kernels.contract.exp import exp1, ln1, sigmoid1
from logdiff_kernels.contract.reductions import r64
from logdiff_kernels.contract.router import RouterSpec

from tests.kernels.oracle import FloatArray, array, cast

ONE, ZERO = np.float32(1), np.float32(0)


@np.errstate(all="ignore")
def rms_norm(x: torch.Tensor, weight: torch.Tensor | None, eps: float, offset: float = 0.0) -> FloatArray:
    x32 = array(x)
    ss = r64(x32 * x32)
    rstd = ONE / np.sqrt(ss / np.float32(x32.shape[-1]) + np.float32(eps))
    y = x32 * rstd[..., None]
    if weight is not None:
        w = array(weight)
        y = y * (w if offset == 0 else np.float32(offset) + w)
    return cast(y, x.dtype)


@np.errstate(all="ignore")
def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, eps: float, offset: float = 0.0
) -> tuple[FloatArray, FloatArray]:
    total = cast(array(x) + array(residual), x.dtype)
    return rms_norm(torch.from_numpy(total.copy()).to(x.dtype), weight, eps, offset), total


@np.errstate(all="ignore")
def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> FloatArray:
    x32, c, s = array(x), array(cos)[:, None, :], array(sin)[:, None, :]
    half = cos.shape[1]
    first = slice(0, 2 * half, 2) if interleaved else slice(0, half)
    second = slice(1, 2 * half, 2) if interleaved else slice(half, 2 * half)
    y = x32.copy()
    y[..., first] = x32[..., first] * c - x32[..., second] * s
    y[..., second] = x32[..., second] * c + x32[..., first] * s
    return cast(y, x.dtype)


@np.errstate(all="ignore")
def swiglu(gate: torch.Tensor, up: torch.Tensor) -> FloatArray:
    g = array(gate)
    return cast(g / (ONE + exp1(-g)) * array(up), gate.dtype)


@np.errstate(all="ignore")
def geglu_tanh(gate: torch.Tensor, up: torch.Tensor) -> FloatArray:
    g = array(gate)
    inner = g + np.float32(0.044715) * g * g * g
    return cast(g / (ONE + exp1(np.float32(-2 * np.float32(0.79788456)) * inner)) * array(up), gate.dtype)


@np.errstate(all="ignore")
def swiglu_clamped(gate: torch.Tensor, up: torch.Tensor, alpha: float, limit: float) -> FloatArray:
    top, a = np.float32(limit), np.float32(alpha)
    g, u = np.minimum(array(gate), top), np.clip(array(up), -top, top)
    return cast((u + ONE) * (g / (ONE + exp1(-(a * g)))), gate.dtype)


def _order(values: FloatArray) -> list[int]:
    """Indices: NaN first, then descending, then by index."""
    return sorted(
        range(len(values)), key=lambda i: (not np.isnan(values[i]), -values[i] if values[i] == values[i] else 0, i)
    )


@np.errstate(all="ignore")
def softmax(x: FloatArray) -> FloatArray:
    e = exp1(x - x.max())
    return e / r64(e)


@np.errstate(all="ignore")
def route(logits: FloatArray, spec: RouterSpec, bias: FloatArray | None) -> tuple[FloatArray, list[int]]:
    """One row."""
    score = softmax if spec.scoring == "softmax" else sigmoid1
    scores = logits if spec.choose_on == "logits" else score(logits)
    choice = scores.copy() if bias is None else scores + bias
    if spec.groups > 1:
        grouped = choice.reshape(spec.groups, -1)
        best = [row[_order(row)[0]] for row in grouped]
        if spec.group_score == "top2":
            best = [b + row[_order(row)[1]] for b, row in zip(best, grouped, strict=True)]
        kept = _order(np.asarray(best, np.float32))[: spec.topk_groups]
        grouped[[g for g in range(spec.groups) if g not in kept]] = -np.inf
        choice = grouped.reshape(-1)
    ids = _order(choice)[: spec.top_k]
    weights = scores[ids]
    if spec.choose_on == "logits":
        weights = score(weights)
    if spec.renormalize:
        total = weights[0]
        for w in weights[1:]:
            total = total + w
        if spec.renorm_eps:
            total = total + np.float32(spec.renorm_eps)
        weights = weights / total
    return (weights if spec.scaling == 1 else weights * np.float32(spec.scaling)), ids


def router(logits: torch.Tensor, spec: RouterSpec, bias: torch.Tensor | None = None) -> tuple[FloatArray, torch.Tensor]:
    rows = [route(row, spec, None if bias is None else array(bias)) for row in array(logits)]
    weights = np.asarray([w for w, _ in rows], np.float32).reshape(len(rows), spec.top_k)
    return weights, torch.tensor([i for _, i in rows]).reshape(len(rows), spec.top_k)


@np.errstate(all="ignore")
def moe_combine(
    y: FloatArray, weights: FloatArray, ids: FloatArray, shared: FloatArray | None, dtype: torch.dtype
) -> FloatArray:
    """y [T, k, H] in slot order; ids are logical."""
    out = np.zeros((y.shape[0], y.shape[2]), np.float32)
    for t in range(y.shape[0]):
        acc = None
        for slot in sorted(range(y.shape[1]), key=lambda j: ids[t, j]):
            term = weights[t, slot] * y[t, slot]
            acc = term if acc is None else acc + term
        if shared is not None:
            acc = shared[t] if acc is None else acc + shared[t]
        out[t] = acc
    return cast(out, dtype)


Part = tuple[FloatArray, FloatArray, FloatArray]


def _base(m: FloatArray) -> FloatArray:
    return np.where(np.isneginf(m), ZERO, m).astype(np.float32)


def _merge(a: Part, b: Part) -> Part:
    m = np.maximum(a[0], b[0])
    u = _base(m)
    ea, eb = exp1(a[0] - u), exp1(b[0] - u)
    ha = np.where(np.isneginf(a[0]), ZERO, (a[2] + a[1] * (a[0] - u)) * ea)
    hb = np.where(np.isneginf(b[0]), ZERO, (b[2] + b[1] * (b[0] - u)) * eb)
    return m, a[1] * ea + b[1] * eb, (ha + hb).astype(np.float32)


@np.errstate(all="ignore")
def log_softmax(logits: torch.Tensor, heat: Any, vocabulary: int) -> tuple[FloatArray, FloatArray]:
    """(log-probabilities of all columns, entropies)."""
    z = array(logits).copy()
    t = np.broadcast_to(np.asarray(heat, np.float32), (z.shape[0],))
    z = np.where((t == 1)[:, None] | (t == 0)[:, None], z, z / np.where(t == 0, ONE, t)[:, None]).astype(np.float32)
    z[:, vocabulary:] = -np.inf
    padded = -(-vocabulary // 64) * 64
    wide = np.full((z.shape[0], max(padded, z.shape[1])), -np.inf, np.float32)
    wide[:, : z.shape[1]] = z
    parts: list[Part] = []
    for leaf in np.split(wide[:, :padded], 8, axis=1):
        m = leaf.max(1)
        x = leaf - _base(m)[:, None]
        e = exp1(x)
        parts.append((m, r64(e), r64(np.where(np.isneginf(leaf), ZERO, e * x).astype(np.float32))))
    while len(parts) > 1:
        parts = [_merge(parts[i], parts[i + 1]) for i in range(0, len(parts), 2)]
    m, s, h = parts[0]
    log_sum = ln1(s)
    logp = ((z - _base(m)[:, None]) - log_sum[:, None]) + ZERO
    return logp, log_sum - h / s

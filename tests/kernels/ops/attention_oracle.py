"""The contract's attention and its gradients, transcribed in numpy one rounding after the other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from logdiff_kernels.contract.exp import exp1, ln1, tanh1
from logdiff_kernels.contract.reductions import r64
from numpy.typing import NDArray

from tests.kernels.oracle import FloatArray, array, cast, fma, matmul

STEP, CHUNK = 512, 4096
ZERO, ONE, NEG_INF = np.float32(0), np.float32(1), np.float32(-np.inf)


@dataclass(frozen=True)
class Options:
    scale: float
    causal: bool = True
    window: int = 0
    softcap: float = 0.0


def visible(positions: NDArray[np.int64], keys: NDArray[np.int64], options: Options) -> NDArray[np.bool_]:
    seen = np.ones((len(positions), len(keys)), bool)
    if options.causal:
        seen &= keys[None, :] <= positions[:, None]
    if options.window:
        seen &= keys[None, :] > positions[:, None] - options.window
    return seen


def scores(q: FloatArray, k: FloatArray, options: Options) -> tuple[FloatArray, FloatArray | None]:
    """Scaled and capped scores [H, R, n] and, with a cap, the tanh that gave them."""
    s = matmul(q, k) * np.float32(options.scale)
    if not options.softcap:
        return s, None
    t = tanh1(s / np.float32(options.softcap))
    return np.float32(options.softcap) * t, t


def usable(m: FloatArray) -> FloatArray:
    return np.where(m == NEG_INF, ZERO, m)


@np.errstate(all="ignore")
def attention(
    q: torch.Tensor,
    positions: NDArray[np.int64],
    k: torch.Tensor,
    v: torch.Tensor,
    options: Options,
    sinks: torch.Tensor | None = None,
) -> tuple[FloatArray, FloatArray]:
    """Rows q [R, Hq, D] at absolute positions [R] of a sequence, keys [n, Hk, D]: out [R, Hq, Dv], lse [R, Hq]."""
    group = q.shape[1] // k.shape[1]
    qs = array(q).transpose(1, 0, 2)
    ks, vs = (array(x).transpose(1, 0, 2).repeat(group, axis=0) for x in (k, v))
    heads, rows, length = qs.shape[0], qs.shape[1], ks.shape[1]
    total_m = np.full((heads, rows), NEG_INF) if sinks is None else np.repeat(array(sinks)[:, None], rows, 1)
    total_l = np.full((heads, rows), ZERO if sinks is None else ONE)
    total_o = np.zeros((heads, rows, vs.shape[2]), np.float32)
    for chunk in range(0, length, CHUNK):
        m, total = np.full((heads, rows), NEG_INF), np.zeros((heads, rows), np.float32)
        o = np.zeros_like(total_o)
        for step in range(chunk, min(chunk + CHUNK, length), STEP):
            keys = np.arange(step, min(step + STEP, length))
            seen = visible(positions, keys, options)
            s = np.full((heads, rows, STEP), NEG_INF)
            s[:, :, : len(keys)] = np.where(seen, scores(qs, ks[:, keys], options)[0], NEG_INF)
            new_m = np.maximum(m, s.max(-1))
            u = usable(new_m)
            p = exp1(s - u[..., None])
            r, c = r64(p), exp1(m - u)
            weights = cast(p, q.dtype)
            total = total * c + r
            pv = np.zeros_like(o)
            for j in range(len(keys)):
                pv = np.where(seen[None, :, j, None], fma(weights[:, :, j, None], vs[:, None, keys[j]], pv), pv)
            o = o * c[..., None] + pv
            m = new_m
        new_m = np.maximum(total_m, m)
        u = usable(new_m)
        ea, eb = exp1(total_m - u), exp1(m - u)
        total_l = total_l * ea + total * eb
        total_o = total_o * ea[..., None] + o * eb[..., None]
        total_m = new_m
    out = total_o / np.where(total_l == 0, ONE, total_l)[..., None] + ZERO
    lse = total_m + ln1(total_l)
    lse = np.where(visible(positions, np.arange(length), options).any(1)[None, :], lse, NEG_INF)
    return cast(out, q.dtype).transpose(1, 0, 2), lse.transpose(1, 0)


@np.errstate(all="ignore")
def gradients(
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    options: Options,
    sinks: torch.Tensor | None = None,
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray | None]:
    """dq, dk, dv and dsinks of one sequence whose queries are its last positions."""
    heads, kv_heads = q.shape[1], k.shape[1]
    group, rows, length = heads // kv_heads, q.shape[0], k.shape[0]
    positions, keys = np.arange(length - rows, length), np.arange(length)
    qs, dos, os_ = (array(x).transpose(1, 0, 2) for x in (q, dout, out))
    ks, vs = (array(x).transpose(1, 0, 2) for x in (k, v))
    lses = array(lse).transpose(1, 0)
    dots = r64(dos * os_)
    seen = visible(positions, keys, options)
    dq = np.zeros_like(qs)
    dk, dv = np.zeros_like(ks), np.zeros_like(vs)
    for h in range(heads):
        g = h // group
        s, t = (None if x is None else x[0] for x in scores(qs[h : h + 1], ks[g : g + 1], options))
        assert s is not None
        live = seen & (lses[h] != NEG_INF)[:, None]
        p = np.where(live, exp1(s - lses[h][:, None]), ZERO)
        ds = p * (matmul(dos[h], vs[g]) - dots[h][:, None])
        if t is not None:
            ds = ds * (ONE - t * t)
        p, ds = cast(p, q.dtype), cast(np.where(live, ds, ZERO), q.dtype)
        for step in range(0, length, STEP):
            part = np.zeros_like(dq[h])
            for j in range(step, min(step + STEP, length)):
                part = np.where(seen[:, j, None], fma(ds[:, j, None], ks[g, None, j], part), part)
            dq[h] += part
        for block in np.unique(positions // STEP):
            part_k, part_v = np.zeros_like(dk[g]), np.zeros_like(dv[g])
            for r in np.flatnonzero(positions // STEP == block):
                part_k = np.where(seen[r, :, None], fma(ds[r, :, None], qs[h, None, r], part_k), part_k)
                part_v = np.where(seen[r, :, None], fma(p[r, :, None], dos[h, None, r], part_v), part_v)
            dk[g] += part_k
            dv[g] += part_v
    scale = np.float32(options.scale)
    dsinks = None
    if sinks is not None:
        sink_p = np.where(lses == NEG_INF, ZERO, exp1(array(sinks)[:, None] - lses))
        dsinks = r64(np.where(lses == NEG_INF, ZERO, -(sink_p * dots)))
    dq, dk, dv = (
        x.transpose(1, 0, 2) for x in (cast(dq * scale, q.dtype), cast(dk * scale, q.dtype), cast(dv, q.dtype))
    )
    return dq, dk, dv, dsinks

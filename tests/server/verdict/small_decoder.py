"""A small decoder-only transformer in numpy, with the switches that faults turn: the source of token-level evidence.

It is a real language model in the sense that matters here: every log-probability comes from attention over a context,
norms, an MLP or experts and a head, so that a fault somewhere reaches the tokens as it would in a large model.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np


@dataclass(frozen=True)
class Shape:
    """Sizes of the model; `sharpness` scales the head, so that entropy is a third to a half of ln V."""

    vocab: int = 384
    width: int = 48
    heads: int = 4
    kv_heads: int = 2
    layers: int = 3
    experts: int = 0
    top_k: int = 2
    window: int | None = None
    sinks: bool = False
    sharpness: float = 2.6


@dataclass(frozen=True)
class How:
    """How one side computes: its rounding, and whatever is wrong with it."""

    dtype: str = "exact"  # exact: fp32; bf16: every operator's output is rounded
    split: int = 1  # parts in which products are summed, each rounded
    fused: bool = False  # intermediate casts left out
    window: int | None = -1  # -1: the model's
    sinks: bool = True
    scale: float = 1.0
    theta: float = 10000.0
    swap_gate: bool = False
    reduce: float = 1.0
    router_dtype: str = "exact"
    renormalise: bool = True
    head_dtype: str = "exact"
    experts: np.ndarray | None = None  # replayed ids [B, L, layers, k]
    dropout: float = 0.0
    noise_seed: int = 0
    visible: np.ndarray | None = None  # [B, L, L] extra mask of keys
    positions: np.ndarray | None = None  # [B, L]
    kv: tuple | None = None  # (list of (k, v) per layer, [B, L] where to take them from)
    extra: dict = field(default_factory=dict)


def bf16(x: np.ndarray) -> np.ndarray:
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32)


def weights(shape: Shape, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    d, head = shape.width, shape.width // shape.heads
    w: dict[str, np.ndarray] = {"embed": rng.normal(0, 1, (shape.vocab, d))}
    for i in range(shape.layers):
        w[f"{i}.qkv"] = rng.normal(0, 1.6 / np.sqrt(d), (d, (shape.heads + 2 * shape.kv_heads) * head))
        w[f"{i}.o"] = rng.normal(0, 1.1 / np.sqrt(d), (d, d))
        w[f"{i}.sinks"] = rng.normal(0.5, 0.5, shape.heads)
        n = max(shape.experts, 1)
        w[f"{i}.up"] = rng.normal(0, 1.2 / np.sqrt(d), (n, d, 4 * d))
        w[f"{i}.down"] = rng.normal(0, 1.2 / np.sqrt(2 * d), (n, 2 * d, d))
        w[f"{i}.router"] = rng.normal(0, 1.2 / np.sqrt(d), (d, n))
        w[f"{i}.bias"] = np.zeros(n)
        for name in ("norm1", "norm2"):
            w[f"{i}.{name}"] = 1 + rng.normal(0, 0.1, d)
    w["norm"] = 1 + rng.normal(0, 0.1, d)
    w["head"] = rng.normal(0, shape.sharpness / np.sqrt(d), (d, shape.vocab))
    return {name: bf16(v.astype(np.float32)) for name, v in w.items()}


def nudged(w: dict[str, np.ndarray], size: float, seed: int, only: str = "") -> dict[str, np.ndarray]:
    """Weights after some training: a random step of relative size `size` in every tensor whose name has `only`."""
    rng = np.random.default_rng(seed)
    out = {}
    for name, v in w.items():
        step = rng.normal(0, size, v.shape).astype(np.float32) * np.float32(v.std() or 1.0)
        out[name] = bf16(v + step) if only in name else v
    return out


class Decoder:
    """Forward passes of one set of weights."""

    def __init__(self, shape: Shape, w: dict[str, np.ndarray]) -> None:
        self.shape, self.w = shape, w

    def with_weights(self, w: dict[str, np.ndarray]) -> Decoder:
        return Decoder(self.shape, w)

    def logits(self, ids: np.ndarray, how: How, record: dict | None = None) -> np.ndarray:
        """fp32 [B, L, V]; `record` receives "experts" [B, L, layers, k] and "kv"."""
        s, w = self.shape, self.w
        self._rng = np.random.default_rng(how.noise_seed)
        batch, length = ids.shape
        rnd = bf16 if how.dtype == "bf16" else _same
        x = w["embed"][ids]
        visible = self._visible(batch, length, how)
        positions = np.arange(length)[None].repeat(batch, 0) if how.positions is None else how.positions
        kvs, chosen = [], []
        for i in range(s.layers):
            h = _norm(x, w[f"{i}.norm1"], rnd, how.fused)
            x = rnd(x + self._attention(i, h, how, rnd, visible, positions, kvs))
            h = _norm(x, w[f"{i}.norm2"], rnd, how.fused)
            y, ids_i = self._mlp(i, h, how, rnd)
            chosen.append(ids_i)
            if how.dropout:
                y = y * (self._rng.random(y.shape) >= how.dropout) / (1 - how.dropout)
            x = rnd(x + y.astype(np.float32))
        h = _norm(x, w["norm"], rnd, how.fused)
        z = _matmul(h, w["head"], 1, _same)
        if record is not None:
            record["kv"] = kvs
            if s.experts:
                record["experts"] = np.stack(chosen, axis=2)
        return bf16(z) if how.head_dtype == "bf16" else z

    def _visible(self, batch: int, length: int, how: How) -> np.ndarray:
        i, j = np.arange(length)[:, None], np.arange(length)[None, :]
        seen = j <= i
        window = self.shape.window if how.window == -1 else how.window
        if window is not None:
            seen = seen & (j > i - window)
        seen = np.broadcast_to(seen, (batch, length, length))
        return seen if how.visible is None else seen & how.visible

    def _attention(self, i, h, how: How, rnd, visible, positions, kvs) -> np.ndarray:
        s, w = self.shape, self.w
        batch, length, _ = h.shape
        head = s.width // s.heads
        qkv = _matmul(h, w[f"{i}.qkv"], how.split, rnd)
        q, k, v = np.split(qkv, [s.heads * head, (s.heads + s.kv_heads) * head], axis=-1)
        q = _rope(q.reshape(batch, length, s.heads, head), positions, how.theta, rnd)
        k = _rope(k.reshape(batch, length, s.kv_heads, head), positions, how.theta, rnd)
        v = v.reshape(batch, length, s.kv_heads, head)
        if how.kv is not None:
            at = how.kv[1][..., None, None]
            k, v = np.where(at, how.kv[0][i][0], k), np.where(at, how.kv[0][i][1], v)
        kvs.append((k, v))
        group = s.heads // s.kv_heads
        k, v = np.repeat(k, group, axis=2), np.repeat(v, group, axis=2)
        q, k, v = (t.transpose(0, 2, 1, 3) for t in (q, k, v))
        scores = (q @ k.transpose(0, 1, 3, 2)) * np.float32(how.scale / np.sqrt(head))
        scores = np.where(visible[:, None], scores, np.float32(-1e30))
        top = scores.max(-1, keepdims=True)
        p = np.exp(scores - top)
        total = p.sum(-1, keepdims=True)
        if s.sinks and how.sinks:
            total = total + np.exp(np.minimum(w[f"{i}.sinks"][None, :, None, None] - top, 60))
        p = p / total if how.fused else rnd(p / total)
        out = rnd(p @ v).transpose(0, 2, 1, 3).reshape(batch, length, s.width)
        return _matmul(out, w[f"{i}.o"], how.split, rnd)

    def _mlp(self, i, h, how: How, rnd):
        s, w = self.shape, self.w
        if not s.experts:
            return self._expert(i, 0, h, how, rnd) * np.float32(how.reduce), None
        logits = _matmul(h, w[f"{i}.router"], 1, bf16 if how.router_dtype == "bf16" else _same)
        scores = np.exp(logits - logits.max(-1, keepdims=True))
        scores = scores / scores.sum(-1, keepdims=True)
        ids = np.argsort(-(scores + w[f"{i}.bias"]), axis=-1, kind="stable")[..., : s.top_k]
        if how.experts is not None:
            ids = how.experts[:, :, i]
        gate = np.take_along_axis(scores, ids, axis=-1)
        if how.renormalise:
            gate = gate / gate.sum(-1, keepdims=True)
        flat, out = h.reshape(-1, s.width), np.zeros((h.shape[0] * h.shape[1], s.width), np.float32)
        ids_f, gate_f = ids.reshape(-1, s.top_k), gate.reshape(-1, s.top_k)
        for e in range(s.experts):
            rows, slot = np.nonzero(ids_f == e)
            if len(rows):
                out[rows] += gate_f[rows, slot][:, None] * self._expert(i, e, flat[rows], how, rnd)
        return rnd(out.reshape(h.shape)) * np.float32(how.reduce), ids

    def _expert(self, i: int, e: int, h, how: How, rnd):
        up = _matmul(h, self.w[f"{i}.up"][e], how.split, rnd)
        gate, value = np.split(up, 2, axis=-1)
        if how.swap_gate:
            gate, value = value, gate
        act = gate / (1 + np.exp(-gate))
        act = act if how.fused else rnd(act)
        return _matmul(rnd(act * value), self.w[f"{i}.down"][e], how.split, rnd)


def _same(x: np.ndarray) -> np.ndarray:
    return x


def _matmul(a: np.ndarray, b: np.ndarray, split: int, rnd) -> np.ndarray:
    if split == 1:
        return rnd(a @ b)
    parts = [rnd(x @ y) for x, y in zip(np.array_split(a, split, -1), np.array_split(b, split, 0), strict=True)]
    total = parts[0]
    for part in parts[1:]:
        total = rnd(total + part)
    return total


def _norm(x: np.ndarray, w: np.ndarray, rnd, fused: bool) -> np.ndarray:
    y = x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(1e-6))
    return rnd(y * w) if fused else rnd(rnd(y) * w)


def _rope(x: np.ndarray, positions: np.ndarray, theta: float, rnd) -> np.ndarray:
    half = x.shape[-1] // 2
    angle = positions[..., None] * theta ** (-np.arange(half) / half)
    cos, sin = np.cos(angle)[:, :, None].astype(np.float32), np.sin(angle)[:, :, None].astype(np.float32)
    a, b = x[..., :half], x[..., half:]
    return rnd(np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1))


def log_softmax(z: np.ndarray) -> np.ndarray:
    z = z.astype(np.float64)
    top = z.max(-1, keepdims=True)
    return z - top - np.log(np.exp(z - top).sum(-1, keepdims=True))


def draw(
    model: Decoder,
    prompts: list[np.ndarray],
    lengths: list[int],
    how: How,
    seed: int,
    temperature: float = 1.0,
    top_p: float = 1.0,
) -> list[np.ndarray]:
    """Responses drawn token by token from the law of (model, how) at a temperature and top-p."""
    rng = np.random.default_rng(seed)
    rows = [list(p) for p in prompts]
    starts = [len(p) for p in prompts]
    for step in range(max(lengths)):
        active = [i for i in range(len(rows)) if step < lengths[i]]
        longest = max(len(rows[i]) for i in active)
        ids = np.zeros((len(active), longest), np.int64)
        for a, i in enumerate(active):
            ids[a, : len(rows[i])] = rows[i]
        local = _rows_of(how, active, longest)
        z = model.logits(ids, replace(local, dtype="exact", split=1))
        last = log_softmax(z[np.arange(len(active)), [len(rows[i]) - 1 for i in active]] / temperature)
        p = np.exp(kept(last, top_p))
        cut = p.cumsum(-1)
        pick = (cut < rng.random((len(active), 1)) * cut[:, -1:]).sum(-1)
        for a, i in enumerate(active):
            rows[i].append(int(min(pick[a], p.shape[-1] - 1)))
    return [np.array(r[n:], np.int64) for r, n in zip(rows, starts, strict=True)]


def _rows_of(how: How, rows: list[int], length: int) -> How:
    changes: dict = {}
    if how.visible is not None:
        changes["visible"] = how.visible[rows][:, :length, :length]
    if how.positions is not None:
        changes["positions"] = how.positions[rows][:, :length]
    if how.experts is not None:
        changes["experts"] = how.experts[rows][:, :length]
    if how.kv is not None:
        at = how.kv[1][rows][:, :length]
        changes["kv"] = ([(k[rows][:, :length], v[rows][:, :length]) for k, v in how.kv[0]], at)
    return replace(how, **changes)


def kept(logprobs: np.ndarray, top_p: float) -> np.ndarray:
    """Log-probabilities normalised over the smallest set whose mass reaches top_p; -inf elsewhere."""
    if top_p >= 1:
        return logprobs
    order = np.argsort(-logprobs, axis=-1)
    ranked = np.take_along_axis(logprobs, order, -1)
    mass = np.exp(ranked).cumsum(-1)
    keep = np.concatenate([np.zeros_like(mass[..., :1]), mass[..., :-1]], -1) < top_p
    ranked = np.where(keep, ranked, -np.inf)
    ranked = ranked - np.log(np.exp(ranked).sum(-1, keepdims=True))
    out = np.empty_like(ranked)
    np.put_along_axis(out, order, ranked, -1)
    return out

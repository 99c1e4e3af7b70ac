"""Hypotheses that make sense for any operator: what was done to the right output after it was made."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from logdiff_kernels.check.given import distinct
from logdiff_kernels.check.variants.base import FITTED, GENERIC, LOOSE, REDUCED, Scene, Variant

TWICE = (*REDUCED, "context")
_LIMIT = 2048
"""Features up to which columns are compared with each other."""


def generic(scene: Scene) -> Iterator[Variant]:
    """Scaled, shifted, moved between rows or features, cut, rounded."""
    out, ref = scene.out, scene.ref
    if not bool(out.isfinite().all()):
        yield Variant("not-finite", "nan-kernel", "gives values that are not finite", lambda s: s.out, rank=LOOSE + 1)
        return
    yield from _scaled(scene)
    yield Variant("zero", None, "gives zeros", lambda s: torch.zeros_like(s.ref))
    yield from _zeroed(scene)
    yield from _clamped(scene)
    if len(out) >= 4:
        constant = (out - ref).median(0).values
        yield Variant("constant-added", "bias-added", "adds a constant row", lambda s: s.ref + constant, rank=GENERIC)
    yield from _rows_moved(scene)
    yield from _features_moved(scene)
    yield from _by_feature(scene)
    yield from _rounded(scene)


def _weighted_ratio(scene: Scene, part: slice | torch.Tensor = slice(None)) -> float:
    w = scene.tolerance[:, part].square().reciprocal()
    ref, out = scene.ref[:, part], scene.out[:, part]
    power = float((w * ref * ref).sum())
    return float((w * ref * out).sum()) / power if power > 0 else 1.0


def _scaled(scene: Scene) -> Iterator[Variant]:
    c = float(f"{_weighted_ratio(scene):.5g}")
    cause = None
    if math.isclose(c, 2.0, rel_tol=0.02) and scene.part in TWICE:
        cause = "reduce-twice"
    elif scene.kind == "norm":
        cause = "norm-scale"
    elif scene.kind == "lm_head":
        cause = "logits-scale"
    elif scene.kind == "embedding":
        cause = "embedding-scale"
    elif scene.kind == "add":
        cause = "residual-scale"
    yield Variant("scaled", cause, f"gives its output times {c:g}", lambda s: c * s.ref, {"factor": c}, rank=FITTED)


def _zeroed(scene: Scene) -> Iterator[Variant]:
    dead = (scene.out == 0).all(0) & ~(scene.ref == 0).all(0)
    if not bool(dead.any()) or bool(dead.all()):
        return
    found: dict[str, Any] = {"features": int(dead.sum()), "of": len(dead)}
    words = f"gives zero in {int(dead.sum())} of {len(dead)} features"
    if scene.heads and len(dead) % scene.heads == 0:
        heads = dead.reshape(scene.heads, -1)
        if torch.equal(heads.all(1), heads.any(1)):
            found = {"heads": heads.all(1).nonzero()[:, 0].tolist(), "of": scene.heads}
            words = f"gives zero for heads {found['heads']}"
    yield Variant("zeroed", None, words, lambda s: s.ref.masked_fill(dead, 0.0), found, rank=GENERIC)


def _clamped(scene: Scene) -> Iterator[Variant]:
    top = float(scene.out.abs().max())
    if int((scene.out.abs() >= top * (1 - 1e-6)).sum()) >= 3 and float(scene.ref.abs().max()) > 1.01 * top:
        yield Variant("clamped", None, f"clamps its output at {top:g}", lambda s: s.ref.clamp(-top, top), {"at": top},
                      rank=FITTED)  # fmt: skip


def _rows_moved(scene: Scene) -> Iterator[Variant]:
    """Each row is the reference of another row: of a neighbour, of another sample, of none in particular."""
    if scene.ref.shape[-1] < 2 or len(scene.everywhere.rows) > 4096:
        return
    every = scene.evaluate(scene.everywhere.to(torch.float64))
    rows, mine = scene.everywhere.rows, scene.given.rows
    place = {(a, b): i for i, (a, b) in enumerate(zip(rows.sample.tolist(), rows.position.tolist(), strict=True))}
    for shift in (-1, 1, -2, 2):
        at = [place.get((a, b + shift), -1) for a, b in zip(mine.sample.tolist(), mine.position.tolist(), strict=True)]
        index = torch.tensor(at)
        moved = torch.where((index >= 0)[:, None], every[index.clamp(min=0)], scene.out)
        if int((index >= 0).sum()) >= 2:
            yield Variant("rows-shifted", "shifted-by-one", f"gives each token the row {shift:+d}",
                          _given(scene, moved), {"shift": shift}, rank=GENERIC)  # fmt: skip
    squares = every.square().sum(-1)
    distance = squares[None, :] - 2 * scene.out @ every.T
    index = distance.argmin(-1)
    elsewhere = index != scene.index
    if not bool(elsewhere.any()):
        return
    samples = rows.sample[index]
    other = samples != mine.sample
    same_place = rows.position[index] == mine.position
    words, cause = "gives rows of other tokens", None
    if bool((other & same_place)[elsewhere].double().mean() > 0.8):
        words, cause = "gives rows of another sample at the same position", "kv-cache-corrupt"
    elif bool(other[elsewhere].double().mean() > 0.8):
        words, cause = "gives rows of another sample", "kv-cache-corrupt"
    yield Variant("rows-moved", cause, words, _given(scene, every[index]), rank=GENERIC)


def _features_moved(scene: Scene) -> Iterator[Variant]:
    """Each feature is the reference of another one."""
    out, ref, heads = scene.out, scene.ref, scene.heads
    n, width = out.shape
    if n < 4:
        return
    if heads and heads > 1 and width % heads == 0:
        a, b = out.reshape(n, heads, -1), ref.reshape(n, heads, -1)
        index = _nearest(a.transpose(0, 1).reshape(heads, -1), b.transpose(0, 1).reshape(heads, -1))
        if not torch.equal(index, torch.arange(heads)):
            cause = "kv-heads-permuted" if scene.part in ("k", "v", "k_rope", "context") else "qkv-layout"
            moved = _given(scene, b[:, index].reshape(n, width))
            yield Variant("heads-moved", cause, f"gives heads {index.tolist()} in place of 0 to {heads - 1}",
                          moved, {"heads": index.tolist()}, rank=GENERIC)  # fmt: skip
    if width <= _LIMIT and n >= 8:
        index = _nearest(out.T, ref.T)
        if not torch.equal(index, torch.arange(width)) and len(distinct(index)) > 0.9 * width:
            words, parameters = _permutation(index, heads)
            yield Variant("features-moved", "qkv-layout", words, _given(scene, ref[:, index]), parameters, rank=GENERIC)
    flipped = torch.where((out * ref).sum(0) < 0, -1.0, 1.0).to(ref.dtype)
    if bool((flipped < 0).any()):
        count = int((flipped < 0).sum())
        yield Variant("sign-flipped", None, f"negates {count} of {width} features", lambda s: s.ref * flipped,
                      {"features": count}, rank=GENERIC)  # fmt: skip


def _nearest(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """For each row of a the row of b that it is closest to."""
    return (b.square().sum(-1)[None, :] - 2 * a @ b.T).argmin(-1)


def _permutation(index: torch.Tensor, heads: int | None) -> tuple[str, dict[str, Any]]:
    width = len(index)
    size = width // heads if heads and width % heads == 0 else width
    if size % 2 == 0:
        pairs = torch.arange(size).reshape(2, -1).T.reshape(-1)  # 0, h, 1, h + 1, ...: halves become neighbours
        base = torch.arange(width) // size * size
        for name, order in (("halves as neighbours", pairs), ("neighbours as halves", pairs.argsort())):
            if float((index == base + order.repeat(width // size)).double().mean()) > 0.95:
                return f"gives {name}, head by head", {"order": name}
    lag = (index - torch.arange(width)) % width
    common = int(lag.mode().values)
    if float((lag == common).double().mean()) > 0.95:
        return f"gives features rolled by {common}", {"roll": common}
    return "gives its features in another order", {"moved": int((lag != 0).sum()), "of": width}


def _by_feature(scene: Scene) -> Iterator[Variant]:
    n, width = scene.out.shape
    if n < 12 or width < 2:
        return
    w = scene.tolerance.square().reciprocal()
    power = (w * scene.ref.square()).sum(0)
    factor = torch.where(power > 0, (w * scene.ref * scene.out).sum(0) / power, 1.0)
    if scene.heads and width % scene.heads == 0:
        per_head = factor.reshape(scene.heads, -1).median(-1).values
        yield Variant("heads-scaled", "quant-scale", f"scales heads by {[round(float(x), 4) for x in per_head]}",
                      lambda s: s.ref * per_head.repeat_interleave(width // len(per_head)), rank=LOOSE)  # fmt: skip
    cause = "weights-changed" if scene.kind == "norm" else "quant-scale"
    yield Variant("features-scaled", cause, "scales each feature by a factor of its own", lambda s: s.ref * factor,
                  {"median": float(factor.median()), "smallest": float(factor.min()), "largest": float(factor.max())},
                  rank=LOOSE)  # fmt: skip
    ratio = (w * scene.ref * scene.out).sum(-1) / (w * scene.ref.square()).sum(-1).clamp(min=1e-300)
    if width >= 8:
        moved = _given(scene, scene.ref * ratio[:, None])
        yield Variant("rows-scaled", None, "scales each row by a factor of its own", moved,
                      {"median": float(ratio.median())}, rank=LOOSE)  # fmt: skip


def _rounded(scene: Scene) -> Iterator[Variant]:
    """The output lies on the grid of a narrower dtype."""
    for dtype in (torch.bfloat16, torch.float16, getattr(torch, "float8_e4m3fn", torch.bfloat16)):
        if torch.finfo(dtype).eps <= torch.finfo(scene.dtype).eps:
            continue
        name = str(dtype).removeprefix("torch.")
        if torch.equal(scene.out.to(dtype).double(), scene.out):
            cause = {"router": "router-dtype", "lm_head": "head-dtype", "logprob": "logprob-rounded"}.get(scene.kind)
            yield Variant("rounded", cause or "dtype-differs", f"gives numbers of {name}",
                          _to(dtype), {"dtype": name}, rank=GENERIC)  # fmt: skip


def _to(dtype: torch.dtype) -> Callable[[Scene], torch.Tensor]:
    return lambda s: s.ref.to(dtype).double()


def _given(scene: Scene, values: torch.Tensor) -> Any:
    """Predictions made for the rows of this scene alone."""

    def predict(s: Scene) -> torch.Tensor:
        if s.index is not scene.index:
            raise ValueError("made for other rows")
        return values

    return predict

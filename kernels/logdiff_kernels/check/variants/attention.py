"""Hypotheses about attention: scale, mask, caps, sinks, heads, and the keys and values that were seen."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from logdiff_kernels.check.given import distinct
from logdiff_kernels.check.variants.base import FITTED, GENERIC, Scene, Variant, changed, fitted, shortest


def attention(scene: Scene) -> Iterator[Variant]:
    """Every choice of attention."""
    p = scene.p
    yield from _masks(scene)
    cap, heads, kv_heads = p.get("softcap") or 0.0, p["heads"], p["kv_heads"]
    if cap:
        yield changed("softcap-dropped", "attention-softcap-dropped", f"leaves the soft cap of {cap:g} out",
                      softcap=0.0, subtle=True)  # fmt: skip
    if p.get("sinks") is not None:
        yield changed("sinks-dropped", "sinks-dropped", "leaves the attention sinks out", sinks=None, shown={},
                      subtle=True)  # fmt: skip
        if not scene.subtle:
            yield changed("sinks-rolled", "sinks-dropped", "gives heads each other's sinks", shown={},
                          sinks=p["sinks"].roll(1))  # fmt: skip
    yield from _scales(scene)
    if not cap:
        for value in (30.0, 50.0):
            yield changed("softcap-added", None, f"applies a soft cap of {value:g} to scores", softcap=value,
                          subtle=True)  # fmt: skip
    if scene.subtle:
        return
    if kv_heads != heads:
        yield changed("kv-heads-strided", "kv-heads-permuted", "pairs query head i with key head i mod groups",
                      kv_map=[h % kv_heads for h in range(heads)], shown={})  # fmt: skip
    if kv_heads > 1:
        group = heads // kv_heads
        for shift in sorted({1, kv_heads - 1}):
            pairs = [(h // group + shift) % kv_heads for h in range(heads)]
            yield changed("kv-heads-rolled", "kv-heads-permuted", f"pairs queries with key heads {shift} further on",
                          kv_map=pairs, shown={"shift": shift})  # fmt: skip
        yield changed("kv-heads-reversed", "kv-heads-permuted", "pairs queries with key heads in reverse order",
                      kv_map=[kv_heads - 1 - h // group for h in range(heads)], shown={})  # fmt: skip
    yield changed("keys-shifted", "kv-cache-corrupt", "takes keys and values one position late", key_shift=1)
    yield changed("keys-shifted", "kv-cache-corrupt", "takes keys and values one position early", key_shift=-1)
    yield Variant("value-of-self", None, "gives each token its own value", lambda s: s.evaluate(window=1))
    yield from _caches(scene)


def _masks(scene: Scene) -> Iterator[Variant]:
    window = scene.p.get("window")
    longest = int(scene.given.rows.position.max()) + 1
    words = f"instead of {window}" if window else "instead of all"
    if window:
        for step in (1, -1):
            if window + step > 0:
                yield changed("window-off-by-one", "window-off-by-one", f"sees {window + step} tokens {words}",
                              window=window + step, subtle=True)  # fmt: skip
        yield changed("window-ignored", "window-ignored", "sees all earlier tokens instead of its window",
                      window=None, shown={}, subtle=True)  # fmt: skip
    for other in scene.facts.get("windows", ()):
        if other != window and (window or other <= longest):
            yield changed("window-of-other", "window-ignored", f"sees {other} tokens {words}", window=other,
                          subtle=True)  # fmt: skip
    if scene.subtle:
        return
    yield changed("mask-not-causal", "mask-not-causal", "sees later tokens", causal=False, shown={})
    for delay in (1, 2):
        yield changed("newest-unseen", "graph-stale" if delay > 1 else "mask-not-causal",
                      f"doesn't see the {delay} tokens before its own", delay=delay + 1)  # fmt: skip
    yield changed("packing-leak", "packing-leak", "sees tokens of the sample before", leak=True, shown={})
    some = scene.few(32)
    lengths = sorted({int(x) for x in scene.facts.get("prompt_lengths", ())})
    blocks = [b for b in (16, 32, 64, 128) if b < longest]
    for bound in dict.fromkeys((1, *lengths, *blocks)):
        if 0 < bound < longest:
            yield changed("prefix-unseen", "prompt-mask-wrong", f"doesn't see tokens before position {bound}",
                          unseen_below=bound)  # fmt: skip
    best = _window(some, longest)
    words = f"sees a window of {best} tokens"
    yield replace(changed("window-fitted", "window-ignored", words, window=best), rank=FITTED)
    if lengths:
        yield Variant("prompt-unseen", "prompt-mask-wrong", "doesn't see the prompt", _prompt_unseen)


def _window(scene: Scene, longest: int) -> int:
    """The window that fits best, by halving the range around the best of a few."""
    cost: dict[int, float] = {}

    def at(w: int) -> float:
        if w not in cost:
            cost[w] = scene.misfit(scene.evaluate(window=w))
        return cost[w]

    grid = sorted({max(1, round(longest * x / 12)) for x in range(1, 13)} | {1, 2, 3, 4})
    best = min(grid, key=at)
    step = max(1, longest // 24)
    while True:
        near = [w for w in (best - step, best, best + step) if 1 <= w <= longest]
        best = min(near, key=at)
        if step == 1 and best == min((w for w in (best - 1, best, best + 1) if 1 <= w <= longest), key=at):
            return best
        step = max(1, step // 2)


def _prompt_unseen(s: Scene) -> torch.Tensor:
    lengths = s.facts["prompt_lengths"]
    out = s.ref.clone()
    for sample in distinct(s.given.rows.sample):
        at = (s.given.rows.sample == sample).nonzero()[:, 0]
        out[at] = s.evaluate(s.given.take(at), unseen_below=int(lengths[sample]))
    return out


def _scales(scene: Scene) -> Iterator[Variant]:
    scale, size = float(scene.p["scale"]), scene.p["size"]
    named = {
        "1/sqrt(head size)": size**-0.5,
        "1/(head size)": 1.0 / size,
        "no scale": 1.0,
        "the scale taken twice": scale * scale,
        **scene.facts.get("scales", {}),
    }
    for words, value in named.items():
        if value > 0 and not math.isclose(value, scale, rel_tol=1e-6):
            yield changed("attention-scale", "attention-scale", f"scales scores by {value:.6g} ({words})",
                          scale=value, subtle=True)  # fmt: skip
    if scene.subtle:
        return
    grid = [math.log(scale) + x for x in (-3, -2, -1, -0.5, -0.2, -0.05, 0, 0.05, 0.2, 0.5, 1, 2, 3)]
    at = fitted(scene, lambda s, x: s.evaluate(scale=math.exp(x)), grid)
    value = shortest(scene, lambda s, x: s.evaluate(scale=x), math.exp(at))
    yield replace(
        changed("attention-scale-fitted", "attention-scale", f"scales scores by {value:g} instead of {scale:g}",
                scale=value), rank=FITTED,
    )  # fmt: skip


def _caches(scene: Scene) -> Iterator[Variant]:
    """Keys and values in a lower precision, scaled, or of another layer."""
    given = scene.given
    assert given.key is not None
    assert given.value is not None
    eight = getattr(torch, "float8_e4m3fn", None)
    lower = [torch.bfloat16] if scene.dtype != torch.bfloat16 else []
    for dtype in [*lower, *([eight] if eight is not None else [])]:
        name = str(dtype).removeprefix("torch.")

        def rounded(s: Scene, to: torch.dtype = dtype) -> torch.Tensor:
            assert s.given.key is not None
            assert s.given.value is not None
            key, value = s.given.key.to(to).double(), s.given.value.to(to).double()
            return s.evaluate(replace(s.given, key=key, value=value))

        yield Variant("cache-rounded", "kv-cache-dtype", f"keeps keys and values in {name}", rounded, {"dtype": name})
    for which in ("key", "value"):
        yield Variant(
            f"cache-{which}-scaled", "kv-cache-scale", f"takes {which}s times another factor", _cache_scale(which),
            rank=GENERIC,
        )  # fmt: skip
    for name, rows in scene.facts.get("other_keys", {}).items():
        key, value = rows
        yield Variant(
            "cache-of-other", "kv-cache-corrupt", f"takes keys and values of {name}",
            _with_cache(key, value), {"of": name},
        )  # fmt: skip
    if scene.facts.get("plain_keys") is not None:
        yield Variant("keys-unrotated", "rope-missing", "takes keys before their rotation",
                      lambda s: s.evaluate(replace(s.given, key=s.facts["plain_keys"]())))  # fmt: skip


def _with_cache(key: Callable[[], torch.Tensor], value: Callable[[], torch.Tensor]) -> Callable[[Scene], torch.Tensor]:
    return lambda s: s.evaluate(replace(s.given, key=key(), value=value()))


def _cache_scale(which: str) -> Callable[[Scene], torch.Tensor]:
    def scaled(s: Scene, x: float) -> torch.Tensor:
        return s.evaluate(replace(s.given, **{which: getattr(s.given, which) * math.exp(x)}))

    def predict(s: Scene) -> torch.Tensor:
        grid = [-3.0, -2, -1, -0.5, -0.2, -0.05, 0, 0.05, 0.2, 0.5, 1, 2, 3]
        return scaled(s, fitted(s, scaled, grid))

    return predict

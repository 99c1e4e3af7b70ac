"""Hypotheses about norms, activations, sums, embeddings."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch

from logdiff_kernels.check.formulas import GATES
from logdiff_kernels.check.variants.base import FITTED, Scene, Variant, changed, fitted, shortest

_EPS = (0.0, 1e-12, 1e-8, 1e-6, 1e-5, 1e-4, 1e-3)


def norm(scene: Scene) -> Iterator[Variant]:
    """Epsilon, offset of the weight, a norm or its weight left out, mean, groups."""
    p, qk = scene.p, scene.part in ("q_norm", "k_norm")
    missing = "qk-norm-missing" if qk else "norm-missing"
    for eps in _EPS:
        if not math.isclose(eps, p["eps"], rel_tol=1e-3):
            yield changed("norm-eps", "norm-eps", f"uses eps {eps:g} instead of {p['eps']:g}", subtle=True, eps=eps)
    if p.get("weight") is not None:
        other = 0.0 if p["offset"] else 1.0
        words = "adds 1 to its weight" if other else "doesn't add 1 to its weight"
        yield changed("norm-offset", "norm-offset", words, offset=other)
        yield changed("norm-weight-missing", "norm-scale", "leaves its weight out", weight=None, shown={})
        if p["weight"].dtype.is_floating_point:
            yield changed("norm-weight-twice", "norm-scale", "applies its weight twice", shown={},
                          weight=(p["weight"] + p["offset"]).square() - p["offset"])  # fmt: skip
    if p.get("bias") is not None:
        yield changed("bias-missing", "bias-missing", "leaves its bias out", bias=None, shown={})
    yield changed("norm-missing", missing, "passes its input on without a norm", missing=True)
    words = "doesn't subtract the mean" if p.get("center") else "subtracts the mean"
    yield changed("norm-center", None, words, center=not p.get("center"))
    width = scene.ref.shape[-1]
    weight = p.get("weight")
    if p["size"] != width:
        tiled = None if weight is None or weight.numel() == width else weight.repeat(width // weight.numel())
        yield changed("norm-groups", None, "norms the whole row instead of each head", shown={"size": width},
                      size=width, weight=weight if tiled is None else tiled)  # fmt: skip
    elif scene.heads and scene.heads > 1:
        yield changed("norm-groups", None, "norms each head instead of the whole row", size=width // scene.heads)
    if not scene.subtle:
        yield from _fitted_eps(scene)


def _fitted_eps(scene: Scene) -> Iterator[Variant]:
    grid = [math.log10(x) for x in (1e-9, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)]
    at = fitted(scene, lambda s, x: s.evaluate(eps=10.0**x), grid)
    eps = shortest(scene, lambda s, x: s.evaluate(eps=x), 10.0**at)
    yield replace(
        changed("norm-eps-fitted", "norm-eps", f"behaves as with eps {eps:g} instead of {scene.p['eps']:g}", eps=eps),
        rank=FITTED,
    )


def activation(scene: Scene) -> Iterator[Variant]:
    """Another activation, halves swapped, clamps and constants."""
    p = scene.p
    if len(scene.given.x) > 1:
        yield changed("gate-up-swapped", "gate-up-swapped", "activates the up half and multiplies by the gate half",
                      swapped=True)  # fmt: skip
    for kind in GATES:
        if kind != p["kind"]:
            subtle = {kind, p["kind"]} in ({"gelu", "gelu_tanh"}, {"gelu", "quick_gelu"}, {"gelu_tanh", "quick_gelu"})
            yield changed("activation-kind", "activation-kind", f"computes {kind} instead of {p['kind']}",
                          subtle=subtle, kind=kind)  # fmt: skip
    if p.get("limit"):
        yield changed("activation-unclamped", "activation-kind", f"doesn't clamp at {p['limit']:g}", limit=None,
                      subtle=True, shown={})  # fmt: skip
    else:
        for limit in (7.0, 10.0):
            yield changed("activation-clamped", "activation-kind", f"clamps at {limit:g}", limit=limit, subtle=True)
    if p["kind"] == "swiglu_oai":
        yield changed("activation-alpha", "activation-kind", "takes alpha as 1", alpha=1.0)
        yield changed("activation-up-offset", "activation-kind", "doesn't add 1 to the up half", up_offset=0.0)
    if len(scene.given.x) > 1:
        yield Variant(
            "activation-up-missing", "activation-kind", "leaves the product with the up half out",
            lambda s: s.evaluate(replace(s.given, x=(s.given.x[0], torch.ones_like(s.given.x[0])))),
        )  # fmt: skip
        yield Variant(
            "activation-sum", "activation-kind", "adds the up half instead of multiplying by it",
            lambda s: GATES.get(s.p["kind"], GATES["silu"])(s.given.x[0]) + s.given.x[1],
        )  # fmt: skip


def add(scene: Scene) -> Iterator[Variant]:
    """Terms missing, doubled, scaled."""
    count = len(scene.given.x)
    base = list(scene.p.get("scales") or [1.0] * count)
    residual = scene.part in ("residual", "attn_residual")
    for number in range(count):
        name = scene.facts.get("inputs", [""] * count)[number] or f"its input {number}"
        for scale, words, tag in ((0.0, "leaves out", "missing"), (2.0, "adds twice", "twice"),
                                  (-1.0, "subtracts", "negated")):  # fmt: skip
            if count == 1 and scale == 0.0:
                continue
            cause = _add_cause(residual, number, tag)
            scales = [*base[:number], base[number] * scale, *base[number + 1 :]]
            yield changed(f"term-{tag}", cause, f"{words} {name}", scales=scales, shown={"term": name})
        if base[number] != 1.0:
            scales = [*base[:number], 1.0, *base[number + 1 :]]
            yield changed("term-unscaled", "residual-scale", f"doesn't scale {name} by {base[number]:g}",
                          scales=scales, shown={"term": name})  # fmt: skip
        fitted_scale = _fitted_scale(scene, number, base)
        if fitted_scale is not None:
            scales = [*base[:number], fitted_scale, *base[number + 1 :]]
            yield replace(
                changed("term-scaled", "residual-scale",
                        f"takes {name} times {fitted_scale:.6g} instead of {base[number]:g}",
                        scales=scales, shown={"term": name, "scale": fitted_scale}, subtle=True),
                rank=FITTED,
            )  # fmt: skip
    if scene.p.get("rest", 1.0) != 1.0:
        yield changed("sum-unscaled", "residual-scale", f"doesn't scale the sum by {scene.p['rest']:g}", rest=1.0)


def _add_cause(residual: bool, number: int, tag: str) -> str | None:
    if not residual:
        return {"missing": "reduce-missing", "twice": "reduce-twice"}.get(tag)
    return {"missing": "residual-missing" if number == 0 else "layer-skipped", "twice": "reduce-twice"}.get(tag)


def _fitted_scale(scene: Scene, number: int, base: list[float]) -> float | None:
    term = scene.given.x[number] / scene.tolerance
    rest = (scene.out - scene.ref) / scene.tolerance
    if not bool(rest.isfinite().all()):
        return None
    power = float(term.square().sum())
    moved = float((rest * term).sum()) / power if power > 0 else 0.0
    return None if abs(moved) < 1e-7 else float(f"{base[number] + moved:.6g}")


def embedding(scene: Scene) -> Iterator[Variant]:
    """Scale, and rows of other tokens or of another table."""
    scale = float(scene.p.get("scale", 1.0))
    if scale != 1.0:
        yield changed("embedding-unscaled", "embedding-scale", f"isn't scaled by {scale:g}", scale=1.0)
        yield changed("embedding-scale-twice", "embedding-scale", f"is scaled by {scale:g} twice", scale=scale * scale)
    width = float(scene.ref.shape[-1])
    for value in (math.sqrt(width), 1 / math.sqrt(width)):
        if not math.isclose(value, scale, rel_tol=0.02):
            yield changed("embedding-scale", "embedding-scale", f"is scaled by {value:g} instead of {scale:g}",
                          scale=value)  # fmt: skip
    exact = scene.facts.get("embedding_scale")
    if exact and exact != scale:
        yield replace(
            changed("embedding-scale-wide", None, f"is scaled by {exact:.8g}, not rounded to the run's dtype",
                    scale=exact, subtle=True),
            honest=True,
        )  # fmt: skip
    head = scene.facts.get("head_weight")
    if head is not None and head().shape == scene.p["weight"].shape:
        yield Variant("embedding-of-head", None, "takes the rows of the head's matrix",
                      lambda s: s.evaluate(weight=head().double()))  # fmt: skip

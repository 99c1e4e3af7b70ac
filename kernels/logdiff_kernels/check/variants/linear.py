"""Hypotheses about projections and the head."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from logdiff_kernels.check.given import Parameters
from logdiff_kernels.check.variants.base import LOOSE, REDUCED, Scene, Variant, changed


def linear(scene: Scene) -> Iterator[Variant]:
    """Bias, part of the sum, other weights, other layout of the weights."""
    p = scene.p
    if p.get("bias") is not None:
        yield changed("bias-missing", "bias-missing", "leaves its bias out", bias=None, shown={}, subtle=True)
        yield changed("bias-twice", "bias-added", "adds its bias twice", bias=2 * p["bias"], shown={})
    if scene.subtle:
        return
    yield from _partial(scene)
    yield from _other_weights(scene)
    weight = p["weight"]
    if weight.shape[0] == weight.shape[1]:
        yield changed("weight-transposed", "weights-changed", "uses its weight transposed", weight=weight.T, shown={})
    yield _low_rank()
    yield _other_matrix()


def _partial(scene: Scene) -> Iterator[Variant]:
    weight, width = scene.p["weight"], scene.p["weight"].shape[1]
    cause = "reduce-missing" if scene.part in REDUCED else None
    for parts in (2, 4, 8):
        if width % parts:
            continue
        size = width // parts
        for number in range(parts):
            inside = torch.zeros(width, dtype=weight.dtype)
            inside[number * size : (number + 1) * size] = 1.0
            for kept, words in ((inside, "only"), (1 - inside, "all but")):
                if parts == 2 and words == "all but":
                    continue
                yield changed(
                    "sum-partial", cause, f"sums {words} part {number + 1} of {parts} of its input",
                    weight=weight * kept, shown={"parts": parts, "part": number, "kept": words},
                )  # fmt: skip


def _other_weights(scene: Scene) -> Iterator[Variant]:
    some = scene.few(24)
    found = []
    for name, p in scene.others():
        bias = None if p.get("bias") is None else p["bias"].double()
        found.append((some.misfit(some.evaluate(weight=p["weight"].double(), bias=bias)), name, p))
    for _, name, p in sorted(found, key=lambda entry: entry[:2])[:2]:
        yield Variant(
            "weights-of-other", "weights-changed", f"uses the weights of {name}",
            _with_weights(p), {"of": name},
        )  # fmt: skip


def _with_weights(p: Parameters) -> Callable[[Scene], torch.Tensor]:
    bias = p.get("bias")
    wide = None if bias is None else bias.double()
    return lambda s: s.evaluate(weight=p["weight"].double(), bias=wide)


def _low_rank() -> Variant:
    """The error has few directions: an adapter that is there on one side alone."""

    def predict(s: Scene) -> torch.Tensor:
        e = s.out - s.ref
        if not bool(e.isfinite().all()) or min(e.shape) < 16:
            raise ValueError("too few rows, or not finite")
        weight = 1 / s.tolerance.square().mean(-1, keepdim=True).sqrt()
        u, values, v = torch.linalg.svd(e * weight, full_matrices=False)
        noise = float(values[len(values) // 2 :].mean())
        rank = int((values > 4 * noise).sum())
        if not 0 < rank <= min(e.shape) // 4:
            raise ValueError("not of low rank")
        variant.parameters["rank"] = rank
        found: torch.Tensor = s.ref + (u[:, :rank] * values[:rank]) @ v[:rank] / weight
        return found

    variant = Variant("low-rank", "lora-missing", "adds a map of low rank to its product", predict, {}, rank=LOOSE)
    return variant


def _other_matrix() -> Variant:
    """The error is itself a linear map of the input: other weights of the same form."""

    def predict(s: Scene) -> torch.Tensor:
        x = s.given.x[0].double()
        e = s.out - s.ref
        if not bool(e.isfinite().all()) or len(x) < 12:
            raise ValueError("too few rows, or not finite")
        weight = 1 / s.tolerance.square().mean(-1, keepdim=True).sqrt()
        x, e = x * weight, e * weight  # rows of one noise each
        values, vectors = torch.linalg.eigh(x @ x.T)
        best = None
        for share in (1e-8, 1e-6, 1e-4, 1e-3, 1e-2, 1e-1):
            shrink = values.clamp(min=0) / (values.clamp(min=0) + share * float(values[-1]))
            hat = (vectors * shrink) @ vectors.T
            left = 1 - hat.diagonal()[:, None].clamp(max=1 - 1e-9)
            fitted = e - (e - hat @ e) / left  # each row predicted from all others
            cost = float((e - fitted).square().sum())
            if best is None or cost < best[0]:
                best = (cost, fitted)
        assert best is not None
        found: torch.Tensor = s.ref + best[1] / weight
        return found

    return Variant(
        "other-weights", "weights-changed",
        "multiplies by other weights: the error of each row follows, as a linear map of its input, from other rows",
        predict, rank=LOOSE,
    )  # fmt: skip


def lm_head(scene: Scene) -> Iterator[Variant]:
    """Soft cap, scale, bias, the embedding's matrix or another one, temperature already taken."""
    p = scene.p
    cap = p.get("softcap") or 0.0
    if cap:
        yield changed("final-softcap-dropped", "final-softcap-dropped", f"leaves the soft cap of {cap:g} out",
                      softcap=0.0, subtle=True)  # fmt: skip
    else:
        for value in (30.0, 50.0, 15.0):
            yield changed("final-softcap-added", None, f"applies a soft cap of {value:g}", softcap=value)
    if p.get("scale", 1.0) != 1.0:
        yield changed("logits-unscaled", "logits-scale", f"doesn't scale logits by {p['scale']:g}", scale=1.0)
    if p.get("bias") is not None:
        yield changed("bias-missing", "bias-missing", "leaves its bias out", bias=None, shown={}, subtle=True)
    temperature = float(scene.facts.get("temperature", 1.0))
    if temperature != 1.0:
        yield changed("temperature-in-logits", "temperature-twice",
                      f"gives logits that are already divided by the temperature {temperature:g}",
                      scale=p.get("scale", 1.0) / temperature)  # fmt: skip
    table = scene.facts.get("embedding_weight")
    if table is not None and table().shape == p["weight"].shape and not scene.subtle:
        yield Variant("head-of-embedding", "head-tied-stale", "multiplies by the embedding's matrix",
                      lambda s: s.evaluate(weight=table().double()))  # fmt: skip
    if not scene.subtle:
        yield from _partial(scene)
        yield _other_matrix()

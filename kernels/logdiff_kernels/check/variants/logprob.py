"""Hypotheses about log-probabilities: temperature, truncation, which token, precision."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from logdiff_kernels.check.variants.base import FITTED, Scene, Variant, changed, fitted, shortest


def logprob(scene: Scene) -> Iterator[Variant]:
    """Every choice between logits and the number reported."""
    temperature = float(scene.p.get("temperature", 1.0))
    asked = float(scene.facts.get("temperature", 1.0))
    if temperature != 1.0:
        missing = scene.facts.get("temperature_missing") or "temperature-missing-train"
        yield changed("temperature-missing", missing, f"isn't divided by the temperature {temperature:g}",
                      temperature=1.0, shown={})  # fmt: skip
        yield changed("temperature-twice", "temperature-twice", f"is divided by the temperature {temperature:g} twice",
                      temperature=temperature**2)  # fmt: skip
        yield changed("temperature-inverse", "temperature-differs", "is multiplied by the temperature",
                      temperature=1 / temperature)  # fmt: skip
        yield replace(
            changed("temperature-wide", None, "divides logits by the temperature in fp32", wide_scale=True, shown={}),
            honest=True,
        )  # fmt: skip
    elif asked != 1.0:
        yield changed("temperature-applied", "temperature-differs", f"is divided by the temperature {asked:g}",
                      temperature=asked)  # fmt: skip
    top_k, top_p = int(scene.facts.get("top_k", -1)), float(scene.facts.get("top_p", 1.0))
    for k, p in {(top_k, top_p), (top_k, 1.0), (-1, top_p)}:
        if k > 0 or p < 1.0:
            yield changed("truncated", "truncation-renormalised",
                          f"is renormalised over what top_k {k}, top_p {p:g} leave", top_k=k, top_p=p)  # fmt: skip
    yield changed("argmax", "logprob-of-other-token", "is that of the most likely token", argmax=True, shown={})
    for lag in (-1, 1):
        words = "the row's own token" if lag < 0 else "the token after the next"
        yield Variant("shifted", "shifted-by-one", f"is that of {words}",
                      _lagged(lag), {"lag": lag})  # fmt: skip
    yield changed("unnormalised", "logprob-not-normalised", "is the logit itself", unnormalised=True, shown={})
    yield Variant("probability", None, "is the probability, not its logarithm", lambda s: s.ref.exp())
    yield Variant("base-ten", None, "is a logarithm to base 10", lambda s: s.ref / math.log(10))
    yield Variant("base-two", None, "is a logarithm to base 2", lambda s: s.ref / math.log(2))
    yield Variant("zero", "placeholder-logprobs", "is 0", lambda s: torch.zeros_like(s.ref))
    for name in ("bfloat16", "float16"):
        yield changed("rounded", "logprob-rounded", f"is rounded to {name}", rounded=name, subtle=True)
    if not scene.subtle:
        yield from _fitted(scene)


def _lagged(lag: int) -> Callable[[Scene], torch.Tensor]:
    return lambda s: s.evaluate(targets=_targets(s, lag))


def _targets(s: Scene, lag: int) -> torch.Tensor:
    """Of each row its own token, or the one two places on (-1 where unknown)."""
    if lag < 0:
        return s.given.rows.token
    rows = s.everywhere.rows
    known = {
        (int(a), int(b)): int(t)
        for a, b, t in zip(rows.sample.tolist(), rows.position.tolist(), rows.target.tolist(), strict=True)
    }
    mine = s.given.rows
    found = [known.get((a, b + 1), -1) for a, b in zip(mine.sample.tolist(), mine.position.tolist(), strict=True)]
    return torch.tensor(found)


def _fitted(scene: Scene) -> Iterator[Variant]:
    grid = [math.log(x) for x in (0.2, 0.3, 0.5, 0.7, 0.85, 0.95, 1.0, 1.05, 1.2, 1.5, 2.0, 3.0)]
    at = fitted(scene, lambda s, x: s.evaluate(temperature=math.exp(x)), grid)
    value = shortest(scene, lambda s, x: s.evaluate(temperature=x), math.exp(at))
    yield replace(
        changed("temperature-fitted", "temperature-differs", f"behaves as with temperature {value:g}",
                temperature=value), rank=FITTED,
    )  # fmt: skip
    fixed = scene.few(96)
    offset = float((fixed.out - fixed.ref).median())
    if math.isfinite(offset) and offset != 0.0:
        yield Variant("offset", None, f"is off by a constant of {offset:.4g}",
                      lambda s: s.ref + offset, {"offset": offset}, rank=FITTED)  # fmt: skip

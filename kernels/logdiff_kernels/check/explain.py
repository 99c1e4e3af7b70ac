"""Which hypothesis predicts what was measured, and how well."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from logdiff_kernels.check.given import Parameters, roundoff
from logdiff_kernels.check.judgement import RMS_BOUND, rms
from logdiff_kernels.check.kinds import tolerance
from logdiff_kernels.check.regression import Fit, regress
from logdiff_kernels.check.variants import NAMED, Scene, Variant, generic

CERTAIN = 8.0
"""Standard errors that a deviation below rounding must be away from none."""

KEPT = 6
"""Hypotheses that a report shows of one operator."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A hypothesis with its fit.

    `rest`: what it leaves over, in units of rounding. `left_over`: rms(out - variant) / rms(ref).
    """

    variant: Variant
    fit: Fit
    rest: float
    left_over: float
    fits: bool

    def as_dict(self) -> dict[str, Any]:
        """As `logdiff-operators/1` has it."""
        return {
            "variant": self.variant.id,
            "cause": self.variant.cause,
            "parameters": self.variant.parameters,
            "beta": self.fit.beta,
            "z": self.fit.z,
            "explained": self.fit.explained,
            "left_over": self.left_over,
            "fits": self.fits,
            "honest": self.variant.honest,
            "statement": self.variant.statement,
        }


def explain(scene: Scene, allowance: float = 1.0, groups: torch.Tensor | None = None) -> list[Tried]:
    """Hypotheses about rows that are beyond rounding, best first.

    One fits where what it leaves over is rounding. Those that adapt less lead where several do.
    """
    named = list(NAMED[scene.kind](scene)) if scene.kind in NAMED else []
    tried = [found for v in (*named, *generic(scene)) if (found := _try(scene, v, allowance, groups)) is not None]
    best = min((t.rest for t in tried), default=math.inf)
    tried.sort(key=lambda t: (not t.fits, t.variant.rank if t.fits else 0, _step(t.rest, best), t.rest))
    return _distinct(tried)[:KEPT]


def leans(kind: str, p: Parameters) -> bool:
    """Whether some hypothesis about an operator may hide below its rounding."""
    if kind in ("linear", "lm_head"):
        return p.get("bias") is not None or bool(p.get("softcap"))
    return kind not in ("experts", "router")


def subtle(scene: Scene, allowance: float, groups: torch.Tensor | None = None) -> list[Tried]:
    """Hypotheses whose trace shows below rounding: beta is 1 and nothing else, many standard errors from 0."""
    if scene.kind not in NAMED:
        return []
    tried = []
    quiet = replace(scene, subtle=True)
    few = quiet.few(12)
    for v in NAMED[scene.kind](quiet):
        found = _try(quiet, v, allowance, groups) if v.subtle and _hides(few, v) else None
        if found is not None and found.fits:
            tried.append(found)
    tried.sort(key=lambda t: (t.variant.rank, abs(t.fit.beta - 1)))
    return _distinct(tried)[:KEPT]


def _hides(scene: Scene, variant: Variant) -> bool:
    """Whether what a hypothesis predicts is small enough not to have been seen already."""
    try:
        predicted = (variant.predict(scene) - scene.ref) / scene.tolerance
    except ValueError:
        return True
    return not rms(predicted) > 10 * RMS_BOUND


def _try(scene: Scene, variant: Variant, allowance: float, groups: torch.Tensor | None) -> Tried | None:
    try:
        predicted = variant.predict(scene)
    except ValueError:
        return None
    measured = (scene.out - scene.ref) / scene.tolerance
    fit = regress(measured, (predicted - scene.ref) / scene.tolerance, groups)
    if fit.size == 0.0:
        return None
    rest = fit.rest if scene.subtle else _rest(scene, variant, predicted)
    left = rms(scene.out - predicted) / max(rms(scene.ref), 1e-300)
    if scene.subtle:
        near = abs(fit.beta - 1) <= min(0.25, max(0.05, 3 * abs(fit.beta / fit.z) if fit.z else 0.25))
        fits = near and fit.z >= CERTAIN and fit.rest <= fit.before
    else:
        fits = rest <= 1.5 * allowance * RMS_BOUND and fit.explained > 0.5
    return Tried(variant, fit, rest, left, fits)


def _rest(scene: Scene, variant: Variant, predicted: torch.Tensor) -> float:
    """Rms of what a prediction leaves over, in units of its own rounding."""
    own = (scene.tolerance.square() + (1.5 * roundoff(scene.dtype) * predicted).square()).sqrt()
    if scene.kind == "logprob":
        own = scene.tolerance
        if "temperature" in variant.parameters:  # logits are divided in their own dtype
            own = tolerance("logprob", scene.given, {**scene.p, **variant.parameters}, predicted, scene.dtype)
    return rms((scene.out - predicted) / own) / math.sqrt(scene.judged)


def _step(rest: float, best: float) -> int:
    """Fits of nearly one quality are one step."""
    if not math.isfinite(rest):
        return 99
    return round(4 * math.log2(max(rest, 1e-9) / max(best, 1e-9)))


def _distinct(tried: list[Tried]) -> list[Tried]:
    """One of each id: the best of its numbers."""
    seen: set[str] = set()
    kept = []
    for t in tried:
        if t.variant.id not in seen:
            seen.add(t.variant.id)
            kept.append(t)
    return kept

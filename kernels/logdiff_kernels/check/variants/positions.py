"""Hypotheses about rotations: base, scaling, layout, part, positions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from logdiff_kernels.check.given import Given, distinct
from logdiff_kernels.check.variants.base import FITTED, Scene, Variant, changed, fitted, shortest

_THETAS = (1e4, 5e4, 1e5, 1.5e5, 5e5, 1e6, 5e6, 1e7)


def rope(scene: Scene) -> Iterator[Variant]:
    """Every choice of a rotation, then its positions."""
    p = scene.p
    half = len(p["inv_freq"])
    yield changed("rope-missing", "rope-missing", "passes its input on without a rotation", missing=True)
    layout = not (p.get("interleaved") or p.get("deinterleaved"))
    words = "rotates neighbouring features" if layout else "rotates features half a head apart"
    yield changed("rope-layout", "rope-layout", words, interleaved=layout, deinterleaved=False)
    words = "leaves rotated pairs " + ("half a head apart" if p.get("interleaved") or layout else "as neighbours")
    if not layout:
        yield changed("rope-layout-out", "rope-layout", words, interleaved=bool(p.get("deinterleaved")),
                      deinterleaved=bool(p.get("interleaved")))  # fmt: skip
    if p.get("factor", 1.0) != 1.0:
        yield changed("rope-factor-missing", "rope-scaling", f"leaves the factor {p['factor']:g} out", factor=1.0)
    yield from _bases(scene)
    for part in (2, 4, 8):
        if half % part == 0 and half // part:
            rotated = 2 * half // part
            steps = torch.arange(half // part, dtype=torch.float64) * 2 / rotated
            theta = _theta(p["inv_freq"])
            yield changed("rope-partial", "rope-partial", f"rotates {rotated} of {2 * half} features",
                          inv_freq=theta**-steps, shown={"rotated": rotated})  # fmt: skip
            yield changed("rope-partial", "rope-partial", f"rotates the first {rotated} of {2 * half} features",
                          inv_freq=p["inv_freq"][: half // part], shown={"rotated": rotated})  # fmt: skip
    if p["head"] > 2 * half and not p.get("start"):
        steps = torch.arange(p["head"] // 2, dtype=torch.float64) * 2 / p["head"]
        yield changed("rope-partial", "rope-partial", f"rotates whole heads instead of {2 * half} features",
                      inv_freq=_theta(p["inv_freq"]) ** -steps, shown={"rotated": p["head"]})  # fmt: skip
    yield from _positions(scene)
    yield Variant("rope-angle-half", "rope-rounding", "computes angles in bfloat16", _half_angles, subtle=True)
    for table in (torch.bfloat16, torch.float16):
        if torch.finfo(table).eps > torch.finfo(scene.dtype).eps:
            name = str(table).removeprefix("torch.")
            yield changed("rope-table-half", "rope-rounding", f"keeps cosine and sine in {name}", table=table,
                          shown={"dtype": name})  # fmt: skip
    yield changed("rope-inverse", "rope-layout", "rotates the other way", inv_freq=-p["inv_freq"].double(), shown={})


def _bases(scene: Scene) -> Iterator[Variant]:
    p = scene.p
    inv_freq = p["inv_freq"].double()
    half = len(inv_freq)
    share = torch.arange(half, dtype=torch.float64) / half
    base = _theta(inv_freq)
    for theta in dict.fromkeys((*scene.facts.get("thetas", ()), *_THETAS)):
        if math.isclose(theta, base, rel_tol=1e-6):
            continue
        moved = inv_freq * (base / theta) ** share
        yield changed("rope-theta", "rope-theta", f"uses theta {theta:g} instead of {base:g}", inv_freq=moved,
                      shown={"theta": theta}, subtle=True)  # fmt: skip
    for name, values, factor in scene.facts.get("rope_rules", ()):
        if len(values) == half and not (torch.equal(values.double(), inv_freq) and factor == p.get("factor", 1.0)):
            ratio = (values.double() / inv_freq).log()  # one power of another base, or a rule of its own
            power = torch.allclose(ratio, ratio[-1] / share[-1] * share, atol=1e-4) if half > 1 else False
            yield changed(f"rope-rule-{name}", "rope-theta" if power else "rope-scaling",
                          f"uses the frequencies of {name.replace('-', ' ')}", inv_freq=values.double(),
                          factor=factor, shown={}, subtle=True)  # fmt: skip
    for factor in (0.125, 0.25, 0.5, 2.0, 4.0, 8.0, 16.0, 32.0):
        yield changed("rope-linear", "rope-scaling", f"divides positions by {factor:g}", inv_freq=inv_freq / factor,
                      shown={"factor": factor})  # fmt: skip
    if scene.subtle or half < 2:
        return

    def by_theta(s: Scene, theta: float) -> torch.Tensor:
        return s.evaluate(inv_freq=inv_freq * (base / theta) ** share)

    grid = [math.log10(base) + step for step in (-2, -1, -0.5, -0.2, -0.05, -0.01, 0, 0.01, 0.05, 0.2, 0.5, 1, 2)]
    at = fitted(scene, lambda s, x: by_theta(s, 10.0**x), grid)
    theta = shortest(scene, by_theta, 10.0**at)
    yield replace(
        changed("rope-theta-fitted", "rope-theta", f"behaves as with theta {theta:g} instead of {base:g}",
                inv_freq=inv_freq * (base / theta) ** share, shown={"theta": theta}), rank=FITTED,
    )  # fmt: skip


def _theta(inv_freq: torch.Tensor) -> float:
    """The base that the second frequency speaks of."""
    half = len(inv_freq)
    return float(inv_freq[1].double()) ** -half if half > 1 else 1e4


def _moved(given: Given, position_id: torch.Tensor) -> Given:
    return replace(given, rows=replace(given.rows, position_id=position_id))


def _positions(scene: Scene) -> Iterator[Variant]:
    for shift in (-3, -2, -1, 1, 2, 3):
        yield Variant(
            "position-shifted", "position-offset", f"rotates by the position {shift:+d}",
            _by(shift), {"shift": shift},
        )  # fmt: skip
    yield Variant(
        "position-zero", "rope-missing", "rotates every row by position 0",
        lambda s: s.evaluate(_moved(s.given, torch.zeros_like(s.given.rows.position_id))),
    )  # fmt: skip
    yield Variant(
        "position-place", "position-offset", "rotates by the place in the sequence, not by the position received",
        lambda s: s.evaluate(_moved(s.given, s.given.rows.position)),
    )  # fmt: skip
    if not scene.subtle:
        yield Variant(
            "position-other", "position-per-pack", "rotates each sample by a constant of its own", _own_offsets,
            rank=FITTED,
        )  # fmt: skip


def _by(shift: int) -> Callable[[Scene], torch.Tensor]:
    return lambda s: s.evaluate(_moved(s.given, s.given.rows.position_id + shift))


def _own_offsets(s: Scene) -> torch.Tensor:
    """Per sample the whole number of positions that fits best, up to the longest sample."""
    rows = s.given.rows
    moved = rows.position_id.clone()
    reach = int(rows.position_id.max()) + 1
    every = list(range(-reach, 4 * reach + 1)) if reach <= 512 else list(range(-512, 2048))
    for sample in distinct(rows.sample):
        at = (rows.sample == sample).nonzero()[:, 0]
        at = at[torch.linspace(0, len(at) - 1, min(6, len(at))).long()]
        given, out, tolerance = s.given.take(at), s.out[at], s.tolerance[at]
        best = min(
            (float(((out - s.evaluate(_moved(given, given.rows.position_id + by))) / tolerance).square().mean()), by)
            for by in every
        )
        moved[rows.sample == sample] += best[1]
    return s.evaluate(_moved(s.given, moved))


def _half_angles(s: Scene) -> torch.Tensor:
    positions = s.given.rows.position_id
    inv_freq = s.p["inv_freq"]
    angle = (positions.to(torch.bfloat16)[:, None] * inv_freq.to(torch.bfloat16)).double()
    return s.evaluate(angle=angle)

"""Which rows and which features of an operator are wrong, in words that a cause can be told from."""

from __future__ import annotations

from typing import Any

import torch

from logdiff_kernels.check.given import Rows, distinct

PURE = 0.95
"""Share of rows that a description must get right on both sides of it."""


def onset(off: torch.Tensor, rows: Rows, first_pass: torch.Tensor, names: list[str]) -> dict[str, Any] | None:
    """The simplest description of the rows that are off; None where none is.

    Args:
        off: bool [n].
        rows: who they are.
        first_pass: bool [n], rows computed in the first pass of their sample (its prefill).
        names: sample ids.

    Returns:
        {"kind": "all" | "decode" | "prefill" | "position-from" | "position-below" | "pass-from" | "samples" |
        "samples-position-from" | "samples-position-below" | "periodic" | "scattered", ...its numbers}.
    """
    if not bool(off.any()):
        return None
    if _matches(off, torch.ones_like(off)):
        return {"kind": "all"}
    if bool(first_pass.any()) and not bool(first_pass.all()):
        if _matches(off, ~first_pass):
            return {"kind": "decode"}
        if _matches(off, first_pass):
            return {"kind": "prefill"}
    found = _threshold(off, rows.position, "position")
    if found is not None:
        return found
    passes = _threshold(off, rows.passed, "pass")
    samples = [s for s in distinct(rows.sample) if float(off[rows.sample == s].double().mean()) > 0.02]
    inside = torch.isin(rows.sample, torch.tensor(samples))
    if 0 < len(samples) < len(distinct(rows.sample)):
        named = {"samples": [names[s] for s in samples]}
        if _matches(off, inside):
            return {"kind": "samples", **named}
        within = _threshold(off[inside], rows.position[inside], "position")
        if within is not None:
            return {**within, "kind": f"samples-{within['kind']}", **named}
    if passes is not None:
        return passes
    for step in range(2, 9):
        for key, values in (("position", rows.position), ("pass", rows.passed)):
            for rest in range(step):
                if _matches(off, values % step == rest):
                    return {"kind": "periodic", "of": key, "period": step, "phase": rest}
    return {"kind": "scattered", "share": float(off.double().mean())}


def _matches(off: torch.Tensor, described: torch.Tensor) -> bool:
    inside, outside = off[described], off[~described]
    hit = len(inside) > 0 and float(inside.double().mean()) >= PURE
    return hit and (len(outside) == 0 or float(outside.double().mean()) <= 1 - PURE)


def _threshold(off: torch.Tensor, values: torch.Tensor, name: str) -> dict[str, Any] | None:
    """A bound that separates the rows, found where the two sides are purest."""
    order = values.argsort(dim=-1, stable=True)
    steps, flags = values[order], off[order].double()
    total, count = float(flags.sum()), len(flags)
    if not count:
        return None
    before = flags.cumsum(0) - flags
    position = torch.arange(count, dtype=torch.float64)
    wrong_from = before + (count - position) - (total - before)  # off before the bound, or right after it
    wrong_below = (position - before) + (total - before)
    edge = torch.ones(count, dtype=torch.bool)
    edge[1:] = steps[1:] != steps[:-1]
    edge[0] = False
    best = None
    for kind, wrong in (("from", wrong_from), ("below", wrong_below)):
        cost = torch.where(edge, wrong, float("inf"))
        if not bool(edge.any()):
            continue
        at = int(cost.argmin())
        bound = int(steps[at])
        described = values >= bound if kind == "from" else values < bound
        if _matches(off, described) and (best is None or float(cost[at]) < best[0]):
            best = (float(cost[at]), {"kind": f"{name}-{kind}", name: bound})
    return None if best is None else best[1]


def features(normal: torch.Tensor, heads: int | None, bound: float) -> dict[str, Any] | None:
    """Which heads or which stretch of features hold the error of the rows given; None: all alike.

    Args:
        normal: (out - ref) / tolerance of rows that are off, [n, F].
        heads: heads that lie side by side in a row; None: it has none.
        bound: rms beyond which a part is wrong.
    """
    power = torch.where(normal.isfinite(), normal, 1e6).square().mean(0)
    if heads and heads > 1 and len(power) % heads == 0:
        by_head = power.reshape(heads, -1).mean(-1).sqrt()
        wrong = (by_head > bound).nonzero()[:, 0].tolist()
        if 0 < len(wrong) < heads:
            return {"heads": wrong, "of": heads}
    wrong_features = (power.sqrt() > 2 * bound).nonzero()[:, 0]
    if 0 < len(wrong_features) < 0.9 * len(power):
        first, last = int(wrong_features[0]), int(wrong_features[-1])
        if last - first + 1 <= 0.9 * len(power):
            return {"features": [first, last + 1], "of": len(power), "share": len(wrong_features) / len(power)}
        return {"features": wrong_features[:8].tolist(), "of": len(power), "share": len(wrong_features) / len(power)}
    return None

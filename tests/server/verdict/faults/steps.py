"""A fault over several steps of training, and weights that drift with them."""

from __future__ import annotations

from collections.abc import Callable

from tests.server.verdict.faults.common import facts, noise_of
from tests.server.verdict.pair_faults import Case, World, nudged, replace, world


def over_steps(
    seed: int,
    change: Callable[[World, int], tuple],
    name: str,
    classes,
    causes,
    steps=4,
    side=None,
    experts=0,
    honest=False,
    noise=None,
):
    samples, meta = [], {}
    for step in range(steps):
        base = world(seed, noise_of(seed), samples=12, experts=experts)
        x, y, w, extra = change(base, step)
        rows = w.records(x, y, **extra)
        for row in rows:
            row["sample_id"] = f"{row['sample_id']}-{step}"
            row["step"] = step
        samples += rows
        meta = facts(replace(base, noise=noise or base.noise), seed)
    return Case(name, meta, samples, classes, causes, side, honest)


def drifted(w: World, steps: int, size: float, only: str = "") -> dict:
    now = w.model.w
    for k in range(steps):
        now = nudged(now, size, w.seed * 100 + k, only)
    return now

"""Steps, ranks, policy versions: what changes with updates and syncs is weights, what changes with ranks is layout."""

from __future__ import annotations

import numpy as np

from logdiff.verdict.features import Features
from logdiff.verdict.findings import Board, Finding, evidence
from logdiff.verdict.records import Evidence
from logdiff.verdict.rules.experts import falls_with_step
from logdiff.verdict.rules.structure import clean, early_worst

_SYNC = (
    "weights-stale", "weights-partial-sync", "expert-weights-swapped", "expert-bias-stale", "head-tied-stale",
    "cache-of-head-stale", "buffer-not-synced", "kv-cache-scale",
)  # fmt: skip


def steps(f: Features, board: Board) -> None:
    """Fine at the first step and off after it, growth, reset, or no trend at all."""
    table = f.table
    known = f.steps
    if len(known) < 2:
        return
    trend = _trend(f)
    factor = f.places.get("step late")
    onset = factor is not None and (factor.contrast.ratio > 2.2 and factor.contrast.share > 0.6)
    said: tuple[Evidence, ...] = (
        evidence(
            f, "mean abs d by step: " + ", ".join(f"{s}: {m:.3g}" for s, m, _ in known[:8]), known[-1][1], known[0][1]
        ),
    )
    if onset:
        assert factor is not None
        _after_sync(f, board, said, factor.contrast.share, factor.contrast.ratio)
    elif trend is not None and trend[0] > 5 and trend[1] > 1.5:
        said += (evidence(f, "growth from the first to the last steps, factor", trend[1], 1.5),)
        board.add(Finding("weights-stale", 0.7, 0.8, said, side="rollout"))
        board.add(Finding("buffer-not-synced", 0.35, 0.7, said, side="rollout"))
    elif trend is not None and abs(trend[1] - 1) < 0.35 and table.tokens >= 400:
        board.exclude(
            f"the difference does not change from the first to the last of {len(known)} steps (factor {trend[1]:.2f})",
            *_SYNC,
        )


def _trend(f: Features) -> tuple[float, float] | None:
    """(z, factor) of the last third of the steps against the first third, by rank and by mean."""
    step = f.table.step[f.table.row]
    distinct = np.unique(step)
    third = max(1, len(distinct) // 3)
    early, late = np.isin(step, distinct[:third]), np.isin(step, distinct[-third:])
    if min(np.count_nonzero(early), np.count_nonzero(late)) < 48 or not len(f.places.u):
        return None
    u = f.places.u
    error = float(np.sqrt(u[early].var() / np.count_nonzero(early) + u[late].var() / np.count_nonzero(late))) * 1.5
    z = float(u[late].mean() - u[early].mean()) / max(error, 1e-9)
    return z, float(f.a[late].mean() / max(f.a[early].mean(), 1e-12))


def _after_sync(f: Features, board: Board, said: tuple[Evidence, ...], share: float, ratio: float) -> None:
    belief = 0.92 if ratio > 4 else 0.8
    levels = [m for _, m, _ in f.steps]
    bad = [m for m in levels if m > 3 * max(levels[0], 1e-12) or m > 0.3 * max(levels)]
    isolated = len(levels) >= 4 and levels[-1] < 0.3 * max(levels) and len(bad) <= len(levels) // 2
    growing = len(levels) >= 3 and levels[-1] > 1.4 * levels[1]
    if isolated:
        said += (evidence(f, "the last step is near again", levels[-1], max(levels)),)
        belief = 0.5
    fallen = falls_with_step(f)
    if fallen is not None:
        said += (
            evidence(f, "layers with the same experts at the last step, and at the first: share", fallen[0], fallen[1]),
        )
    early = early_worst(f, None)
    seen = f.places.get("prefix seen before")
    if early is not None and seen is not None and seen.contrast.ratio > 2:
        board.add(Finding("kv-cache-stale", belief, share, (*said, early), side="rollout"))
        board.add(Finding("weights-stale", 0.5, share, said, side="rollout"))
        return
    if f.moe and not growing:
        order = ("expert-weights-swapped", "weights-partial-sync", "expert-bias-stale")
    elif f.moe:
        order = ("expert-bias-stale", "weights-stale", "expert-weights-swapped")
    elif growing:
        order = ("weights-stale", "weights-partial-sync", "head-tied-stale")
    else:
        order = ("weights-stale", "weights-partial-sync", "buffer-not-synced")
    for cause, weight in zip(order, (1.0, 0.7, 0.6), strict=True):
        board.add(Finding(cause, belief * weight, share, said, side="rollout"))


def policy(f: Features, board: Board) -> None:
    """Samples of older policy versions stand out."""
    factor = f.places.get("older policy")
    if factor is None or not clean(factor):
        return
    c = factor.contrast
    said = (evidence(f, f"{factor.detail}: mean abs d there, against elsewhere", c.mean_abs, c.rest_abs),)
    board.add(Finding("weights-stale", 0.88, c.share, said, side="rollout"))


def ranks(f: Features, board: Board) -> None:
    """Some ranks stand out."""
    table = f.table
    distinct = np.unique(table.rank)
    if len(distinct) < 2:
        return
    found = [g for g in f.places.found if g.name == "rank"]
    if not found:
        return
    rank = table.rank[table.row]
    level = {int(r): float(f.a[rank == r].mean()) for r in distinct}
    low, high = min(level.values()), max(level.values())
    if high < 2.5 * low:
        return
    bad = [r for r, m in level.items() if m > max(0.3 * high, 2 * low)]
    share = float(f.a[np.isin(rank, bad)].sum() / f.a.sum())
    said = (
        evidence(
            f,
            f"ranks {', '.join(map(str, bad[:8]))} stand out: mean abs d there, and the smallest of a rank",
            high,
            low,
        ),
    )
    if high < f.rounding:
        board.add(Finding("batch-variance", 0.7, share, said))
        board.add(Finding("reduction-topology", 0.6, share, said))
        return
    board.add(Finding("weights-partial-sync", 0.45, share, said, side="rollout"))
    board.add(Finding("reduce-missing", 0.4, share, said))

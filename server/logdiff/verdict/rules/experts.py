"""Routing: what the expert ids of both sides say, and what a heavy tail says without them."""

from __future__ import annotations

import numpy as np

from logdiff.verdict.features import Features
from logdiff.verdict.findings import Board, Finding, evidence
from logdiff.verdict.records import Evidence


def routing(f: Features, board: Board) -> None:
    """Judge MoE evidence; rules routing out where the model has no experts."""
    if f.moe is False:
        board.exclude("the model has no experts", *_ROUTING)
        return
    if f.table.experts:
        _with_ids(f, board)
    elif f.moe and f.top1_share > 0.2 and f.table.tokens >= 400 and board.explained < 0.5:
        said: tuple[Evidence, ...] = (
            evidence(
                f, "a heavy tail in a model with experts: share of the sum of abs d in 1 % of tokens", f.top1_share, 0.2
            ),
            evidence(f, "median abs d", float(np.median(f.a)), f.rounding),
        )
        board.add(Finding("router-near-ties", 0.66, min(2 * f.top1_share, 1.0), said))
        board.add(Finding("router-dtype", 0.35, min(2 * f.top1_share, 1.0), said))


_ROUTING = (
    "router-near-ties", "router-dtype", "replay-misaligned", "replay-weights-recomputed", "replay-ineffective",
    "expert-bias-stale", "expert-weights-swapped",
)  # fmt: skip


def _with_ids(f: Features, board: Board) -> None:
    e = f.table.experts
    known = np.isfinite(e["set"])
    if np.count_nonzero(known) < 48:
        return
    same = float(e["set"][known].mean())
    moved = {k: float(e[k][known].mean()) for k in ("before", "after")}
    replay = _replay(f)
    best = max(moved, key=lambda k: moved[k])
    if moved[best] > same + 0.2 and moved[best] > 0.6:
        said: tuple[Evidence, ...] = (
            evidence(
                f,
                f"expert ids agree with those one token {best}, not with their own: share of layers",
                moved[best],
                same,
            ),
        )
        board.add(Finding("replay-misaligned", 0.93, 1.0, said))
        return
    if same == 1.0:
        _all_equal(f, board, float(e["list"][known].mean()))
        return
    differs = known & (e["set"] < 1)
    said = (evidence(f, "layers in which both sides choose the same experts: share", same, 1.0),)
    if replay:
        said += (evidence(f, f"the header says that routing is replayed ({replay})", replay, None),)
        board.add(Finding("replay-ineffective", 0.85, 0.9, said, side="train"))
        return
    step = _falls_with_step(f, known)
    if step is not None and step[1] > 0.99:
        said += (evidence(f, "share of layers that agree at the first step, and at the last", step[1], step[0]),)
    factor = f.places.get("other experts")
    if factor is not None:
        c = factor.contrast
        said += (evidence(f, "mean abs d where expert ids differ, against elsewhere", c.mean_abs, c.rest_abs),)
        flips = float(np.mean(differs[known]))
        rest_near = c.rest_abs < 1.5 * f.rounding
        if c.ratio > 3 and c.share > 0.25 and rest_near and f.places.get("step late") is None:
            few = flips < 0.35
            belief = 0.8 if few else 0.6
            if c.share < 0.4:
                belief -= 0.15
            board.add(Finding("router-near-ties", belief, max(c.share, 0.5), said))
            board.add(Finding("router-dtype", 0.45, max(c.share, 0.5), said))
    elif same < 0.9 and f.places.get("step late") is None:
        board.add(Finding("group-limit", 0.3, 0.6, said))


def _all_equal(f: Features, board: Board, in_order: float) -> None:
    board.exclude(
        "both sides choose the same experts on every token", "router-near-ties", "router-dtype", "replay-misaligned"
    )
    if f.mean_abs < 1.5 * f.rounding or board.explained > 0.5:
        return
    said: tuple[Evidence, ...] = (
        evidence(
            f,
            "expert ids are equal on every token and layer, and yet mean abs d is far above rounding",
            f.mean_abs,
            f.rounding,
        ),
        evidence(f, "of them in the same order: share of layers", in_order, 1.0),
    )
    sure = f.places.get("step late") is None and not f.places.get("later in pack")
    board.add(Finding("replay-weights-recomputed", 0.6 if sure else 0.35, 0.9, said, side="train"))
    board.add(Finding("router-not-renormalised", 0.4, 0.9, said))
    board.add(Finding("router-scoring", 0.3, 0.9, said))


def _replay(f: Features) -> str | None:
    """A header fact that says routing is replayed."""
    for place, facts in (("meta", f.meta.facts), ("rollout", f.config("rollout")), ("train", f.config("train"))):
        for key, value in facts.items():
            name = str(key).lower()
            if "replay" in name and value not in (None, False, 0, "", "off", "none", "disabled", "false"):
                return f"{place}.{key} = {value}"
    return None


def _falls_with_step(f: Features, known: np.ndarray) -> tuple[float, float] | None:
    """(agreement at the last step, at the first), where it falls by more than two points."""
    step = f.table.step[f.table.row]
    steps = np.unique(step)
    if len(steps) < 2:
        return None
    e = f.table.experts["set"]
    first, last = (e[known & (step == s)] for s in (steps[0], steps[-1]))
    if min(len(first), len(last)) < 24:
        return None
    fell = float(first.mean() - last.mean())
    return (float(last.mean()), float(first.mean())) if fell > 0.02 else None


def falls_with_step(f: Features) -> tuple[float, float] | None:
    """As above, for other rules; None without expert ids."""
    if "set" not in f.table.experts:
        return None
    return _falls_with_step(f, np.isfinite(f.table.experts["set"]))

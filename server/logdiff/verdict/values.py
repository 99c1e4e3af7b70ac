"""How d depends on the values themselves: law of the tokens, temperature, truncation, rounding of what was stored."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from logdiff.case.batch import TopK
from logdiff.verdict.table import Table

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

FEW = 64
"""Fewer tokens than this carry no fit."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its standard error, tokens of a sample taken as one; `n` tokens."""

    value: float
    se: float
    n: int

    @property
    def z(self) -> float:
        """Distance from 0 in standard errors."""
        return self.value / self.se if self.se > 0 else (math.copysign(math.inf, self.value) if self.value else 0.0)


def clustered(values: Floats, row: npt.NDArray[np.int64]) -> Estimate:
    """Mean of `values` [T] with a cluster-robust error over `row`."""
    n = len(values)
    if n < 2:
        return Estimate(float(values.mean()) if n else math.nan, math.inf, n)
    mean = float(values.mean())
    cuts = np.flatnonzero(np.concatenate([[True], row[1:] != row[:-1]]))
    per = np.add.reduceat(values - mean, cuts)
    m = len(cuts)
    robust = math.sqrt(float((per**2).sum()) * m / (m - 1)) / n if m > 1 else math.inf
    return Estimate(mean, max(robust, float(values.std(ddof=1)) / math.sqrt(n)), n)


def law(table: Table) -> dict[str, Estimate]:
    """exp(d) - 1 and exp(-d) - 1: the first is 0 on average where the rollout's numbers are the law of its tokens.

    Differences are capped at 4 nats, so that one token can't carry the mean.
    """
    d = table.d
    return {
        "rollout": clustered(np.expm1(np.minimum(d, 4.0)), table.row),
        "train": clustered(np.expm1(np.minimum(-d, 4.0)), table.row),
    }


@dataclass(frozen=True, slots=True)
class Scale:
    """One factor between the logits of both sides: train = factor * rollout, from log-probabilities.

    Args:
        factor: T_rollout / T_train.
        se: its error.
        explained: share of the variation that the factor explains, of what differs from 1.
        n: tokens used.
        how: "topk", "entropy" or "topk of one side".
    """

    factor: float
    se: float
    explained: float
    n: int
    how: str


def scale_from_topk(table: Table) -> Scale | None:
    """Least squares of differences within one position: lp(a) - lp(b) on train against rollout."""
    if "rollout" not in table.topk or "train" not in table.topk:
        return None
    left, right = table.topk["rollout"], table.topk["train"]
    first, second, token = _common_differences(left, right)
    usable = np.abs(first) > 0.3
    first, second, token = first[usable], second[usable], token[usable]
    if len(first) < FEW:
        return None
    ratio = second / first
    factor = float(np.average(np.sort(ratio)[len(ratio) // 4 : -(len(ratio) // 4) or None]))
    if factor <= 0:
        return None
    residual = second - factor * first
    change = second - first
    spread = float(np.median(np.abs(residual)))
    moved = float(np.median(np.abs(change)))
    explained = 1 - (spread / moved) ** 2 if moved > 0 else 0.0
    se = 1.2533 * float(np.std(np.clip(ratio, factor - 3, factor + 3))) / math.sqrt(len(np.unique(token)))
    return Scale(factor, se, explained, len(first), "topk")


def _common_differences(left: TopK, right: TopK) -> tuple[Floats, Floats, npt.NDArray[np.int64]]:
    """Differences to the left list's first entry, for every id that both lists have."""
    x = np.full(left.ids.shape, np.nan)
    for k in range(right.ids.shape[1]):
        match = (left.ids == right.ids[:, k : k + 1]) & (left.ids >= 0)
        x = np.where(match, right.logprobs[:, k : k + 1], x)
    base_left, base_right = left.logprobs[:, :1].astype(np.float64), x[:, :1]
    first, second = left.logprobs - base_left, x - base_right
    good = np.isfinite(first) & np.isfinite(second)
    good[:, 0] = False
    where = np.nonzero(good)
    return first[where], second[where], where[0].astype(np.int64)


def same_order(table: Table) -> tuple[float, float, int] | None:
    """Do top-k lists keep their order while their distances change?

    Returns the share of pairs of ids, apart on the left by more than 0.3 nats, that stand in the same order on the
    right; the median change of their distance, nats; and their number. None without lists of both sides.
    """
    if "rollout" not in table.topk or "train" not in table.topk:
        return None
    first, second, _ = _common_differences(table.topk["rollout"], table.topk["train"])
    usable = np.abs(first) > 0.3
    if np.count_nonzero(usable) < FEW:
        return None
    first, second = first[usable], second[usable]
    return float(np.mean(first * second > 0)), float(np.median(np.abs(second - first))), len(first)


def scale_from_entropy(table: Table) -> Scale | None:
    """Regression of d on (lp + entropy), which is what a small change of temperature does to log-probabilities."""
    for side in ("rollout", "train"):
        entropy = table.entropy.get(side)
        if entropy is None:
            continue
        good = np.isfinite(entropy)
        if np.count_nonzero(good) < FEW:
            continue
        own = (table.rollout if side == "rollout" else table.train)[good]
        lean = own + entropy[good]
        d = table.d[good] if side == "rollout" else -table.d[good]
        curve = np.stack([lean, lean * np.abs(lean), entropy[good]], axis=1)  # the bend of a large change
        slope, residual = _fit(lean[:, None], d)
        _, bent = _fit(curve, d)
        power = float((d * d).sum())
        if power == 0 or not np.isfinite(power):
            return None
        factor = 1 + slope[0]
        se = math.sqrt(float((residual**2).sum()) / max(len(d) - 1, 1) / max(float((lean**2).sum()), 1e-300))
        explained = 1 - float((bent**2).sum()) / power
        factor = factor if side == "rollout" else (1 / factor if factor > 0 else math.inf)
        return Scale(float(factor), se, explained, len(d), "entropy")
    return None


def _fit(columns: Floats, target: Floats) -> tuple[Floats, Floats]:
    solution: Floats = np.linalg.lstsq(columns, target, rcond=None)[0].astype(np.float64)
    residual: Floats = target - columns @ solution
    return solution, residual


@dataclass(frozen=True, slots=True)
class Bend:
    """What one factor between logits implies for sampled tokens alone: log p_train <= factor * log p_rollout, or >=.

    Args:
        factor: the bound that fits; below 1 the train side is flatter.
        outside: share of tokens on the wrong side of it, beyond rounding.
        tight: share of unlikely tokens that lie near it.
        correlation: of both columns, by rank.
    """

    factor: float
    outside: float
    tight: float
    correlation: float
    n: int


def bend(table: Table) -> Bend | None:
    """The bound y <= factor x (factor < 1) or y >= factor x (factor > 1), with y and x log-probabilities.

    For one factor t, sum p^t is at least 1 for t < 1 and at most 1 for t > 1, hence the bound; it is nearly reached
    where the rest of the mass sits on one token.
    """
    x, y = table.rollout, table.train
    deep = x < -1.5
    if np.count_nonzero(deep) < FEW:
        return None
    slope = y[deep] / x[deep]
    lo, hi = np.quantile(slope, [0.02, 0.98])
    low_edge, high_edge = np.quantile(slope, [0.1, 0.9])
    correlation = float(np.corrcoef(_rank(x), _rank(y))[0, 1]) if len(x) > 2 else 0.0
    # flatter train: slopes are at least t, and crowd near it from above; sharper train: at most t
    flatter = _bend_of(float(lo), slope, x, y, flat=True)
    sharper = _bend_of(float(hi), slope, x, y, flat=False)
    del low_edge, high_edge
    best = max((flatter, sharper), key=lambda b: b[2])
    return Bend(best[0], best[1], best[2], correlation, int(np.count_nonzero(deep)))


def _bend_of(factor: float, slope: Floats, x: Floats, y: Floats, flat: bool) -> tuple[float, float, float]:
    margin = 0.1 * abs(1 - factor)
    wrong = (y > (factor - margin) * x + 0.02) if flat else (y < (factor + margin) * x - 0.02)
    near = np.abs(slope - factor) < 0.35 * abs(1 - factor)
    usable = (factor < 0.97) if flat else (factor > 1.03)
    return factor, float(wrong.mean()), float(near.mean()) if usable else 0.0


def _rank(values: Floats) -> Floats:
    out = np.empty(len(values))
    out[np.argsort(values, kind="stable")] = np.arange(len(values))
    return out


@dataclass(frozen=True, slots=True)
class OneSided:
    """Is d of one sign and bounded?

    Args:
        sign: -1 where d is negative, +1 where positive.
        noise: size of d on the other sign (its 99th percentile), nats.
        edge: the bound, nats; exp(-edge) is the smallest kept mass.
        hard: how hard the edge is: share of the far half of the range that lies in its last fifth.
        zero_share: share of tokens whose value on the truncated side is exactly 0.0, a single survivor.
        share: share of tokens that lie beyond the noise on this sign.
        middle, high: median and 95th percentile of abs d of those, nats.
        same_sign: share of the sum of abs d that has this sign.
    """

    sign: int
    noise: float
    edge: float
    hard: float
    zero_share: float
    share: float
    middle: float
    high: float
    same_sign: float
    n: int


def one_sided(table: Table) -> OneSided | None:
    """The signed range of d; None where there are too few tokens or d is as wide on both signs."""
    d = table.d
    if len(d) < FEW:
        return None
    sign = -1 if d.mean() < 0 else 1
    s = d * sign
    other = np.sort(-s[s < 0])
    noise = float(np.quantile(other, 0.99)) if len(other) else 0.0
    beyond = s > max(noise, 1e-6)
    if np.count_nonzero(beyond) < 16:
        return None
    top = np.sort(s)
    edge = float(np.quantile(top, 0.995))
    same = float(s[s > 0].sum() / np.abs(s).sum())
    if edge <= 0 or (edge < 4 * noise and same < 0.97):
        return None
    middle, high = (float(q) for q in np.quantile(s[beyond], [0.5, 0.95]))
    far = s[s > edge / 2]
    hard = float(np.mean(far > 0.8 * edge)) if len(far) else 0.0
    cut = table.rollout if sign < 0 else table.train
    alone = (cut == 0) & (s > max(noise, 1e-6))
    return OneSided(sign, noise, edge, hard, float(alone.mean()), float(beyond.mean()), middle, high, same, len(d))


def grid(values: Floats, low_bits: int) -> float:
    """Share of non-zero values whose fp32 bits end in `low_bits` zero bits."""
    single = values.astype(np.float32)
    nonzero = single != 0
    count = int(np.count_nonzero(nonzero))
    if not count:
        return 0.0
    bits = single.view(np.uint32) & np.uint32((1 << low_bits) - 1)
    return float(np.count_nonzero(nonzero & (bits == 0)) / count)


def within_step(table: Table, side: str, low_bits: int) -> float:
    """Share of tokens whose d is at most one step of the grid, as rounding or cutting this side's value makes it."""
    ours, theirs = (table.rollout, table.train) if side == "rollout" else (table.train, table.rollout)
    step = np.spacing(np.abs(theirs).astype(np.float32)).astype(np.float64) * (1 << low_bits)
    return float(np.mean(np.abs(ours - theirs) <= 1.02 * step))


def topk_facts(table: Table, side: str) -> dict[str, Any]:
    """What a side's own top-k lists say about its values.

    `known`: tokens whose id stands in the list; `agrees`: share of them whose reported value is the list's;
    `is_top`: share of tokens, not the list's first, whose value is that of the first; `mass`: largest sum of exp;
    `ties`: share of neighbours in a list that are equal to the bit; `step`: share of differences within lists that are
    multiples of 2^-6, where bf16 logits of ordinary size lie.
    """
    top = table.topk[side]
    own = table.rollout if side == "rollout" else table.train
    lp = top.logprobs.astype(np.float64)
    match = (top.ids == table.token_id[:, None]) & np.isfinite(lp)
    known = match.any(1)
    listed = np.where(match, lp, 0.0).sum(1)
    other = known & ~match[:, 0] & (np.abs(listed - lp[:, 0]) > 1e-3)
    missing_top = ~known & (top.ids[:, 0] >= 0)
    tested = other | missing_top
    mass = np.nansum(np.exp(np.where(top.ids >= 0, lp, -np.inf)), axis=1)
    gaps = (lp[:, :-1] - lp[:, 1:])[np.isfinite(lp[:, :-1]) & np.isfinite(lp[:, 1:])]
    scaled = gaps * 64
    return {
        "known": int(np.count_nonzero(known)),
        "agrees": float(np.mean(np.abs(listed - own)[known] < 1e-3)) if known.any() else math.nan,
        "tested": int(np.count_nonzero(tested)),
        "is_top": float(np.mean(np.abs(own - lp[:, 0])[tested] < 1e-3)) if tested.any() else math.nan,
        "mass": float(np.nanmax(mass)) if len(mass) else math.nan,
        "ties": float(np.mean(gaps == 0)) if len(gaps) else math.nan,
        "step": float(np.mean(np.abs(scaled - np.round(scaled)) < 2e-4)) if len(gaps) else math.nan,
        "cut": float(np.mean(np.isneginf(top.logprobs))) if top.logprobs.size else 0.0,
    }

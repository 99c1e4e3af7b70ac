"""Sampling processing and logprob semantics: shift, placeholders, normaliser, temperature, truncation."""

from __future__ import annotations

import math

import numpy as np

from logdiff.verdict import values
from logdiff.verdict.features import Features
from logdiff.verdict.findings import Board, Finding, evidence
from logdiff.verdict.records import Evidence
from logdiff.verdict.table import Table


def shift(f: Features, board: Board) -> Features | None:
    """One side moved against the other by some tokens; the evidence with the shift undone, or None."""
    scan = _lags(f.table)
    if not scan:
        return None
    best = max((k for k in scan if k != 0), key=lambda k: scan[k])
    zero = scan.get(0, 0.0)
    if not (scan[best] > 0.75 and scan[best] > zero + 0.25):
        _tails(f, board)
        return None
    said: tuple[Evidence, ...] = (
        evidence(f, f"the columns match when one is moved by {best}: correlation {scan[best]:.3f}", scan[best], zero),
        evidence(f, "correlation without a shift", zero, scan[best]),
    )
    belief = min(0.97, 0.75 + 0.3 * (scan[best] - max(zero, 0)))
    board.add(Finding("shifted-by-one", belief, 1.0, said, component="train.labels"))
    board.add(Finding("mask-misaligned", 0.35, 1.0, said))
    return f.of(_moved(f.table, best), "shift")


def _lags(table: Table, reach: int = 3, rows: np.ndarray | None = None) -> dict[int, float]:
    """Rank-free correlation of rollout[i] with train[i + k] inside samples, neighbours in position alone."""
    x, y, row, place = table.rollout, table.train, table.row, table.position
    out = {}
    for k in range(-reach, reach + 1):
        m = abs(k)
        left = slice(0, len(x) - m) if k >= 0 else slice(m, len(x))
        right = slice(m, len(x)) if k >= 0 else slice(0, len(x) - m)
        good = (row[left] == row[right]) & (place[right] - place[left] == k)
        if rows is not None:
            good &= rows[row[left]]
        a, b = x[left][good], y[right][good]
        if len(a) < 24 or a.std() == 0 or b.std() == 0:
            continue
        out[k] = float(np.corrcoef(a, b)[0, 1])
    return out


def _moved(table: Table, k: int) -> Table:
    """The table with train[i + k] beside rollout[i]."""
    y = np.full(table.tokens, np.nan)
    m = abs(k)
    left = slice(0, table.tokens - m) if k >= 0 else slice(m, table.tokens)
    right = slice(m, table.tokens) if k >= 0 else slice(0, table.tokens - m)
    good = (table.row[left] == table.row[right]) & (table.position[right] - table.position[left] == k)
    target = np.arange(table.tokens)[left]
    y[target[good]] = table.train[right][good]
    keep = np.isfinite(y)
    moved = table.replaced(keep, train=y)
    drop = {name: np.full(moved.tokens, np.nan) for name in moved.entropy}
    return moved.__class__(**{**{n: getattr(moved, n) for n in moved.__slots__}, "topk": {}, "entropy": drop})


def _tails(f: Features, board: Board) -> None:
    """Some samples whose later tokens match only when moved: an id was lost or added there."""
    split = f.split
    if split is None or split.ratio < 4:
        return
    table = f.table
    moved, tested = [], 0
    starts = np.append(table.starts, table.tokens)
    for s in np.flatnonzero(split.bad).tolist():
        begin, end = int(starts[s]), int(starts[s + 1])
        tail = begin + (end - begin) * 2 // 5
        if end - tail < 8:
            continue
        tested += 1
        x, y = table.rollout[tail:end], table.train[tail:end]
        best, at = _best_lag(x, y)
        if at != 0 and best > 0.8:
            moved.append(s)
    if tested >= 2 and len(moved) >= 0.5 * tested:
        share = len(moved) / tested
        said: tuple[Evidence, ...] = (
            evidence(
                f, "the later tokens of the samples that are off match when moved by a position or two", share, 0.5
            ),
        )
        explains = float(f.a[split.bad[table.row]].sum() / f.a.sum())
        board.add(Finding("retokenised", 0.85, explains, said))
        board.add(Finding("shifted-by-one", 0.5, explains, said))


def _best_lag(x: np.ndarray, y: np.ndarray) -> tuple[float, int]:
    best, at = -1.0, 0
    for k in (0, 1, -1, 2, -2):
        m = abs(k)
        a, b = (x[: len(x) - m], y[m:]) if k >= 0 else (x[m:], y[: len(y) - m])
        if len(a) < 6 or a.std() == 0 or b.std() == 0:
            continue
        c = float(np.corrcoef(a, b)[0, 1])
        if c > best + (0.1 if k else 0.0):
            best, at = c, k
    return best, at


def placeholders(f: Features, board: Board) -> Features | None:
    """Values that are exactly 0.0 on one side where the other is far below; the evidence without them, or None."""
    table = f.table
    for side, own, other in (("rollout", table.rollout, table.train), ("train", table.train, table.rollout)):
        zero = (own == 0) & (other < -0.02)
        count = int(np.count_nonzero(zero))
        if count < 3:
            continue
        deep = float(np.mean(other[zero] < math.log(0.5)))
        if deep < 0.2:
            continue  # certain tokens, or the single survivors of a truncation
        explains = float(f.a[zero].sum() / f.a.sum())
        where, cause, belief = _where_zero(table, zero)
        said: tuple[Evidence, ...] = (
            evidence(
                f, f"{count} values of the {side} side are exactly 0.0 where the other side's are far below", count, 0
            ),
            evidence(f, f"they stand {where}; share of the sum of abs d that they hold", explains, 0.2),
        )
        if explains < 0.1:
            belief *= 0.7
        board.add(Finding(cause, belief, explains, said, side=side))
        if cause != "placeholder-logprobs":
            board.add(Finding("placeholder-logprobs", 0.4, explains, said, side=side))
        return f.of(table.select(~zero), "placeholders")
    return None


def _where_zero(table: Table, zero: np.ndarray) -> tuple[str, str, float]:
    last = table.position == table.response[table.row] - 1
    if float(np.mean(last[zero])) > 0.9:
        return "on the last token of responses", "placeholder-logprobs", 0.9
    head = int(np.quantile(table.position[zero], 0.98)) + 1
    in_head = table.position < head
    if head <= 32 and float(np.mean(zero[in_head])) > 0.85 and float(np.mean(in_head)) < 0.6:
        return f"on the first {head} tokens of responses", "prefix-in-response", 0.9
    return "in spans inside responses", "placeholder-logprobs", 0.92


def constant(f: Features, board: Board) -> None:
    """d is nearly one number: a normaliser is missing on one side."""
    d = f.table.d
    if len(d) < values.FEW:
        return
    spread, mean = float(d.std()), float(d.mean())
    if abs(mean) > 3 * spread and abs(mean) > 0.5:
        said: tuple[Evidence, ...] = (
            evidence(f, "d is nearly the same on every token: mean over spread", abs(mean) / max(spread, 1e-9), 3.0),
        )
        side = "rollout" if mean < 0 else "train"
        board.add(Finding("logprob-not-normalised", 0.85, 1.0, said, side=side))


def temperature(f: Features, board: Board) -> bool:
    """One factor between the logits of both sides; True where it explains the difference."""
    fit = values.scale_from_topk(f.table) or values.scale_from_entropy(f.table)
    t = f.number("temperature")
    if fit is not None:
        if fit.explained < 0.8 or abs(fit.factor - 1) < max(0.02, 4 * fit.se):
            _bent(f, board)
            if fit.how == "topk" and fit.n >= 200:
                board.exclude(
                    f"top-k lists of both sides differ by no common factor ({fit.factor:.3f})", *_TEMPERATURES
                )
            return False
        said = evidence(f, f"one factor between the logits of both sides explains d (from {fit.how})", fit.factor, 1.0)
        _temperature(f, board, fit.factor, (said,), 0.95 if fit.how == "topk" else 0.9)
        return True
    if f.table.tokens < 200 or f.mean_abs < 3e-4:
        return False
    share, lean = f.left_over, _lean(f.table)
    small = f.mean_abs < max(0.05, 1.5 * f.rounding)
    # the share of rounding noise in d falls as the change of scale grows
    if share < (0.3 if not small else 0.5) and f.correlation > 0.9 and lean is not None:
        # a step of whole structure is no change of scale
        said = evidence(f, "d is a function of the log-probability alone: share of d^2 left over", share, 0.3)
        also = evidence(f, "and changes its sign from unlikely to likely tokens: mean d of each", lean, None)
        flatter = lean[0] > 0
        factor = t if t is not None and (t < 1) == flatter else (0.8 if flatter else 1.25)
        _temperature(f, board, factor, (said, also), 0.9 if share < 0.25 else 0.8, known=False)
        return True
    if share > 0.7 and f.table.tokens >= 400 and f.mean_abs > 1e-3:
        board.exclude("d is no function of the log-probability", *_TEMPERATURES)
    return False


def _bent(f: Features, board: Board) -> None:
    """Top-k lists keep their order while distances change by no common factor: logits were bent after the model."""
    order = values.same_order(f.table)
    if order is None or order[0] < 0.995 or order[1] < 0.05 or f.mean_abs < 0.02:
        return
    said = (
        evidence(f, "pairs in top-k lists that keep their order: share", order[0], 0.995),
        evidence(f, "while their distance changes by (median, nats)", order[1], 0.05),
    )
    board.add(Finding("final-softcap-dropped", 0.68, 0.9, said))


_TEMPERATURES = (
    "temperature-missing-train", "temperature-missing-rollout-raw-logprobs", "temperature-twice",
    "temperature-differs", "logits-scale",
)  # fmt: skip


def _lean(table: Table) -> tuple[float, float] | None:
    """Mean d of unlikely and of likely tokens, if they differ in sign beyond doubt."""
    x = np.minimum(table.rollout, table.train)
    low, high = x <= np.quantile(x, 0.15), (x >= np.quantile(x, 0.45)) & (x <= np.quantile(x, 0.9))
    a, b = values.clustered(table.d[low], table.row[low]), values.clustered(table.d[high], table.row[high])
    if abs(a.z) > 4 and abs(b.z) > 4 and a.value * b.value < 0:
        return round(a.value, 4), round(b.value, 4)
    return None


def _temperature(
    f: Features, board: Board, factor: float, said: tuple[Evidence, ...], belief: float, known: bool = True
) -> None:
    """Which side, and what it does, from the law of the tokens and the sampling temperature."""
    rollout, train = f.law["rollout"], f.law["train"]
    t = f.number("temperature")
    truth = None
    if abs(train.value) > 0.03 and abs(train.value) > 2.0 * abs(rollout.value) + 0.5 * rollout.se:
        truth = "rollout"
    elif abs(rollout.value) > 0.03 and abs(rollout.value) > 2.0 * abs(train.value) + 0.5 * train.se:
        truth = "train"
    law = evidence(
        f,
        "mean exp(d) - 1 (near 0 where the rollout's numbers are the law of its tokens)",
        rollout.value,
        4 * rollout.se,
    )
    mode = str(f.meta.get("logprobs_mode") or f.config("rollout").get("logprobs_mode") or "").lower()
    flatter = factor < 1  # the train side is flatter
    cold = t < 1 if t is not None and t != 1 else True
    said = (*said, law)
    if truth is None and mode.startswith("raw"):
        truth = "train"
    if truth is None and mode.startswith("processed"):
        truth = "rollout"
    if t is not None and t == 1 and known:
        board.add(Finding("logits-scale", 0.6, 1.0, said))
        board.add(Finding("temperature-differs", 0.7, 1.0, said))
        return
    if truth == "rollout":
        matches = flatter == cold
        lead = "temperature-missing-train" if matches or t is None else "temperature-twice"
        board.add(Finding(lead, belief, 1.0, said, side="train"))
        board.add(Finding("temperature-differs", 0.5, 1.0, said, side="train"))
    elif truth == "train":
        matches = flatter != cold
        lead = "temperature-missing-rollout-raw-logprobs" if matches or t is None else "temperature-twice"
        if mode.startswith("raw"):
            lead = "temperature-missing-rollout-raw-logprobs"
        board.add(Finding(lead, belief, 1.0, said, side="rollout"))
        board.add(Finding("temperature-differs", 0.5, 1.0, said, side="rollout"))
    else:
        lead = "temperature-missing-train" if flatter == cold else "temperature-missing-rollout-raw-logprobs"
        board.add(Finding(lead, belief - 0.05, 1.0, said))
        board.add(Finding("temperature-differs", 0.55, 1.0, said))


def truncation(f: Features, board: Board) -> bool:
    """One side normalises over what top-p, top-k or min-p left: d has one sign and an edge."""
    if any(g.cause == "logprob-rounded" and g.explains > 0.8 for g in board.findings):
        return False  # values cut to a grid have one sign too
    one = values.one_sided(f.table)
    if one is None:
        return _lost_mass(f, board)
    top_p = f.number("top_p")
    bound = -math.log(top_p) if top_p is not None and 0 < top_p < 1 else None
    blur = one.noise
    near_bound = (
        bound is not None and 0.3 * bound < one.high < bound * 1.1 + 2 * blur and one.middle < 1.1 * bound + blur
    )
    # nearly all of one sign in a narrow band, as the kept mass of open positions is
    band = one.same_sign > 0.97 and one.share > 0.5 and one.high < 1.2 and one.high < 2.5 * one.middle
    single = one.zero_share > 0.01
    correlated = f.correlation > 0.9
    hard = one.hard > 0.3 and one.edge < 1.7
    if not correlated or not (near_bound or hard or band or (single and one.edge < 2.5)):
        return _lost_mass(f, board)
    side = "rollout" if one.sign < 0 else "train"
    if one.same_sign < 0.9:
        return _lost_mass(f, board)
    kept = math.exp(-one.edge)
    said: tuple[Evidence, ...] = (
        evidence(f, f"d is {'negative' if one.sign < 0 else 'positive'} and bounded: edge, nats", -one.edge * -one.sign,
                 None if bound is None else one.sign * bound),
        evidence(f, "size of d on the other sign (rounding), nats", one.noise, one.edge / 4),
        evidence(f, "smallest kept mass that this edge means, against top_p", kept, top_p),
    )  # fmt: skip
    if single:
        said += (evidence(f, "share of tokens left alone after the cut, at exactly 0.0", one.zero_share, 0.0),)
    belief = 0.6 + 0.2 * near_bound + 0.15 * (one.share > 0.3) + 0.1 * single + 0.1 * (one.hard > 0.4) + 0.1 * band
    belief = min(belief, 0.96) * _stated(f)
    board.add(Finding("truncation-renormalised", belief, 1.0, said, side=side, component="sampling.top_p"))
    return True


def _stated(f: Features) -> float:
    """Less than 1 where the header says that nothing is cut: what is one-sided then needs another explanation first."""
    top_p, top_k = f.number("top_p"), f.number("top_k")
    return 0.55 if top_p is not None and top_p >= 1 and top_k is not None and top_k <= 0 else 1.0


def _lost_mass(f: Features, board: Board) -> bool:
    """Truncation below the noise of single tokens: mean exp(d) is the kept mass; rounding and weights leave it at 1."""
    for side, own, other, sign in (
        ("rollout", f.law["rollout"], f.law["train"], -1),
        ("train", f.law["train"], f.law["rollout"], 1),
    ):
        if not (own.z < -8 and other.z > 8 and own.value < -0.01 and f.mean_abs < 0.3 and f.correlation > 0.97):
            continue
        if f.bias_ratio < 0.35 or f.bias.value * sign < 0:
            continue
        cut = (f.number("top_p") or 1) < 1 or 0 < (f.number("top_k") or -1) < 1e4
        said = (
            evidence(f, "mean of the other side's probability over this one's, the kept mass", 1 + own.value, 1.0),
            evidence(
                f, "its distance from 1 in standard errors; rounding and other weights leave it at 1", own.z, -8.0
            ),
        )
        belief = (0.85 if cut else 0.68) * _stated(f)
        board.add(Finding("truncation-renormalised", belief, 0.9, said, side=side, component="sampling.top_p"))
        return True
    return False

"""Statistics of one pair of sides, one streaming pass. Formulas and sources: docs/metrics.md."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from logdiff.case.batch import PairBatch
from logdiff.measure.moments import OrderedSums, clustered_error, correlation, ratio, standard_error, variance
from logdiff.measure.order import OrderStatistics
from logdiff.measure.structure import Structure
from logdiff.measure.window import Bools, Window, windows

Floats = npt.NDArray[np.float64]

CLIP = 0.2
"""PPO clip range: a ratio outside [1 - CLIP, 1 + CLIP] counts for `clip_share`."""
VERL_BOUND = 20.0
"""verl clamps log ratios to +-20 before it squares them for chi2 (SAFETY_BOUND of rollout_corr_helper.py)."""

_TOKEN_SUMS = (
    *("d", "abs", "dd", "shifted", "shifted2", "mismatched", "em1", "em1_2", "eabs", "k3", "clip", "chi2"),
    *("x", "y", "xx", "yy", "xy", "ax", "dx"),
    *("px", "py", "pxx", "pyy", "pxy", "q", "qq"),
    *("hn", "h", "hh", "ha", "hax", "haa"),
)
_SAMPLE_SUMS = (
    *("n", "samples", "nn", "mean_x", "mean_y", "gap_abs", "ppl_ratio", "chi2_seq"),
    *("sample_dd", "sample_dn", "sample_ee", "sample_en"),
)


class PairStatistics:
    """Everything that is reported about second - first of two sides.

    Args:
        first: side whose log-probability is subtracted ("rollout" of `decode_train`).
        second: the other side.
    """

    def __init__(self, first: str, second: str) -> None:
        self.first, self.second = first, second
        self.missing = 0
        self._sums = OrderedSums(_TOKEN_SUMS + _SAMPLE_SUMS)
        self._order = OrderStatistics()
        self._structure = Structure()
        self._shift: tuple[float, float, float] | None = None
        self._max_abs = -1.0
        self._max_at: dict[str, Any] | None = None
        self._signed = (math.inf, -math.inf)
        self._prob_max = -1.0

    @property
    def tokens(self) -> int:
        """Tokens compared so far."""
        return self._order.count

    def close(self) -> None:
        """Drop the temporary file of the order statistics."""
        self._order.close()

    def update(self, batch: PairBatch, excluded: Bools) -> None:
        """Take a batch; `excluded` [S] names samples that have no part."""
        for window in windows(batch, self.first, self.second, excluded):
            self.missing += window.missing
            if len(window.first):
                with np.errstate(over="ignore", invalid="ignore", under="ignore"):
                    self._update(batch, window)

    def note_absent(self, batch: PairBatch, excluded: Bools) -> None:
        """Take a batch in which a side has no value at all: every token under the mask is missing."""
        counted = batch.mask & ~np.repeat(excluded, np.diff(batch.offsets)) if excluded.any() else batch.mask
        self.missing += int(np.count_nonzero(counted))

    def _update(self, batch: PairBatch, w: Window) -> None:
        x, y = w.first.astype(np.float64), w.second.astype(np.float64)
        d = y - x
        a = np.abs(d)
        if self._shift is None:
            self._shift = (float(x[0]), float(y[0]), float(d[0]))
        self._order.add(a)
        self._note_extremes(batch, w, d, a)
        mismatched = w.first.view(np.uint32) != w.second.view(np.uint32)
        rows = self._token_rows(w, x, y, d, a, mismatched)
        rows.update(_sample_rows(w, x, y, rows))
        self._sums.add(rows)
        self._structure.update(batch, w, d, a, mismatched, rows)

    def _note_extremes(self, batch: PairBatch, w: Window, d: Floats, a: Floats) -> None:
        at = int(np.argmax(a))
        if a[at] > self._max_abs:
            self._max_abs = float(a[at])
            row = int(w.rows[np.searchsorted(w.starts, at, side="right") - 1])
            self._max_at = {
                "sample_id": batch.sample_id[row],
                "step": int(batch.step[row]),
                "rank": int(batch.rank[row]),
                "position": int(w.position[at]),
                "token_id": int(w.token_ids[at]),
                "first": float(w.first[at]),
                "second": float(w.second[at]),
            }
        self._signed = (min(self._signed[0], float(d.min())), max(self._signed[1], float(d.max())))

    def _token_rows(
        self, w: Window, x: Floats, y: Floats, d: Floats, a: Floats, mismatched: Bools
    ) -> dict[str, Floats]:
        assert self._shift is not None
        starts = w.starts

        def per_sample(values: npt.NDArray[Any]) -> Floats:
            return np.add.reduceat(values, starts, dtype=np.float64)

        # ratio - 1 without cancellation, which mean_exp_d and k3 need near d = 0
        em1 = np.expm1(d)
        e = np.exp(d)
        c = np.clip(d, -VERL_BOUND, VERL_BOUND)
        xs, ys, ds = x - self._shift[0], y - self._shift[1], d - self._shift[2]
        px, py = np.exp(x), np.exp(y)
        q = np.abs(py - px)
        self._prob_max = max(self._prob_max, float(q.max()))
        p0, p1 = math.exp(min(self._shift[0], 700.0)), math.exp(min(self._shift[1], 700.0))
        pxs, pys = px - p0, py - p1
        rows = {
            "d": per_sample(d),
            "abs": per_sample(a),
            "dd": per_sample(d * d),
            "shifted": per_sample(ds),
            "shifted2": per_sample(ds * ds),
            "mismatched": per_sample(mismatched),
            "em1": per_sample(em1),
            "em1_2": per_sample(em1 * em1),
            "eabs": per_sample(np.expm1(a)),
            "k3": per_sample(_k3(d, a, em1)),
            "clip": per_sample((e > 1 + CLIP) | (e < 1 - CLIP)),
            "chi2": per_sample(np.expm1(2 * c)),
            "x": per_sample(xs),
            "y": per_sample(ys),
            "xx": per_sample(xs * xs),
            "yy": per_sample(ys * ys),
            "xy": per_sample(xs * ys),
            "ax": per_sample(a * xs),
            "dx": per_sample(d * xs),
            "px": per_sample(pxs),
            "py": per_sample(pys),
            "pxx": per_sample(pxs * pxs),
            "pyy": per_sample(pys * pys),
            "pxy": per_sample(pxs * pys),
            "q": per_sample(q),
            "qq": per_sample(q * q),
        }
        rows.update(_entropy_rows(w, a, per_sample))
        return rows

    def as_dict(self) -> dict[str, Any]:
        """The block of `logdiff-measure/1`. Undefined numbers are NaN, overflowed ones infinite."""
        s = self._sums.totals()
        n = float(self.tokens)
        p50, p90, p99, p999 = self._order.percentiles((50, 90, 99, 99.9))
        mean_em1 = ratio(s["em1"], n)
        weight, weight2 = n + s["em1"], n + 2 * s["em1"] + s["em1_2"]
        ess = _effective(weight, weight2, n)
        variance_d = variance(n, s["shifted"], s["shifted2"])
        return {
            "tokens": self.tokens,
            "mismatched_tokens": int(s["mismatched"]),
            "mismatched_share": ratio(s["mismatched"], n),
            "missing": self.missing,
            "samples": int(s["samples"]),
            "max_abs": self._max_abs if self.tokens else math.nan,
            "max_abs_at": self._max_at,
            "min": self._signed[0] if self.tokens else math.nan,
            "max": self._signed[1] if self.tokens else math.nan,
            "mean_abs": ratio(s["abs"], n),
            "mean": ratio(s["d"], n),
            "mean_se": standard_error(n, s["shifted"], s["shifted2"]),
            "mean_se_by_sample": clustered_error(n, s["d"], s["sample_dd"], s["sample_dn"], s["nn"]),
            "std": math.sqrt(variance_d) if n >= 2 else math.nan,
            "rms": math.sqrt(ratio(s["dd"], n)) if n else math.nan,
            "p50": p50,
            "p90": p90,
            "p99": p99,
            "p999": p999,
            "k1_kl": -ratio(s["d"], n),
            "k3_kl": ratio(s["k3"], n),
            "mean_exp_d": 1 + mean_em1,
            "mean_exp_d_se": standard_error(n, s["em1"], s["em1_2"]),
            "mean_exp_d_se_by_sample": clustered_error(n, s["em1"], s["sample_ee"], s["sample_en"], s["nn"]),
            "ess": ess,
            "ess_tokens": ess * n,
            "clip_share": ratio(s["clip"], n),
            "top1_share": self._top_share(s["abs"]),
            "pearson": correlation(n, s["px"], s["py"], s["pxx"], s["pyy"], s["pxy"]),
            "pearson_logprob": correlation(n, s["x"], s["y"], s["xx"], s["yy"], s["xy"]),
            "log_ppl_rollout": -ratio(s["mean_x"], s["samples"]),
            "log_ppl_train": -ratio(s["mean_y"], s["samples"]),
            "log_ppl_diff": ratio(s["mean_x"] - s["mean_y"], s["samples"]),
            "log_ppl_abs_diff": ratio(s["gap_abs"], s["samples"]),
            "ppl_ratio": ratio(s["ppl_ratio"], s["samples"]),
            "chi2": ratio(s["chi2"], n),
            "chi2_seq": ratio(s["chi2_seq"], s["samples"]),
            "token_mult_prob_error": 1 + ratio(s["eabs"], n),
            "rollout_probs_diff_mean": ratio(s["q"], n),
            "rollout_probs_diff_max": self._prob_max if self.tokens else math.nan,
            "rollout_probs_diff_std": math.sqrt(variance(n, s["q"], s["qq"])) if n >= 2 else math.nan,
            "bias_ratio": ratio(abs(s["d"]), s["abs"]),
            "corr_abs_neg_logprob": -correlation(n, s["abs"], s["x"], s["dd"], s["xx"], s["ax"]),
            "corr_neg_logprob": -correlation(n, s["d"], s["x"], s["dd"], s["xx"], s["dx"]),
            "corr_abs_entropy": correlation(s["hn"], s["hax"], s["h"], s["haa"], s["hh"], s["ha"]),
            "entropy_mean": ratio(s["h"], s["hn"]),
            **self._structure.as_dict(),
        }

    def _top_share(self, total: float) -> float:
        largest = math.ceil(self.tokens / 100)
        return ratio(self._order.tail_sum(largest), total)


def _k3(d: Floats, a: Floats, em1: Floats) -> Floats:
    # exp(d) - 1 - d loses all its digits near 0; five Taylor terms are exact to fp64 rounding below 1e-3
    series = d * d * (0.5 + d * (1 / 6 + d * (1 / 24 + d * (1 / 120 + d / 720))))
    return np.where(a < 1e-3, series, em1 - d)


def _effective(weight: float, weight2: float, n: float) -> float:
    if n == 0:
        return math.nan
    if math.isinf(weight2):
        return math.nan
    return ratio(weight * weight, n * weight2)


def _entropy_rows(w: Window, a: Floats, per_sample: Any) -> dict[str, Floats]:
    if w.entropy is None:
        nothing = np.zeros(len(w.starts))
        return dict.fromkeys(("hn", "h", "hh", "ha", "hax", "haa"), nothing)
    known = np.isfinite(w.entropy)
    h = np.where(known, w.entropy, 0).astype(np.float64)
    ak = np.where(known, a, 0.0)
    values = {"hn": known, "h": h, "hh": h * h, "ha": h * ak, "hax": ak, "haa": ak * ak}
    return {name: per_sample(value) for name, value in values.items()}


def _sample_rows(w: Window, x: Floats, y: Floats, rows: dict[str, Floats]) -> dict[str, Floats]:
    n = w.counts.astype(np.float64)
    mean_x, mean_y = np.add.reduceat(x, w.starts) / n, np.add.reduceat(y, w.starts) / n
    gap = rows["d"] / n
    return {
        "n": n,
        "samples": np.ones(len(n)),
        "nn": n * n,
        "mean_x": mean_x,
        "mean_y": mean_y,
        "gap_abs": np.abs(gap),
        "ppl_ratio": np.exp(-gap),
        "chi2_seq": np.expm1(2 * np.clip(rows["d"], -VERL_BOUND, VERL_BOUND)),
        "sample_dd": rows["d"] * rows["d"],
        "sample_dn": rows["d"] * n,
        "sample_ee": rows["em1"] * rows["em1"],
        "sample_en": rows["em1"] * n,
    }

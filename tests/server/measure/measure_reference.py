"""The statistics of docs/metrics.md once more, token by token in plain Python, as the tests' independent reference."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

import numpy as np
from measure_evidence import Sample

Pair = tuple[float, float]


def bits(value: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def compared(samples: Sequence[Sample], first: str, second: str) -> list[list[tuple[int, float, float]]]:
    """Per sample (position, first, second) of tokens under the mask with both values; values widened from fp32."""
    found = []
    for sample in samples:
        a, b = getattr(sample, first) or [], getattr(sample, second) or []
        mask = sample.mask if sample.mask is not None else [1] * len(sample.ids)
        rows = []
        for position in range(len(sample.ids)):
            x = a[position] if position < len(a) else None
            y = b[position] if position < len(b) else None
            if mask[position] and x is not None and y is not None:
                rows.append((position, float(np.float32(x)), float(np.float32(y))))
        found.append(rows)
    return found


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def std(values: Sequence[float]) -> float:
    if len(values) < 2:
        return math.nan
    middle = mean(values)
    return math.sqrt(math.fsum((v - middle) ** 2 for v in values) / (len(values) - 1))


def pearson(pairs: Sequence[Pair]) -> float:
    xs, ys = [p[0] for p in pairs], [p[1] for p in pairs]
    if len(pairs) < 2 or len(set(xs)) < 2 or len(set(ys)) < 2:
        return math.nan
    mx, my = mean(xs), mean(ys)
    top = math.fsum((x - mx) * (y - my) for x, y in pairs)
    return top / math.sqrt(math.fsum((x - mx) ** 2 for x in xs) * math.fsum((y - my) ** 2 for y in ys))


def exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def clamp(value: float) -> float:
    return max(-20.0, min(20.0, value))


def k3(d: float) -> float:
    if abs(d) < 0.1:  # Taylor series: exp(d) - 1 - d cancels
        return math.fsum(d**k / math.factorial(k) for k in range(2, 14))
    return exp(d) - 1 - d


def statistics(samples: Sequence[Sample], first: str = "rollout", second: str = "train") -> dict[str, float]:
    """Scalar fields of a pair block."""
    by_sample = [rows for rows in compared(samples, first, second) if rows]
    tokens = [(x, y) for rows in by_sample for _, x, y in rows]
    d = [y - x for x, y in tokens]
    size = [abs(v) for v in d]
    n = len(d)
    ratio = [exp(v) for v in d]
    probs = [(exp(x), exp(y)) for x, y in tokens]
    gap = [abs(p - q) for p, q in probs]
    sums = [math.fsum(y - x for _, x, y in rows) for rows in by_sample]
    mean_first = [mean([x for _, x, _ in rows]) for rows in by_sample]
    mean_second = [mean([y for _, _, y in rows]) for rows in by_sample]
    percentile = {p: float(np.percentile(np.array(size), p)) for p in (50, 90, 99, 99.9)}
    top = sorted(size, reverse=True)[: math.ceil(n / 100)]
    total = math.fsum(size)
    d_mean, ratio_mean = mean(d), mean(ratio)
    cluster = math.fsum((math.fsum(y - x - d_mean for _, x, y in rows)) ** 2 for rows in by_sample)
    return {
        "tokens": n,
        "samples": len(by_sample),
        "mismatched_tokens": sum(bits(x) != bits(y) for x, y in tokens),
        "mismatched_share": sum(bits(x) != bits(y) for x, y in tokens) / n,
        "max_abs": max(size),
        "min": min(d),
        "max": max(d),
        "mean_abs": mean(size),
        "mean": d_mean,
        "mean_se": std(d) / math.sqrt(n) if n > 1 else math.nan,
        "mean_se_by_sample": math.sqrt(cluster) / n,
        "std": std(d),
        "rms": math.sqrt(mean([v * v for v in d])),
        "p50": percentile[50],
        "p90": percentile[90],
        "p99": percentile[99],
        "p999": percentile[99.9],
        "k1_kl": -d_mean,
        "k3_kl": mean([k3(v) for v in d]),
        "mean_exp_d": ratio_mean,
        "mean_exp_d_se": std(ratio) / math.sqrt(n) if n > 1 else math.nan,
        "ess": math.fsum(ratio) ** 2 / (n * math.fsum(r * r for r in ratio)),
        "clip_share": sum(r > 1.2 or r < 0.8 for r in ratio) / n,
        "top1_share": math.fsum(top) / total if total else math.nan,
        "pearson": pearson(probs),
        "pearson_logprob": pearson(tokens),
        "log_ppl_rollout": mean([-m for m in mean_first]),
        "log_ppl_train": mean([-m for m in mean_second]),
        "log_ppl_diff": mean([a - b for a, b in zip(mean_first, mean_second, strict=True)]),
        "log_ppl_abs_diff": mean([abs(a - b) for a, b in zip(mean_first, mean_second, strict=True)]),
        "ppl_ratio": mean([exp(a - b) for a, b in zip(mean_first, mean_second, strict=True)]),
        "chi2": mean([exp(2 * clamp(v)) for v in d]) - 1,
        "chi2_seq": mean([exp(2 * clamp(s)) for s in sums]) - 1,
        "token_mult_prob_error": mean([exp(v) for v in size]),
        "rollout_probs_diff_mean": mean(gap),
        "rollout_probs_diff_max": max(gap),
        "rollout_probs_diff_std": std(gap),
        "bias_ratio": abs(math.fsum(d)) / total if total else math.nan,
        "corr_abs_neg_logprob": pearson([(s, -x) for s, (x, _) in zip(size, tokens, strict=True)]),
        "corr_neg_logprob": pearson([(v, -x) for v, (x, _) in zip(d, tokens, strict=True)]),
    }


def lag_correlation(samples: Sequence[Sample], lag: int) -> float:
    pairs: list[Pair] = []
    for rows in compared(samples, "rollout", "train"):
        x, y = {p: a for p, a, _ in rows}, {p: b for p, _, b in rows}
        pairs += [(x[p], y[p + lag]) for p in x if p + lag in y]
    return pearson(pairs)


def zero_runs(samples: Sequence[Sample]) -> tuple[int, int, int]:
    """Zero tokens, runs of them, longest run, over the compared tokens of each sample."""
    zeros, runs = 0, []
    for rows in compared(samples, "rollout", "train"):
        length = 0
        for x, y in [(x, y) for _, x, y in rows] + [(0.0, 1.0)]:
            if x == y:
                length += 1
            elif length:
                runs.append(length)
                zeros += length
                length = 0
    return zeros, len(runs), max(runs, default=0)

"""How far each side is from what the checkpoint itself gives: which side computes something else, if any.

The yardstick is the checkpoint in fp32. The checkpoint in the run's dtype shows what that dtype alone costs; a side
that is much further from the yardstick than that is not explained by rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FACTOR = 2.0
"""A side this many times as far off as the checkpoint in the same dtype computes something else: honest engines that
differ in every operator were between 0.8 and 1.3 times as far off (docs/localize.md)."""

SMALL = 1e-6
"""Nats; below this nothing is far."""


@dataclass(frozen=True, slots=True)
class Distance:
    """One column of log-probabilities against the yardstick.

    Args:
        column: "decode", "prefill" or "train".
        rms, mean_abs, mean, max_abs: of value - yardstick, nats.
        tokens: compared tokens.
        ratio: rms over that of the checkpoint in the run's dtype.
        median_ratio: the same of the median |difference|: a few wrong tokens leave it alone.
        worst: [(sample, share of its tokens' sum of squares)] of the samples that hold most of it.
    """

    column: str
    rms: float
    mean_abs: float
    mean: float
    max_abs: float
    tokens: int
    ratio: float
    median_ratio: float
    worst: tuple[tuple[str, float], ...]

    @property
    def far(self) -> bool:
        """Whether rounding in the run's dtype does not explain it."""
        return not self.ratio <= FACTOR and self.rms > SMALL

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "column": self.column, "rms": self.rms, "mean_abs": self.mean_abs, "mean": self.mean,
            "max_abs": self.max_abs, "tokens": self.tokens, "ratio": self.ratio, "median_ratio": self.median_ratio,
            "worst": [list(pair) for pair in self.worst],
        }  # fmt: skip


def distances(columns: dict[str, Path], yardstick: Path, own_dtype: Path | None) -> dict[str, Distance]:
    """Distance of each column's sequence file from the yardstick's, over the tokens that both have.

    Args:
        columns: name -> sequence file with `logprobs` of the same tokens.
        yardstick: the checkpoint in fp32.
        own_dtype: the checkpoint in the run's dtype; None where it is fp32 too: the scale is then 1e-5 nats.
    """
    import numpy as np

    from logdiff.case.sequences import read_sequences

    wide = read_sequences(yardstick)
    truth = wide.values()
    scale = scale_median = 1e-5
    if own_dtype is not None:
        own = read_sequences(own_dtype).values() - truth
        own = own[np.isfinite(own)]
        if len(own):
            scale = max(scale, float(np.sqrt(np.mean(own**2))))
            scale_median = max(scale_median, float(np.median(np.abs(own))))
    result = {}
    for name, path in columns.items():
        d = read_sequences(path).values() - truth
        kept = np.isfinite(d)
        if not kept.any():
            continue
        squares = np.where(kept, d, 0.0) ** 2
        total = float(squares.sum())
        shares = [
            (wide.sample_ids[i], float(squares[wide.span(i)].sum()) / total if total else 0.0)
            for i in range(len(wide.sample_ids))
        ]
        shares.sort(key=lambda pair: -pair[1])
        e = d[kept]
        rms = math.sqrt(total / len(e))
        result[name] = Distance(
            name, rms, float(np.abs(e).mean()), float(e.mean()), float(np.abs(e).max()), len(e),
            rms / scale, float(np.median(np.abs(e))) / scale_median, tuple(shares[:4]),
        )  # fmt: skip
    return result

"""A few tokens far off while the rest is close."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from logdiff.verdict.table import Table

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Outliers:
    """A few tokens far off while the rest is close.

    Args:
        flags: [T].
        share: of the tokens; `held`: of the sum of abs d.
        negative: share of them with d below 0.
        level: median abs d of the others, nats.
        stride: period of their positions in the sequence, None; `on_stride`: share of them on it.
        ids: share of them that the three commonest token ids make up, against their share of all tokens.
        low_placeholder: share of them whose rollout value is exactly 0.0.
    """

    flags: Bools
    share: float
    held: float
    negative: float
    level: float
    stride: int | None
    on_stride: float
    phase: int
    ids: tuple[float, float]


def outliers(table: Table) -> Outliers | None:
    """Tokens whose abs d is over 8 times the 90th percentile of tokens of like probability, at most a tenth of all."""
    a = np.abs(table.d)
    if len(a) < 100:
        return None
    spread = float(np.quantile(a, 0.8))
    flags = a > max(8 * spread, 1e-6)
    count = int(np.count_nonzero(flags))
    if count < 3 or count > 0.12 * len(a):
        return None
    held = float(a[flags].sum() / a.sum())
    stride, on, phase = _stride(table, flags)
    ids, numbers = np.unique(table.token_id[flags], return_counts=True)
    common = ids[np.argsort(-numbers)[:3]]
    return Outliers(
        flags,
        count / len(a),
        held,
        float(np.mean(table.d[flags] < 0)),
        float(np.median(a[~flags])),
        stride,
        on,
        phase,
        (float(np.isin(table.token_id[flags], common).mean()), float(np.isin(table.token_id, common).mean())),
    )


def _stride(table: Table, flags: Bools) -> tuple[int | None, float, int]:
    """The longest period of places that holds nearly all outliers in one phase."""
    where = table.place[flags]
    if len(where) < 6:
        return None, 0.0, 0
    best: tuple[int | None, float, int] = (None, 0.0, 0)
    for stride in (8, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096):
        phases = np.bincount(where % stride, minlength=stride)
        top = int(np.argmax(phases))
        on = float(phases[top] / len(where))
        if len(np.unique(where[where % stride == top])) >= 2 and on >= 0.8:
            best = (stride, on, top)
    return best

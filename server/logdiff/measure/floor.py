"""The floor: a side against itself when only the shape of the work varies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from logdiff.case.batch import PairBatch
from logdiff.errors import InputError
from logdiff.measure.pair import PairStatistics

FLOOR_METRICS = ("mean_abs", "p99", "max_abs", "mismatched_tokens")
_CLASS_METRICS = ("mean_abs", "p99", "max_abs")


def self_stats(
    baseline: npt.NDArray[np.float32],
    other: npt.NDArray[np.float32],
    offsets: npt.NDArray[np.int64],
    *,
    null_baseline: npt.NDArray[np.bool_] | None = None,
    null_other: npt.NDArray[np.bool_] | None = None,
    mask: npt.NDArray[np.bool_] | None = None,
    sample_ids: list[str] | None = None,
) -> dict[str, Any]:
    """Statistics of `other - baseline` of one side, with the fields of a pair block.

    A sample with a non-finite value is left out and counted in `excluded_samples`.

    Args:
        baseline, other: fp32 [T], nats, the same tokens in the same order.
        offsets: int64 [S + 1], samples.
        null_baseline, null_other: bool [T], no value there.
        mask: bool [T], tokens to compare; default all.
        sample_ids: names [S]; default their numbers.

    Raises:
        InputError: unequal lengths.
    """
    tokens, samples = int(offsets[-1]), len(offsets) - 1
    for name, values in (("baseline", baseline), ("other", other)):
        if len(values) != tokens:
            raise InputError(
                f"{name} has {len(values)} values for {tokens} tokens", hint="compare runs of the same ids"
            )
    no = np.zeros(tokens, dtype=bool)
    nulls = (no if null_baseline is None else null_baseline, no if null_other is None else null_other)
    active = ~no if mask is None else mask
    spoilt = np.zeros(samples, dtype=bool)
    for values, null in ((baseline, nulls[0]), (other, nulls[1])):
        places = np.flatnonzero(active & ~null & ~np.isfinite(values))
        spoilt[np.searchsorted(offsets, places, side="right") - 1] = True
    unknown = np.full(samples, -1, dtype=np.int32)
    batch = PairBatch(
        sample_id=[str(i) for i in range(samples)] if sample_ids is None else sample_ids,
        step=np.zeros(samples, dtype=np.int32),
        rank=np.zeros(samples, dtype=np.int32),
        policy_version=unknown.astype(np.int64),
        pack=unknown,
        left_pad=unknown,
        prompt_offsets=np.zeros(samples + 1, dtype=np.int64),
        prompt_ids=np.zeros(0, dtype=np.int64),
        offsets=offsets,
        token_ids=np.full(tokens, -1, dtype=np.int64),
        mask=active,
        logprob={"rollout": baseline, "train": other},
        null={"rollout": nulls[0], "train": nulls[1]},
        lengths=np.full((samples, 5), -1, dtype=np.int64),
        train_ids=[None] * samples,
    )
    statistics = PairStatistics("rollout", "train")
    try:
        statistics.update(batch, spoilt)
        return {**statistics.as_dict(), "excluded_samples": int(np.count_nonzero(spoilt))}
    finally:
        statistics.close()


def floor_summary(axes: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The `floor` block: the largest of each figure over all axes, by side too, with the axes beneath.

    Args:
        axes: each {side, axis, value, ...statistics of that side against its own baseline}; an axis without
            a compared token counts for nothing and is named in `without_tokens`.
    """
    rows = [dict(axis) for axis in axes]
    measured = [row for row in rows if row.get("tokens", 0) > 0]
    if not rows:
        return {}
    floor: dict[str, Any] = _largest(measured)
    sides = sorted({str(row["side"]) for row in measured})
    floor["by_side"] = {side: _largest([row for row in measured if row["side"] == side]) for side in sides}
    floor["axes"] = rows
    empty = [f"{row.get('side')}/{row.get('axis')}={row.get('value')}" for row in rows if row not in measured]
    if empty:
        floor["without_tokens"] = empty
    return floor


def within_floor(measured: Mapping[str, Any], floor: Mapping[str, Any]) -> bool:
    """Class `none`: bitwise equal, or mean_abs, p99 and max_abs all at most those of the measured floor.

    Nothing compared, an undefined number or a floor that was not measured is never within.
    """
    if not measured.get("tokens", 0) > 0:
        return False
    if measured["mismatched_tokens"] == 0:
        return True
    if any(name not in floor for name in _CLASS_METRICS):
        return False
    return all(float(measured[name]) <= float(floor[name]) for name in _CLASS_METRICS)


def _largest(rows: list[dict[str, Any]]) -> dict[str, Any]:
    if not rows:
        return {}
    return {name: max((row[name] for row in rows), key=float) for name in FLOOR_METRICS}

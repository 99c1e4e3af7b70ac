"""Where and in which pattern d appears: position, sample, step, rank, lag, runs of exact zeros, storage grid."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from logdiff.case.batch import PairBatch
from logdiff.measure.lags import LagScan
from logdiff.measure.moments import ratio
from logdiff.measure.window import Bools, Ints, Singles, Window

Floats = npt.NDArray[np.float64]

WORST = 10
"""Samples named in `by_sample`."""
MAX_GROUPS = 4096
"""Distinct steps or ranks kept apart; the rest is added up under "other"."""
_LEADING_KEPT = 1 << 16


class Structure:
    """Streaming description of the pattern of d for one pair of sides."""

    def __init__(self) -> None:
        self._lags = LagScan()
        self._positions = _Table()
        self._steps, self._ranks = _Groups(), _Groups()
        self._worst = _Worst()
        self._zeros = _ZeroRuns()
        self._early, self._late = 0.0, 0.0
        self._grid = {side: {"bf16": 0, "fp16": 0, "nonzero": 0} for side in ("first", "second")}

    def update(
        self, batch: PairBatch, w: Window, d: Floats, a: Floats, mismatched: Bools, rows: dict[str, Floats]
    ) -> None:
        """Take one window with its d, |d|, bit mismatches and per-sample sums."""
        self._lags.update(w)
        self._zeros.update(w, a)
        edges, buckets = _position_edges(w)
        self._positions.add(buckets, _edge_columns(edges, d, a, mismatched))
        largest = np.maximum.reduceat(a, w.starts)
        columns = {
            "tokens": rows["n"],
            "mismatched_tokens": rows["mismatched"],
            "abs": rows["abs"],
            "d": rows["d"],
            "max": largest,
        }
        self._steps.add(batch.step[w.rows], columns)
        self._ranks.add(batch.rank[w.rows], columns)
        self._worst.add(batch, w, columns)
        self._add_early_late(w, a)
        for side, values in (("first", w.first), ("second", w.second)):
            _count_grid(self._grid[side], values)

    def as_dict(self) -> dict[str, Any]:
        """Fields of the pair block."""
        return {
            "early_late_ratio": ratio(self._early, self._late),
            "lag_scan": self._lags.as_dict(),
            "zero_runs": self._zeros.as_dict(),
            "bf16_grid_share": {s: ratio(g["bf16"], g["nonzero"]) for s, g in self._grid.items()},
            "fp16_grid_share": {s: ratio(g["fp16"], g["nonzero"]) for s, g in self._grid.items()},
            "by_position": self._positions.as_positions(),
            "by_step": self._steps.as_dict(),
            "by_rank": self._ranks.as_dict(),
            "by_sample": self._worst.as_list(),
        }

    def _add_early_late(self, w: Window, a: Floats) -> None:
        long = w.counts >= 4
        if not long.any():
            return
        starts, counts = w.starts[long], w.counts[long]
        quarter = counts // 4
        cuts = np.stack([starts, starts + quarter, starts + counts - quarter, starts + counts], axis=1).ravel()
        sums = np.add.reduceat(np.append(a, 0.0), cuts).reshape(-1, 4)
        for early, late in sums[:, [0, 2]].tolist():  # one by one, so that the cut into batches leaves no trace
            self._early += early
            self._late += late


def _position_edges(w: Window) -> tuple[Ints, Ints]:
    """Starts of the stretches that lie in one sample and one position bucket, and their bucket numbers.

    Bucket 0 is position 0, bucket k the positions 2^(k-1) .. 2^k - 1.
    """
    bucket = np.frexp(w.position.astype(np.float64))[1]
    change = np.empty(len(bucket), dtype=bool)
    change[0] = True
    np.not_equal(bucket[1:], bucket[:-1], out=change[1:])
    change[w.starts] = True
    edges = np.flatnonzero(change)
    return edges, bucket[edges].astype(np.int64)


def _edge_columns(edges: Ints, d: Floats, a: Floats, mismatched: Bools) -> dict[str, Floats]:
    return {
        "tokens": np.diff(np.append(edges, len(d))).astype(np.float64),
        "mismatched_tokens": np.add.reduceat(mismatched, edges, dtype=np.float64),
        "abs": np.add.reduceat(a, edges),
        "d": np.add.reduceat(d, edges),
        "max": np.maximum.reduceat(a, edges),
    }


def _count_grid(counts: dict[str, int], values: Singles) -> None:
    bits = values.view(np.uint32)
    magnitude = np.abs(values)
    nonzero = magnitude > 0
    counts["nonzero"] += int(np.count_nonzero(nonzero))
    counts["bf16"] += int(np.count_nonzero(nonzero & ((bits & np.uint32(0xFFFF)) == 0)))
    in_range = (magnitude >= np.float32(2.0**-14)) & (magnitude <= np.float32(65504))
    counts["fp16"] += int(np.count_nonzero(in_range & ((bits & np.uint32(0x1FFF)) == 0)))


class _Table:
    """Running sums by a small integer key."""

    def __init__(self) -> None:
        self._columns: dict[str, Floats] = {
            name: np.zeros(0) for name in ("tokens", "mismatched_tokens", "abs", "d", "max")
        }

    def add(self, keys: Ints, columns: dict[str, Floats]) -> None:
        size = int(keys.max()) + 1
        for name, running in self._columns.items():
            if size > len(running):
                running = np.concatenate([running, np.zeros(size - len(running))])
                self._columns[name] = running
            # `at` adds in the order given, so the cut into batches leaves no trace
            (np.maximum if name == "max" else np.add).at(running, keys, columns[name])

    def row(self, key: int) -> dict[str, Any]:
        c = {name: float(column[key]) for name, column in self._columns.items()}
        return {
            "tokens": int(c["tokens"]),
            "mismatched_tokens": int(c["mismatched_tokens"]),
            "mean_abs": ratio(c["abs"], c["tokens"]),
            "mean": ratio(c["d"], c["tokens"]),
            "max_abs": c["max"],
        }

    def as_positions(self) -> list[dict[str, Any]]:
        rows = []
        for bucket, tokens in enumerate(self._columns["tokens"]):
            if tokens:
                span = (0, 0) if bucket == 0 else (1 << (bucket - 1), (1 << bucket) - 1)
                rows.append({"from": span[0], "to": span[1], **self.row(bucket)})
        return rows


class _Groups:
    """A table by an arbitrary integer such as step or rank."""

    def __init__(self) -> None:
        self._table = _Table()
        self._slots: dict[int, int] = {}

    def add(self, keys: npt.NDArray[np.int32], columns: dict[str, Floats]) -> None:
        values, first, where = np.unique(keys, return_index=True, return_inverse=True)
        slots = np.zeros(len(values), dtype=np.int64)
        for i in np.argsort(first):  # in order of appearance
            key = int(values[i])
            if key not in self._slots and len(self._slots) < MAX_GROUPS:
                self._slots[key] = len(self._slots)
            slots[i] = self._slots.get(key, MAX_GROUPS)
        self._table.add(slots[where], columns)

    def as_dict(self) -> dict[str, Any]:
        rows = {str(key): self._table.row(slot) for key, slot in sorted(self._slots.items())}
        if len(self._slots) == MAX_GROUPS and len(self._table._columns["tokens"]) > MAX_GROUPS:
            rows["other"] = self._table.row(MAX_GROUPS)
        return rows


class _Worst:
    """The samples with the largest mean |d|."""

    def __init__(self) -> None:
        self._kept: list[tuple[float, int, dict[str, Any]]] = []
        self._seen = 0

    def add(self, batch: PairBatch, w: Window, columns: dict[str, Floats]) -> None:
        mean = columns["abs"] / columns["tokens"]
        floor = self._kept[-1][0] if len(self._kept) == WORST else -1.0
        above = np.flatnonzero(mean > floor)
        best = above[np.argsort(-mean[above], kind="stable")[:WORST]]
        for i in best.tolist():
            row = int(w.rows[i])
            facts = {
                "sample_id": batch.sample_id[row],
                "step": int(batch.step[row]),
                "rank": int(batch.rank[row]),
                "tokens": int(columns["tokens"][i]),
                "mismatched_tokens": int(columns["mismatched_tokens"][i]),
                "mean_abs": float(mean[i]),
                "mean": float(columns["d"][i] / columns["tokens"][i]),
                "max_abs": float(columns["max"][i]),
            }
            self._kept.append((float(mean[i]), -(self._seen + i), facts))
        self._seen += len(mean)
        self._kept = sorted(self._kept, key=lambda entry: entry[:2], reverse=True)[:WORST]

    def as_list(self) -> list[dict[str, Any]]:
        return [facts for _, _, facts in self._kept]


class _ZeroRuns:
    """Runs of tokens whose values are equal on both sides, counted over the compared tokens of each sample."""

    def __init__(self) -> None:
        self._tokens = self._zeros = self._runs = self._longest = self._samples = self._whole = self._led = 0
        self._leading: dict[int, int] = {}

    def update(self, w: Window, a: Floats) -> None:
        zero = a == 0
        self._tokens += len(zero)
        self._samples += len(w.starts)
        if not zero.any():
            return
        self._zeros += int(np.count_nonzero(zero))
        opens = zero.copy()
        opens[1:] &= ~zero[:-1]
        opens[w.starts] = zero[w.starts]
        run_starts = np.flatnonzero(opens)
        self._runs += len(run_starts)
        # a run ends at the next token that is no zero, or where the next sample begins
        stops = ~zero
        stops[w.starts] = True
        stop_at = np.append(np.flatnonzero(stops), len(zero))
        lengths = stop_at[np.searchsorted(stop_at, run_starts, side="right")] - run_starts
        self._longest = max(self._longest, int(lengths.max()))
        leading = np.isin(run_starts, w.starts, assume_unique=True)
        lead_lengths = lengths[leading]
        counts = w.counts[np.searchsorted(w.starts, run_starts[leading])]
        whole = lead_lengths == counts
        self._whole += int(np.count_nonzero(whole))
        self._led += int(np.count_nonzero(~whole))
        for length, number in zip(*np.unique(lead_lengths[~whole], return_counts=True), strict=True):
            if int(length) in self._leading or len(self._leading) < _LEADING_KEPT:
                self._leading[int(length)] = self._leading.get(int(length), 0) + int(number)

    def as_dict(self) -> dict[str, Any]:
        onsets = sorted(self._leading.items(), key=lambda item: (-item[1], item[0]))[:5]
        return {
            "tokens": self._zeros,
            "share": ratio(self._zeros, self._tokens),
            "runs": self._runs,
            "longest": self._longest,
            "whole_samples": self._whole,
            "leading_samples": self._led,
            "leading_share": ratio(self._led, self._samples),
            "onsets": [{"position": length, "samples": number} for length, number in onsets],
        }

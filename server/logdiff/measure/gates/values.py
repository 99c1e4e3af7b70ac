"""Gates on the values: finite, in range, and enough of them on both sides."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from logdiff.case.batch import SIDES, PairBatch
from logdiff.measure.gates.gate import Bools, Exclusion, Gate, counted, name_of, row_of, rows_with


@dataclass(slots=True)
class _NonFinite:
    nan: int = 0
    plus: int = 0
    minus: int = 0
    first: str = ""

    @property
    def total(self) -> int:
        return self.nan + self.plus + self.minus


class Finite:
    """No NaN and no infinity under the mask; a sample with one has no part in the numbers of that side."""

    def __init__(self) -> None:
        self._sides = {side: _NonFinite() for side in SIDES}
        self._values = 0

    def see(self, batch: PairBatch, out: Exclusion) -> None:
        """Take a batch."""
        for side in SIDES:
            values = batch.logprob[side]
            given = batch.mask & ~batch.null[side]
            self._values += int(np.count_nonzero(given))
            bad = given & ~np.isfinite(values)
            if not bad.any():
                continue
            places = np.flatnonzero(bad)
            out.side[side][rows_with(batch, places)] = True
            state, wrong = self._sides[side], values[places]
            state.nan += int(np.count_nonzero(np.isnan(wrong)))
            state.plus += int(np.count_nonzero(np.isposinf(wrong)))
            state.minus += int(np.count_nonzero(np.isneginf(wrong)))
            row, position = row_of(batch, int(places[0]))
            state.first = state.first or f"{name_of(batch, row)}, position {position}: {float(wrong[0])}"

    def result(self) -> Gate:
        """The gate after the last batch."""
        faults = [
            f"{side}: {state.nan} NaN, {state.plus} +inf, {state.minus} -inf, first {state.first}"
            for side, state in self._sides.items()
            if state.total
        ]
        if faults:
            data = {s: {"nan": v.nan, "inf": v.plus, "-inf": v.minus} for s, v in self._sides.items() if v.total}
            return Gate("finite", False, "; ".join(faults), data)
        if not self._values:
            return Gate("finite", None, "no value under the mask")
        return Gate("finite", True, f"{counted(self._values, 'value')} finite")


@dataclass(slots=True)
class _Span:
    values: int = 0
    positive: int = 0
    largest: float = 0.0
    first: str = ""
    zeros: int = 0
    zeros_alone: int = 0
    longest: int = 0


class Range:
    """No log-probability above 0, and no side that is all zeros (a placeholder, not a measurement)."""

    def __init__(self) -> None:
        self._sides = {side: _Span() for side in SIDES}

    def see(self, batch: PairBatch, out: Exclusion) -> None:
        """Take a batch."""
        given = {side: batch.mask & ~batch.null[side] for side in SIDES}
        zero = {side: given[side] & (batch.logprob[side] == 0) for side in SIDES}
        for side in SIDES:
            state, values = self._sides[side], batch.logprob[side]
            state.values += int(np.count_nonzero(given[side]))
            positive = given[side] & (values > 0)
            if positive.any():
                places = np.flatnonzero(positive)
                state.positive += len(places)
                state.largest = max(state.largest, float(values[places].max()))
                row, position = row_of(batch, int(places[0]))
                state.first = state.first or f"{name_of(batch, row)}, position {position}: {float(values[places[0]])}"
            if zero[side].any():
                state.zeros += int(np.count_nonzero(zero[side]))
                state.longest = max(state.longest, _longest_run(batch, zero[side]))
        for side, other in (("rollout", "train"), ("train", "rollout")):
            alone = zero[side] & given[other] & ~zero[other]
            self._sides[side].zeros_alone += int(np.count_nonzero(alone))

    def result(self) -> Gate:
        """The gate after the last batch."""
        faults, notes = [], []
        for side, state in self._sides.items():
            if state.positive:
                faults.append(
                    f"{side}: {counted(state.positive, 'log-probability').replace('ys', 'ies')} above 0, "
                    f"largest {state.largest}, first {state.first}"
                )
            if state.values and state.zeros == state.values:
                faults.append(f"{side}: every value is exactly 0.0, a placeholder rather than a measurement")
            elif state.zeros:
                note = f"{side}: {state.zeros} of {state.values} values exactly 0.0, longest span {state.longest}"
                notes.append(note + (f", {state.zeros_alone} on this side alone" if state.zeros_alone else ""))
        data = {
            side: {
                "positive": s.positive,
                "zeros": s.zeros,
                "zeros_alone": s.zeros_alone,
                "longest_zero_span": s.longest,
            }
            for side, s in self._sides.items()
            if s.positive or s.zeros
        }
        if faults:
            return Gate("range", False, "; ".join(faults + notes), data)
        if not any(state.values for state in self._sides.values()):
            return Gate("range", None, "no value under the mask")
        return Gate("range", True, "; ".join(["no log-probability above 0", *notes]), data)


def _longest_run(batch: PairBatch, flags: Bools) -> int:
    """Longest run of set flags inside one sample."""
    opens = flags.copy()
    opens[1:] &= ~flags[:-1]
    sample_starts = batch.offsets[:-1][np.diff(batch.offsets) > 0]
    opens[sample_starts] = flags[sample_starts]
    stops = ~flags
    stops[sample_starts] = True
    stop_at = np.append(np.flatnonzero(stops), len(flags))
    starts = np.flatnonzero(opens)
    return int((stop_at[np.searchsorted(stop_at, starts, side="right")] - starts).max())


def coverage_gate(tokens: int, missing: int, sides_seen: dict[str, bool], excluded: int) -> Gate:
    """At least one token with a value on both sides, and no more holes than tokens.

    Args:
        tokens: compared tokens of decode_train.
        missing: tokens under the mask that lack a value on a side.
        sides_seen: side -> whether it gave a single value.
        excluded: samples taken out by other gates.
    """
    data = {"tokens": tokens, "missing": missing, "excluded_samples": excluded}
    absent = [side for side in ("rollout", "train") if not sides_seen[side]]
    if absent:
        return Gate("coverage", False, f"no log-probability on the {' and '.join(absent)} side", data)
    share = f"{missing} of {tokens + missing} tokens under the mask lack a value"
    if not tokens:
        why = share if missing else f"{counted(excluded, 'sample')} excluded by other gates"
        return Gate("coverage", False, f"no token to compare: {why}", data)
    if missing > tokens:
        return Gate("coverage", False, f"more holes than values: {share}", data)
    text = f"{counted(tokens, 'token')} compared"
    if missing:
        text += f"; {share}"
    if excluded:
        text += f"; {counted(excluded, 'sample')} excluded by other gates"
    return Gate("coverage", True, text, data if missing or excluded else {})

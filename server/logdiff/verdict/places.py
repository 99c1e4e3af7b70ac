"""Where abs d is large: candidate groups of tokens, each held against the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from logdiff.verdict.contrast import Contrast, Onset, contrast, ranks, scan
from logdiff.verdict.table import Table

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Factor:
    """A group of tokens in which abs d is larger than in the rest.

    Args:
        name: what the group is; see `factors`.
        contrast: how far it stands out.
        at: the threshold, where it is one.
        detail: a sentence for a reader.
        sharp: for thresholds: a step explains more than a line.
        group: the tokens [T].
    """

    name: str
    contrast: Contrast
    at: int | None
    detail: str
    sharp: bool
    group: Bools


@dataclass(frozen=True, slots=True)
class Places:
    """What was tried, and what stood out.

    `tried` names every factor that the table could show, so that "no structure" is told from "could not be seen".
    """

    found: tuple[Factor, ...]
    tried: tuple[str, ...]
    u: Floats

    def get(self, name: str) -> Factor | None:
        """The factor of that name, if it stands out."""
        return next((f for f in self.found if f.name == name), None)


def places(table: Table) -> Places:
    """Every factor that stands out, the one that explains most first."""
    if table.tokens < 48:
        return Places((), (), np.zeros(0))
    a = np.abs(table.d)
    u = ranks(a, table.rollout)
    found, tried = [], []
    for name, make in _GROUPS.items():
        group = make(table)
        if group is None:
            continue
        tried.append(name)
        seen = contrast(u, a, table.row, group)
        if seen is not None and seen.holds:
            found.append(Factor(name, seen, None, _WORDS[name], True, group))
    for name, scale in _scales(table):
        tried.append(name)
        onset = _earliest(u, a, table, scale, name)
        if onset is None or not onset.contrast.holds or onset.contrast.z < 6:
            continue
        group = scale >= onset.at if onset.late else scale < onset.at
        words = f"abs d is larger {'from' if onset.late else 'below'} {_SCALES[name]} {onset.at}"
        found.append(
            Factor(f"{name} {'late' if onset.late else 'early'}", onset.contrast, onset.at, words, onset.sharp, group)
        )
    for name, number, group in _values(table):
        tried.append(f"{name} {number}")
        seen = contrast(u, a, table.row, group)
        if seen is not None and seen.holds:
            found.append(Factor(name, seen, number, f"abs d is larger on {name} {number}", True, group))
    found.sort(key=lambda f: -f.contrast.r2)
    return Places(tuple(found), tuple(dict.fromkeys(tried)), u)


def _earliest(u: Floats, a: Floats, table: Table, scale: Ints, name: str) -> Onset | None:
    """The best threshold; for places the first of several, since an error that grows has its best one too late."""
    onset = scan(u, a, table.row, scale)
    if onset is None or not onset.late or name not in ("place", "position"):
        return onset
    for _ in range(4):
        before = scale < onset.at
        if np.count_nonzero(before) < 48:
            return onset
        earlier = scan(u[before], a[before], table.row[before], scale[before], fewest=10)
        if earlier is None or not earlier.late or earlier.contrast.z < 5 or earlier.contrast.ratio < 3:
            return onset
        whole = contrast(u, a, table.row, scale >= earlier.at)
        if whole is None or whole.ratio < onset.contrast.ratio:
            return onset
        onset = Onset(earlier.at, True, whole, onset.smooth_r2)
    return onset


def _of_samples(table: Table, flags: Bools) -> Bools:
    tokens: Bools = flags[table.row]
    return tokens


def _later_in_pack(table: Table) -> Bools | None:
    if not (table.order > 0).any():
        return None
    return _of_samples(table, table.order > 0)


def _left_padded(table: Table) -> Bools | None:
    if not (table.left_pad > 0).any():
        return None
    return _of_samples(table, table.left_pad > 0)


def _shares_prefix(table: Table) -> Bools | None:
    flags = table.sharing > 1
    return _of_samples(table, flags) if flags.any() and not flags.all() else None


def _prefix_seen(table: Table) -> Bools | None:
    flags = table.shared > 1
    return _of_samples(table, flags) if flags.any() else None


def _beyond_response_mask(table: Table) -> Bools | None:
    beyond: Bools = table.place > table.response[table.row]
    return beyond


def _older_policy(table: Table) -> Bools | None:
    if not (table.version >= 0).any():
        return None
    return _of_samples(table, (table.version >= 0) & (table.version < table.version.max()))


def _other_experts(table: Table) -> Bools | None:
    agreed = table.experts.get("set")
    if agreed is None:
        return None
    differ: Bools = np.nan_to_num(agreed, nan=1.0) < 1
    return differ


def _repeated(table: Table) -> Bools | None:
    return table.repeated


def _last(table: Table) -> Bools | None:
    last: Bools = table.position == table.response[table.row] - 1
    return last


def _first(table: Table) -> Bools | None:
    first: Bools = table.position == 0
    return first


def _longest(table: Table) -> Bools | None:
    total = (table.prompt + table.response)[table.row]
    top = int(total.max()) if len(total) else 0
    at_limit = total == top
    if np.count_nonzero((table.prompt + table.response) == top) < 3:
        return None
    tail: Bools = at_limit & (table.position >= table.response[table.row] - 8)
    return tail


_GROUPS: dict[str, Callable[[Table], Bools | None]] = {
    "later in pack": _later_in_pack,
    "left padding": _left_padded,
    "shares prefix": _shares_prefix,
    "prefix seen before": _prefix_seen,
    "beyond response mask": _beyond_response_mask,
    "older policy": _older_policy,
    "other experts": _other_experts,
    "repeated id": _repeated,
    "last token": _last,
    "first token": _first,
    "tail at the length limit": _longest,
}
_WORDS = {
    "later in pack": "abs d is larger in every sequence of a pack but the first",
    "left padding": "abs d is larger in rows with left padding",
    "shares prefix": "abs d is larger in samples that share the beginning of their prompt with others",
    "prefix seen before": "abs d is larger in samples whose prompt began an earlier sample",
    "beyond response mask": "abs d is larger beyond as many tokens of the sequence as the response has",
    "older policy": "abs d is larger in samples of older policy versions",
    "other experts": "abs d is larger where the expert ids of both sides differ",
    "repeated id": "abs d is larger on tokens that occurred before in their sequence",
    "last token": "abs d is larger on the last token of each response",
    "first token": "abs d is larger on the first token of each response",
    "tail at the length limit": "abs d is larger on the last tokens of the longest sequences",
}
_SCALES = {
    "place": "position in the sequence",
    "position": "position in the response",
    "distance": "distance to the end of the response",
    "step": "step",
    "length": "sequence length",
    "prompt length": "prompt length",
}


def _scales(table: Table) -> Iterator[tuple[str, Ints]]:
    yield "place", table.place
    yield "position", table.position
    yield "distance", table.response[table.row] - table.position
    if len(np.unique(table.step)) > 1:
        yield "step", table.step[table.row]
    if len(np.unique(table.prompt + table.response)) > 1:
        yield "length", (table.prompt + table.response)[table.row]
    if len(np.unique(table.prompt)) > 1:
        yield "prompt length", table.prompt[table.row]


def _values(table: Table) -> Iterator[tuple[str, int, Bools]]:
    for name, values in (("rank", table.rank), ("step", table.step)):
        distinct = np.unique(values)
        if 1 < len(distinct) <= 64:
            for value in distinct.tolist():
                yield name, int(value), _of_samples(table, values == value)


@dataclass(frozen=True, slots=True)
class Split:
    """Samples fall in two kinds by their mean abs d.

    Args:
        bad: flags [S] of those far off.
        share: of the samples.
        ratio: mean abs d of the bad over that of the others.
        gap: share of the variance of log mean abs d between the two kinds.
        by_prompt: share of prompts with several samples whose samples all fall on one side; None without such.
        expected_by_prompt: the same if samples fell at random.
    """

    bad: Bools
    share: float
    ratio: float
    gap: float
    by_prompt: float | None
    expected_by_prompt: float | None


def split_samples(table: Table) -> Split | None:
    """The best cut of samples into good and bad by mean abs d; None with fewer than eight samples of eight tokens."""
    a = np.abs(table.d)
    counts = np.bincount(table.row, minlength=table.samples)
    usable = counts >= 8
    if np.count_nonzero(usable) < 8:
        return None
    mean = np.bincount(table.row, weights=a, minlength=table.samples) / np.maximum(counts, 1)
    floor = max(float(np.median(mean[usable])) * 1e-3, 1e-9)
    level = np.log(mean + floor)
    order = np.flatnonzero(usable)[np.argsort(level[usable])]
    values = level[order]
    n = len(values)
    total = float(((values - values.mean()) ** 2).sum())
    if total <= 0:
        return None
    best, cut = -1.0, 1
    cumulative = np.cumsum(values)
    for k in range(1, n):
        low, high = cumulative[k - 1] / k, (cumulative[-1] - cumulative[k - 1]) / (n - k)
        between = (high - low) ** 2 * k * (n - k) / n / total
        if between > best:
            best, cut = between, k
    bad = np.zeros(table.samples, dtype=bool)
    bad[order[cut:]] = True
    good = order[:cut]
    low_level = float(np.average(mean[good], weights=counts[good]))
    high_level = float(np.average(mean[bad], weights=counts[bad]))
    ratio = high_level / low_level if low_level > 0 else np.inf
    share = (n - cut) / n
    by_prompt, expected = _by_prompt(table, bad, usable, share)
    return Split(bad, share, ratio, best, by_prompt, expected)


def _by_prompt(table: Table, bad: Bools, usable: Bools, share: float) -> tuple[float | None, float | None]:
    groups: dict[int, list[bool]] = {}
    for i in np.flatnonzero(usable).tolist():
        groups.setdefault(int(table.same_prompt[i]), []).append(bool(bad[i]))
    several = [g for g in groups.values() if len(g) > 1]
    if len(several) < 4:
        return None, None
    alike = float(np.mean([len(set(g)) == 1 for g in several]))
    chance = float(np.mean([share ** len(g) + (1 - share) ** len(g) for g in several]))
    return alike, chance


def summary(found: Places) -> list[dict[str, Any]]:
    """The factors that stand out, JSON-ready."""
    return [
        {
            "factor": f.name,
            "at": f.at,
            "tokens": f.contrast.tokens,
            "mean_abs": f.contrast.mean_abs,
            "rest_mean_abs": f.contrast.rest_abs,
            "shift": f.contrast.shift,
            "z": f.contrast.z,
            "explains": f.contrast.r2,
        }
        for f in found.found
    ]

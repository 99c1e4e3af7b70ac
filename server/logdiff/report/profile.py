"""One streaming pass over a case's tokens: counts on fixed bins, so that memory doesn't grow with the tokens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from logdiff.case.batch import PairBatch
from logdiff.measure.stream import PAIRS
from logdiff.report.extremes import SampleStrip, WorstSamples, WorstToken, WorstTokens

BINS_PER_DECADE = 50
LOWEST_DECADE, HIGHEST_DECADE = -12, 4
MAGNITUDE_BINS = BINS_PER_DECADE * (HIGHEST_DECADE - LOWEST_DECADE)
PROBABILITY_BINS = 100
LOGPROB_BINS, LOGPROB_FLOOR = 512, -32.0
POSITION_BINS = 64
GROUP_LIMIT = 4096
POINTS = 1500

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def magnitude_edges() -> Floats:
    """Edges of the |d| bins in nats, [MAGNITUDE_BINS + 1], 50 per decade from 1e-12 to 1e4; zero has no bin."""
    return np.asarray(10.0 ** (np.arange(MAGNITUDE_BINS + 1) / BINS_PER_DECADE + LOWEST_DECADE), dtype=np.float64)


def magnitude_bin(size: Floats) -> Ints:
    """Bin of each |d| > 0; values outside of the range fall into the border bins."""
    raw = np.floor((np.log10(size) - LOWEST_DECADE) * BINS_PER_DECADE)
    return np.asarray(np.clip(raw, 0, MAGNITUDE_BINS - 1), dtype=np.int64)


@dataclass(slots=True)
class PositionGrid:
    """|d| against response position: 64 position bins whose width doubles whenever a position falls beyond them."""

    width: int = 1
    counts: Ints = field(default_factory=lambda: np.zeros((POSITION_BINS, MAGNITUDE_BINS + 1), np.int64))  # column 0: 0
    largest: Floats = field(default_factory=lambda: np.full(POSITION_BINS, -1.0))  # -1 where no token

    def add(self, position: Ints, size: Floats) -> None:
        """Count tokens at `position` [n] with |d| `size` [n], all finite."""
        while int(position.max()) >= self.width * POSITION_BINS:
            self._double()
        column = np.zeros(len(size), np.int64)
        column[size > 0] = magnitude_bin(size[size > 0]) + 1
        row = position // self.width
        np.add.at(self.counts.reshape(-1), row * (MAGNITUDE_BINS + 1) + column, 1)
        np.maximum.at(self.largest, row, size)

    def _double(self) -> None:
        half = POSITION_BINS // 2
        counts = np.zeros_like(self.counts)
        counts[:half] = self.counts[0::2] + self.counts[1::2]
        largest = np.full_like(self.largest, -1.0)
        largest[:half] = np.maximum(self.largest[0::2], self.largest[1::2])
        self.counts, self.largest, self.width = counts, largest, self.width * 2

    def quantile(self, share: float) -> Floats:
        """The `share` quantile of |d| per position bin, nats, [POSITION_BINS]; NaN where no token, 0 for exact zero.

        The value is the geometric centre of the bin that holds the quantile, within 2.4 % of it.
        """
        edges = magnitude_edges()
        centre = np.concatenate([[0.0], np.sqrt(edges[:-1] * edges[1:])])
        total = self.counts.sum(axis=1)
        reached = np.cumsum(self.counts, axis=1) >= np.maximum(np.ceil(share * total), 1)[:, None]
        value = np.minimum(centre[np.argmax(reached, axis=1)], np.maximum(self.largest, 0.0))
        return np.where(total > 0, value, np.nan)


@dataclass(slots=True)
class GroupStats:
    """What a step or a rank shows: tokens with finite d, those with d not 0, sum and maximum of |d| in nats."""

    tokens: int = 0
    nonzero: int = 0
    sum_abs: float = 0.0
    max_abs: float = 0.0

    def add(self, size: Floats) -> None:
        """Add tokens with |d| `size` [n > 0]."""
        self.tokens += len(size)
        self.nonzero += int(np.count_nonzero(size))
        self.sum_abs += float(size.sum())
        self.max_abs = max(self.max_abs, float(size.max()))


@dataclass(slots=True)
class PairProfile:
    """Counts of one pair of sides. `tokens` counts mask 1 with both values present; plots use the finite ones."""

    first: str
    second: str
    tokens: int = 0
    missing: int = 0
    nonfinite: int = 0
    differing: int = 0
    zero: int = 0
    sum_abs: float = 0.0
    sum_d: float = 0.0
    sum_k3: float = 0.0
    sum_exp: float = 0.0
    max_abs: float = 0.0
    outside: int = 0  # tokens with a log-probability beyond the plane of log-probabilities
    below: Ints = field(default_factory=lambda: np.zeros(MAGNITUDE_BINS, np.int64))  # d < 0, by |d|
    above: Ints = field(default_factory=lambda: np.zeros(MAGNITUDE_BINS, np.int64))  # d > 0, by |d|
    probability: Ints = field(default_factory=lambda: np.zeros((PROBABILITY_BINS, PROBABILITY_BINS), np.int64))
    logprobs: Ints = field(default_factory=lambda: np.zeros((LOGPROB_BINS, LOGPROB_BINS), np.int64))
    position: PositionGrid = field(default_factory=PositionGrid)
    points: list[Floats] = field(default_factory=list)  # [2, n] both log-probabilities, kept while few

    @property
    def finite(self) -> int:
        """Compared tokens whose d is a number."""
        return self.tokens - self.nonfinite

    @property
    def magnitudes(self) -> Ints:
        """Tokens per |d| bin, [MAGNITUDE_BINS]; exact zeros are in none."""
        return self.below + self.above

    def add(self, first: Floats, second: Floats, d: Floats, position: Ints) -> None:
        """Add tokens with finite d: both log-probabilities, d and response position, each [n > 0]."""
        size = np.abs(d)
        with np.errstate(over="ignore"):
            ratio = np.exp(d)
        self.zero += int(np.count_nonzero(d == 0))
        self.sum_abs += float(size.sum())
        self.sum_d += float(d.sum())
        self.sum_exp += float(ratio.sum())
        self.sum_k3 += float((np.expm1(np.minimum(d, 709.0)) - d).sum())
        self.max_abs = max(self.max_abs, float(size.max()))
        for target, chosen in ((self.below, d < 0), (self.above, d > 0)):
            target += np.bincount(magnitude_bin(size[chosen]), minlength=MAGNITUDE_BINS)
        self._add_plane(first, second)
        self.position.add(position, size)

    def _add_plane(self, first: Floats, second: Floats) -> None:
        cells = []
        beyond = (np.minimum(first, second) < LOGPROB_FLOOR) | (np.maximum(first, second) > 0)
        self.outside += int(np.count_nonzero(beyond))
        for values in (first, second):
            p = np.clip(np.exp(np.minimum(values, 0.0)) * PROBABILITY_BINS, 0, PROBABILITY_BINS - 1).astype(np.int64)
            scaled = (values - LOGPROB_FLOOR) / -LOGPROB_FLOOR * LOGPROB_BINS
            cells.append((p, np.clip(scaled, 0, LOGPROB_BINS - 1).astype(np.int64)))
        (p1, l1), (p2, l2) = cells
        np.add.at(self.probability.reshape(-1), p2 * PROBABILITY_BINS + p1, 1)
        np.add.at(self.logprobs.reshape(-1), l2 * LOGPROB_BINS + l1, 1)
        if self.finite <= POINTS:
            self.points.append(np.stack([first, second]))
        else:
            self.points.clear()

    def survival(self) -> tuple[Floats, Floats]:
        """(|d| in nats, share of tokens with at least that |d|) at occupied bins' lower edges and the maximum."""
        counts = self.magnitudes
        used = np.flatnonzero(counts)
        if not len(used):
            return np.empty(0), np.empty(0)
        at_least = np.cumsum(counts[::-1])[::-1]
        value = np.append(magnitude_edges()[used], self.max_abs)
        share = np.append(at_least[used], 1.0) / self.finite
        value = np.minimum(value, self.max_abs)
        return value, share

    def quantile(self, share: float) -> float:
        """The `share` quantile of |d| over finite tokens, nats, within 2.4 %; 0 when exact zeros reach that far."""
        need = share * self.finite
        if self.zero >= need:
            return 0.0
        index = int(np.searchsorted(np.cumsum(self.magnitudes) + self.zero, need))
        edges = magnitude_edges()
        centre = float(np.sqrt(edges[min(index, MAGNITUDE_BINS - 1)] * edges[min(index + 1, MAGNITUDE_BINS)]))
        return min(centre, self.max_abs)


@dataclass(slots=True)
class Profile:
    """All that the report draws from the token table."""

    pairs: dict[str, PairProfile]
    samples: int = 0
    response_tokens: int = 0
    masked: int = 0
    steps: dict[int, GroupStats] = field(default_factory=dict)
    ranks: dict[int, GroupStats] = field(default_factory=dict)
    groups_left_out: int = 0
    main: str | None = None
    worst: list[WorstToken] = field(default_factory=list)
    strips: list[SampleStrip] = field(default_factory=list)


def _response_positions(batch: PairBatch) -> Ints:
    lengths = np.diff(batch.offsets)
    return np.arange(batch.tokens, dtype=np.int64) - np.repeat(batch.offsets[:-1].astype(np.int64), lengths)


def _add_groups(profile: Profile, batch: PairBatch, sample: Ints, size: Floats) -> None:
    for groups, label in ((profile.steps, batch.step), (profile.ranks, batch.rank)):
        per_token = label[sample]
        for value in np.unique(per_token):
            key = int(value)
            if key not in groups and len(groups) >= GROUP_LIMIT:
                profile.groups_left_out += 1
                continue
            groups.setdefault(key, GroupStats()).add(size[per_token == value])


def profile(batches: Iterable[PairBatch]) -> Profile:
    """Read all batches once.

    Returns counts for each of `PAIRS`, and the worst tokens and samples, steps and ranks of the main pair: the first
    of `PAIRS` with a comparable token.
    """
    result = Profile({name: PairProfile(*sides) for name, sides in PAIRS.items()})
    worst = {name: WorstTokens() for name in PAIRS}
    samples = {name: WorstSamples() for name in PAIRS}
    for batch in batches:
        if not batch.tokens:
            result.samples += batch.samples
            continue
        result.samples += batch.samples
        result.response_tokens += batch.tokens
        result.masked += int(np.count_nonzero(~batch.mask))
        position = _response_positions(batch)
        sample = np.repeat(np.arange(batch.samples, dtype=np.int64), np.diff(batch.offsets))
        for name, pair in result.pairs.items():
            both = ~batch.null[pair.first] & ~batch.null[pair.second]
            chosen = batch.mask & both
            pair.missing += int(np.count_nonzero(batch.mask & ~both))
            if not chosen.any():
                continue
            before = _main(result)
            pair.tokens += int(np.count_nonzero(chosen))
            if _main(result) != before:  # an earlier pair got its first token: what was grouped is another pair's
                result.steps.clear()
                result.ranks.clear()
            first, second = batch.logprob[pair.first], batch.logprob[pair.second]
            with np.errstate(invalid="ignore"):
                d = second.astype(np.float64) - first.astype(np.float64)
            different = first.view(np.uint32) != second.view(np.uint32)
            pair.differing += int(np.count_nonzero(different & chosen))
            finite = chosen & np.isfinite(d)
            pair.nonfinite += int(np.count_nonzero(chosen)) - int(np.count_nonzero(finite))
            if finite.any():
                pair.add(
                    first[finite].astype(np.float64), second[finite].astype(np.float64), d[finite], position[finite]
                )
            if name == _main(result):
                worst[name].add(batch, pair.first, pair.second, d, chosen, sample, position)
                samples[name].add(batch, pair.first, pair.second, d, chosen)
                if finite.any():
                    _add_groups(result, batch, sample[finite], np.abs(d[finite]))
    result.main = _main(result)
    if result.main is not None:
        result.worst = worst[result.main].ranked()
        result.strips = samples[result.main].ranked()
    return result


def _main(result: Profile) -> str | None:
    return next((name for name, pair in result.pairs.items() if pair.tokens), None)

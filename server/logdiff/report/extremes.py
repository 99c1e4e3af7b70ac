"""The worst tokens and the worst samples of a stream, kept in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from logdiff.case.batch import PairBatch

WORST_TOKENS = 30
WORST_SAMPLES = 12
STRIP_TOKENS = 400

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class WorstToken:
    """One token of the main pair: where it stands, both log-probabilities (nats), their fp32 bits, d (nats)."""

    sample_id: str
    step: int
    rank: int
    position: int
    token_id: int
    first: float
    second: float
    first_bits: int
    second_bits: int
    d: float


@dataclass(frozen=True, slots=True)
class SampleStrip:
    """A window of one sample's response, column by column; `start` is the position of its first token.

    `total` is the whole response's length, `compared` how many of its tokens count, `max_abs` and `mean_abs` of the
    whole sample (nats, finite d only; `nonfinite` counts the others).
    """

    sample_id: str
    step: int
    rank: int
    total: int
    compared: int
    nonfinite: int
    max_abs: float
    mean_abs: float
    worst_position: int
    start: int
    token_ids: npt.NDArray[np.int64]
    mask: Bools
    first: npt.NDArray[np.float32]
    second: npt.NDArray[np.float32]
    first_null: Bools
    second_null: Bools
    d: npt.NDArray[np.float64]


def severity(d: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """|d| with NaN as infinite: what is not finite is worse than any number."""
    return np.where(np.isnan(d), np.inf, np.abs(d))


@dataclass(slots=True)
class WorstTokens:
    """Keeps the `WORST_TOKENS` largest |d|, not finite first, then in reading order."""

    kept: list[WorstToken] = field(default_factory=list)

    def add(
        self,
        batch: PairBatch,
        first: str,
        second: str,
        d: npt.NDArray[np.float64],
        chosen: Bools,
        sample: npt.NDArray[np.int64],
        position: npt.NDArray[np.int64],
    ) -> None:
        """Look at the `chosen` tokens of a batch; all arrays [T]."""
        index = np.flatnonzero(chosen)
        size = severity(d[index])
        if len(self.kept) == WORST_TOKENS:
            index, size = index[size > _rank(self.kept[-1])], size[size > _rank(self.kept[-1])]
        if len(index) > WORST_TOKENS:
            top = np.lexsort((np.arange(len(size)), -size))[:WORST_TOKENS]
            index = index[top]
        bits = {side: batch.logprob[side].view(np.uint32) for side in (first, second)}
        for i in index.tolist():
            s = int(sample[i])
            self.kept.append(
                WorstToken(
                    sample_id=batch.sample_id[s],
                    step=int(batch.step[s]),
                    rank=int(batch.rank[s]),
                    position=int(position[i]),
                    token_id=int(batch.token_ids[i]),
                    first=float(batch.logprob[first][i]),
                    second=float(batch.logprob[second][i]),
                    first_bits=int(bits[first][i]),
                    second_bits=int(bits[second][i]),
                    d=float(d[i]),
                )
            )
        self.kept.sort(key=_rank, reverse=True)  # stable: equal |d| stay in reading order
        del self.kept[WORST_TOKENS:]

    def ranked(self) -> list[WorstToken]:
        """The kept tokens, worst first."""
        return list(self.kept)


def _rank(token: WorstToken) -> float:
    return float("inf") if token.d != token.d else abs(token.d)


@dataclass(slots=True)
class WorstSamples:
    """Keeps windows of the `WORST_SAMPLES` samples with the largest |d|, ties by the larger sum."""

    kept: list[tuple[tuple[float, float], SampleStrip]] = field(default_factory=list)

    def add(self, batch: PairBatch, first: str, second: str, d: npt.NDArray[np.float64], chosen: Bools) -> None:
        """Look at every sample of a batch that has a `chosen` token; `d` and `chosen` are [T]."""
        filled = np.flatnonzero(np.diff(batch.offsets) > 0)
        size = np.where(chosen, severity(d), -1.0)
        starts = batch.offsets[filled].astype(np.intp)
        largest = np.maximum.reduceat(size, starts)
        finite = np.isfinite(size) & chosen
        total = np.add.reduceat(np.where(finite, size, 0.0), starts)
        order = np.lexsort((np.arange(len(filled)), -total, -largest))[:WORST_SAMPLES]
        for i in order.tolist():
            key = (float(largest[i]), float(total[i]))
            if key[0] < 0 or (len(self.kept) == WORST_SAMPLES and key <= self.kept[-1][0]):
                break
            begin, end = int(batch.offsets[filled[i]]), int(batch.offsets[filled[i] + 1])
            strip = _strip(batch, int(filled[i]), first, second, d[begin:end], chosen[begin:end], size[begin:end])
            self.kept.append((key, strip))
            self.kept.sort(key=lambda item: item[0], reverse=True)
            del self.kept[WORST_SAMPLES:]

    def ranked(self) -> list[SampleStrip]:
        """The kept samples, worst first."""
        return [strip for _, strip in self.kept]


def _strip(
    batch: PairBatch,
    s: int,
    first: str,
    second: str,
    d: npt.NDArray[np.float64],
    chosen: Bools,
    size: npt.NDArray[np.float64],
) -> SampleStrip:
    begin, length = int(batch.offsets[s]), len(d)
    worst = int(np.argmax(size))
    start = min(max(0, worst - STRIP_TOKENS // 2), max(0, length - STRIP_TOKENS))
    stop = min(length, start + STRIP_TOKENS)
    window = slice(begin + start, begin + stop)
    finite = chosen & np.isfinite(d)
    sizes = np.abs(d[finite])
    return SampleStrip(
        sample_id=batch.sample_id[s],
        step=int(batch.step[s]),
        rank=int(batch.rank[s]),
        total=length,
        compared=int(np.count_nonzero(chosen)),
        nonfinite=int(np.count_nonzero(chosen & ~finite)),
        max_abs=float(sizes.max()) if len(sizes) else 0.0,
        mean_abs=float(sizes.mean()) if len(sizes) else 0.0,
        worst_position=worst,
        start=start,
        token_ids=batch.token_ids[window].copy(),
        mask=batch.mask[window].copy(),
        first=batch.logprob[first][window].copy(),
        second=batch.logprob[second][window].copy(),
        first_null=batch.null[first][window].copy(),
        second_null=batch.null[second][window].copy(),
        d=d[start:stop].copy(),
    )

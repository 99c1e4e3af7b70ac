"""Builds token-level evidence for tests from plain samples, cut into batches in any way."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any

import numpy as np
from logdiff.case.batch import SIDES, PairBatch, PairMeta
from logdiff.measure import Measurement, RunFacts, measure


@dataclass
class Sample:
    """One sample; None is null, an absent side is None as a whole."""

    rollout: Sequence[float | None] | None
    train: Sequence[float | None] | None
    rescore: Sequence[float | None] | None = None
    mask: Sequence[int] | None = None
    sample_id: str | None = None
    step: int = 0
    rank: int = 0
    prompt: Sequence[int] = (1, 2)
    response: Sequence[int] | None = None
    train_ids: Sequence[int] | None = None
    entropy: Sequence[float] | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def ids(self) -> list[int]:
        if self.response is not None:
            return list(self.response)
        longest = max(len(side) for side in (self.rollout, self.train, self.rescore) if side is not None)
        return [5 + i % 50 for i in range(longest)]


def batch_of(samples: Sequence[Sample], first_number: int = 0) -> PairBatch:
    """One batch, as the contract of `PairBatch` has it: lists cut or filled to the response, lengths kept."""
    ids = [sample.ids for sample in samples]
    sizes = [len(i) for i in ids]
    logprob: dict[str, Any] = {}
    null: dict[str, Any] = {}
    for side in SIDES:
        values: list[float] = []
        nulls: list[bool] = []
        for sample, size in zip(samples, sizes, strict=True):
            given = list(getattr(sample, side) or [])[:size]
            given += [None] * (size - len(given))
            values += [math.nan if v is None else v for v in given]
            nulls += [v is None for v in given]
        with np.errstate(over="ignore"):
            logprob[side] = np.array(values, dtype=np.float64).astype(np.float32)
        null[side] = np.array(nulls, dtype=bool)
    masks = [list(s.mask if s.mask is not None else [1] * n)[:n] for s, n in zip(samples, sizes, strict=True)]
    masks = [m + [0] * (n - len(m)) for m, n in zip(masks, sizes, strict=True)]
    lengths = [
        [len(i), *(-1 if c is None else len(c) for c in (s.mask, s.rollout, s.train, s.rescore))]
        for s, i in zip(samples, ids, strict=True)
    ]
    unknown = np.full(len(samples), -1, dtype=np.int32)
    names = [s.sample_id if s.sample_id is not None else f"s{first_number + i}" for i, s in enumerate(samples)]
    entropy = {}
    if any(s.entropy is not None for s in samples):
        columns = [list(s.entropy or [math.nan] * n) for s, n in zip(samples, sizes, strict=True)]
        entropy = {"train": np.array(list(chain.from_iterable(columns)), dtype=np.float32)}
    return PairBatch(
        sample_id=names,
        step=np.array([s.step for s in samples], dtype=np.int32),
        rank=np.array([s.rank for s in samples], dtype=np.int32),
        policy_version=unknown.astype(np.int64),
        pack=unknown,
        left_pad=unknown,
        prompt_offsets=np.cumsum([0, *(len(s.prompt) for s in samples)]).astype(np.int64),
        prompt_ids=np.array([i for s in samples for i in s.prompt], dtype=np.int64),
        offsets=np.cumsum([0, *sizes]).astype(np.int64),
        token_ids=np.array(list(chain.from_iterable(ids)), dtype=np.int64),
        mask=np.array(list(chain.from_iterable(masks)), dtype=bool),
        logprob=logprob,
        null=null,
        lengths=np.array(lengths, dtype=np.int64).reshape(len(samples), 5),
        train_ids=[None if s.train_ids is None else np.array(s.train_ids, dtype=np.int64) for s in samples],
        entropy=entropy,
    )


def batches_of(samples: Sequence[Sample], cuts: Sequence[int] = ()) -> Iterator[PairBatch]:
    """Batches that end before each sample number in `cuts`."""
    edges = [0, *sorted(cuts), len(samples)]
    for start, end in pairwise(edges):
        if end > start:
            yield batch_of(samples[start:end], start)


def measured(
    samples: Sequence[Sample], cuts: Sequence[int] = (), facts: RunFacts | None = None, **meta: Any
) -> Measurement:
    """`measure` over samples."""
    return measure(PairMeta(meta), batches_of(samples, cuts), facts)


def gate(measurement: Measurement, name: str) -> Any:
    """The one gate of that name."""
    (found,) = [g for g in measurement.gates if g.gate == name]
    return found


def noisy(rng: np.random.Generator, lengths: Sequence[int], noise: float = 0.05, **columns: Any) -> list[Sample]:
    """Healthy samples: exponential log-probabilities and rounding-like noise."""
    samples = []
    for length in lengths:
        rollout = (-rng.exponential(1.0, length) - 1e-3).astype(np.float32)
        train = np.minimum(rollout + rng.normal(0, noise, length).astype(np.float32), np.float32(-1e-6))
        samples.append(Sample(rollout.tolist(), train.astype(np.float32).tolist(), **columns))
    return samples

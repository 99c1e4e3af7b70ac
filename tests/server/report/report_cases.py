"""Small cases, written through the case's own interface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from logdiff.case import Case
from logdiff.case.batch import PairBatch, PairMeta


@dataclass
class Sample:
    """One sample of a case to build; a side absent from `logprobs` is null, None inside a list is null."""

    token_ids: list[int]
    logprobs: dict[str, Sequence[float | None]]
    mask: list[int] | None = None
    sample_id: str | None = None
    step: int = 0
    rank: int = 0


def batch_of(samples: list[Sample]) -> PairBatch:
    lengths = [len(s.token_ids) for s in samples]
    total = sum(lengths)
    logprob, null = {}, {}
    for side in ("rollout", "train", "rescore"):
        values: list[float | None] = []
        for s in samples:
            values += s.logprobs.get(side, [None] * len(s.token_ids))
        null[side] = np.array([v is None for v in values], dtype=np.bool_).reshape(total)
        logprob[side] = np.array([np.nan if v is None else v for v in values], dtype=np.float32).reshape(total)
    sizes = np.array(
        [
            [n, n, *(n if side in s.logprobs else -1 for side in ("rollout", "train", "rescore"))]
            for s, n in zip(samples, lengths, strict=True)
        ],
        dtype=np.int64,
    )
    count = len(samples)
    return PairBatch(
        sample_id=[s.sample_id if s.sample_id is not None else f"sample-{i}" for i, s in enumerate(samples)],
        step=np.array([s.step for s in samples], np.int32),
        rank=np.array([s.rank for s in samples], np.int32),
        policy_version=np.full(count, -1, np.int64),
        pack=np.full(count, -1, np.int32),
        left_pad=np.full(count, -1, np.int32),
        prompt_offsets=np.arange(count + 1, dtype=np.int64),
        prompt_ids=np.ones(count, np.int64),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        token_ids=np.array([t for s in samples for t in s.token_ids], dtype=np.int64),
        mask=np.array([m for s in samples for m in (s.mask or [1] * len(s.token_ids))], dtype=np.bool_).reshape(total),
        logprob=logprob,
        null=null,
        lengths=sizes.reshape(count, 5),
        train_ids=[None] * count,
    )


@dataclass
class CaseParts:
    """What goes into a case beside its samples."""

    name: str = "pair"
    kind: str = "measure"
    meta: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, Any] = field(default_factory=dict)
    measure: dict[str, Any] | None = None
    floor: dict[str, Any] | None = None
    fingerprints: dict[str, dict[str, Any]] = field(default_factory=dict)
    token_text: dict[int, str] | None = None
    seal: bool = False


MakeCase = Callable[..., Case]


def build_case(path: Path, samples: list[Sample] | list[PairBatch] | None, **parts: Any) -> Case:
    """Write a case; `samples` None leaves the token table out, `parts` are the fields of `CaseParts`."""
    what = CaseParts(**parts)
    case = Case.create(path, what.name, what.kind, what.inputs)
    case.write_meta(PairMeta(facts=what.meta))
    if samples is not None:
        with case.open_writer() as writer:
            for item in samples:
                writer.append(item if isinstance(item, PairBatch) else batch_of([item]))
    if what.measure is not None:
        case.write_result("measure", {"format": "logdiff-measure/1", **what.measure})
    if what.floor is not None:
        case.write_result("floor", what.floor)
    for side, fingerprint in what.fingerprints.items():
        case.write_json(f"sides/{side}/fingerprint.json", {"format": "logdiff-fingerprint/1", **fingerprint})
    if what.token_text is not None:
        given = [sample.token_ids for sample in samples or [] if isinstance(sample, Sample)]
        texts = [[what.token_text.get(token, f"[{token}]") for token in ids] for ids in given]
        case.write_json("sides/rollout/token_text.json", texts)
    if what.seal:
        case.seal()
    else:
        case.close()
    return case

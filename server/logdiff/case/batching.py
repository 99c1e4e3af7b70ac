"""Cut and join `PairBatch`es at sample boundaries, so that streams keep a bounded size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from logdiff.case.batch import SIDES, PairBatch, TopK

MAX_TOKENS = 1 << 18
"""Default upper bound of response tokens per batch; a longer single sample is a batch of its own."""


def slice_batch(batch: PairBatch, start: int, stop: int) -> PairBatch:
    """Samples `start` to `stop` (exclusive) of a batch; arrays are views."""
    t0, t1 = int(batch.offsets[start]), int(batch.offsets[stop])
    p0, p1 = int(batch.prompt_offsets[start]), int(batch.prompt_offsets[stop])
    return PairBatch(
        sample_id=batch.sample_id[start:stop],
        step=batch.step[start:stop],
        rank=batch.rank[start:stop],
        policy_version=batch.policy_version[start:stop],
        pack=batch.pack[start:stop],
        left_pad=batch.left_pad[start:stop],
        prompt_offsets=batch.prompt_offsets[start : stop + 1] - p0,
        prompt_ids=batch.prompt_ids[p0:p1],
        offsets=batch.offsets[start : stop + 1] - t0,
        token_ids=batch.token_ids[t0:t1],
        mask=batch.mask[t0:t1],
        logprob={side: values[t0:t1] for side, values in batch.logprob.items()},
        null={side: values[t0:t1] for side, values in batch.null.items()},
        lengths=batch.lengths[start:stop],
        train_ids=batch.train_ids[start:stop],
        topk={side: TopK(top.ids[t0:t1], top.logprobs[t0:t1]) for side, top in batch.topk.items()},
        experts={side: values[t0:t1] for side, values in batch.experts.items()},
        entropy={side: values[t0:t1] for side, values in batch.entropy.items()},
        extra_lengths={name: values[start:stop] for name, values in batch.extra_lengths.items()},
    )


def concat_batches(batches: Sequence[PairBatch]) -> PairBatch:
    """One batch of all samples in order; sides, top-k and experts that some batches lack are filled as absent."""
    if not batches:
        raise ValueError("no batch to join")
    if len(batches) == 1:
        return batches[0]
    return PairBatch(
        sample_id=[name for b in batches for name in b.sample_id],
        step=np.concatenate([b.step for b in batches]),
        rank=np.concatenate([b.rank for b in batches]),
        policy_version=np.concatenate([b.policy_version for b in batches]),
        pack=np.concatenate([b.pack for b in batches]),
        left_pad=np.concatenate([b.left_pad for b in batches]),
        prompt_offsets=_join_offsets([b.prompt_offsets for b in batches]),
        prompt_ids=np.concatenate([b.prompt_ids for b in batches]),
        offsets=_join_offsets([b.offsets for b in batches]),
        token_ids=np.concatenate([b.token_ids for b in batches]),
        mask=np.concatenate([b.mask for b in batches]),
        logprob={side: np.concatenate([b.logprob[side] for b in batches]) for side in SIDES},
        null={side: np.concatenate([b.null[side] for b in batches]) for side in SIDES},
        lengths=np.concatenate([b.lengths for b in batches]),
        train_ids=[ids for b in batches for ids in b.train_ids],
        topk={side: _join_topk(batches, side) for side in _names(b.topk for b in batches)},
        experts={side: _join_experts(batches, side) for side in _names(b.experts for b in batches)},
        entropy={
            side: np.concatenate([b.entropy.get(side, np.full(b.tokens, np.nan, np.float32)) for b in batches])
            for side in _names(b.entropy for b in batches)
        },
        extra_lengths={
            name: np.concatenate([b.extra_lengths.get(name, np.full(b.samples, -1, np.int64)) for b in batches])
            for name in _names(b.extra_lengths for b in batches)
        },
    )


def split_batch(batch: PairBatch, max_tokens: int) -> Iterator[PairBatch]:
    """Pieces of at most `max_tokens` response tokens; a longer sample comes alone."""
    start = 0
    while start < batch.samples:
        limit = int(batch.offsets[start]) + max_tokens
        stop = int(np.searchsorted(batch.offsets, limit, side="right")) - 1
        stop = min(max(stop, start + 1), batch.samples)
        if start == 0 and stop == batch.samples:
            yield batch
        else:
            yield slice_batch(batch, start, stop)
        start = stop


def rebatch(batches: Iterable[PairBatch], max_tokens: int = MAX_TOKENS) -> Iterator[PairBatch]:
    """The same samples in the same order in batches near `max_tokens`, however small or large they came."""
    pending: list[PairBatch] = []
    tokens = samples = 0
    for batch in batches:
        for piece in split_batch(batch, max_tokens):
            if pending and (tokens + piece.tokens > max_tokens or samples + piece.samples > max_tokens):
                yield concat_batches(pending)
                pending, tokens, samples = [], 0, 0
            pending.append(piece)
            tokens += piece.tokens
            samples += piece.samples
    if pending:
        yield concat_batches(pending)


def _names(mappings: Iterable[Mapping[str, object]]) -> list[str]:
    names: dict[str, None] = {}
    for mapping in mappings:
        names.update(dict.fromkeys(mapping))
    return list(names)


def _join_offsets(parts: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    counts = np.concatenate([np.diff(part) for part in parts])
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


def _join_topk(batches: Sequence[PairBatch], side: str) -> TopK:
    k = max(b.topk[side].ids.shape[1] for b in batches if side in b.topk)
    ids = np.full((sum(b.tokens for b in batches), k), -1, np.int64)
    logprobs = np.full(ids.shape, np.nan, np.float32)
    at = 0
    for b in batches:
        if side in b.topk:
            top = b.topk[side]
            ids[at : at + b.tokens, : top.ids.shape[1]] = top.ids
            logprobs[at : at + b.tokens, : top.ids.shape[1]] = top.logprobs
        at += b.tokens
    return TopK(ids, logprobs)


def _join_experts(batches: Sequence[PairBatch], side: str) -> npt.NDArray[np.int32]:
    shapes = [b.experts[side].shape[1:] for b in batches if side in b.experts]
    layers, k = max(s[0] for s in shapes), max(s[1] for s in shapes)
    out = np.full((sum(b.tokens for b in batches), layers, k), -1, np.int32)
    at = 0
    for b in batches:
        if side in b.experts:
            values = b.experts[side]
            out[at : at + b.tokens, : values.shape[1], : values.shape[2]] = values
        at += b.tokens
    return out

"""Random pair batches, and an equality that looks at bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from logdiff.case.batch import SIDES, PairBatch, TopK

_floats = st.one_of(
    st.floats(width=32, allow_nan=False),
    st.sampled_from([-0.0, 0.0, float("inf"), float("-inf"), float("nan"), 1e-45, -1e-45, 3.4028234663852886e38]),
)
_ids = st.integers(-(2**63), 2**63 - 1)
_text = st.text(st.characters(codec="utf-8"), max_size=8)


def _array(values: list[Any], dtype: type[np.generic]) -> np.ndarray[Any, Any]:
    return np.array(values, dtype=dtype)


@st.composite
def pair_batches(draw: st.DrawFn, *, full_names: bool = True, min_samples: int = 0) -> PairBatch:
    """Any batch that the contracts allow: absent sides, nulls, unequal lengths, repeated ids, top-k, experts."""
    count = draw(st.integers(min_samples, 4))
    sizes = draw(st.lists(st.integers(0, 5), min_size=count, max_size=count))
    prompts = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    total, offsets = sum(sizes), np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

    def many(strategy: st.SearchStrategy[Any], n: int) -> list[Any]:
        return draw(st.lists(strategy, min_size=n, max_size=n))

    lengths = np.full((count, 5), -1, np.int64)
    lengths[:, 0] = sizes
    logprob, null = {}, {}
    mask = np.ones(total, np.bool_)
    for column, name in enumerate(("mask", *SIDES), start=1):
        values = np.full(total, np.nan, np.float32)
        absent = np.ones(total, np.bool_)
        for i, size in enumerate(sizes):
            given = draw(st.sampled_from([size, size, size, -1, size + 2, max(0, size - 1)]))
            lengths[i, column] = given
            stop = int(offsets[i]) + min(size, given)
            n = stop - int(offsets[i])
            if given < 0:
                continue
            if name == "mask":
                mask[offsets[i] : stop] = many(st.booleans(), n)
                mask[stop : offsets[i + 1]] = False
            else:
                values[offsets[i] : stop] = many(_floats, n)
                absent[offsets[i] : stop] = many(st.booleans(), n)
        if name != "mask":
            values[absent] = np.nan
            logprob[name], null[name] = values, absent
    topk, experts, entropy, extra = {}, {}, {}, {}
    for side in ("rollout", "train"):
        if count and draw(st.booleans()):
            k = draw(st.integers(1, 3))
            shape = (total, k)
            topk[side] = TopK(
                _array(many(st.integers(0, 2**62), total * k), np.int64).reshape(shape),
                _array(many(_floats, total * k), np.float32).reshape(shape),
            )
            extra[f"{side}_topk"] = np.array(sizes, np.int64)
        if count and draw(st.booleans()):
            shape3 = (total, draw(st.integers(1, 2)), draw(st.integers(1, 2)))
            experts[side] = _array(many(st.integers(0, 2**31 - 1), int(np.prod(shape3))), np.int32).reshape(shape3)
            extra[f"{side}_experts"] = np.array(sizes, np.int64)
        if count and draw(st.booleans()):
            entropy[side] = _array(many(st.floats(0, 20, width=32), total), np.float32)
    train_ids: list[Any] = [
        _array(many(_ids, draw(st.integers(0, 4))), np.int64) if draw(st.booleans()) else None for _ in range(count)
    ]
    int32 = st.integers(-1, 2**31 - 1)
    return PairBatch(
        sample_id=many(st.one_of(_text, st.sampled_from(["a", "b"])), count),
        step=_array(many(int32, count), np.int32),
        rank=_array(many(int32, count), np.int32),
        policy_version=_array(many(st.integers(-1, 2**63 - 1), count), np.int64),
        pack=_array(many(int32, count), np.int32),
        left_pad=_array(many(int32, count), np.int32),
        prompt_offsets=np.concatenate([[0], np.cumsum(prompts)]).astype(np.int64),
        prompt_ids=_array(many(_ids, sum(prompts)), np.int64),
        offsets=offsets,
        token_ids=_array(many(_ids, total), np.int64),
        mask=mask,
        logprob=logprob,
        null=null,
        lengths=lengths,
        train_ids=train_ids,
        topk=topk,
        experts=experts,
        entropy=entropy,
        extra_lengths=extra,
    )


def bits(values: np.ndarray[Any, Any], *, any_nan: bool = False) -> list[int]:
    """The bits of fp32 values; with `any_nan` all NaNs count as one (text has only one)."""
    raw = np.ascontiguousarray(values, np.float32).view(np.uint32).copy()
    if any_nan:
        raw[np.isnan(values)] = 0x7FC00000
    return [int(v) for v in raw.ravel()]


def samples_of(batches: list[PairBatch], *, any_nan: bool = False) -> list[dict[str, Any]]:
    """Each sample as plain values, whatever the batches: two streams with equal lists hold the same evidence."""
    out = []
    for b in batches:
        for i in range(b.samples):
            t = slice(int(b.offsets[i]), int(b.offsets[i + 1]))
            sample: dict[str, Any] = {
                "key": (b.sample_id[i], int(b.step[i]), int(b.rank[i])),
                "where": (int(b.policy_version[i]), int(b.pack[i]), int(b.left_pad[i])),
                "prompt": b.prompt_ids[b.prompt_offsets[i] : b.prompt_offsets[i + 1]].tolist(),
                "ids": b.token_ids[t].tolist(),
                "mask": b.mask[t].tolist(),
                "lengths": b.lengths[i].tolist(),
                "train_ids": None if (ids := b.train_ids[i]) is None else ids.tolist(),
            }
            for side in SIDES:
                null = b.null[side][t]
                sample[side] = [
                    None if n else v for n, v in zip(null, bits(b.logprob[side][t], any_nan=any_nan), strict=True)
                ]
                assert np.isnan(b.logprob[side][t][null]).all()
                if side in b.entropy and not np.isnan(b.entropy[side][t]).all():
                    sample[f"{side}_entropy"] = bits(b.entropy[side][t], any_nan=any_nan)
                if side in b.topk:
                    rows = zip(b.topk[side].ids[t], b.topk[side].logprobs[t], strict=True)
                    sample[f"{side}_topk"] = [
                        [(int(x), y) for x, y in zip(ids, bits(lp, any_nan=any_nan), strict=True) if x >= 0]
                        for ids, lp in rows
                    ]
                if side in b.experts:
                    sample[f"{side}_experts"] = [
                        [[e for e in layer if e >= 0] for layer in token if max(layer) >= 0]
                        for token in b.experts[side][t].tolist()
                    ]
            for name, given in b.extra_lengths.items():
                if given[i] >= 0:
                    sample[f"{name} length"] = int(given[i])
            # What a side lacks in one sample but another sample of the batch has, is filled as absent.
            for name in [n for n, v in sample.items() if n.endswith(("_topk", "_experts")) and not any(v)]:
                del sample[name]
            out.append(sample)
    return out

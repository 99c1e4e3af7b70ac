"""From ragged columns, as files hold them, to a `PairBatch`: cutting, filling and padding in one place."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from logdiff.case.batch import SIDES, PairBatch, TopK
from logdiff.errors import InputError

_MAX_CELLS = 1 << 26
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ListColumn:
    """One list per sample, joined: `counts` int64 [S] (-1 where the sample has no list), `values` [sum of counts].

    `null` marks values that are null; None when there are none.
    """

    counts: Ints
    values: npt.NDArray[Any]
    null: npt.NDArray[np.bool_] | None = None

    @property
    def present(self) -> bool:
        """Whether any sample has a list."""
        return bool((self.counts >= 0).any())


@dataclass(frozen=True, slots=True)
class TopKColumn:
    """Per sample `counts` tokens (-1 absent), per token `entries` pairs, joined in `ids` and `logprobs`."""

    counts: Ints
    entries: Ints
    ids: Ints
    logprobs: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ExpertsColumn:
    """Per sample `counts` tokens (-1 absent), per token `layers`, per layer `slots` experts, joined in `values`."""

    counts: Ints
    layers: Ints
    slots: Ints
    values: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class PairColumns:
    """All columns of S samples as a file holds them; `numbers` holds step, rank, policy_version, pack, left_pad."""

    sample_id: list[str]
    numbers: dict[str, Ints]
    prompt: ListColumn
    ids: ListColumn
    mask: ListColumn
    logprobs: dict[str, ListColumn]  # side ->
    train_ids: ListColumn
    entropy: dict[str, ListColumn] = field(default_factory=dict)
    topk: dict[str, TopKColumn] = field(default_factory=dict)
    experts: dict[str, ExpertsColumn] = field(default_factory=dict)


def assemble(columns: PairColumns) -> PairBatch:
    """Build the batch: per-token lists are cut or filled to the response's length, `lengths` keeps what was given."""
    wanted = np.maximum(columns.ids.counts, 0)
    offsets = _offsets(wanted)
    total = int(offsets[-1])
    mask = np.ones(total, np.bool_)
    if columns.mask.present:
        given = fit(columns.mask.values.astype(np.bool_), columns.mask.counts, wanted, False)
        mask = given | np.repeat(columns.mask.counts < 0, wanted)
    logprob, null = {}, {}
    for side in SIDES:
        logprob[side], null[side] = _floats(columns.logprobs[side], wanted)
    lengths = [columns.ids.counts, columns.mask.counts, *(columns.logprobs[side].counts for side in SIDES)]
    extra = {f"{side}_topk": column.counts for side, column in columns.topk.items()}
    extra |= {f"{side}_experts": column.counts for side, column in columns.experts.items()}
    numbers = columns.numbers
    return PairBatch(
        sample_id=columns.sample_id,
        step=numbers["step"].astype(np.int32),
        rank=numbers["rank"].astype(np.int32),
        policy_version=numbers["policy_version"],
        pack=numbers["pack"].astype(np.int32),
        left_pad=numbers["left_pad"].astype(np.int32),
        prompt_offsets=_offsets(np.maximum(columns.prompt.counts, 0)),
        prompt_ids=columns.prompt.values,
        offsets=offsets,
        token_ids=columns.ids.values,
        mask=mask,
        logprob=logprob,
        null=null,
        lengths=np.stack(lengths, axis=1).astype(np.int64),
        train_ids=_pieces(columns.train_ids),
        topk={side: _topk(f"{side}_topk", column, wanted) for side, column in columns.topk.items()},
        experts={side: _experts(f"{side}_experts", column, wanted) for side, column in columns.experts.items()},
        entropy={side: _floats(column, wanted)[0] for side, column in columns.entropy.items()},
        extra_lengths=extra,
    )


def fit(values: npt.NDArray[Any], counts: Ints, wanted: Ints, fill: Any) -> npt.NDArray[Any]:
    """Cut or fill each sample's rows of `values` to `wanted` rows. `counts` may be -1 (no list)."""
    have = np.maximum(counts, 0)
    if np.array_equal(have, wanted):
        return values
    out = np.full((int(wanted.sum()), *values.shape[1:]), fill, values.dtype)
    n = np.minimum(have, wanted)
    within = np.arange(int(n.sum())) - np.repeat(_offsets(n)[:-1], n)
    out[within + np.repeat(_offsets(wanted)[:-1], n)] = values[within + np.repeat(_offsets(have)[:-1], n)]
    return out


def _floats(column: ListColumn, wanted: Ints) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    null = np.zeros(len(column.values), np.bool_) if column.null is None else column.null
    values = fit(column.values, column.counts, wanted, np.float32(np.nan))
    return values, fit(null, column.counts, wanted, True)


def _topk(name: str, column: TopKColumn, wanted: Ints) -> TopK:
    row, slot, width = _places(column.entries)
    _check_size(name, len(column.entries), (width,))
    ids = np.full((len(column.entries), width), -1, np.int64)
    logprobs = np.full(ids.shape, np.nan, np.float32)
    ids[row, slot], logprobs[row, slot] = column.ids, column.logprobs
    return TopK(fit(ids, column.counts, wanted, -1), fit(logprobs, column.counts, wanted, np.float32(np.nan)))


def _experts(name: str, column: ExpertsColumn, wanted: Ints) -> npt.NDArray[np.int32]:
    token, layer, layers = _places(column.layers)
    row, slot, width = _places(column.slots)
    _check_size(name, len(column.layers), (layers, width))
    dense = np.full((len(column.layers), layers, width), -1, np.int32)
    dense[token[row], layer[row], slot] = column.values
    return fit(dense, column.counts, wanted, -1)


def _check_size(name: str, tokens: int, shape: tuple[int, ...]) -> None:
    """Every token gets as much room as the longest one takes: refuse what memory can't hold."""
    if tokens * math.prod(shape) > _MAX_CELLS:
        raise InputError(
            f"{name}: {' x '.join(map(str, shape))} entries for one token are too many beside {tokens} tokens",
            value=list(shape),
            hint="keep the same small number of entries for every token",
        )


def _places(sizes: Ints) -> tuple[Ints, Ints, int]:
    """For every element of ragged rows: its row, its place in the row; and the widest row."""
    row = np.repeat(np.arange(len(sizes)), sizes)
    slot = np.arange(len(row)) - np.repeat(_offsets(sizes)[:-1], sizes)
    return row, slot, int(sizes.max(initial=0))


def _pieces(column: ListColumn) -> list[Ints | None]:
    if not column.present:
        return [None] * len(column.counts)
    offsets = _offsets(np.maximum(column.counts, 0)).tolist()
    return [
        column.values[a:b] if count >= 0 else None
        for a, b, count in zip(offsets[:-1], offsets[1:], column.counts.tolist(), strict=True)
    ]


def _offsets(counts: Ints) -> Ints:
    out = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=out[1:])
    return out

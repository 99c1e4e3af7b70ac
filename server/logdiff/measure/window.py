"""A stretch of whole samples, two sides next to each other, cut to the tokens that both have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from logdiff.case.batch import PairBatch

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Singles = npt.NDArray[np.float32]

_TOKENS = 1 << 15
"""Tokens worked on at a time: the temporaries of one window stay near the cache."""


@dataclass(frozen=True, slots=True)
class Window:
    """W consecutive samples of a batch with R response tokens, of which V are compared.

    `full_*` columns have one entry per response token, the others one per compared token (mask 1, both values
    present, sample not excluded). `starts`, `rows` and `counts` name only the N samples with a compared token.
    """

    first: Singles  # [V]
    second: Singles  # [V]
    position: Ints  # [V] 0-based in the response
    starts: Ints  # [N] index of each sample's first compared token
    counts: Ints  # [N]
    rows: Ints  # [N] sample number in the batch
    token_ids: Ints  # [V]
    entropy: Singles | None  # [V]
    full_first: Singles  # [R] anything where not valid
    full_second: Singles  # [R]
    valid: Bools | None  # [R]; None: every token is compared
    full_ends: Ints  # [W]
    missing: int  # tokens under the mask of samples taken into account that lack a value


def windows(batch: PairBatch, first: str, second: str, excluded: Bools) -> Iterator[Window]:
    """Cut `batch` into windows for the pair of sides `first`, `second`; samples in `excluded` [S] have no part."""
    offsets = batch.offsets
    entropy = batch.entropy.get("train", batch.entropy.get("rollout"))
    row = 0
    while row < batch.samples:
        end_row = int(np.searchsorted(offsets, offsets[row] + _TOKENS, side="right")) - 1
        end_row = min(max(end_row, row + 1), batch.samples)
        begin, end = int(offsets[row]), int(offsets[end_row])
        if end > begin:
            yield _window(batch, first, second, excluded, entropy, (row, end_row), (begin, end))
        row = end_row


def _window(
    batch: PairBatch,
    first: str,
    second: str,
    excluded: Bools,
    entropy: Singles | None,
    rows: tuple[int, int],
    span: tuple[int, int],
) -> Window:
    cut = slice(*span)
    offsets = batch.offsets[rows[0] : rows[1] + 1] - span[0]
    lengths = np.diff(offsets)
    wanted = batch.mask[cut]
    if excluded[rows[0] : rows[1]].any():
        wanted = wanted & ~np.repeat(excluded[rows[0] : rows[1]], lengths)
    absent = batch.null[first][cut] | batch.null[second][cut]
    valid = wanted & ~absent
    x, y, ids = batch.logprob[first][cut], batch.logprob[second][cut], batch.token_ids[cut]
    h = None if entropy is None else entropy[cut]
    everything = bool(valid.all())
    counts = lengths if everything else np.add.reduceat(np.append(valid, False), offsets[:-1], dtype=np.int64)
    counts = np.where(lengths > 0, counts, 0)  # reduceat gives an element, not 0, for an empty stretch
    index = np.arange(len(valid)) if everything else np.flatnonzero(valid)
    kept = np.flatnonzero(counts)
    counts = counts[kept]
    starts = np.cumsum(counts) - counts
    return Window(
        first=x if everything else x[index],
        second=y if everything else y[index],
        position=index - np.repeat(offsets[:-1][kept], counts),
        starts=starts,
        counts=counts,
        rows=kept + rows[0],
        token_ids=ids if everything else ids[index],
        entropy=h if h is None or everything else h[index],
        full_first=x,
        full_second=y,
        valid=None if everything else valid,
        full_ends=offsets[1:],
        missing=0 if everything else int(np.count_nonzero(wanted & absent)),
    )

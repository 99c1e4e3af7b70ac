"""Lays sequences out as the rows of one forward: single, padded or packed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from logdiff_kernels.engines.transformers.settings import Score

Expect = Callable[[torch.Tensor, torch.Tensor], None]
"""Told before each forward who its rows are: (sample, position), int64 [B, L] each; sample -1 is padding."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """The inputs of one forward.

    Args:
        input_ids: int64 [B, L].
        attention_mask: int64 [B, L], 1 for tokens; None for `single` and `packed`.
        position_ids: int64 [B, L]; 0 under padding on the left, counting on under padding on the right.
        places: (sample, row, column of its first token), one per sequence.
    """

    input_ids: torch.Tensor
    attention_mask: torch.Tensor | None
    position_ids: torch.Tensor
    places: list[tuple[int, int, int]]


def micro_batches(
    sequences: Sequence[Sequence[int]], order: Sequence[int], score: Score, filler: int
) -> Iterator[MicroBatch]:
    """Cut `sequences`, taken in `order`, into micro-batches. `filler` is the token id under padding."""
    size = 1 if score.layout == "single" else score.micro_batch_size
    for start in range(0, len(order), size):
        chosen = list(order[start : start + size])
        rows = [list(sequences[i]) for i in chosen]
        if score.layout == "padded":
            yield padded(rows, chosen, score.padding_side, filler)
        else:
            yield _packed(rows, chosen)


def padded(rows: list[list[int]], samples: list[int], side: str, filler: int) -> MicroBatch:
    """Rows of one length. Positions as verl and transformers count them: the running sum of the mask, less one."""
    length = max(len(row) for row in rows)
    ids = torch.full((len(rows), length), filler, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    places = []
    for r, row in enumerate(rows):
        first = length - len(row) if side == "left" else 0
        ids[r, first : first + len(row)] = torch.tensor(row, dtype=torch.int64)
        mask[r, first : first + len(row)] = 1
        places.append((samples[r], r, first))
    return MicroBatch(ids, mask, (mask.cumsum(-1) - 1).clamp_(min=0), places)


def rows_of(
    places: Sequence[tuple[int, int, int]], lengths: Sequence[int], size: tuple[int, int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """(sample, position), int64 [B, L] each, of sequences that lie at (sample, row, first column)."""
    sample, position = torch.full(size, -1), torch.zeros(size, dtype=torch.int64)
    for number, row, first in places:
        end = first + lengths[number]
        sample[row, first:end] = number
        position[row, first:end] = torch.arange(lengths[number])
    return sample, position


def _packed(rows: list[list[int]], samples: list[int]) -> MicroBatch:
    ids = torch.tensor([[token for row in rows for token in row]], dtype=torch.int64)
    positions = torch.cat([torch.arange(len(row)) for row in rows]).unsqueeze(0)
    places, column = [], 0
    for sample, row in zip(samples, rows, strict=True):
        places.append((sample, 0, column))
        column += len(row)
    return MicroBatch(ids, None, positions, places)

"""Which logical rows a step of vLLM's model runner computes: (sample, position) for each row of its flat batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class StepRows:
    """Rows of one step.

    Args:
        index: int64 [n] places in the flat batch of the rows that are kept.
        sample, position: int64 [n] of each.
        last: int64 [requests] place of each request's last row, in the order in which the sampler gets them.
        total: rows that were computed, kept or not; the batch may be padded beyond.
    """

    index: torch.Tensor
    sample: torch.Tensor
    position: torch.Tensor
    last: torch.Tensor
    total: int


def request_index(request: str) -> int:
    """The sample's index; vLLM adds a random suffix to request ids."""
    return int(request.partition("-")[0])


def step_rows(
    batch: Any, scheduled: Mapping[str, int], wanted: Mapping[int, tuple[int, int]], seen: dict[int, set[int]]
) -> tuple[StepRows, int, dict[int, int]]:
    """Rows of the step that the runner is about to compute.

    Args:
        batch: the runner's `input_batch`, prepared for this step.
        scheduled: request id -> tokens in this step.
        wanted: sample index -> (tokens of the prompt, of prompt and response) of those that are kept.
        seen: positions by sample that earlier steps computed; grows by this step's.

    Returns:
        (rows, how many were left out because an earlier step computed them, {sample: positions from the prefix cache}
        of the requests that start in this step).
    """
    index: list[int] = []
    sample: list[int] = []
    position: list[int] = []
    last: list[int] = []
    again, place = 0, 0
    cached: dict[int, int] = {}
    for row, request in enumerate(batch.req_ids):
        count = scheduled.get(request, 0)
        if not count:
            continue
        start, number = int(batch.num_computed_tokens_cpu[row]), request_index(request)
        if number in wanted:
            if start > 0 and number not in seen:
                cached[number] = start
            known = seen.setdefault(number, set())
            for offset in range(min(count, wanted[number][1] - start)):
                if start + offset in known:
                    again += 1
                    continue
                known.add(start + offset)
                index.append(place + offset)
                sample.append(number)
                position.append(start + offset)
        place += count
        last.append(place - 1)
    kept, owners, places, ends = (torch.tensor(v, dtype=torch.int64) for v in (index, sample, position, last))
    rows = StepRows(kept, owners, places, ends, place)
    return rows, again, cached

"""Tensor- or expert-parallel ranks as threads of one process: the aligned layers' own code, with a gather in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch


class Ranks:
    """Stands for `collectives.gathered` while `run` lets each rank compute in a thread of its own."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._local = threading.local()
        self._barrier = threading.Barrier(size, timeout=60)
        self._parts: list[Any] = [None] * size

    def gathered(self, part: torch.Tensor) -> torch.Tensor:
        self._parts[self._local.rank] = part.clone()
        self._barrier.wait()
        whole = torch.stack(self._parts)
        self._barrier.wait()
        return whole

    def run(self, work: Callable[[int], torch.Tensor]) -> list[torch.Tensor]:
        """What every rank returns."""
        results: list[Any] = [None] * self.size

        def one(rank: int) -> None:
            self._local.rank = rank
            try:
                results[rank] = work(rank)
            except BaseException as error:
                results[rank] = error
                self._barrier.abort()

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same bits (zeros of both signs are told apart)."""
    kind = {2: torch.int16, 4: torch.int32}[one.element_size()]
    return one.dtype == other.dtype and torch.equal(one.contiguous().view(kind), other.contiguous().view(kind))

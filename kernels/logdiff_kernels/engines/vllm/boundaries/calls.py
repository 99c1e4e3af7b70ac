"""One pass as calls of modules, and what a call becomes: rows of a boundary."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(slots=True)
class Call:
    """A module that ran once.

    Args:
        kind: as `kinds.kind_of` says; "router" and "experts" for the two parts of a mixture of experts.
        where: the module's qualified name; "" for a part that has none.
        module: the vLLM object.
        given: [n, F] rows of its tensor arguments as they were before it ran (many operators write in place).
        left: [n, F] rows of its results.
    """

    kind: str
    where: str
    module: Any
    given: list[torch.Tensor]
    left: list[torch.Tensor]


@dataclass(frozen=True, slots=True)
class Shard:
    """Which part of a boundary's features one tensor-parallel rank holds.

    Args:
        mode: "whole" (every rank holds all of it), "columns" (features from `start` on, of `total`), "sum" (a term).
    """

    mode: str = "whole"
    start: int = 0
    total: int = 0

    def like(self, width: int, own: int) -> Shard:
        """The part of a boundary with `width` local features that is cut as this one with `own` features."""
        if self.mode != "columns" or not own:
            return self
        return Shard("columns", self.start * width // own, self.total * width // own)


WHOLE = Shard()


@dataclass(slots=True)
class Found:
    """Rows of one boundary in one pass.

    Args:
        values: [n, F].
        given: [n, F'] what the operator received, in the order of its arguments.
        modules: the vLLM objects that the boundary stands for.
        shard, given_shards: how features lie over ranks; a missing one is whole.
        every: attention of later tokens reads these rows: they are kept for all positions.
    """

    name: str
    where: str
    values: torch.Tensor
    given: list[torch.Tensor]
    facts: dict[str, Any]
    modules: tuple[Any, ...] = ()
    shard: Shard = WHOLE
    given_shards: list[Shard] = field(default_factory=list)
    every: bool = False

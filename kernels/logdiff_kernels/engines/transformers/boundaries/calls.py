"""One forward of a decoder layer as calls, and what a call becomes: rows of a boundary."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch

from logdiff_kernels.observe.boundaries.rowhash import same

_RECENT = 8
"""Tensors whose copies are remembered: what one module leaves is what the next ones are given, and hashed once."""


@dataclass(slots=True, eq=False)
class Call:
    """A module or function that ran once over the tokens of the pass.

    Args:
        kind: as `kinds.kind_of` says; "rotation" and "attention" for the two functions of an attention layer.
        where: the module's qualified name, or that of the module whose function ran.
        module: the module.
        given: [n, F] rows of its tensor arguments as they were before it ran.
        left: [n, F] rows of its results.
        facts: what its arguments said.
    """

    kind: str
    where: str
    module: Any
    given: list[torch.Tensor]
    left: list[torch.Tensor]
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def leaf(self) -> str:
        """The last part of the name."""
        return self.where.rpartition(".")[2]

    @property
    def home(self) -> str:
        """The name without its last part."""
        return self.where.rpartition(".")[0]


@dataclass(slots=True, eq=False)
class Found:
    """Rows of one boundary in one pass.

    Args:
        take: how the values lie in what the module left.
        values: [n, F].
        given: [n, F'] what the operator received, in the order of its arguments.
        modules: those whose weights it stands for.
        every: rows of every position are needed (keys and values).
        at: int64 [n] which rows of the flat batch these are, kept or not; None: the kept ones.
    """

    name: str
    where: str
    take: str
    values: torch.Tensor
    given: list[torch.Tensor]
    facts: dict[str, Any] = field(default_factory=dict)
    modules: tuple[Any, ...] = ()
    every: bool | None = None
    at: torch.Tensor | None = None


class Batch:
    """B sequences of L tokens of one forward, of which some rows are kept.

    Args:
        size: (B, L).
        kept: int64 [n] rows of the flat batch B * L; None: all.
    """

    def __init__(self, size: tuple[int, int], kept: torch.Tensor | None = None) -> None:
        self.size = size
        self._kept = kept
        self._recent: deque[tuple[Any, torch.Tensor, torch.Tensor]] = deque(maxlen=_RECENT)

    def rows(self, x: torch.Tensor, *, heads_first: bool | None = None) -> torch.Tensor | None:
        """Copies of the kept rows [n, F], heads side by side; None for a tensor of another shape.

        Takes [B, L, F], [B * L, F], [B, L, H, D] and [B, H, K, D] with K of L or more, whose last L count. A tensor
        that was just copied and still holds the same bits has the same copy; copies are constants.

        Args:
            x: the tensor.
            heads_first: of four axes, whether heads come before tokens; None: by shape, and where that leaves it
                open by strides (heads of one token lie closer together than tokens).
        """
        if x.ndim == 4 and heads_first is None:
            heads_first = self.heads_first(x)
        copied = self._copied(x, bool(heads_first))
        if copied is None:
            return None
        mark = (x.data_ptr(), x.shape, x.stride(), x.dtype, heads_first)
        for known, _, rows in self._recent:
            if known == mark and same(rows, copied):
                return rows
        self._recent.append((mark, x.detach(), copied))  # x is held: its memory can't be another tensor's meanwhile
        return copied

    def _copied(self, x: torch.Tensor, heads_first: bool) -> torch.Tensor | None:
        batch, length = self.size
        if x.ndim == 4 and x.shape[0] == batch:
            if heads_first:
                if x.shape[2] < length:
                    return None
                x = x[:, :, x.shape[2] - length :].transpose(1, 2)
            if x.shape[1] != length:
                return None
            x = x.flatten(2)
        if x.ndim == 3 and x.shape[:2] == self.size:
            x = x.reshape(batch * length, -1)
        if x.ndim != 2 or x.shape[0] != batch * length:
            return None
        x = x.detach()
        return x.clone() if self._kept is None else x[self._kept.to(x.device)]

    def heads_first(self, x: torch.Tensor) -> bool:
        """Whether a tensor of four axes has its heads before its tokens."""
        length = self.size[1]
        if (x.shape[1] == length) != (x.shape[2] == length):
            return x.shape[1] != length
        return x.stride(1) < x.stride(2)


@dataclass(frozen=True, slots=True)
class Part:
    """Features of a row: of each of `groups` equal groups those from `start` to `stop`."""

    groups: int
    start: int
    stop: int

    def of(self, whole: torch.Tensor) -> torch.Tensor:
        """[n, F] -> [n, F']."""
        return whole.view(len(whole), self.groups, -1)[:, :, self.start : self.stop].reshape(len(whole), -1)

    @property
    def words(self) -> str:
        """As `Place.take` says it."""
        inside = f"features {self.start} to {self.stop}"
        return inside if self.groups == 1 else f"{inside} of each of {self.groups} groups"


def part_of(whole: torch.Tensor, part: torch.Tensor, size: int, groups: tuple[int, ...] = (1,)) -> Part | None:
    """Where rows lie inside wider ones, to the bit: in steps of `size` features, side by side or in groups."""
    for count in dict.fromkeys((1, *groups)):
        if not count or whole.shape[1] % count or part.shape[1] % count:
            continue
        width, own = whole.shape[1] // count, part.shape[1] // count
        for start in range(0, width - own + 1, max(1, min(size, own))):
            found = Part(count, start, start + own)
            if same(found.of(whole[:1]), part[:1]) and same(found.of(whole), part):
                return found
    return None

"""What is known of the clean model while its operators are recognised."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from logdiff_kernels.check.captured import Captured
from logdiff_kernels.check.given import Parameters
from logdiff_kernels.observe.boundaries import names

EXACT = 1e-11
"""Largest error, in units of the rms, up to which two fp64 computations are those of one function."""


@dataclass(frozen=True)
class Operator:
    """One operator of the clean model.

    Attributes:
        name: boundary.
        kind: of `KINDS`.
        inputs: boundaries that feed it.
        p: parameters; weights in the run's dtype, not copied.
        module: the module that computes just this operator, or None.
        heads: heads side by side in a row of its output.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    p: Parameters
    module: Any = None
    heads: int | None = None

    @property
    def part(self) -> str:
        """Last part of the name."""
        return names.parse(self.name)[1]


@dataclass
class Clean:
    """What is known of the clean model: it, and what it passed in fp64 for some tokens.

    Attributes:
        model: in the run's dtype.
        captured: its boundaries in fp64.
        config: its text configuration.
    """

    model: Any
    captured: Captured
    config: Any
    modules: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.modules = dict(self.model.named_modules())

    def module(self, where: str) -> Any:
        """The module that a boundary names, or None."""
        return self.modules.get(where)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two fp64 results are one function's."""
    if a.shape != b.shape:
        return False
    scale = float(b.square().mean().sqrt())
    return float((a - b).abs().max()) <= EXACT * max(scale, 1e-300) and bool(a.isfinite().all())


def numbers(owner: Any, pattern: Callable[[str], bool]) -> set[float]:
    """Numbers among an object's attributes whose names, in lower case, are wanted."""
    values = vars(owner) if hasattr(owner, "__dict__") else {}
    found = {
        float(v)
        for k, v in values.items()
        if isinstance(v, (int, float)) and not isinstance(v, bool) and pattern(k.lower())
    }
    return found

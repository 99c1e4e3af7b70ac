"""Everything that a generator may choose, drawn from one seed and the fault's name."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import Any, TypeVar

T = TypeVar("T")

LAYERS = 4
"""Decoder layers of the small random models."""


def _number(*parts: object) -> int:
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "big")


class Draw:
    """Choices of one fault at one seed; the same call order gives the same choices.

    What several faults must share to be compared with one stock run (weights, prompts, sampling seed) depends on the
    seed and the model alone.
    """

    def __init__(self, seed: int, name: str) -> None:
        self.seed = seed
        self._random = random.Random(_number(seed, name))

    def choice(self, values: Sequence[T]) -> T:
        """One of them."""
        return values[self._random.randrange(len(values))]

    def integer(self, low: int, high: int) -> int:
        """A whole number, both ends included."""
        return self._random.randint(low, high)

    def uniform(self, low: float, high: float) -> float:
        """A number to three digits, so that the files are easy to read."""
        return float(f"{self._random.uniform(low, high):.3g}")

    def layer(self, first: int = 0, last: int = LAYERS - 1) -> int:
        """A layer."""
        return self._random.randint(first, last)

    def weights_seed(self, model: str) -> int:
        """Seed of the random weights of a model."""
        return 1 + _number(self.seed, model, "weights") % 997

    def prompts(self, model: str, count: int = 6) -> dict[str, Any]:
        """`prompts` of a run file: short, middling and long ones, longer than the models' windows."""
        shared = random.Random(_number(self.seed, model, "prompts"))
        lengths = [shared.randint(6, 14), shared.randint(34, 60), shared.randint(70, 110)]
        return {"random": {"count": count, "lengths": lengths, "seed": shared.randrange(10_000)}}

    def sampling(self, model: str) -> dict[str, Any]:
        """`sampling` of a run file."""
        shared = random.Random(_number(self.seed, model, "sampling"))
        tokens = shared.randint(22, 30)
        return {"max_tokens": tokens, "temperature": 1.0, "seed": shared.randrange(10_000), "ignore_eos": True}

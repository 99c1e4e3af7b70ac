"""What an operator was given: rows of its inputs and who the rows are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

Parameters = dict[str, Any]
"""Weights and numbers of one operator, by the names that its formula documents."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Who n rows are; every field int64 [n].

    `position` is the place in prompt + response, `position_id` what the model received, `token` the id it received,
    `target` the id that follows (-1: none), `passed` the number of the forward pass.
    """

    sample: torch.Tensor
    position: torch.Tensor
    position_id: torch.Tensor
    token: torch.Tensor
    target: torch.Tensor
    passed: torch.Tensor

    def __len__(self) -> int:
        return len(self.sample)

    def take(self, index: torch.Tensor) -> Rows:
        """Some of the rows."""
        return Rows(*(getattr(self, name)[index] for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class Given:
    """Inputs of one operator for n output rows.

    Attributes:
        x: the inputs, each [n, F].
        rows: who the n rows are.
        keys: for attention, who the rows of `key` and `value` are (all that were captured of the samples).
        key: [m, heads * size].
        value: [m, heads * size].
    """

    x: tuple[torch.Tensor, ...]
    rows: Rows
    keys: Rows | None = None
    key: torch.Tensor | None = None
    value: torch.Tensor | None = None

    def take(self, index: torch.Tensor) -> Given:
        """The same for some of the output rows; keys stay."""
        return replace(self, x=tuple(x[index] for x in self.x), rows=self.rows.take(index))

    def to(self, dtype: torch.dtype) -> Given:
        """Floating-point inputs in another dtype."""
        key = None if self.key is None else self.key.to(dtype)
        value = None if self.value is None else self.value.to(dtype)
        x = tuple(x.to(dtype) if x.dtype.is_floating_point else x for x in self.x)
        return replace(self, x=x, key=key, value=value)


def cast(parameters: Parameters, dtype: torch.dtype) -> Parameters:
    """Floating-point tensors of the parameters in another dtype.

    `inv_freq` stays as the model holds it; stacks over experts stay too: their formula casts them one by one.
    """

    def moved(key: str, value: Any) -> Any:
        plain = isinstance(value, torch.Tensor) and value.dtype.is_floating_point and value.ndim < 3
        return value.to(dtype) if plain and key != "inv_freq" else value

    return {key: moved(key, value) for key, value in parameters.items()}


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype that norms, softmax and the like work in: fp64 for fp64, else fp32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def roundoff(dtype: torch.dtype) -> float:
    """Unit roundoff: the largest relative error of rounding to nearest."""
    return float(torch.finfo(dtype).eps) / 2


SINGLE = roundoff(torch.float32)


def grouped(x: torch.Tensor, *sizes: int) -> torch.Tensor:
    """Features of a row in groups: [..., F] as [..., *sizes], one of which may be -1."""
    return x.reshape(*x.shape[:-1], *sizes)


def distinct(x: torch.Tensor) -> list[int]:
    """The different whole numbers of a tensor, ascending."""
    return sorted(set(x.reshape(-1).tolist()))


def blocks(rows: torch.Tensor, size: int) -> list[torch.Tensor]:
    """A vector in pieces of at most `size`."""
    return list(torch.split(rows, max(1, size)))

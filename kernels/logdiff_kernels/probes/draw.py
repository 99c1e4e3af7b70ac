"""Seeded inputs that look like activations and weights, with edge values mixed in."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


class Draw:
    """One source of inputs: the same tensors in every process for the same (seed, operator, shape, number).

    Args:
        seed: the user's.
        key: anything that tells this draw from others.
        dtype: storage dtype of activations and weights.
        edges: mix in signed zeros, subnormals and outliers.
        cancelling: operands of sums come in pairs that cancel exactly, in random order: what is left of a sum is its
            rounding errors, so that another order of summation shows in nearly every element, whatever the dtype.
    """

    def __init__(
        self, seed: int, key: str, dtype: torch.dtype, *, edges: bool = True, cancelling: bool = False
    ) -> None:
        number = int.from_bytes(hashlib.sha256(f"{seed}/{key}".encode()).digest()[:7], "little")
        self.generator = torch.Generator().manual_seed(number)
        self.dtype = dtype
        self.edges = edges
        self.cancelling = cancelling

    def normal(self, *shape: int) -> Tensor:
        """fp32, standard normal."""
        return torch.randn(*shape, generator=self.generator)

    def uniform(self, *shape: int) -> Tensor:
        """fp32 in [0, 1)."""
        return torch.rand(*shape, generator=self.generator)

    def integers(self, high: int, *shape: int) -> Tensor:
        """int64 in [0, high)."""
        return torch.randint(0, high, shape, generator=self.generator)

    def activations(self, *shape: int) -> Tensor:
        """Like a residual stream: channels of unequal size, a few of them 20 times as large, a few heavy tokens."""
        x = self.normal(*shape)
        channels = torch.exp(0.5 * self.normal(shape[-1]))
        if shape[-1] >= 16:
            heavy = self.integers(shape[-1], max(1, shape[-1] // 256))
            channels[heavy] *= 20.0
        x = x * channels
        if self.edges:
            x = self._with_edges(x)
        return x.to(self.dtype)

    def _with_edges(self, x: Tensor) -> Tensor:
        """Signed zeros and subnormals of the dtype in about one element of 64; the rest stays."""
        flat = x.reshape(-1)
        if flat.numel() < 64:
            return x
        tiny = torch.finfo(self.dtype).smallest_normal / 4
        places = self.integers(flat.numel(), flat.numel() // 64)
        values = torch.tensor([0.0, -0.0, tiny, -tiny])[self.integers(4, places.numel())]
        flat = flat.clone()
        flat[places] = values
        return flat.view(x.shape)

    def weight(self, *shape: int) -> Tensor:
        """Matrices [..., out, in] of size 1/sqrt(in)."""
        made: Tensor = (self.normal(*shape) * shape[-1] ** -0.5).to(self.dtype)
        return made

    def scale(self, n: int) -> Tensor:
        """Norm weights around 1."""
        return (1.0 + 0.2 * self.normal(n)).to(self.dtype)

    def logits(self, rows: int, columns: int) -> Tensor:
        """fp32 logits with a few likely columns."""
        return self.normal(rows, columns) * 3.0

    def terms(self, rows: int, n: int) -> Tensor:
        """Rows to be summed, [rows, n]: activations, or pairs that cancel."""
        if not self.cancelling or n < 4:
            return self.activations(rows, n)
        half = self.normal(rows, n // 2).to(self.dtype)
        return self._mixed(torch.cat([half, -half, half.new_zeros(rows, n % 2)], dim=-1))

    def operands(self, rows: int, *weight: int) -> tuple[Tensor, Tensor]:
        """x [rows, k] and weight [..., k] of a product over k; when cancelling, pairs of terms do."""
        k = weight[-1]
        if not self.cancelling or k < 4:
            return self.activations(rows, k), self.weight(*weight)
        x, w = self.normal(rows, k // 2).to(self.dtype), self.weight(*weight[:-1], k // 2)
        rest = k % 2
        wide = torch.cat([w, -w, w.new_zeros(*weight[:-1], rest)], dim=-1)
        order = torch.randperm(k, generator=self.generator)
        return torch.cat([x, x, x.new_zeros(rows, rest)], dim=-1)[:, order], wide[..., order]

    def _mixed(self, x: Tensor) -> Tensor:
        return x[..., torch.randperm(x.shape[-1], generator=self.generator)]

"""Token embedding in fp64, differentiable by torch's autograd."""

from __future__ import annotations

from torch import Tensor


def embedding(
    ids: Tensor, weight: Tensor, scale: Tensor | float | None = None, padding_idx: int | None = None
) -> Tensor:
    """`ops.embedding` in fp64; the scale is not rounded, `padding_idx` not applied."""
    rows = weight.double()[ids]
    return rows if scale is None else rows * scale

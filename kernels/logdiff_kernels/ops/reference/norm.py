"""RMS norms in fp64, from their formula."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor | None, eps: float, offset: float = 0.0) -> Tensor:
    """`ops.rms_norm` in fp64; differentiable by torch's autograd."""
    x = x.double()
    y = x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps)
    return y if weight is None else y * (offset + weight.double())


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None, eps: float, offset: float = 0.0
) -> tuple[Tensor, Tensor]:
    """`ops.add_rms_norm` in fp64, the sum not rounded."""
    total = x.double() + residual.double()
    return rms_norm(total, weight, eps, offset), total

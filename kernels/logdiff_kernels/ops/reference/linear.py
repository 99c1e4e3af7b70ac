"""Matrix products in fp64, with torch's own product; differentiable by torch's autograd."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, out_dtype: torch.dtype | None = None) -> Tensor:
    """`ops.linear` in fp64; `out_dtype` is accepted and not applied."""
    return torch.nn.functional.linear(x.double(), weight.double(), None if bias is None else bias.double())


def linear_row(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`ops.linear_row` in fp64."""
    return linear(x, weight, bias)


def linear_row_partial(x: Tensor, weight: Tensor, leaves: int) -> Tensor:
    """`ops.linear_row_partial` in fp64."""
    return linear(x, weight)


def tree_combine(partials: Tensor, bias: Tensor | None = None, out_dtype: torch.dtype = torch.float64) -> Tensor:
    """`ops.tree_combine` in fp64."""
    total = partials.double().sum(0)
    return total if bias is None else total + bias.double()


def grouped_linear(
    x: Tensor,
    offsets: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    row: bool = False,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """`ops.grouped_linear` in fp64."""
    bounds = offsets.tolist()
    parts = [
        linear(x[begin:end], weight[e], None if bias is None else bias[e])
        for e, (begin, end) in enumerate(pairwise(bounds))
    ]
    return torch.cat(parts)


def lm_head(x: Tensor, weight: Tensor, bias: Tensor | None = None, scale: float = 1.0, softcap: float = 0.0) -> Tensor:
    """`ops.lm_head` in fp64."""
    logits = linear(x, weight, bias) * scale
    return torch.tanh(logits / softcap) * softcap if softcap else logits

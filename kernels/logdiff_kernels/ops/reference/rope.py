"""RoPE in fp64: complex numbers turned by their angle."""

from __future__ import annotations

import torch
from torch import Tensor


def rope(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    """`ops.rope` in fp64; differentiable by torch's autograd."""
    x = x.double()
    rotary = 2 * cos.shape[1]
    turned, rest = x[..., :rotary], x[..., rotary:]
    pairs = turned.reshape(*x.shape[:-1], *((-1, 2) if interleaved else (2, -1)))
    if not interleaved:
        pairs = pairs.transpose(-1, -2)
    angle = torch.complex(cos.double(), sin.double())[:, None, :]
    pairs = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * angle)
    if not interleaved:
        pairs = pairs.transpose(-1, -2)
    return torch.cat([pairs.flatten(-2), rest], dim=-1)

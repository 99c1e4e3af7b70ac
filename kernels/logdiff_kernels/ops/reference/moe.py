"""The experts of a mixture in fp64, one product per slot."""

from __future__ import annotations

import torch
from torch import Tensor

from logdiff_kernels.ops.reference.activation import geglu_tanh, swiglu, swiglu_clamped


def moe(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    gate_up: Tensor,
    down: Tensor,
    gate_up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    activation: str | tuple[str, float, float] = "swiglu",
    interleaved: bool = False,
    expert_ids: Tensor | None = None,
    shared: Tensor | None = None,
) -> Tensor:
    """`ops.moe` in fp64; differentiable by torch's autograd. `expert_ids` changes nothing here."""
    here = (ids >= 0)[..., None]
    at = ids.clamp(min=0)
    fused = torch.einsum("th,tknh->tkn", x.double(), gate_up.double()[at])
    if gate_up_bias is not None:
        fused = fused + gate_up_bias.double()[at]
    gate, up = (fused[..., 0::2], fused[..., 1::2]) if interleaved else fused.chunk(2, dim=-1)
    if isinstance(activation, tuple):
        hidden = swiglu_clamped(gate, up, activation[1], activation[2])
    else:
        hidden = {"swiglu": swiglu, "geglu_tanh": geglu_tanh}[activation](gate, up)
    y = torch.einsum("tki,tkhi->tkh", hidden, down.double()[at])
    if down_bias is not None:
        y = y + down_bias.double()[at]
    out = (y * weights.double()[..., None]).masked_fill(~here, 0.0).sum(1)
    return out if shared is None else out + shared.double()

"""Gated activations in fp64, by torch's own functions."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """`ops.swiglu` in fp64; differentiable by torch's autograd."""
    return functional.silu(gate.double()) * up.double()


def geglu_tanh(gate: Tensor, up: Tensor) -> Tensor:
    """`ops.geglu_tanh` in fp64."""
    return functional.gelu(gate.double(), approximate="tanh") * up.double()


def swiglu_clamped(gate: Tensor, up: Tensor, alpha: float, limit: float) -> Tensor:
    """`ops.swiglu_clamped` in fp64."""
    g, u = gate.double().clamp(max=limit), up.double().clamp(-limit, limit)
    return (u + 1) * (g * torch.sigmoid(alpha * g))

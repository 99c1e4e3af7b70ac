"""Gated activations of dense MLPs."""

from __future__ import annotations

from typing import Any

import torch

from logdiff_kernels import ops
from logdiff_kernels.align import AlignSpec
from logdiff_kernels.engines.vllm.align.patches import Patches


def apply(patches: Patches, spec: AlignSpec) -> None:
    """Replace `forward` of SiluAndMul, GeluAndMul (tanh) and the clamped forms."""
    if "swiglu" not in spec:
        return
    from vllm.model_executor.layers.activation import GeluAndMul, SiluAndMul, SiluAndMulWithClamp, SwigluOAIAndMul

    def silu(self: Any, x: torch.Tensor) -> torch.Tensor:
        return ops.swiglu(*x.chunk(2, dim=-1))

    def gelu(self: Any, x: torch.Tensor) -> torch.Tensor:
        return ops.geglu_tanh(*x.chunk(2, dim=-1))

    def clamped(self: Any, x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, dim=-1)
        return ops.swiglu_clamped(gate, up, self.alpha, self.swiglu_limit)

    def interleaved(self: Any, x: torch.Tensor) -> torch.Tensor:
        return ops.swiglu_clamped(x[..., ::2], x[..., 1::2], self.alpha, self.limit)

    patches.replace(SiluAndMul, "forward", silu)
    patches.replace(GeluAndMul, "forward", gelu)
    patches.replace(SiluAndMulWithClamp, "forward", clamped)
    patches.replace(SwigluOAIAndMul, "forward", interleaved)

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

    def silu(stock: Any) -> Any:
        def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
            return ops.swiglu(*x.chunk(2, dim=-1))

        return forward

    def gelu(stock: Any) -> Any:
        def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
            return ops.geglu_tanh(*x.chunk(2, dim=-1))

        return forward

    def clamped(stock: Any) -> Any:
        def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
            gate, up = x.chunk(2, dim=-1)
            return ops.swiglu_clamped(gate, up, self.alpha, self.swiglu_limit)

        return forward

    def interleaved(stock: Any) -> Any:
        def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
            return ops.swiglu_clamped(x[..., ::2], x[..., 1::2], self.alpha, self.limit)

        return forward

    patches.wrap(SiluAndMul, "forward", silu)
    patches.wrap(GeluAndMul, "forward", gelu)
    patches.wrap(SiluAndMulWithClamp, "forward", clamped)
    patches.wrap(SwigluOAIAndMul, "forward", interleaved)

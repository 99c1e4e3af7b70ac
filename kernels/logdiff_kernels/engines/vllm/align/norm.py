"""RMSNorm: plain, with the residual added first, Gemma's (1 + weight), without a weight."""

from __future__ import annotations

from typing import Any

import torch

from logdiff_kernels import ops
from logdiff_kernels.align import AlignSpec
from logdiff_kernels.engines.vllm.align.patches import Patches

_Output = torch.Tensor | tuple[torch.Tensor, torch.Tensor]


def apply(patches: Patches, spec: AlignSpec) -> None:
    """Replace `forward` of vLLM's RMSNorm classes, with and without a residual as `spec` names them."""
    from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm

    def norm(offset: float) -> Any:
        def make(stock: Any) -> Any:
            def forward(self: Any, x: torch.Tensor, residual: torch.Tensor | None = None) -> _Output:
                weight = self.weight if getattr(self, "has_weight", True) else None
                if residual is None:
                    if "rms_norm" in spec:
                        return ops.rms_norm(x, weight, self.variance_epsilon, offset)
                elif "add_rms_norm" in spec:
                    return ops.add_rms_norm(x, residual, weight, self.variance_epsilon, offset)
                output: _Output = stock(self, x, residual)
                return output

            return forward

        return make

    if {"rms_norm", "add_rms_norm"} & spec.ops:
        patches.wrap(RMSNorm, "forward", norm(0.0))
        patches.wrap(GemmaRMSNorm, "forward", norm(1.0))

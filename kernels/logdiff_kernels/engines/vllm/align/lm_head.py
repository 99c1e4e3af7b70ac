"""Logits: fp32 from the head on, gathered over ranks, scaled, then capped."""

from __future__ import annotations

from typing import Any

import torch

from logdiff_kernels import ops
from logdiff_kernels.align import AlignSpec
from logdiff_kernels.engines.vllm.align.patches import Patches


def apply(patches: Patches, spec: AlignSpec) -> None:
    """Replace `LogitsProcessor.forward` and leave heads unpacked."""
    if "lm_head" not in spec:
        return
    from vllm.model_executor.layers.logits_processor import LogitsProcessor
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

    def forward(
        self: Any,
        lm_head: Any,
        hidden_states: torch.Tensor,
        embedding_bias: torch.Tensor | None = None,
        skip_gather: bool = False,
    ) -> torch.Tensor | None:
        scale, cap = float(self.scale), float(self.soft_cap or 0.0)
        logits: torch.Tensor | None = ops.lm_head(hidden_states, lm_head.weight, embedding_bias, scale, cap)
        if skip_gather:
            return logits
        if lm_head.tp_size > 1:
            logits = self._gather_logits(logits)
        return None if logits is None else logits[..., : self.org_vocab_size]

    def process(self: Any, layer: Any) -> None:
        return None

    patches.replace(LogitsProcessor, "forward", forward)
    patches.replace(UnquantizedEmbeddingMethod, "process_weights_after_loading", process)

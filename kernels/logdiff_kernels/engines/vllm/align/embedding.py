"""Vocabulary-parallel embedding: rows are copied from the rank that owns them, not summed."""

from __future__ import annotations

from typing import Any

import torch

from logdiff_kernels import ops
from logdiff_kernels.align import AlignSpec
from logdiff_kernels.engines.vllm.align.collectives import gathered
from logdiff_kernels.engines.vllm.align.patches import Patches


def apply(patches: Patches, spec: AlignSpec) -> None:
    """Replace `VocabParallelEmbedding.forward`."""
    if "embedding" not in spec:
        return
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    def forward(self: Any, input_: torch.Tensor) -> torch.Tensor:
        ids = input_.long()
        if self.tp_size == 1:
            return ops.embedding(ids, self.weight)
        width = self.num_embeddings_per_partition
        owner = ids // width
        local = torch.where(owner == self.tp_rank, ids - self.tp_rank * width, 0)
        rows = gathered(ops.embedding(local, self.weight))  # [ranks, ..., hidden]
        index = owner[None, ..., None].expand(1, *rows.shape[1:])
        return rows.gather(0, index).squeeze(0)

    patches.replace(VocabParallelEmbedding, "forward", forward)

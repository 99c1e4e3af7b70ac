"""Attention over vLLM's paged cache: prefill, decode, chunks and cached prefixes are one operator.

The cache of one layer is [blocks, KV heads, block, 2 * head]; in each (block, head) the keys come first, then the
values, both row by row. The stock kernels store keys in an order of their own, so storing and reading are replaced
together.
"""

from __future__ import annotations

from typing import Any

import torch

from logdiff_kernels import ops
from logdiff_kernels.align import AlignSpec
from logdiff_kernels.engines.vllm.align.patches import Patches
from logdiff_kernels.errors import UnsupportedError


def apply(patches: Patches, spec: AlignSpec) -> None:
    """Replace the CPU attention backend's forward pass, cache update and metadata."""
    if "attention" not in spec:
        return
    from vllm.v1.attention.backend import MultipleOf
    from vllm.v1.attention.backends.cpu_attn import (
        CPUAttentionBackend,
        CPUAttentionBackendImpl,
        CPUAttentionMetadata,
        CPUAttentionMetadataBuilder,
    )

    def forward(
        self: Any,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: Any,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if attn_metadata is None:  # a run without a cache, to measure memory
            return output
        keys, values = cache_views(kv_cache)
        tokens = attn_metadata.num_actual_tokens
        output[:tokens] = ops.paged_attention(
            query[:tokens],
            keys,
            values,
            attn_metadata.block_table,
            attn_metadata.query_start_loc,
            attn_metadata.seq_lens,
            scale=self.scale,
            causal=attn_metadata.causal,
            window=max(0, self.sliding_window),
            softcap=float(self.logits_soft_cap),
            sinks=self.sinks,
        )
        return output

    def update(
        self: Any,
        layer: Any,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        keys, values = cache_views(kv_cache)
        tokens = slot_mapping.shape[0]
        ops.store_kv(key[:tokens], value[:tokens], keys, values, slot_mapping)

    def build(self: Any, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> Any:
        common = common_attn_metadata
        if self.is_cross_attention or self.is_encoder_only_attention or isinstance(common.causal, torch.Tensor):
            raise UnsupportedError(
                "attention that is not causal self-attention",
                value=list(self.layer_names)[:1],
                hint="leave attention out of the aligned operators",
            )
        return CPUAttentionMetadata(
            num_actual_tokens=common.num_actual_tokens,
            max_query_len=common.max_query_len,
            query_start_loc=common.query_start_loc,
            max_seq_len=common.max_seq_len,
            seq_lens=common.seq_lens,
            block_table=common.block_table_tensor,
            slot_mapping=common.slot_mapping,
            scheduler_metadata=None,
            causal=common.causal,
        )

    def block_sizes(kv_cache_spec: Any = None) -> list[Any]:
        return [MultipleOf(1)]

    patches.replace(CPUAttentionBackendImpl, "forward", forward)
    patches.replace(CPUAttentionBackendImpl, "do_kv_cache_update", update)
    patches.replace(CPUAttentionMetadataBuilder, "build", build)
    patches.set(CPUAttentionBackend, "get_supported_kernel_block_sizes", staticmethod(block_sizes))


def cache_views(kv_cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values, [blocks, block, KV heads, head] each, of a cache [blocks, KV heads, block, 2 * head]."""
    blocks, heads, block, width = kv_cache.shape
    halves = kv_cache.view(blocks, heads, 2 * block, width // 2)
    return halves[:, :, :block].transpose(1, 2), halves[:, :, block:].transpose(1, 2)

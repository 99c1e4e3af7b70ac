"""Multi-head latent attention over vLLM's paged cache of latents: one operator for prefill, decode, chunks, prefixes.

The stock CPU backends expand the latents of a prompt and absorb the projections in decoding. Here every token is
absorbed: queries take the keys' projection in, attend to the cache's single head, [latent, rotated part], and the
output goes through the values' projection. The cache of one layer is [blocks, block, L + R], row by row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from logdiff_kernels import ops
from logdiff_kernels.align import AlignSpec
from logdiff_kernels.engines.vllm.align.patches import Patches
from logdiff_kernels.errors import UnsupportedError
from logdiff_kernels.ops.attention_latent import absorbed_query, expanded_output, per_head

_LATENT_EPS = 1e-6
"""What Transformers' code normalises latents with, whatever `rms_norm_eps` says; vLLM takes `rms_norm_eps`."""


_ONLY_FP8 = ("_decode_concat_quant_fp8_op", "_quant_fp8_op")
"""Parts of `MLAAttention` that run for an FP8 cache alone, which is refused."""

_CACHES = ("auto", "bfloat16", "float16", "float32")


def apply(patches: Patches, spec: AlignSpec) -> None:
    """Replace forward, cache update and weight processing of `MLAAttention`, and the CPU backends' metadata."""
    if "attention" not in spec:
        return
    from vllm.model_executor.layers.attention.attention import set_default_quant_scales
    from vllm.model_executor.layers.attention.mla_attention import MLAAttention
    from vllm.v1.attention.backends.mla.amx_mla import AMXMLABackend
    from vllm.v1.attention.backends.mla.cpu_mla import CPUMLABackend

    def forward(
        self: Any,
        q: torch.Tensor,
        k_c_normed: torch.Tensor,
        k_pe: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: Any,
        output: torch.Tensor,
        **_others: Any,
    ) -> torch.Tensor:
        if attn_metadata is None:  # a run without a cache, to measure memory
            return output.fill_(0)
        tokens = attn_metadata.num_actual_tokens
        keys, values = per_head(self.kv_b_proj.weight, self.num_heads, self.qk_nope_head_dim)
        cache = kv_cache.unsqueeze(2)
        found = ops.paged_attention(
            absorbed_query(q[:tokens], keys),
            cache,
            cache[..., : self.kv_lora_rank],
            attn_metadata.decode.block_table,
            attn_metadata.query_start_loc,
            attn_metadata.decode.seq_lens,
            scale=self.scale,
        )
        output[:tokens] = expanded_output(found, values).reshape(tokens, -1)
        return output

    def update(
        self: Any,
        kv_c_normed: torch.Tensor,
        k_pe: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor | None,
        attn_metadata: Any,
        kv_cache_dtype: str,
        k_scale: torch.Tensor,
    ) -> None:
        if slot_mapping is None or kv_cache.numel() == 0:
            return
        rank, slots, cache = self.kv_lora_rank, slot_mapping.flatten(), kv_cache.unsqueeze(2)
        ops.store_kv(kv_c_normed.unsqueeze(1), k_pe, cache[..., :rank], cache[..., rank:], slots)

    def process(self: Any, act_dtype: torch.dtype) -> None:
        set_default_quant_scales(self, register_buffer=False)

    patches.replace(MLAAttention, "forward_impl", forward)
    patches.replace(MLAAttention, "update_kv_cache", update)
    patches.replace(MLAAttention, "process_weights_after_loading", process)
    for backend in (CPUMLABackend, AMXMLABackend):
        patches.replace(backend.get_builder_cls(), "build", _build)


def _build(self: Any, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> Any:
    """Metadata in which every request counts as decoding: its tokens, pages and length are all that is needed."""
    from vllm.model_executor.layers.attention.mla_attention import MLACommonDecodeMetadata, MLACommonMetadata

    common = common_attn_metadata
    if common.causal is not True:
        raise UnsupportedError(
            "latent attention that is not causal",
            value=str(common.causal),
            hint="leave attention out of the aligned operators",
        )
    return MLACommonMetadata(
        num_reqs=common.num_reqs,
        max_query_len=common.max_query_len,
        max_seq_len=common.max_seq_len,
        num_actual_tokens=common.num_actual_tokens,
        query_start_loc=common.query_start_loc,
        slot_mapping=common.slot_mapping,
        num_decodes=common.num_reqs,
        num_decode_tokens=common.num_actual_tokens,
        num_prefills=0,
        decode=MLACommonDecodeMetadata(common.block_table_tensor, common.seq_lens, None),
    )


def check(name: str, module: Any, spec: AlignSpec) -> bool:
    """Whether a module belongs to latent attention and is covered.

    Raises:
        UnsupportedError: latent attention that isn't covered, by name.
    """
    from vllm.model_executor.layers.attention.mla_attention import MLAAttention
    from vllm.model_executor.layers.mla import MultiHeadLatentAttentionWrapper
    from vllm.model_executor.layers.quantization.input_quant_fp8 import QuantFP8

    if isinstance(module, QuantFP8) and name.rpartition(".")[2] in _ONLY_FP8:
        return True
    if not isinstance(module, (MLAAttention, MultiHeadLatentAttentionWrapper)):
        return False
    if "attention" not in spec:
        return True
    reasons = _of_layer(module) if isinstance(module, MLAAttention) else _of_wrapper(module, spec)
    for why, bad in reasons:
        if bad:
            raise UnsupportedError(
                f"no aligned operator for {name} ({type(module).__name__}): {why}",
                value=type(module).__name__,
                hint="leave that operator out of the aligned ones, or this model native",
            )
    return True


def _of_layer(module: Any) -> Iterator[tuple[str, bool]]:
    from vllm.model_executor.layers.attention.mla_attention import MLAAttention
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod
    from vllm.v1.attention.backends.mla.amx_mla import AMXMLAImpl
    from vllm.v1.attention.backends.mla.cpu_mla import CPUMLAImpl

    yield "a layer of its own", type(module) is not MLAAttention
    yield "sparse attention over an indexer's choice", bool(module.use_sparse) or module.indexer is not None
    yield type(module.impl).__name__, type(module.impl) not in (CPUMLAImpl, AMXMLAImpl)
    yield f"a cache of {module.kv_cache_dtype}", module.kv_cache_dtype not in _CACHES
    yield "a sliding window", module.sliding_window is not None
    yield "several tokens decoded at once, not causally", bool(module.non_causal_multi_token_decode)
    yield "context parallelism", bool(module.use_pcp) or module.impl.dcp_world_size > 1
    yield "a cache in two memories", module.hisparse_cache is not None
    method = module.kv_b_proj.quant_method
    yield type(method).__name__, not isinstance(method, UnquantizedLinearMethod)
    yield "a bias on its latents' projection", module.kv_b_proj.bias is not None


def _of_wrapper(module: Any, spec: AlignSpec) -> Iterator[tuple[str, bool]]:
    from vllm.model_executor.layers.mla import MultiHeadLatentAttentionWrapper

    yield "a layer of its own", type(module) is not MultiHeadLatentAttentionWrapper
    yield "sparse attention over an indexer's choice", bool(module.is_sparse) or module.indexer is not None
    yield "a gate on its output", module.g_proj is not None
    yield "queries of other ranks", bool(module.dcp_q_replicate)
    if "rms_norm" in spec:
        yield "two norms in one kernel", bool(module.fuse_qkv_rmsnorm)
        eps = float(module.kv_a_layernorm.variance_epsilon)
        why = f"vLLM normalises latents with eps {eps:g}, Transformers with {_LATENT_EPS:g}"
        yield why, eps != _LATENT_EPS

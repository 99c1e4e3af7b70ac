"""Attention, rotation and cache of vLLM's CPU backend gone wrong. Each function is one module of a rollout side."""

from __future__ import annotations

from tests.faults.patches.loading import on_vllm_model, vllm_decodes


def attention_window(*, off):
    """Every sliding window is `off` tokens longer."""

    def change(model):
        for module in model.modules():
            impl = getattr(module, "impl", None)
            if impl is not None and getattr(impl, "sliding_window", -1) > 0:
                impl.sliding_window += off

    on_vllm_model(change)


def attention_cap(*, layers):
    """No soft cap of the scores reaches the kernel in these layers."""

    def change(model):
        for layer in layers:
            model.model.layers[layer].self_attn.attn.impl.logits_soft_cap = 0

    on_vllm_model(change)


def attention_sinks(*, layers):
    """The kernel call leaves the sinks out in these layers."""

    def change(model):
        for layer in layers:
            model.model.layers[layer].attn.attn.impl.sinks = None

    on_vllm_model(change)


def attention_scale(*, layer, factor):
    """One layer scales its scores by another number."""

    def change(model):
        model.model.layers[layer].self_attn.attn.impl.scale *= factor

    on_vllm_model(change)


def rotary_layout():
    """Interleaved pairs are rotated where the checkpoint has halves."""

    def change(model):
        for module in model.modules():
            if hasattr(module, "is_neox_style"):
                module.is_neox_style = False

    on_vllm_model(change)


def rotary_part(*, share):
    """Only the first part of the frequencies is rotated."""
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbeddingBase

    stock = RotaryEmbeddingBase._compute_inv_freq

    def partial(self, base):
        frequencies = stock(self, base)
        frequencies[int(len(frequencies) * share) :] = 0
        return frequencies

    RotaryEmbeddingBase._compute_inv_freq = partial


def decode_positions(*, off):
    """Decode steps count positions `off` further than the prompt's."""
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

    stock = RotaryEmbedding.forward_cpu

    def forward_cpu(self, positions, query, key=None):
        if vllm_decodes():
            positions = positions + off
        return stock(self, positions, query, key)

    RotaryEmbedding.forward_cpu = forward_cpu


def all_positions(*, off):
    """Every position is counted from `off`: the relative positions stay."""
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

    stock = RotaryEmbedding.forward_cpu

    def forward_cpu(self, positions, query, key=None):
        return stock(self, positions + off, query, key)

    RotaryEmbedding.forward_cpu = forward_cpu


def value_heads(*, layer):
    """The value heads of one layer are in another order than the key heads."""

    def change(model):
        attention = model.model.layers[layer].self_attn.attn
        stock = attention.forward

        def forward(query, key, value, *arguments, **named):
            heads = value.reshape(*value.shape[:-1], attention.num_kv_heads, -1)
            return stock(query, key, heads.roll(1, dims=-2).reshape(value.shape), *arguments, **named)

        attention.forward = forward

    on_vllm_model(change)


def cache_writes(*, layer, every):
    """While decoding, one layer's cache misses the values of every n-th slot."""

    def change(model):
        impl = model.model.layers[layer].self_attn.attn.impl
        stock = impl.do_kv_cache_update

        def do_kv_cache_update(layer, key, value, kv_cache, slot_mapping):
            if vllm_decodes():
                lost = (slot_mapping[: len(value)] % every == 0).view(-1, 1, 1)
                value = value.masked_fill(lost, 0)
            return stock(layer, key, value, kv_cache, slot_mapping)

        impl.do_kv_cache_update = do_kv_cache_update

    on_vllm_model(change)


def cache_scale(*, factor):
    """Values are written to the cache with a stale scale while decoding."""
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackendImpl

    stock = CPUAttentionBackendImpl.do_kv_cache_update

    def do_kv_cache_update(self, layer, key, value, kv_cache, slot_mapping):
        return stock(self, layer, key, value * factor if vllm_decodes() else value, kv_cache, slot_mapping)

    CPUAttentionBackendImpl.do_kv_cache_update = do_kv_cache_update


def prefix_kept():
    """The prefix cache is not emptied when the weights change."""
    from vllm.v1.core.kv_cache_manager import KVCacheManager

    KVCacheManager.reset_prefix_cache = lambda self: True


def long_context_scale(*, beyond, factor):
    """One kernel for long contexts has the wrong scale: decode steps past a length alone are wrong."""
    from vllm.forward_context import get_forward_context
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackendImpl

    stock = CPUAttentionBackendImpl.forward

    def forward(self, layer, query, *arguments, **named):
        metadata = get_forward_context().attn_metadata
        if metadata and vllm_decodes():
            lengths = next(iter(metadata.values())).seq_lens[: len(query)]
            long = (lengths > beyond).view(-1, *[1] * (query.dim() - 1))
            query = query.where(~long, query * factor)
        return stock(self, layer, query, *arguments, **named)

    CPUAttentionBackendImpl.forward = forward

"""One record per model family: the configuration of a small local model and what its random weights need."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

VOCABULARY = 1024
"""Vocabulary of the small models; the tokenizer covers all of it."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to make one small random model.

    Args:
        name: what `logdiff models build` calls it.
        config_class: class of `transformers` that takes `config`.
        config: keyword arguments of the configuration. Head sizes are such that vLLM's CPU attention takes them (for
            latents, 512 + 64 alone); sliding windows are shorter than usual prompts, so that a test sees them. What
            Transformers' DeepSeek code takes for granted (sigmoid scores, `noaux_tc`) vLLM reads from the file.
        about: one line for people.
        init_std: standard deviation of the linear weights.
        norm_offset: added to a norm's weight by the model's own code (Gemma: 1).
    """

    name: str
    config_class: str
    config: dict[str, Any] = field(default_factory=dict)
    about: str = ""
    init_std: float = 0.08
    norm_offset: float = 0.0


def _dense(**more: Any) -> dict[str, Any]:
    base = {
        "vocab_size": VOCABULARY,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    return base | more


def _latent(**more: Any) -> dict[str, Any]:
    """DeepSeek's attention and experts; its configuration classes set `head_dim` themselves, to the rotated part."""
    shared = _dense(
        num_key_value_heads=4,
        kv_lora_rank=512,
        qk_nope_head_dim=64,
        qk_rope_head_dim=64,
        v_head_dim=64,
        first_k_dense_replace=1,
        moe_intermediate_size=128,
        n_routed_experts=16,
        num_experts_per_tok=4,
        n_group=4,
        topk_group=2,
    )
    del shared["head_dim"]
    return shared | more


RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe("llama", "LlamaConfig", _dense(), "Llama: RMSNorm, RoPE, SwiGLU, grouped-query attention"),
        Recipe("qwen2", "Qwen2Config", _dense(), "Qwen2: biases on q, k and v"),
        Recipe("qwen3", "Qwen3Config", _dense(), "Qwen3: norms on q and k"),
        Recipe(
            "qwen3-moe",
            "Qwen3MoeConfig",
            _dense(
                moe_intermediate_size=128,
                num_experts=16,
                num_experts_per_tok=4,
                decoder_sparse_step=1,
                norm_topk_prob=True,
                mlp_only_layers=[],
            ),
            "Qwen3-MoE: 16 experts, 4 per token",
        ),
        Recipe("mistral", "MistralConfig", _dense(sliding_window=24), "Mistral: sliding window of 24 tokens"),
        Recipe(
            "gemma2",
            "Gemma2Config",
            _dense(
                sliding_window=16,
                query_pre_attn_scalar=64,
                attn_logit_softcapping=50.0,
                final_logit_softcapping=30.0,
                tie_word_embeddings=True,
            ),
            "Gemma 2: soft caps, alternating windows, tied head",
            norm_offset=1.0,
        ),
        Recipe(
            "gemma3",
            "Gemma3TextConfig",
            _dense(
                sliding_window=16,
                query_pre_attn_scalar=64,
                layer_types=["sliding_attention", "full_attention"] * 2,
                tie_word_embeddings=True,
            ),
            "Gemma 3: alternating windows with their own RoPE, norms on q and k, tied head",
            norm_offset=1.0,
        ),
        Recipe(
            "gpt-oss",
            "GptOssConfig",
            _dense(
                intermediate_size=256,
                num_local_experts=8,
                num_experts_per_tok=2,
                sliding_window=16,
                layer_types=["sliding_attention", "full_attention"] * 2,
            ),
            "GPT-OSS: attention sinks, alternating windows, 8 experts with biases, 2 per token",
        ),
        Recipe(
            "deepseek-v2",
            "DeepseekV2Config",
            _latent(
                q_lora_rank=None,
                n_shared_experts=2,
                routed_scaling_factor=4.0,
                scoring_func="softmax",
                topk_method="group_limited_greedy",
                norm_topk_prob=False,
            ),
            "DeepSeek-V2: latent attention, 16 experts in 4 groups, 4 per token, two shared experts",
        ),
        Recipe(
            "deepseek-v3",
            "DeepseekV3Config",
            _latent(
                q_lora_rank=96,
                n_shared_experts=1,
                routed_scaling_factor=2.5,
                scoring_func="sigmoid",
                topk_method="noaux_tc",
                norm_topk_prob=True,
                num_mtp_layers=0,
            ),
            "DeepSeek-V3: latents of queries too, 16 experts in 4 groups by sigmoid and correction, 4 per token",
        ),
    )
}

ALIASES = {"dense": "qwen3", "moe": "qwen3-moe"}

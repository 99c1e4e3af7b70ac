"""Small random models of many architectures, made from configurations of transformers."""

from __future__ import annotations

from typing import Any

import torch

_BASE = {
    "vocab_size": 200,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_MLA = {
    "num_key_value_heads": 4,
    "head_dim": 8,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}
_SHARED = {
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "first_k_dense_replace": 1,
}
COVERED: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek-v3": (
        "DeepseekV3Config",
        _MLA | _SHARED | {"n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5},
    ),
    "deepseek-v3-queries": ("DeepseekV3Config", _MLA | _SHARED | {"n_group": 1, "topk_group": 1, "q_lora_rank": None}),
    "deepseek-v2": (
        "DeepseekV2Config",
        _MLA | _SHARED | {"n_group": 4, "topk_group": 2, "topk_method": "group_limited_greedy", "v_head_dim": 24},
    ),
    "glm4-moe-lite": ("Glm4MoeLiteConfig", _MLA | _SHARED | {"n_group": 1, "topk_group": 1}),
    "mixtral": ("MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "phi3": ("Phi3Config", {}),
    "glm4": ("Glm4Config", {"head_dim": 16}),
    "glm4-moe": ("Glm4MoeConfig", _SHARED | {"head_dim": 16, "n_group": 1, "topk_group": 1}),
    "olmo2": ("Olmo2Config", {}),
    "qwen2-moe": (
        "Qwen2MoeConfig",
        {
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 48,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "decoder_sparse_step": 1,
        },
    ),
    "granite": (
        "GraniteConfig",
        {
            "logits_scaling": 8.0,
            "residual_multiplier": 0.22,
            "embedding_multiplier": 12.0,
            "attention_multiplier": 0.1,
        },
    ),
    "smollm3": ("SmolLM3Config", {"no_rope_layers": [1, 0]}),
    "ernie": ("Ernie4_5Config", {"head_dim": 16}),
    "llama-scaled": (
        "LlamaConfig",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
            "tie_word_embeddings": True,
        },
    ),
    "qwen2-yarn": (
        "Qwen2Config",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 256,
            },
            "sliding_window": 16,
            "use_sliding_window": True,
            "max_window_layers": 1,
        },
    ),
}

REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {  # the module that the error names
    "cohere": ("CohereConfig", {}, "model.layers.0.input_layernorm"),
    "phi": ("PhiConfig", {}, "model.layers.0.mlp"),
    "gpt2": ("GPT2Config", {"n_embd": 64, "n_layer": 1, "n_head": 2}, "transformer.h.0.mlp"),
    "llama4": ("Llama4TextConfig", {"num_local_experts": 4, "head_dim": 16}, "model.layers.0.feed_forward"),
    "deepseek-v3.2": (
        "DeepseekV32Config",
        _MLA | _SHARED | {"n_group": 4, "topk_group": 2},
        "model.layers.0.self_attn.indexer.k_norm",
    ),
}


def make(kind: str, more: dict[str, Any], dtype: torch.dtype = torch.float32, seed: int = 3) -> Any:
    """A model whose every parameter counts: norms around 1, biases and router corrections not zero."""
    import transformers
    from logdiff_kernels.models.random_weights import fill

    config = getattr(transformers, kind)(**(_BASE | more))
    auto: Any = transformers.AutoModelForCausalLM
    model = auto.from_config(config, dtype=torch.float32).eval()
    fill(model, seed=seed, std=0.12, norm_offset=0.0)
    return model.to(dtype)


def covered(name: str, dtype: torch.dtype = torch.float32) -> Any:
    kind, more = COVERED[name]
    return make(kind, more, dtype)


def refused(name: str) -> tuple[Any, str]:
    kind, more, where = REFUSED[name]
    return make(kind, more), where

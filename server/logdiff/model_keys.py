"""Keys of Hugging Face model configurations, as every comparison of two of them reads them."""

from __future__ import annotations

from typing import Any

NOT_FUNCTION = frozenset(
    [
        "_name_or_path",
        "name_or_path",
        "architectures",
        "transformers_version",
        "torch_dtype",
        "dtype",
        "use_cache",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "return_dict",
        "return_dict_in_generate",
        "is_decoder",
        "is_encoder_decoder",
        "attn_implementation",
        "_attn_implementation",
        "_attn_implementation_autoset",
        "experts_implementation",
        "_experts_implementation",
        "bos_token_id",
        "pad_token_id",
        "eos_token_id",
        "sep_token_id",
        "decoder_start_token_id",
        "initializer_range",
        "attention_dropout",
        "hidden_dropout",
        "resid_pdrop",
        "embd_pdrop",
        "attn_pdrop",
        "classifier_dropout",
        "router_aux_loss_coef",
        "router_jitter_noise",
        "gradient_checkpointing",
        "pretraining_tp",
        "id2label",
        "label2id",
        "num_labels",
        "problem_type",
        "task_specific_params",
        "chunk_size_feed_forward",
        "torchscript",
        "quantization_config",
        "max_position_embeddings",
        "tie_encoder_decoder",
        "add_cross_attention",
        "cross_attention_hidden_size",
        "finetuning_task",
        "prefix",
        "pruned_heads",
        "tokenizer_class",
        "use_bfloat16",
        "tf_legacy_loss",
        "unsloth_version",
        "auto_map",
    ]
)
"""Keys of a model configuration that do not change the function computed over given ids (or stand elsewhere)."""


def flat(config: dict[str, Any], prefix: str = "", same: str = "") -> dict[str, Any]:
    """Dotted keys of a nested configuration, without those in `NOT_FUNCTION` and without nulls.

    Args:
        config: of a model, as its fingerprint or config.json has it.
        prefix: put before each key.
        same: name of a nested configuration whose keys count as those of the one around it.
    """
    result: dict[str, Any] = {}
    for key, value in config.items():
        if key in NOT_FUNCTION or value is None:
            continue
        if isinstance(value, dict):
            result |= flat(value, prefix if key == same else f"{prefix}{key}.", same)
        else:
            result[f"{prefix}{key}"] = value
    return result

"""How boundaries are called where people read: the module path of the checkpoint's own model."""

from __future__ import annotations

import re

PATHS = {
    "embedding": "embed_tokens", "final_norm": "norm", "logits": "lm_head", "logprob": "logprobs",
    "input_norm": "input_layernorm", "q_a": "self_attn.q_a_proj", "q_a_norm": "self_attn.q_a_layernorm",
    "q": "self_attn.q_proj", "kv_a": "self_attn.kv_a_proj_with_mqa", "kv_a_norm": "self_attn.kv_a_layernorm",
    "kv_b": "self_attn.kv_b_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm", "v_norm": "self_attn.v_norm", "q_rope": "self_attn.rope.q",
    "k_rope": "self_attn.rope.k", "context": "self_attn.attention", "attn_gate": "self_attn.gate",
    "attn_out": "self_attn.o_proj", "attn_post_norm": "post_attention_norm", "attn_residual": "attention_residual",
    "mlp_norm": "mlp_norm", "router_logits": "mlp.router.logits", "expert_ids": "mlp.router.expert_ids",
    "expert_weights": "mlp.router.expert_weights", "gate": "mlp.gate_proj", "up": "mlp.up_proj", "act": "mlp.act_fn",
    "mlp_out": "mlp.down_proj", "shared_gate": "mlp.shared_expert.gate_proj",
    "shared_up": "mlp.shared_expert.up_proj", "shared_act": "mlp.shared_expert.act_fn",
    "shared_out": "mlp.shared_expert.down_proj", "experts_out": "mlp.experts", "moe_out": "mlp",
    "mlp_post_norm": "post_mlp_norm", "residual": "residual",
}  # fmt: skip
"""Last part of a boundary's name -> what a reader finds in the model."""

_LAYER = re.compile(r"layers\.(\d+)\.(\w+)$")


def split(boundary: str) -> tuple[int | None, str]:
    """(layer or None, last part) of a boundary's name."""
    found = _LAYER.match(boundary)
    return (int(found[1]), found[2]) if found else (None, boundary)


def component(boundaries: list[str]) -> str:
    """One name for a boundary, or for the same boundary of several layers."""
    pieces = [split(name) for name in boundaries]
    layers = sorted({layer for layer, _ in pieces if layer is not None})
    parts = list(dict.fromkeys(PATHS.get(part, part) for _, part in pieces))
    if not layers:
        return ", ".join(parts)
    where = f"layers.{layers[0]}" if len(layers) == 1 else "layers.*"
    if set(parts) == {"self_attn.rope.q", "self_attn.rope.k"}:
        parts = ["self_attn.rope"]
    return ", ".join(f"{where}.{part}" for part in parts)

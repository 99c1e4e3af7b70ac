"""From an engine's module names to boundaries that both sides have: fused projections, RoPE, attention, head."""

from __future__ import annotations

import re
from typing import Any

ORDER = (
    "embedding", "rope tables", "input_layernorm", "self_attn.qkv_proj", "self_attn.q_norm", "self_attn.k_norm",
    "self_attn.rope", "self_attn.attention", "self_attn.o_proj", "post_attention_layernorm", "mlp.router",
    "mlp.experts", "mlp.gate_up_proj", "mlp.act", "mlp.down_proj", "residual", "norm", "lm_head", "logprob",
    "around the model",
)  # fmt: skip
"""Boundaries in the order of a decoder; others follow by name."""

_PARTS = {
    "q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj", "gate_proj": "gate_up_proj",
    "up_proj": "gate_up_proj", "act_fn": "act", "gate": "router", "attn": "attention", "rotary_emb": "rope",
}  # fmt: skip
_PREFIXES = re.compile(r"^(?:(?:language_model|model|transformer|backbone|text_model)\.)+")
_HEADS = {"embed_tokens": "embedding", "rotary_emb": "rope tables", "lm_head": "lm_head", "logits_processor": "lm_head"}
_LOGPROB = re.compile(r"softmax|logsumexp|gather|topk|sort|exponential|multinomial|argmax|logprob|cross_entropy")


def boundary(entry: dict[str, Any]) -> str:
    """The boundary of one entry of a trace: its module, told more finely by who called where a module does several.

    Args:
        entry: `where`, `op` and `from` of `logdiff_kernels.observe.trace`.
    """
    where, caller, op = str(entry.get("where") or ""), str(entry.get("from") or ""), str(entry.get("op") or "")
    gradient = where.startswith("grad")
    name = _PREFIXES.sub("", f"{where.removeprefix('grad').strip()}.").rstrip(".")
    found = _named(name, caller, op)
    return f"grad {found}" if gradient else found


def _named(name: str, caller: str, op: str) -> str:
    if name in ("", "model"):
        if _HEAD_CALLER.search(caller):
            return "lm_head"
        return "logprob" if _LOGPROB.search(op) or "logprob" in caller.lower() else "around the model"
    if not name.startswith("layers.*"):
        return _HEADS.get(name.partition(".")[0], name)
    inner = name.removeprefix("layers.*").lstrip(".")
    if not inner:
        return "residual"
    parts = [_PARTS.get(part, part) for part in inner.split(".")]
    if "experts" in parts:
        return ".".join([*parts[: parts.index("experts")], "experts"])
    if len(parts) == 1:
        function = caller.rpartition(".")[2].lower()
        if parts[0].endswith("attn"):
            return f"{parts[0]}.rope" if "rot" in function or "rope" in function else f"{parts[0]}.attention"
        if parts[0] == "mlp":
            return "mlp.act"
    return ".".join(parts)


_HEAD_CALLER = re.compile(r"lm_head|LogitsProcessor|compute_logits")


def place(name: str) -> tuple[int, str]:
    """Sort key of a boundary."""
    plain = name.removeprefix("grad ")
    known = ORDER.index(plain) if plain in ORDER else len(ORDER)
    return (known + (len(ORDER) + 1 if name.startswith("grad ") else 0), plain)

"""What a vLLM module computes, by vLLM's own layer classes, and what its object says of the operator.

Classes that another platform puts in the place of vLLM's (out-of-tree registration) are subclasses of them.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from typing import Any

import torch

_LAYERS = "vllm.model_executor.layers"


def kind_of(module: Any) -> str | None:
    """linear, norm, rope, attention, activation, embedding, moe; None for what is no operator of its own."""
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
    from vllm.model_executor.layers.linear import LinearBase
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

    if isinstance(module, ParallelLMHead):
        return None  # its weight is read by the logits processor; it is never called
    for kind, classes in (
        ("attention", AttentionLayerBase),
        ("moe", moe_class()),
        ("linear", LinearBase),
        ("embedding", VocabParallelEmbedding),
    ):
        if isinstance(module, classes):
            return kind if kind != "attention" or getattr(module, "impl", None) is not None else None
    homes = {base.__module__ for base in type(module).__mro__}
    if any(home.startswith(f"{_LAYERS}.rotary_embedding") and not home.endswith(".common") for home in homes):
        return "rope"
    if f"{_LAYERS}.activation" in homes or "torch.nn.modules.activation" in homes:
        return "activation"
    if "norm" in type(module).__name__.lower() and _is_vector_scale(module):
        return "norm"
    return None


@functools.cache
def moe_class() -> type:
    """The module that runs a mixture of experts: vLLM's runner, in versions where that is one, else the layer."""
    found = (("fused_moe.runner.moe_runner", "MoERunner"), ("fused_moe.layer", "FusedMoE"))
    for home, name in found:
        with contextlib.suppress(ImportError):
            kind = getattr(importlib.import_module(f"{_LAYERS}.{home}"), name, None)
            if isinstance(kind, type) and issubclass(kind, torch.nn.Module):
                return kind
    return type(None)


def _is_vector_scale(module: Any) -> bool:
    weight = getattr(module, "weight", None)
    return weight is None or weight.dim() == 1


def facts_of(kind: str, module: Any) -> dict[str, Any]:
    """What the object says of its operator: plain values.

    norm: `eps`, `offset` (added to the weight), `weight`. rope: `theta`, `rotary_dim`, `head_dim`, `layout`
    ("halves", "interleaved"), `scaling`. attention: `scale`, `window` (positions seen, itself among them; null: all),
    `softcap`, `sinks`, `heads`, `kv_heads`, `head_dim`, `v_head_dim`, `kv_cache_dtype` (heads of this rank).
    activation: `activation`. linear: `bias`. moe: see `router_facts`, `experts_facts`.
    """
    facts = _FACTS[kind](module) if kind in _FACTS else {}
    return {"class": f"{type(module).__module__}.{type(module).__qualname__}", **facts}


def _norm(module: Any) -> dict[str, Any]:
    from vllm.model_executor.layers.layernorm import GemmaRMSNorm

    eps = next((getattr(module, name) for name in ("variance_epsilon", "eps") if hasattr(module, name)), None)
    return {
        "eps": None if eps is None else float(eps),
        "offset": 1.0 if isinstance(module, GemmaRMSNorm) else 0.0,
        "weight": bool(getattr(module, "has_weight", getattr(module, "weight", None) is not None)),
        "mean": "layernorm" in type(module).__name__.lower(),
    }


def _rope(module: Any) -> dict[str, Any]:
    scaling = {
        name: getattr(module, name)
        for name in ("scaling_factor", "scaling_factors", "mscale", "beta_fast", "beta_slow", "low_freq_factor",
                     "high_freq_factor", "orig_max_position", "truncate", "scaling_alpha")
        if isinstance(getattr(module, name, None), (int, float, bool, list, tuple))
    }  # fmt: skip
    return {
        "theta": float(getattr(module, "base", 0.0)) or None,
        "rotary_dim": _int(module, "rotary_dim"),
        "head_dim": _int(module, "head_size"),
        "layout": "halves" if getattr(module, "is_neox_style", True) else "interleaved",
        "scaling": scaling,
    }


def _attention(module: Any) -> dict[str, Any]:
    impl = module.impl
    window = getattr(impl, "sliding_window", None)
    if isinstance(window, (tuple, list)):  # (left, right) of flash attention; left does not count the token itself
        window = int(window[0]) + 1 if window and int(window[0]) >= 0 else None
    cap = getattr(impl, "logits_soft_cap", None)
    return {
        "scale": float(impl.scale) if hasattr(impl, "scale") else None,
        "window": int(window) if isinstance(window, int) and window > 0 else None,
        "softcap": float(cap) if cap else None,
        "sinks": getattr(impl, "sinks", None) is not None,
        "heads": _int(module, "num_heads"),
        "kv_heads": _int(module, "num_kv_heads"),
        "head_dim": _int(module, "qk_head_dim") or _int(module, "head_size"),
        "v_head_dim": _int(module, "v_head_dim") or _int(module, "head_size_v"),
        "kv_cache_dtype": str(getattr(module, "kv_cache_dtype", "auto")),
        "implementation": f"{type(impl).__module__}.{type(impl).__qualname__}",
    }


def _activation(module: Any) -> dict[str, Any]:
    approximate = getattr(module, "approximate", None)
    numbers = {
        name: float(value)
        for name in ("alpha", "limit", "threshold", "swiglu_limit", "beta")
        if isinstance(value := getattr(module, name, None), (int, float))
    }
    return {"activation": type(module).__name__, **({"approximate": approximate} if approximate else {}), **numbers}


def _linear(module: Any) -> dict[str, Any]:
    return {"bias": getattr(module, "bias", None) is not None, "quantised": _quantised(module)}


def _quantised(module: Any) -> str | None:
    method = type(getattr(module, "quant_method", None)).__name__
    return None if "Unquantized" in method or method in ("NoneType", "_GateLinearMethod") else method


def router_facts(runner: Any) -> dict[str, Any]:
    """`top_k`, `renormalize`, `scoring`, `groups`, `topk_group`, `scaling`, `correction_bias` of a router."""
    router = getattr(runner, "router", runner)
    bias = getattr(router, "e_score_correction_bias", None)
    return {
        "class": f"{type(router).__module__}.{type(router).__qualname__}",
        "experts": _int(router, "global_num_experts"),
        "top_k": _int(router, "top_k"),
        "renormalize": getattr(router, "renormalize", None),
        "scoring": getattr(router, "scoring_func", None),
        "groups": _int(router, "num_expert_group") if getattr(router, "use_grouped_topk", False) else None,
        "topk_group": _int(router, "topk_group") if getattr(router, "use_grouped_topk", False) else None,
        "scaling": float(getattr(router, "routed_scaling_factor", 1.0) or 1.0),
        "correction_bias": bias is not None,
    }


def experts_facts(runner: Any) -> dict[str, Any]:
    """`activation`, `alpha`, `beta`, `limit`, `bias` of the routed experts, and the `scaling` of their sum."""
    experts = getattr(runner, "routed_experts", runner)
    activation = getattr(experts, "activation", None)
    numbers = {name: getattr(experts, f"swiglu_{name}", None) for name in ("alpha", "beta", "limit")}
    return {
        "class": f"{type(experts).__module__}.{type(experts).__qualname__}",
        "activation": str(getattr(activation, "value", activation)),
        **{name: None if value is None else float(value) for name, value in numbers.items()},
        "bias": getattr(experts, "w13_bias", None) is not None,
        "scaling": float(getattr(runner, "routed_scaling_factor", 1.0) or 1.0),
        "quantised": _quantised(experts),
    }


def head_facts(model: Any) -> dict[str, Any]:
    """`softcap`, `scale`, `head_dtype` of the model's logits processor, `tied` of its head."""
    from vllm.model_executor.layers.logits_processor import LogitsProcessor

    processor = next((m for m in model.modules() if isinstance(m, LogitsProcessor)), None)
    config = getattr(model, "config", None)
    tied = bool(getattr(config, "tie_word_embeddings", False))
    if processor is None:
        return {"tied": tied}
    return {
        "class": f"{type(processor).__module__}.{type(processor).__qualname__}",
        "softcap": None if processor.soft_cap is None else float(processor.soft_cap),
        "scale": float(processor.scale),
        "head_dtype": None if processor.head_dtype is None else str(processor.head_dtype).removeprefix("torch."),
        "tied": tied,
    }


def _int(owner: Any, name: str) -> int | None:
    value = getattr(owner, name, None)
    return int(value) if isinstance(value, int) else None


_FACTS = {"norm": _norm, "rope": _rope, "attention": _attention, "activation": _activation, "linear": _linear}

"""What a module of a Transformers model is an operator for, and what its object and configuration say of it."""

from __future__ import annotations

from itertools import product
from typing import Any

import torch

from logdiff_kernels.engines.transformers.align.activations import is_activation
from logdiff_kernels.engines.transformers.align.stand_in import own_class
from logdiff_kernels.engines.transformers.routing import find_routers


def kinds_of(model: Any) -> dict[str, str]:
    """Qualified name -> linear, norm, rope, embedding, activation, router, experts, attention; others are left out.

    Parts of a router, of stacked experts and of a wrapped linear layer (adapters) belong to it and are left out too.
    """
    routers = {id(m) for m in find_routers(model) if not isinstance(m, torch.nn.Linear)}
    found: dict[str, str] = {}
    inside: tuple[str, ...] = ()
    for name, module in model.named_modules():
        if name.startswith(inside) and inside:
            continue
        kind = "router" if id(module) in routers else _kind(module)
        if kind is None:
            continue
        found[name] = kind
        if kind in ("router", "experts", "linear"):
            inside = (*inside, f"{name}.")
    return found


def _kind(module: torch.nn.Module) -> str | None:
    named = type(module).__name__.lower()
    own = [p for p in module._parameters.values() if p is not None]
    if any(p.ndim == 3 for p in own):
        return "experts"
    if isinstance(module, torch.nn.Embedding):
        return "embedding"
    if isinstance(module, torch.nn.Linear) or hasattr(module, "base_layer") or named == "conv1d":
        return "linear"
    if hasattr(module, "in_features") and hasattr(module, "out_features"):
        return "linear"  # quantised ones hold their weights under other names
    if any(key.endswith("inv_freq") for key, _ in module.named_buffers(recurse=False)):
        return "rope"
    if is_activation(module):
        return "activation"
    if "norm" in named and all(p.ndim <= 1 for p in own) and not any(True for _ in module.children()):
        return "norm"
    if is_attention(module):
        return "attention"
    if any(p.ndim == 2 for p in own) and ("router" in named or "gate" in named):
        return "router"
    return None


def is_attention(module: torch.nn.Module) -> bool:
    """Whether a module is an attention layer: its code uses transformers' interface, or it is called one."""
    code = getattr(own_class(module).forward, "__code__", None)
    if code is not None and "ALL_ATTENTION_FUNCTIONS" in code.co_names:
        return True
    linears = sum(isinstance(child, torch.nn.Linear) for child in module.children())
    return "attention" in type(module).__name__.lower() and linears > 1


def name_of(module: Any) -> str:
    """Its class."""
    return f"{type(module).__module__}.{type(module).__qualname__}"


def norm_facts(module: Any, given: torch.Tensor, left: torch.Tensor) -> dict[str, Any]:
    """`eps`, `weight`, `bias`; `offset` (added to the weight) and `mean` (whether it is subtracted): what fits the rows
    best, since code says it and no attribute does."""
    eps = next((getattr(module, key) for key in ("variance_epsilon", "eps", "epsilon") if hasattr(module, key)), None)
    weight, bias = (getattr(module, key, None) for key in ("weight", "bias"))
    facts = {
        "class": name_of(module),
        "eps": None if eps is None else float(eps),
        "offset": 0.0,
        "weight": weight is not None,
        "bias": bias is not None,
        "mean": isinstance(module, torch.nn.LayerNorm),
    }
    size = given.shape[1] if weight is None else weight.shape[-1]
    if not len(given) or given.shape != left.shape or given.shape[1] % size:
        return facts
    x, y = (t[-4:].float().reshape(len(t[-4:]), -1, size) for t in (given, left))
    w = torch.ones(size) if weight is None else weight.detach().float()
    w = (w if w.ndim == 1 or w.numel() == given.shape[1] else torch.ones(size)).to(x.device)
    shift = 0.0 if bias is None else bias.detach().float().to(x.device)
    away = {}
    for mean, offset in product((False, True), (0.0, 1.0) if weight is not None else (0.0,)):
        centred = x - x.mean(-1, keepdim=True) if mean else x
        normed = centred / (centred.square().mean(-1, keepdim=True) + float(eps or 0.0)).sqrt()
        away[mean, offset] = float((y - normed * (w + offset) - shift).square().sum())
    facts["mean"], facts["offset"] = min(away, key=lambda key: away[key])
    return facts


def linear_facts(module: Any) -> dict[str, Any]:
    """`bias`, and the class where it isn't a plain linear layer."""
    plain = own_class(module).forward is torch.nn.Linear.forward
    return {"bias": getattr(module, "bias", None) is not None, **({} if plain else {"class": name_of(module)})}


def rope_facts(config: Any, layer: int, head_dim: int, rotary_dim: int | None) -> dict[str, Any]:
    """`theta`, `rotary_dim`, `head_dim`, `scaling` by the configuration, of the layer's type where types differ."""
    rules: Any = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kind = layer_type(config, layer)
    rules = rules.get(kind, rules) if isinstance(rules, dict) else {}
    rules = {key: value for key, value in rules.items() if not isinstance(value, dict)}
    theta = rules.pop("rope_theta", getattr(config, "rope_theta", None))
    share = rules.get("partial_rotary_factor", getattr(config, "partial_rotary_factor", None)) or 1.0
    return {
        "theta": None if theta is None else float(theta),
        "rotary_dim": rotary_dim or int(head_dim * share),
        "head_dim": head_dim,
        "scaling": rules,
    }


def layer_type(config: Any, layer: int) -> str | None:
    """What the configuration calls the attention of a layer."""
    types = getattr(config, "layer_types", None)
    return str(types[layer]) if types and layer < len(types) else None


def _number(config: Any, *keys: str) -> Any:
    return next((value for key in keys if (value := getattr(config, key, None)) is not None), None)


def router_facts(module: Any, config: Any, experts: int | None, top_k: int) -> dict[str, Any]:
    """`experts`, `top_k`, `renormalize`, `scoring`, `groups`, `topk_group`, `scaling`, `correction_bias`, `bias`."""
    buffers = {**dict(module.named_parameters(recurse=False)), **dict(module.named_buffers(recurse=False))}
    return {
        "class": name_of(module),
        "experts": experts,
        "top_k": top_k,
        "renormalize": _number(config, "norm_topk_prob"),
        "scoring": _number(config, "scoring_func", "moe_router_score_function"),
        "groups": _number(config, "n_group"),
        "topk_group": _number(config, "topk_group"),
        "scaling": float(_number(config, "routed_scaling_factor") or 1.0),
        "correction_bias": any("correction" in key for key in buffers),
        "bias": buffers.get("bias") is not None,
    }


def experts_facts(module: Any, config: Any) -> dict[str, Any]:
    """`activation`, `alpha`, `limit`, `bias`, `interleaved`, `transposed` of stacked experts."""
    numbers = {key: float(v) for key in ("alpha", "limit") if isinstance(v := getattr(module, key, None), (int, float))}
    act = getattr(module, "act_fn", None)
    return {
        "class": name_of(module),
        "activation": activation_name(config) if act is None else type(act).__name__,
        **numbers,
        "bias": any("bias" in key for key, _ in module.named_parameters(recurse=False)),
        "interleaved": not getattr(module, "is_concatenated", "alpha" not in numbers),
        "transposed": bool(getattr(module, "is_transposed", False)),
    }


def activation_name(config: Any) -> str | None:
    """As the configuration calls it."""
    found = _number(config, "hidden_activation", "hidden_act", "activation_function")
    return None if found is None else str(found)


def head_facts(model: Any) -> dict[str, Any]:
    """`softcap`, `scale` (numbers of the configuration that speak of logits), `bias`, `tied`, `head_dtype`."""
    config = model.config.get_text_config(decoder=True)
    head, table = model.get_output_embeddings(), model.get_input_embeddings()
    weight = getattr(head, "weight", None)
    scale = {
        key: float(v)
        for key in ("logit_scale", "logits_scaling")
        if isinstance(v := getattr(config, key, None), (int, float))
    }
    cap = _number(config, "final_logit_softcapping")
    return {
        "class": name_of(head),
        "softcap": None if not cap else float(cap),
        **({"scale": scale} if scale else {}),
        "bias": getattr(head, "bias", None) is not None,
        "tied": weight is not None and weight is getattr(table, "weight", None),
        "head_dtype": None if weight is None else str(weight.dtype).removeprefix("torch."),
    }

"""`attention`: transformers' own attention interface with the contract's operator behind it."""

from __future__ import annotations

import functools
from types import FunctionType
from typing import Any

import torch

from logdiff_kernels import ops
from logdiff_kernels.engines.transformers.align import latent
from logdiff_kernels.engines.transformers.align import mask as masks
from logdiff_kernels.engines.transformers.align.patching import Patches
from logdiff_kernels.engines.transformers.align.scene import Scene, refuse
from logdiff_kernels.engines.transformers.align.stand_in import own_class
from logdiff_kernels.errors import UnsupportedError

NAME = "logdiff_aligned"
"""The name under which transformers knows the implementation, in `config._attn_implementation`."""

_HARMLESS = frozenset(
    {
        "position_ids",
        "cache_position",
        "use_cache",
        "cu_seq_lens_q",
        "cu_seq_lens_k",
        "max_length_q",
        "max_length_k",
        "num_items_in_batch",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "return_dict",
        "logits_to_keep",
        "position_embeddings",
    }
)
"""Arguments of a layer that pass by without a meaning for the product."""


def find(scene: Scene) -> None:
    """Plan the switch of every attention layer to the contract's operator.

    Raises:
        UnsupportedError: attention that doesn't go through transformers' interface, or that isn't causal.
    """
    if "attention" not in scene.spec:
        return
    from transformers.modeling_utils import PreTrainedModel

    layers: dict[str, Any] = {}
    absorbed = 0
    for name, module in scene.modules():
        forward = own_class(module).forward
        if isinstance(forward, FunctionType) and "ALL_ATTENTION_FUNCTIONS" in forward.__code__.co_names:
            if getattr(module, "is_causal", True) is False:
                raise refuse(name, module, "its attention isn't causal")
            layers[name] = module
            absorbed += latent.find(name, module, scene) is not None
        elif "attention" in type(module).__name__.lower() and any(True for _ in module.parameters(recurse=False)):
            raise refuse(name, module, "it doesn't use transformers' attention interface")
    if not layers:
        raise UnsupportedError(
            f"{type(scene.model).__name__} has no attention that uses transformers' interface", value="attention"
        )
    bodies = [m for _, m in scene.modules() if isinstance(m, PreTrainedModel)]
    configs = {id(m.config): m.config for m in [*bodies, *layers.values()] if hasattr(m, "config")}
    for owner, key, value in [
        *((module, "_logdiff_aligned", True) for module in layers.values()),
        *((config, "_attn_implementation_internal", NAME) for config in configs.values()),
    ]:
        scene.steps.append(functools.partial(scene.patches.attribute, owner, key, value))
    scene.steps.append(lambda: _register(scene.patches))
    scene.steps.append(lambda: scene.patches.names.extend(f"{name} -> attention" for name in layers))
    scene.facts["attention"] = {"layers": len(layers), **({"latent": absorbed} if absorbed else {})}


_users = 0


def _register(patches: Patches) -> None:
    """Make the implementation known to transformers until the last aligned model is restored."""
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import AttentionInterface

    global _users
    _users += 1
    AttentionInterface.register(NAME, forward)
    AttentionMaskInterface.register(NAME, masks.mask_function)

    def undo() -> None:
        global _users
        _users -= 1
        if not _users:
            AttentionInterface._global_mapping.pop(NAME, None)
            AttentionMaskInterface._global_mapping.pop(NAME, None)

    patches.undo_with(undo)


def forward(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of one layer.

    Args:
        module: the layer.
        query: [B, Hq, L, D].
        key, value: [B, Hk, K, D] and [B, Hk, K, Dv]; those of a latent layer are its one latent head's.
        attention_mask: a `Mask`.
        scaling: on the scores; 1 / sqrt(D) if None.
        dropout: must be 0.
        sliding_window: must not contradict the mask.
        softcap: on the scaled scores.
        s_aux: attention sinks [Hq].
        is_causal: must not be False.
        kwargs: of transformers; `position_ids` and `cu_seq_lens_q` tell packed sequences apart.

    Returns:
        [B, L, Hq, Dv], and no weights.

    Raises:
        UnsupportedError: what the contract doesn't cover.
    """
    where = f"{type(module).__name__} of layer {getattr(module, 'layer_idx', '?')}"
    plan, mask = _checked(
        where, module, attention_mask, query, dropout, sliding_window, is_causal, kwargs, key.shape[2]
    )
    batch, heads, length, size = query.shape
    settings: dict[str, Any] = {
        "scale": size**-0.5 if scaling is None else float(scaling),
        "window": mask.window,
        "softcap": float(softcap or 0.0),
        "sinks": s_aux,
    }
    q = latent.query(module, _rows(query, plan.queries))
    cached = _as_pages(key, value, plan) if mask.query_offset and not torch.is_grad_enabled() else None
    if cached is not None:
        k, v, table, lengths = cached
        out = ops.paged_attention(q, k, v, table, plan.cu_q, lengths, **settings)
    else:
        k, v = _rows(key, plan.keys), _rows(value, plan.keys)
        if plan.places is not None:
            k, v = _placed(k, plan), _placed(v, plan)
        out = ops.attention(q, k, v, plan.cu_q, plan.cu_k, **settings)
    out = latent.output(module, out)
    if plan.queries is not None:
        out = out.new_zeros(batch * length, *out.shape[1:]).index_copy(0, plan.queries, out)
    return out.reshape(batch, length, heads, out.shape[-1]), None


def _rows(x: torch.Tensor, index: torch.Tensor | None) -> torch.Tensor:
    """[B, H, L, D] as rows [B * L, H, D], or those of `index`."""
    batch, heads, length, size = x.shape
    rows = x.transpose(1, 2).reshape(batch * length, heads, size)
    return rows if index is None else rows.index_select(0, index)


def _as_pages(
    key: torch.Tensor, value: torch.Tensor, plan: masks.Plan
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor] | None:
    """(key cache, value cache, block table, lengths) over a key-value cache as it lies; None if it can't be."""
    if plan.lengths is None or key.stride(-1) != 1 or value.stride(-1) != 1:
        return None
    ratios = set()
    for x in (key, value):
        ratio, rest = divmod(x.stride(0), max(x.stride(2), 1))
        ratios.add(ratio)
        if rest or x.stride(2) < x.shape[-1]:
            return None
    if len(ratios) > 1:
        return None
    (ratio,) = ratios
    caches = []
    for x in (key, value):
        batch, heads, length, size = x.shape
        row = x.stride(2)
        count = (batch - 1) * ratio + length
        caches.append(x.as_strided((count, 1, heads, size), (row, row, x.stride(1), 1)))
    return caches[0], caches[1], plan.block_table(ratio), plan.lengths


def _placed(x: torch.Tensor, plan: masks.Plan) -> torch.Tensor:
    assert plan.places is not None
    return x.new_zeros(plan.slots, *x.shape[1:]).index_copy(0, plan.places, x)


def _checked(
    where: str,
    module: Any,
    mask: Any,
    query: torch.Tensor,
    dropout: float,
    sliding_window: int | None,
    is_causal: bool | None,
    kwargs: dict[str, Any],
    keys: int,
) -> tuple[masks.Plan, masks.Mask]:
    if not module.__dict__.get("_logdiff_aligned"):
        raise UnsupportedError(
            f"{where} shares its configuration with an aligned model but isn't aligned itself",
            value=where,
            hint="give each model its own configuration object, or align both",
        )
    if not isinstance(mask, masks.Mask):
        raise UnsupportedError(
            f"{where} got a ready-made attention mask ({type(mask).__name__})",
            value=where,
            hint="pass a 2D attention_mask, position_ids or cu_seq_lens",
        )
    if dropout:
        raise UnsupportedError(f"{where} drops attention weights in training", value=dropout, hint="dropout 0")
    if is_causal is False:
        raise UnsupportedError(f"{where} was called without causality", value=where)
    if sliding_window and sliding_window != mask.window:
        raise UnsupportedError(
            f"{where} says its window is {sliding_window}, its mask says {mask.window or 'none'}", value=sliding_window
        )
    for name, value in kwargs.items():
        if value is not None and value is not False and name not in _HARMLESS:
            raise UnsupportedError(f"{where} was given {name}, which isn't covered", value=name)
    if mask.keys != keys or mask.queries != query.shape[2] or mask.batch != query.shape[0]:
        raise UnsupportedError(
            f"{where} has {query.shape[0]} rows of {query.shape[2]} queries and {keys} keys, "
            f"its mask {mask.batch} of {mask.queries} and {mask.keys}",
            value=where,
        )
    return mask.plan(kwargs.get("position_ids"), kwargs.get("cu_seq_lens_q")), mask

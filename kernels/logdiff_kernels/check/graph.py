"""Which boundaries feed which operator of a decoder, by their names."""

from __future__ import annotations

from collections.abc import Callable

from logdiff_kernels.observe.boundaries import names

_WITHIN: dict[str, tuple[tuple[str, ...], ...]] = {
    "q_a": (("input_norm", "<"),),
    "q_a_norm": (("q_a",),),
    "q": (("q_a_norm", "q_a", "input_norm", "<"),),
    "kv_a": (("input_norm", "<"),),
    "kv_a_norm": (("kv_a",),),
    "kv_b": (("kv_a_norm", "kv_a"),),
    "k": (("input_norm", "<"),),
    "v": (("input_norm", "<"),),
    "q_norm": (("q",),),
    "k_norm": (("k",),),
    "v_norm": (("v",),),
    "q_rope": (("q_norm", "q"),),
    "k_rope": (("k_norm", "k", "kv_a"),),
    "latent": (("q",), ("q_rope",), ("kv_a_norm",), ("k_rope",)),
    "context": (("q_rope", "q_norm", "q"), ("k_rope", "k_norm", "k"), ("v_norm", "v")),
    "attn_gate": (("input_norm", "<"),),
    "attn_out": (("context",),),
    "attn_post_norm": (("attn_out",),),
    "attn_residual": (("<",), ("attn_post_norm", "attn_out")),
    "mlp_norm": (("attn_residual",),),
    "router_logits": (("mlp_norm", "attn_residual"),),
    "expert_ids": (("router_logits",),),
    "expert_weights": (("router_logits",), ("expert_ids",)),
    "gate": (("mlp_norm", "attn_residual"),),
    "up": (("mlp_norm", "attn_residual"),),
    "act": (("gate", "up"), ("up",)),
    "mlp_out": (("act",),),
    "shared_gate": (("mlp_norm", "attn_residual"),),
    "shared_up": (("mlp_norm", "attn_residual"),),
    "shared_act": (("shared_gate", "shared_up"), ("shared_up",)),
    "shared_out": (("shared_act",),),
    "experts_out": (("mlp_norm", "attn_residual"), ("expert_ids",), ("expert_weights",)),
    "moe_out": (("experts_out",), ("shared_out",)),
    "mlp_post_norm": (("moe_out", "mlp_out", "experts_out"),),
    "residual": (("attn_residual",), ("mlp_post_norm", "moe_out", "experts_out", "mlp_out")),
}
"""Per argument the boundaries of the same layer that may feed it, the first that is there; "<": the stream before."""


def sources(name: str, present: Callable[[str], bool]) -> tuple[str, ...]:
    """Boundaries that feed an operator of a decoder with residual connections, in the order of its arguments.

    Args:
        name: boundary that the operator makes.
        present: whether the model has a boundary.

    Returns:
        () where one is not there.
    """
    layer, part = names.parse(name)
    if part == "embedding":
        return ()
    if layer is None:
        return _after(part, present)
    if part == "input_norm":
        return _stream(layer, present)
    if part == "context" and present(f"layers.{layer}.kv_a_norm"):
        part = "latent"
    found: list[str] = []
    for argument in _WITHIN.get(part, ()):
        chosen = ""
        for option in argument:
            if option == "<":
                chosen = next(iter(_stream(layer, present)), "")
            elif present(f"layers.{layer}.{option}"):
                chosen = f"layers.{layer}.{option}"
            if chosen:
                break
        if chosen and chosen not in found:
            found.append(chosen)
        elif not chosen and part not in ("moe_out", "act", "shared_act"):
            return ()
    return tuple(found)


def _stream(layer: int, present: Callable[[str], bool]) -> tuple[str, ...]:
    before = "embedding" if layer == 0 else f"layers.{layer - 1}.residual"
    return (before,) if present(before) else ()


def _after(part: str, present: Callable[[str], bool]) -> tuple[str, ...]:
    if part == "final_norm":
        last = 0
        while present(f"layers.{last + 1}.residual"):
            last += 1
        return _stream(last + 1, present)
    before = {"logits": "final_norm", "logprob": "logits"}[part]
    return (before,) if present(before) else ()

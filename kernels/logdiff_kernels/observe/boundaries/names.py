"""Names of boundaries, alike for every engine, and the order in which a model passes them.

A boundary is what one operator leaves for one token: a row of features. `layers.N.` stands before those of a layer.
Fused projections are split, heads lie side by side in a row (head-major), residuals are the sums, and experts are
logical ids by descending weight.
"""

from __future__ import annotations

import re

LAYER = (
    "input_norm",
    "q_a", "q_a_norm", "q", "kv_a", "kv_a_norm", "kv_b", "k", "v",
    "q_norm", "k_norm", "v_norm",
    "q_rope", "k_rope",
    "context",
    "attn_gate",
    "attn_out",
    "attn_post_norm",
    "attn_residual",
    "mlp_norm",
    "router_logits", "expert_ids", "expert_weights",
    "gate", "up", "act", "mlp_out",
    "shared_gate", "shared_up", "shared_act", "shared_out", "shared_scale",
    "experts_out",
    "moe_out",
    "mlp_post_norm",
    "residual",
)  # fmt: skip
"""Boundaries of one decoder layer in execution order.

`q`, `k`, `v`: projections with their biases, before norm and rotation. `context`: attention before its output
projection. `attn_out`, `mlp_out`: after the projection and its sum over ranks. `*_post_norm`: norms of a block's output
before it is added (Gemma). `attn_residual`, `residual`: the residual stream after attention, after the layer.
`shared_scale` [rows, 1]: logits of the sigmoid by which some models scale their shared expert. `experts_out`: the
weighted sum of the routed experts, `moe_out`: with shared experts and scale.
"""

BEFORE = ("embedding",)
AFTER = ("final_norm", "logits", "logprob")
"""`logits` after a final soft cap or scale, before the temperature; rows are the positions whose logits scored a
response token. `logprob` [rows, 1]: what the engine reported of the token that follows the row."""

OPERATORS = {
    "embedding": "embedding",
    "input_norm": "norm", "q_a_norm": "norm", "kv_a_norm": "norm", "q_norm": "norm", "k_norm": "norm",
    "v_norm": "norm", "attn_post_norm": "norm", "mlp_norm": "norm", "mlp_post_norm": "norm", "final_norm": "norm",
    "q_a": "linear", "q": "linear", "kv_a": "linear", "kv_b": "linear", "k": "linear", "v": "linear",
    "attn_gate": "linear", "attn_out": "linear", "gate": "linear", "up": "linear", "mlp_out": "linear",
    "shared_gate": "linear", "shared_up": "linear", "shared_out": "linear", "shared_scale": "linear",
    "router_logits": "linear",
    "q_rope": "rope", "k_rope": "rope",
    "context": "attention",
    "attn_residual": "add", "residual": "add", "moe_out": "add",
    "expert_ids": "router", "expert_weights": "router",
    "act": "activation", "shared_act": "activation",
    "experts_out": "experts",
    "logits": "lm_head",
    "logprob": "logprob",
}  # fmt: skip
"""Last part of a boundary's name -> kind of operator that makes it."""

_LAYER = re.compile(r"layers\.(\d+)\.(\w+)$")


def parse(name: str) -> tuple[int | None, str]:
    """(layer or None, last part) of a boundary's name. Raises `ValueError` for a name that is none."""
    found = _LAYER.match(name)
    if found is not None and found[2] in LAYER:
        return int(found[1]), found[2]
    if name in BEFORE or name in AFTER:
        return None, name
    raise ValueError(f"no boundary is called {name!r}")


def order(name: str) -> tuple[int, int, int]:
    """Sort key: the order in which a model passes its boundaries."""
    layer, part = parse(name)
    if layer is not None:
        return 1, layer, LAYER.index(part)
    return (0, 0, 0) if part in BEFORE else (2, 0, AFTER.index(part))


def operator(name: str) -> str:
    """Kind of the operator that makes a boundary."""
    return OPERATORS[parse(name)[1]]

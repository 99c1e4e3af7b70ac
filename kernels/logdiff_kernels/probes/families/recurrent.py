"""Linear attention with a gated delta rule (Qwen3-Next, Kimi Linear): a state per head, carried over tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from logdiff_kernels.probes.draw import Draw
from logdiff_kernels.probes.records import Family, Layout, Problem, Sequence, Shape


def _delta(draw: Draw, shape: Shape) -> Problem:
    """q, k [batch, length, heads, key_dim] of norm 1; v [..., value_dim]; fp32 decay g <= 0 and beta in (0, 1)."""
    batch, length, heads = shape["batch"], shape["length"], shape["heads"]

    def unit() -> Tensor:
        x = draw.normal(batch, length, heads, shape["key_dim"])
        made: Tensor = (x / x.norm(dim=-1, keepdim=True)).to(draw.dtype)
        return made

    rows = {
        "q": unit(), "k": unit(), "v": draw.activations(batch, length, heads, shape["value_dim"]),
        "g": -0.2 * draw.uniform(batch, length, heads), "beta": draw.uniform(batch, length, heads).to(draw.dtype),
    }  # fmt: skip
    return Problem(shape, rows, {"scale": shape["key_dim"] ** -0.5})


def delta_exact(listed: list[Sequence], layout: Layout, fixed: dict[str, Any]) -> list[Tensor]:
    """S = exp(g) S; S += k (beta (v - S^T k))^T; o = S^T q * scale, token by token."""
    found = []
    for one in listed:
        q, k, v, g, beta = (one.parts[name] for name in ("q", "k", "v", "g", "beta"))
        state = torch.zeros(q.shape[1], q.shape[2], v.shape[2], dtype=q.dtype)
        outs = []
        for t in range(q.shape[0]):
            state = state * g[t].exp()[:, None, None]
            seen = torch.einsum("hkv,hk->hv", state, k[t])
            state = state + k[t][:, :, None] * (beta[t][:, None] * (v[t] - seen))[:, None, :]
            outs.append(torch.einsum("hkv,hk->hv", state, q[t]) * fixed["scale"])
        found.append(torch.stack(outs))
    return found


FAMILIES = (
    Family(
        "gated_delta_rule", "sequences", dims=("batch", "length", "heads", "key_dim", "value_dim"),
        defaults=(
            {"batch": 2, "length": 7, "heads": 1, "key_dim": 32, "value_dim": 32},
            {"batch": 2, "length": 65, "heads": 2, "key_dim": 64, "value_dim": 64},
            {"batch": 3, "length": 130, "heads": 4, "key_dim": 128, "value_dim": 128},
        ),
        draw=_delta, exact=delta_exact,
        relations=(
            "batch", "order", "neighbours", "chunking", "decode", "rerun", "threads", "micro_batch", "packing",
            "strides",
        ),
        roundings=6, terms=lambda s: max(s["key_dim"], s["length"]),
        cost=lambda s: float(8 * s["batch"] * s["length"] * s["heads"] * s["key_dim"] * s["value_dim"]),
        multiples={"key_dim": 32, "value_dim": 32},
    ),
)  # fmt: skip

"""A mixture of experts after its router: moe (dispatch, experts, combine) and moe_combine (the last step alone)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from logdiff_kernels.probes.draw import Draw
from logdiff_kernels.probes.families.linear import ROW_RELATIONS
from logdiff_kernels.probes.records import Family, Problem, Shape


def _choice(draw: Draw, rows: int, experts: int, top_k: int) -> tuple[Tensor, Tensor]:
    """ids [rows, top_k], no expert twice, and fp32 weights that sum to 1."""
    best = torch.softmax(draw.normal(rows, experts) * 2.0, dim=-1).topk(top_k, dim=-1)
    return best.indices, best.values / best.values.sum(-1, keepdim=True)


def _moe(draw: Draw, shape: Shape) -> Problem:
    """x [rows, hidden]; ids, weights [rows, top_k]; gate_up, down [experts, ...] as Qwen3-MoE stacks them."""
    rows, hidden, inter, experts = (shape[d] for d in ("rows", "hidden", "inter", "experts"))
    ids, weights = _choice(draw, rows, experts, shape["top_k"])
    fixed = {"gate_up": draw.weight(experts, 2 * inter, hidden), "down": draw.weight(experts, hidden, inter)}
    return Problem(shape, {"x": draw.activations(rows, hidden), "ids": ids, "weights": weights}, fixed)


def _combine(draw: Draw, shape: Shape) -> Problem:
    """y [rows, top_k, hidden], ids and weights [rows, top_k]."""
    ids, weights = _choice(draw, shape["rows"], shape["experts"], shape["top_k"])
    y = draw.activations(shape["rows"], shape["top_k"], shape["hidden"])
    return Problem(shape, {"y": y, "ids": ids, "weights": weights}, {"experts": shape["experts"]})


def moe_exact(x: Tensor, ids: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """Each token through its experts, weighted and summed."""
    gate, up = torch.einsum("th,tknh->tkn", x, gate_up[ids]).chunk(2, dim=-1)
    y = torch.einsum("tki,tkhi->tkh", functional.silu(gate) * up, down[ids])
    return (y * weights[..., None]).sum(1)


def combine_exact(y: Tensor, ids: Tensor, weights: Tensor, experts: int) -> Tensor:
    """The weighted sum over a token's experts."""
    return (y * weights[..., None]).sum(1)


_RELATIONS = tuple(r for r in ROW_RELATIONS if r not in ("packing", "compile"))

FAMILIES = (
    Family(
        "moe", "rows", dims=("rows", "experts", "top_k", "inter", "hidden"),
        defaults=(
            {"rows": 3, "experts": 4, "top_k": 2, "inter": 32, "hidden": 64},
            {"rows": 33, "experts": 8, "top_k": 2, "inter": 96, "hidden": 128},
            {"rows": 130, "experts": 16, "top_k": 4, "inter": 128, "hidden": 256},
        ),
        draw=_moe, exact=moe_exact, relations=(*_RELATIONS, "tp"), roundings=6, wrt=("x",),
        weights=("gate_up", "down"), terms=lambda s: max(s["hidden"], s["inter"]),
        cost=lambda s: float(3 * (s["rows"] * s["top_k"] + s["experts"]) * s["hidden"] * s["inter"]),
        multiples={"inter": 32, "hidden": 32}, legal=lambda s: s["top_k"] <= s["experts"],
    ),
    Family(
        "moe_combine", "rows", dims=("rows", "experts", "top_k", "hidden"),
        defaults=(
            {"rows": 3, "experts": 4, "top_k": 2, "hidden": 64},
            {"rows": 65, "experts": 16, "top_k": 4, "hidden": 256},
            {"rows": 513, "experts": 128, "top_k": 8, "hidden": 512},
        ),
        draw=_combine, exact=combine_exact, relations=_RELATIONS, roundings=6, wrt=("y", "weights"),
        terms=lambda s: s["top_k"], cost=lambda s: float(4 * s["rows"] * s["top_k"] * s["hidden"]),
        legal=lambda s: s["top_k"] <= s["experts"],
    ),
)  # fmt: skip

"""Routers of mixtures of experts: router (softmax, renormalised top-k) and router_sigmoid (sigmoid scores)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from logdiff_kernels.probes.draw import Draw
from logdiff_kernels.probes.families.linear import ROW_RELATIONS
from logdiff_kernels.probes.records import Family, Problem, Shape


def _router(draw: Draw, shape: Shape) -> Problem:
    """logits [rows, experts] in the storage dtype: multiples of 1/16, each once in a row: no choice is a tie."""
    places = draw.uniform(shape["rows"], shape["experts"]).argsort(dim=-1)
    logits = ((places - shape["experts"] // 2) / 16.0).to(draw.dtype)
    return Problem(shape, {"logits": logits}, {"top_k": shape["top_k"]})


def router_exact(logits: Tensor, top_k: int) -> Tensor:
    """Weights in choice order: the k best of the softmax, divided by their sum."""
    best = torch.softmax(logits, dim=-1).topk(top_k, dim=-1).values
    return best / best.sum(-1, keepdim=True)


def sigmoid_exact(logits: Tensor, top_k: int) -> Tensor:
    """The same with sigmoid scores."""
    best = torch.sigmoid(logits).topk(top_k, dim=-1).values
    return best / best.sum(-1, keepdim=True)


_ROWS: dict[str, Any] = {
    "dims": ("rows", "experts", "top_k"), "draw": _router, "terms": lambda s: s["experts"], "roundings": 3,
    "cost": lambda s: float(16 * s["rows"] * s["experts"]),
    "relations": tuple(r for r in ROW_RELATIONS if r != "packing"), "wrt": ("logits",),
    "legal": lambda s: s["top_k"] <= s["experts"],
    "defaults": tuple(
        {"rows": r, "experts": e, "top_k": k} for r, e, k in ((2, 8, 2), (33, 16, 4), (65, 128, 8), (513, 128, 8))
    ),
}  # fmt: skip

FAMILIES = (
    Family("router", "rows", exact=router_exact, **_ROWS),
    Family("router_sigmoid", "rows", exact=sigmoid_exact, **_ROWS),
)

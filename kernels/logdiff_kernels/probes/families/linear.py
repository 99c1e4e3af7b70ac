"""Matrix products: linear, linear_row (what tensor parallelism shards over k), grouped_linear, lm_head."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from logdiff_kernels.probes.draw import Draw
from logdiff_kernels.probes.records import Family, Problem, Shape

ROW_RELATIONS = (
    "batch", "order", "neighbours", "padding", "chunking", "rerun", "threads", "micro_batch", "packing", "strides",
    "compile",
)  # fmt: skip
"""Relations of an operator whose rows are tokens."""


def _product(draw: Draw, shape: Shape) -> Problem:
    """x [rows, k], weight [n, k]."""
    x, weight = draw.operands(shape["rows"], shape["n"], shape["k"])
    return Problem(shape, {"x": x}, {"weight": weight})


def _grouped(draw: Draw, shape: Shape) -> Problem:
    """x [rows, k], expert [rows] in [0, experts), weight [experts, n, k]."""
    x, weight = draw.operands(shape["rows"], shape["experts"], shape["n"], shape["k"])
    return Problem(shape, {"x": x, "expert": draw.integers(shape["experts"], shape["rows"])}, {"weight": weight})


def linear_exact(x: Tensor, weight: Tensor) -> Tensor:
    """x [..., k] by weight [n, k] transposed."""
    return functional.linear(x, weight)


def grouped_exact(x: Tensor, expert: Tensor, weight: Tensor) -> Tensor:
    """Each row by its expert's weight."""
    return torch.einsum("rk,rnk->rn", x, weight[expert])


def by_expert(call: Any, x: Tensor, expert: Tensor, experts: int) -> Tensor:
    """`call(rows sorted by expert, offsets [experts + 1])`, and the rows back in their order."""
    order = torch.argsort(expert, stable=True)
    counts = torch.bincount(expert, minlength=experts)
    offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    sorted_rows: Tensor = call(x[order], offsets)
    return torch.zeros_like(sorted_rows).index_copy(0, order, sorted_rows)


def looped(x: Tensor, offsets: Tensor, weight: Tensor) -> Tensor:
    """One product per expert, as an eager model loops."""
    parts = [functional.linear(x[a:b], weight[e]) for e, (a, b) in enumerate(pairwise(offsets.tolist()))]
    return torch.cat(parts)


def _shapes(*values: tuple[int, int, int]) -> tuple[Shape, ...]:
    return tuple({"rows": r, "k": k, "n": n} for r, k, n in values)


_MATRIX: dict[str, Any] = {
    "dims": ("rows", "n", "k"),
    "terms": lambda s: s["k"],
    "cost": lambda s: float(s["rows"] * s["n"] * s["k"]),
}
_DEFAULTS = _shapes((2, 64, 32), (9, 256, 96), (33, 576, 192), (65, 1024, 256), (129, 1536, 576), (513, 1024, 256))

FAMILIES = (
    Family(
        "linear", "rows", defaults=_DEFAULTS, draw=_product, exact=linear_exact, relations=(*ROW_RELATIONS, "tp"),
        wrt=("x",), weights=("weight",), **_MATRIX,
    ),
    Family(
        "linear_row", "rows", defaults=_DEFAULTS, draw=_product, exact=linear_exact, relations=(*ROW_RELATIONS, "tp"),
        wrt=("x",), weights=("weight",), multiples={"k": 16}, **_MATRIX,
    ),
    Family(
        "lm_head", "rows",
        defaults=_shapes((2, 64, 130), (9, 256, 515), (65, 576, 2050)),
        draw=_product, exact=linear_exact, relations=(*ROW_RELATIONS, "tp"), wrt=("x",), weights=("weight",), **_MATRIX,
    ),
    Family(
        "grouped_linear", "rows", dims=("rows", "experts", "n", "k"),
        defaults=(
            {"rows": 6, "experts": 4, "n": 32, "k": 64},
            {"rows": 64, "experts": 8, "n": 96, "k": 256},
            {"rows": 257, "experts": 16, "n": 128, "k": 512},
        ),
        draw=_grouped, exact=grouped_exact,
        relations=("batch", "order", "neighbours", "padding", "chunking", "rerun", "threads", "micro_batch", "strides"),
        terms=lambda s: s["k"], cost=lambda s: float(s["rows"] * s["n"] * s["k"] + s["experts"] * s["n"] * s["k"]),
        wrt=("x",), weights=("weight",),
    ),
)  # fmt: skip

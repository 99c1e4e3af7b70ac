"""Token embedding: rows of a table."""

from __future__ import annotations

from torch import Tensor

from logdiff_kernels.probes.draw import Draw
from logdiff_kernels.probes.families.linear import ROW_RELATIONS
from logdiff_kernels.probes.records import Family, Problem, Shape


def _embedding(draw: Draw, shape: Shape) -> Problem:
    """ids [rows], weight [vocab, n]."""
    weight = (draw.normal(shape["vocab"], shape["n"]) * 0.02).to(draw.dtype)
    return Problem(shape, {"ids": draw.integers(shape["vocab"], shape["rows"])}, {"weight": weight})


def embedding_exact(ids: Tensor, weight: Tensor) -> Tensor:
    """weight[ids]."""
    return weight[ids]


FAMILIES = (
    Family(
        "embedding", "rows", dims=("rows", "vocab", "n"),
        defaults=({"rows": 2, "vocab": 65, "n": 64}, {"rows": 129, "vocab": 1000, "n": 576}),
        draw=_embedding, exact=embedding_exact, relations=(*ROW_RELATIONS, "tp"), terms=lambda s: 1,
        cost=lambda s: float(s["rows"] * s["n"] + s["vocab"] * s["n"]),
    ),
)  # fmt: skip

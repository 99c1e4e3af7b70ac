"""Rotary position embedding of one projection, neox pairs (i, i + head_dim/2)."""

from __future__ import annotations

import torch
from torch import Tensor

from logdiff_kernels.probes.draw import Draw
from logdiff_kernels.probes.families.linear import ROW_RELATIONS
from logdiff_kernels.probes.records import Family, Problem, Shape

POSITIONS = 8192
BASE = 10000.0


def tables(head_dim: int) -> tuple[Tensor, Tensor]:
    """cos and sin fp32 [POSITIONS, head_dim/2], angles in fp64."""
    inverse = BASE ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angle = torch.arange(POSITIONS, dtype=torch.float64)[:, None] * inverse
    return angle.cos().float(), angle.sin().float()


def _rope(draw: Draw, shape: Shape) -> Problem:
    """x [rows, heads, head_dim], position [rows]."""
    cos, sin = tables(shape["head_dim"])
    rows = {
        "x": draw.activations(shape["rows"], shape["heads"], shape["head_dim"]),
        "position": draw.integers(POSITIONS, shape["rows"]),
    }
    return Problem(shape, rows, {"cos": cos, "sin": sin})


def rope_exact(x: Tensor, position: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Each pair turned by its angle."""
    c, s = cos[position][:, None, :], sin[position][:, None, :]
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * c - second * s, second * c + first * s], dim=-1)


FAMILIES = (
    Family(
        "rope", "rows", dims=("rows", "heads", "head_dim"),
        defaults=(
            {"rows": 2, "heads": 2, "head_dim": 32},
            {"rows": 33, "heads": 4, "head_dim": 64},
            {"rows": 129, "heads": 16, "head_dim": 128},
        ),
        draw=_rope, exact=rope_exact, relations=tuple(r for r in ROW_RELATIONS if r != "packing"), roundings=4,
        terms=lambda s: 2, cost=lambda s: float(8 * s["rows"] * s["heads"] * s["head_dim"]),
        multiples={"head_dim": 16}, wrt=("x",),
    ),
)  # fmt: skip

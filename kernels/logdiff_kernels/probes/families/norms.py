"""Norms over the last dimension: rms_norm, add_rms_norm (residual sum in front), layer_norm."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from logdiff_kernels.probes.draw import Draw
from logdiff_kernels.probes.families.linear import ROW_RELATIONS
from logdiff_kernels.probes.records import Family, Problem, Shape

EPS = 1e-6


def _norm(draw: Draw, shape: Shape) -> Problem:
    """x [rows, n], weight [n]."""
    return Problem(shape, {"x": draw.activations(shape["rows"], shape["n"])}, {"weight": draw.scale(shape["n"])})


def _add(draw: Draw, shape: Shape) -> Problem:
    """x and residual [rows, n], weight [n]."""
    made = _norm(draw, shape)
    made.rows["residual"] = draw.activations(shape["rows"], shape["n"])
    return made


def _layer(draw: Draw, shape: Shape) -> Problem:
    made = _norm(draw, shape)
    made.fixed["bias"] = draw.weight(shape["n"])
    return made


def rms_exact(x: Tensor, weight: Tensor) -> Tensor:
    """x / sqrt(mean(x*x) + eps) * weight."""
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + EPS) * weight


def add_exact(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """(rms_norm of the sum, the sum)."""
    total = x + residual
    return rms_exact(total, weight), total


def layer_exact(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias."""
    centred = x - x.mean(-1, keepdim=True)
    return centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + EPS) * weight + bias


_ROWS: dict[str, Any] = {
    "dims": ("rows", "n"),
    "terms": lambda s: s["n"],
    "cost": lambda s: float(8 * s["rows"] * s["n"]),
}
_DEFAULTS = tuple(
    {"rows": r, "n": n} for r, n in ((2, 64), (9, 577), (65, 1024), (129, 4096), (513, 2048))
)  # fmt: skip

FAMILIES = (
    Family(
        "rms_norm", "rows", defaults=_DEFAULTS, draw=_norm, exact=rms_exact, relations=ROW_RELATIONS, roundings=3,
        wrt=("x",), weights=("weight",), **_ROWS,
    ),
    Family(
        "add_rms_norm", "rows", defaults=_DEFAULTS, draw=_add, exact=add_exact, relations=ROW_RELATIONS, roundings=4,
        wrt=("x", "residual"), weights=("weight",), **_ROWS,
    ),
    Family(
        "layer_norm", "rows", defaults=_DEFAULTS, draw=_layer, exact=layer_exact, relations=ROW_RELATIONS, roundings=4,
        wrt=("x",), weights=("weight", "bias"), **_ROWS,
    ),
)  # fmt: skip

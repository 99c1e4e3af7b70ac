"""Gated activations: swiglu and geglu_tanh of gate and up."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional

from logdiff_kernels.probes.draw import Draw
from logdiff_kernels.probes.families.linear import ROW_RELATIONS
from logdiff_kernels.probes.records import Family, Problem, Shape


def _gated(draw: Draw, shape: Shape) -> Problem:
    """gate and up [rows, n]."""
    return Problem(shape, {name: draw.activations(shape["rows"], shape["n"]) for name in ("gate", "up")})


def swiglu_exact(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up."""
    return functional.silu(gate) * up


def geglu_exact(gate: Tensor, up: Tensor) -> Tensor:
    """gelu(gate), its tanh form, * up."""
    return functional.gelu(gate, approximate="tanh") * up


_ROWS: dict[str, Any] = {
    "dims": ("rows", "n"), "draw": _gated, "relations": ROW_RELATIONS, "terms": lambda s: 1, "wrt": ("gate", "up"),
    "cost": lambda s: float(16 * s["rows"] * s["n"]), "roundings": 3,
    "defaults": tuple({"rows": r, "n": n} for r, n in ((2, 64), (9, 577), (65, 1536), (513, 2048))),
}  # fmt: skip

FAMILIES = (
    Family("swiglu", "rows", exact=swiglu_exact, **_ROWS),
    Family("geglu_tanh", "rows", exact=geglu_exact, **_ROWS),
)

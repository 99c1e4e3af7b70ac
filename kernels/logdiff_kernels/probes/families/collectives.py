"""Sums over ranks, each rank a process: all_reduce and reduce_scatter of one partial result per rank."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from logdiff_kernels.probes.draw import Draw
from logdiff_kernels.probes.records import Family, Problem, Shape


def _partials(draw: Draw, shape: Shape) -> Problem:
    """partial [rows, ranks, n]: what each rank holds of each row."""
    return Problem(shape, {"partial": draw.activations(shape["rows"], shape["ranks"], shape["n"])})


def total_exact(partial: Tensor) -> Tensor:
    """[rows, n]."""
    return partial.sum(1)


_COMMON: dict[str, Any] = {
    "dims": ("rows", "n", "ranks"), "draw": _partials, "exact": total_exact, "roundings": 4,
    "relations": ("batch", "order", "neighbours", "padding", "chunking", "rerun", "micro_batch", "tp"),
    "terms": lambda s: s["ranks"], "cost": lambda s: float(s["rows"] * s["n"] * s["ranks"]), "world": True,
    "legal": lambda s: s["ranks"] in (2, 4) and s["rows"] * s["n"] % s["ranks"] == 0, "least": {"ranks": 2},
}  # fmt: skip

FAMILIES = (
    Family(
        "all_reduce", "rows",
        defaults=tuple({"rows": r, "n": n, "ranks": t} for r, n, t in ((2, 64, 2), (9, 256, 4), (65, 1024, 4))),
        **_COMMON,
    ),
    Family(
        "reduce_scatter", "rows",
        defaults=tuple({"rows": r, "n": n, "ranks": t} for r, n, t in ((2, 64, 2), (8, 256, 4), (64, 1024, 4))),
        **_COMMON,
    ),
)  # fmt: skip

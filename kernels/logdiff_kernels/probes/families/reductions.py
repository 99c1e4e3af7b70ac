"""Plain reductions over the last dimension (sum, mean, softmax), and sums by index (index_add, scatter_add)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from logdiff_kernels.probes.draw import Draw
from logdiff_kernels.probes.families.linear import ROW_RELATIONS
from logdiff_kernels.probes.records import Family, Problem, Shape


def _rows(draw: Draw, shape: Shape) -> Problem:
    """x [rows, n]."""
    return Problem(shape, {"x": draw.terms(shape["rows"], shape["n"])})


def _slots(draw: Draw, shape: Shape) -> Problem:
    """y [rows, slots, n] and the group of each slot, which decides the order in which it is added."""
    y = draw.activations(shape["rows"], shape["slots"], shape["n"])
    group = torch.argsort(draw.uniform(shape["rows"], shape["slots"]), dim=-1)
    return Problem(shape, {"y": y, "group": group})


def sum_exact(x: Tensor) -> Tensor:
    """[rows]."""
    return x.sum(-1)


def mean_exact(x: Tensor) -> Tensor:
    """[rows]."""
    return x.mean(-1)


def softmax_exact(x: Tensor) -> Tensor:
    """[rows, n]."""
    return torch.softmax(x, dim=-1)


def slots_exact(y: Tensor, group: Tensor) -> Tensor:
    """The sum over slots, [rows, n]."""
    return y.sum(1)


def sorted_slots(y: Tensor, group: Tensor) -> tuple[Tensor, Tensor]:
    """Slots of all rows in order of their group, as experts hand them back: values [rows * slots, n], row of each."""
    rows, slots = group.shape
    order = torch.argsort(group.reshape(-1), stable=True)
    index = torch.arange(rows, device=y.device).repeat_interleave(slots)
    return y.reshape(rows * slots, -1)[order], index[order]


_PLAIN: dict[str, Any] = {
    "dims": ("rows", "n"), "draw": _rows, "relations": ROW_RELATIONS, "terms": lambda s: s["n"], "wrt": ("x",),
    "cost": lambda s: float(4 * s["rows"] * s["n"]), "roundings": 2,
    "defaults": tuple({"rows": r, "n": n} for r, n in ((2, 64), (9, 577), (33, 4097), (513, 1024), (2, 70000))),
}  # fmt: skip
_INDEXED: dict[str, Any] = {
    "dims": ("rows", "slots", "n"), "draw": _slots, "exact": slots_exact, "wrt": ("y",), "terms": lambda s: s["slots"],
    "relations": tuple(r for r in ROW_RELATIONS if r not in ("packing", "compile")),
    "cost": lambda s: float(4 * s["rows"] * s["slots"] * s["n"]), "roundings": 8,
    "defaults": tuple({"rows": r, "slots": k, "n": n} for r, k, n in ((2, 3, 64), (65, 4, 256), (513, 8, 512))),
    "legal": lambda s: s["slots"] <= 9,
}  # fmt: skip

FAMILIES = (
    Family("sum", "rows", exact=sum_exact, **_PLAIN),
    Family("mean", "rows", exact=mean_exact, **_PLAIN),
    Family("softmax", "rows", exact=softmax_exact, **_PLAIN),
    Family("index_add", "rows", **_INDEXED),
    Family("scatter_add", "rows", **_INDEXED),
)

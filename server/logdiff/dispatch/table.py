"""One side's trace by boundary, and two of them side by side with the differences ranked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from logdiff.dispatch.boundaries import boundary, place

RANKS = ("provider", "dtype", "operators", "absent", "layout", "same")
"""Kinds of difference, the weightiest first."""

MEANING = {
    "absent": "only one side has operators here: the other fuses them into a neighbour, or does not do this step",
    "provider": "different code computes this: expect other bits even on equal inputs",
    "dtype": "the same provider computes in other dtypes: expect differences of the narrower one's size",
    "operators": "the same provider runs other operators: other order or fusing, expect rounding differences",
    "layout": "the same operators on other layouts: a library may choose another kernel for them",
    "same": "the same operators, dtypes and layouts",
}
PAIRS = (("decode", "score"), ("prefill", "score"), ("score", "score"))
"""(rollout phase, train phase) that are set side by side."""

_TORCH = ("aten", "prims", "prim")
_CASTS = (
    "aten._to_copy", "aten.copy_", "aten.clone", "aten.fill_", "aten.zero_", "aten.arange", "aten.full", "aten.item",
    "aten._local_scalar_dense", "aten.new_empty", "aten.scalar_tensor", "aten.detach_",
)  # fmt: skip


def by_boundary(entries: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """{boundary: {"providers", "ops", "dtypes", "layouts", "calls", "from"}} of one phase's entries.

    Casts, copies, fills and reads of one number do not count as operators: casts show as dtypes.
    """
    found: dict[str, dict[str, Any]] = {}
    for entry in entries:
        cell = found.setdefault(
            boundary(entry), {"providers": [], "ops": [], "dtypes": [], "layouts": [], "calls": 0, "from": []}
        )
        cell["calls"] += entry["count"]
        op = str(entry["op"])
        _add(cell["dtypes"], (_dtype(t) for t in (*entry["in"], *entry["out"]) if _floating(t)))
        if op.startswith(_CASTS):
            continue
        _add(cell["ops"], [op])
        _add(cell["providers"], [provider(op)])
        _add(cell["layouts"], (t.rpartition("]:")[2] for t in entry["in"] if "]:" in t))
        _add(cell["from"], [entry["from"]])
    return {name: found[name] for name in sorted(found, key=place)}


def provider(op: str) -> str:
    """Who brings an operator, by its namespace: `torch` for aten, `aligned` for ours, else the namespace."""
    space = op.partition(".")[0]
    return "torch" if space in _TORCH else "aligned" if space == "logdiff" else space


def side_by_side(rollout: dict[str, Any], train: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of two phases, the weightiest difference first, in the order of the model within one kind.

    Args:
        rollout: `by_boundary` of the rollout phase.
        train: the same of the train phase.

    Returns:
        [{"boundary", "kind", "meaning", "rollout": cell or null, "train": cell or null}].
    """
    rows = []
    for name in sorted({*rollout, *train}, key=place):
        a, b = rollout.get(name), train.get(name)
        kind = _kind(a, b)
        if kind is not None:
            rows.append({"boundary": name, "kind": kind, "meaning": MEANING[kind], "rollout": a, "train": b})
    return sorted(rows, key=lambda row: (RANKS.index(str(row["kind"])), place(str(row["boundary"]))))


def _kind(a: dict[str, Any] | None, b: dict[str, Any] | None) -> str | None:
    if not (a and a["ops"]) and not (b and b["ops"]):
        return None
    if not a or not b or not a["ops"] or not b["ops"]:
        return "absent"
    if set(a["providers"]) != set(b["providers"]):
        return "provider"
    if set(a["dtypes"]) != set(b["dtypes"]):
        return "dtype"
    if set(a["ops"]) != set(b["ops"]):
        return "operators"
    return "layout" if set(a["layouts"]) != set(b["layouts"]) else "same"


def _add(known: list[Any], new: Iterable[Any]) -> None:
    for value in new:
        if value and value not in known:
            known.append(value)


def _dtype(tensor: str) -> str:
    return tensor.partition("[")[0]


def _floating(tensor: str) -> bool:
    return _dtype(tensor).startswith(("bf", "f", "float"))

"""What an engine process is told about alignment: `LOGDIFF_ALIGN` and the overlay file that it names.

The same names stand in `logdiff_kernels.align` on the other side of the wall; only the file crosses it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

from logdiff.errors import InputError

VARIABLE = "LOGDIFF_ALIGN"
"""Environment variable with the path of the overlay file; empty or absent: native."""

BUDGET = "LOGDIFF_BUDGET"
"""Environment variable that, set to 1, starts an engine stock whose operators can be switched in place."""

FORMAT = "logdiff-overlay/1"
CONTRACT = "aligned/1"
PROVIDER = "aligned-cpu"
SIDES = ("rollout", "train")

OPERATORS = (
    "linear",
    "linear_row",
    "rms_norm",
    "add_rms_norm",
    "rope",
    "swiglu",
    "attention",
    "router",
    "moe",
    "embedding",
    "lm_head",
    "logprob",
    "all_reduce",
    "reduce_scatter",
)
"""Operators of the numeric contract, in its order."""


def parse_ops(ops: str | Iterable[str]) -> list[str]:
    """Operator names in the contract's order from `"all"`, comma-separated text or a list.

    Raises:
        InputError: an unknown name (the nearest is named), or none.
    """
    names = [part.strip() for part in ops.split(",")] if isinstance(ops, str) else [str(op) for op in ops]
    names = [name for name in names if name]
    if names == ["all"]:
        return list(OPERATORS)
    for name in names:
        if name not in OPERATORS:
            near = difflib.get_close_matches(name, OPERATORS, n=1, cutoff=0.5)
            hint = (f"did you mean `{near[0]}`? " if near else "") + f"operators: all, {', '.join(OPERATORS)}"
            raise InputError(f"unknown operator {name!r}", value=name, hint=hint)
    if not names:
        raise InputError("no operator to align", value=ops, hint=f"operators: all, {', '.join(OPERATORS)}")
    return [op for op in OPERATORS if op in names]


def parse_sides(sides: str | Iterable[str]) -> list[str]:
    """Sides from comma-separated text or a list. Raises `InputError` on an unknown one, or none."""
    names = [part.strip() for part in sides.split(",")] if isinstance(sides, str) else [str(side) for side in sides]
    names = [name for name in names if name]
    unknown = [name for name in names if name not in SIDES]
    if unknown or not names:
        raise InputError("a side is `rollout` or `train`", value=unknown[0] if unknown else sides, hint="rollout,train")
    return [side for side in SIDES if side in names]


def overlay_document(ops: Sequence[str], sides: Sequence[str], identity: str = "") -> dict[str, Any]:
    """The content of the overlay file (`logdiff-overlay/1`)."""
    return {
        "format": FORMAT,
        "contract": CONTRACT,
        "provider": PROVIDER,
        "id": identity,
        "ops": list(ops),
        "sides": list(sides),
    }

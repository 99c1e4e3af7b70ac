"""The configuration and versions of both sides, flattened and set side by side."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from logdiff.report.wording import visible

ROW_LIMIT = 400
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class SideRow:
    """One dotted key with the value of each side as text; `kind`: equal, different or single (known on one at most)."""

    key: str
    rollout: str
    train: str
    kind: str


@dataclass(frozen=True, slots=True)
class SideTable:
    """`differing` rows first to read, `equal` ones to unfold; `left_out` rows beyond the limit."""

    differing: list[SideRow]
    single: list[SideRow]
    equal: list[SideRow]
    left_out: int


def flatten(value: Any, prefix: str = "", depth: int = 0) -> dict[str, Any]:
    """Dotted keys of nested objects; lists, and objects below six levels, stay whole."""
    if not isinstance(value, dict) or depth >= 6 or not value:
        return {prefix: value} if prefix else {}
    result: dict[str, Any] = {}
    for key, inner in value.items():
        result.update(flatten(inner, f"{prefix}.{key}" if prefix else str(key), depth + 1))
    return result


def _text(value: Any) -> str:
    if value is _ABSENT:
        return "–"
    if value is None:
        return "unknown"
    return visible(value if isinstance(value, str) else json.dumps(value, ensure_ascii=True, sort_keys=True), 240)


def side_table(fingerprints: dict[str, dict[str, Any]]) -> SideTable:
    """Rows over the keys of both fingerprints, in the order in which they stand there."""
    flat = {side: flatten(fingerprints.get(side, {})) for side in ("rollout", "train")}
    keys = [k for k in [*flat["rollout"], *(k for k in flat["train"] if k not in flat["rollout"])] if k != "format"]
    groups: dict[str, list[SideRow]] = {"different": [], "single": [], "equal": []}
    left_out = 0
    for key in keys:
        left, right = (flat[side].get(key, _ABSENT) for side in ("rollout", "train"))
        if any(value is _ABSENT or value is None for value in (left, right)):  # null is unknown, not a value
            kind = "single"
        else:
            kind = "equal" if type(left) is type(right) and left == right else "different"
        if len(groups[kind]) >= ROW_LIMIT:
            left_out += 1
            continue
        groups[kind].append(SideRow(visible(key, 120), _text(left), _text(right), kind))
    return SideTable(groups["different"], groups["single"], groups["equal"], left_out)

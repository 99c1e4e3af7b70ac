"""The measured floor (`logdiff.measure.floor_summary`) as rows, one per side and axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from logdiff.report.wording import as_float, visible

ROW_LIMIT = 100
_SIZES = ("max_abs", "mean_abs", "p50", "p90", "p99", "p999")


@dataclass(frozen=True, slots=True)
class FloorRow:
    """One axis of the floor; statistics of |d| in nats, None where the result doesn't say."""

    name: str
    tokens: int | None
    mismatched: int | None
    max_abs: float | None
    mean_abs: float | None
    p50: float | None
    p90: float | None
    p99: float | None
    p999: float | None

    @property
    def is_zero(self) -> bool:
        """Whether every token of the axis is known to be exactly equal."""
        return self.max_abs == 0


@dataclass(frozen=True, slots=True)
class Floor:
    """`reference`: the largest of each figure, what a difference is held against, None without a floor; `rows`: axes.

    `left_out` axes beyond `ROW_LIMIT` are in no row; `empty` names the axes without a compared token, `skipped` those
    that were not measured, with the reason; `measured_on` says in words on which tokens, "" if unknown.
    """

    reference: FloorRow | None
    rows: list[FloorRow]
    left_out: int
    empty: list[str]
    skipped: list[tuple[str, str]]
    measured_on: str


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _row(name: str, block: dict[str, Any]) -> FloorRow:
    sizes = (as_float(block.get(key)) for key in _SIZES)
    return FloorRow(name, _count(block.get("tokens")), _count(block.get("mismatched_tokens")), *sizes)


def _name(axis: dict[str, Any]) -> str:
    value = axis.get("value")
    setting = "" if value is None or value is True or value == "same" else f" {value}"
    return visible(f"{axis.get('side', '?')}: {axis.get('axis', '?')}{setting}", 60)


def read_floor(floor: dict[str, Any]) -> Floor:
    """Rows of `floor["axes"]` that compared at least one token, and the summary beside them."""
    listed = floor.get("axes")
    axes = [axis for axis in listed if isinstance(axis, dict)] if isinstance(listed, list) else []
    measured = [axis for axis in axes if _count(axis.get("tokens")) != 0 and as_float(axis.get("max_abs")) is not None]
    empty = floor.get("without_tokens")
    known = any(as_float(floor.get(key)) is not None for key in _SIZES)
    return Floor(
        _row("floor", floor) if known else None,
        [_row(_name(axis), axis) for axis in measured[:ROW_LIMIT]],
        max(0, len(measured) - ROW_LIMIT),
        [visible(str(name), 80) for name in empty[:ROW_LIMIT]] if isinstance(empty, list) else [],
        _skipped(floor.get("skipped")),
        _measured_on(floor.get("measured_on")),
    )


def _skipped(value: Any) -> list[tuple[str, str]]:
    rows = [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []
    return [(_name(row), str(row.get("reason") or "no reason given")) for row in rows[:ROW_LIMIT]]


def _measured_on(value: Any) -> str:
    if not isinstance(value, dict):
        return ""
    keys = ("samples", "of_samples", "tokens", "of_tokens")
    counts = [_count(value.get(key)) for key in keys]
    if None in counts:
        return ""
    samples, of_samples, tokens, of_tokens = (f"{count:,}" for count in counts)
    return f"measured on {samples} of {of_samples} samples, {tokens} of {of_tokens} tokens of the first step"

"""The measured floor as rows: one per side and axis, whatever depth the result file has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from logdiff.report.wording import as_float, visible

_STATISTICS = ("max_abs", "mean_abs")
ROW_LIMIT = 60


@dataclass(frozen=True, slots=True)
class FloorRow:
    """One axis of the floor; statistics in nats, None where the result doesn't say."""

    name: str
    tokens: int | None
    mismatched: int | None
    max_abs: float | None
    mean_abs: float | None
    p50: float | None
    p90: float | None
    p99: float | None
    p999: float | None


@dataclass(frozen=True, slots=True)
class Floor:
    """`overall`: the summary of the whole floor, None where there is none; `rows`: every axis."""

    overall: FloorRow | None
    rows: list[FloorRow]

    @property
    def reference(self) -> FloorRow | None:
        """What a difference is held against: the summary, else the largest of each statistic over all rows."""
        return self.overall or (_envelope(self.rows) if self.rows else None)


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _row(name: str, block: dict[str, Any]) -> FloorRow:
    return FloorRow(
        name,
        _count(block.get("tokens")),
        _count(block.get("mismatched_tokens")),
        *(as_float(block.get(key)) for key in ("max_abs", "mean_abs", "p50", "p90", "p99", "p999")),
    )


def _has_statistics(block: dict[str, Any]) -> bool:
    return any(as_float(block.get(key)) is not None for key in _STATISTICS)


def _envelope(rows: list[FloorRow]) -> FloorRow:
    def largest(values: list[float | None]) -> float | None:
        known = [v for v in values if v is not None]
        return max(known) if known else None

    return FloorRow(
        "largest over all axes",
        None,
        None,
        *(largest([getattr(r, key) for r in rows]) for key in ("max_abs", "mean_abs", "p50", "p90", "p99", "p999")),
    )


def _walk(block: dict[str, Any], path: tuple[str, ...]) -> Iterator[FloorRow]:
    if path and _has_statistics(block):
        yield _row(visible(" · ".join(path), 60), block)
    if len(path) >= 6:
        return
    for key, value in block.items():
        if isinstance(value, dict):
            yield from _walk(value, (*path, str(key)))
        elif isinstance(value, list):
            for item in value:
                if isinstance(item, dict):
                    names = [str(item[k]) for k in ("side", "axis", "name", "setting") if item.get(k) is not None]
                    yield from _walk(item, (*path, *(names or [str(key)])))


def read_floor(floor: dict[str, Any]) -> Floor:
    """Rows of every block below `floor` that has a maximum or mean of |d|; the block itself is the summary."""
    overall = _row("floor", floor) if _has_statistics(floor) else None
    return Floor(overall, [row for row, _ in zip(_walk(floor, ()), range(ROW_LIMIT), strict=False)])

"""One comparison: the same rows computed in two ways."""

from __future__ import annotations

from dataclasses import dataclass

from logdiff_kernels.probes.records import Result


@dataclass(frozen=True)
class Trial:
    """Results that must be equal, row by row.

    Attributes:
        variant: what was varied, in words.
        rows: numbers of the rows (or sequences).
        base, varied: one result per entry of `rows`.
    """

    variant: str
    rows: list[int]
    base: list[Result]
    varied: list[Result]


def spread(count: int, most: int = 6) -> list[int]:
    """Up to `most` row numbers: the first, the last, and some between; each only once, ascending."""
    if count <= most:
        return list(range(count))
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})

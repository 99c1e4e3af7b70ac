"""Plan of the attention: absolute positions cut into steps and chunks of keys, and which keys a query sees."""

from __future__ import annotations

from logdiff_kernels.contract import CHUNK, STEP


def visible_range(query: int, keys: int, *, causal: bool = True, window: int = 0) -> tuple[int, int]:
    """Begin and end of the keys that the query at that absolute position sees.

    Args:
        query: absolute position of the query in its sequence.
        keys: number of keys of the sequence.
        causal: key j is visible only if j <= query.
        window: key j is visible only if j > query - window; 0 is no window.

    Returns:
        A half-open range; empty (begin = end) if nothing is visible.
    """
    end = min(keys, query + 1) if causal else keys
    begin = max(0, query - window + 1) if window > 0 else 0
    return (begin, end) if begin < end else (0, 0)


def steps(begin: int, end: int) -> list[tuple[int, int]]:
    """The steps [512 j, 512 j + 512) that hold a key of [begin, end), whole, ascending."""
    if begin >= end:
        return []
    return [(j * STEP, (j + 1) * STEP) for j in range(begin // STEP, (end - 1) // STEP + 1)]


def chunks(begin: int, end: int) -> list[list[tuple[int, int]]]:
    """The same steps grouped into chunks of 4096 absolute positions, ascending; chunks without a key are left out."""
    grouped: dict[int, list[tuple[int, int]]] = {}
    for step in steps(begin, end):
        grouped.setdefault(step[0] // CHUNK, []).append(step)
    return list(grouped.values())

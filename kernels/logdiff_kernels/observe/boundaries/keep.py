"""What of a capture is kept: samples, rows, boundaries, level, size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from logdiff_kernels.errors import InputError

MAX_BYTES = 1 << 30
LEVELS = ("full", "sketch")


@dataclass(frozen=True, slots=True)
class Keep:
    """What of a capture is kept.

    Args:
        samples: sample ids; None: all.
        last: only rows from this many before a sample's last scored one, keys and values excepted; None: all.
        boundaries: glob patterns of names; None: all.
        level: "full" or "sketch" (hash and projections of each row).
        max_bytes: of all tensors; a boundary that doesn't fit any more is left out whole, and noted.
    """

    samples: tuple[str, ...] | None = None
    last: int | None = None
    boundaries: tuple[str, ...] | None = None
    level: str = "full"
    max_bytes: int = MAX_BYTES

    @classmethod
    def parse(cls, task: Mapping[str, Any]) -> Keep:
        """From the task `capture`. Raises `InputError` with the key and value."""
        rows, level = task.get("rows") or {}, task.get("level") or "full"
        last, most = rows.get("last"), task.get("max_bytes") or MAX_BYTES
        if set(rows) - {"last"} or (last is not None and (not isinstance(last, int) or last < 1)):
            raise InputError('rows must be {"last": n}, n of 1 or more', value=rows)
        if level not in LEVELS:
            raise InputError(f"unknown level {level!r}", value=level, hint=f"one of: {', '.join(LEVELS)}")
        if not isinstance(most, int) or most < 1:
            raise InputError("max_bytes must be a whole number of 1 or more", value=most)
        chosen = [None if task.get(key) is None else tuple(task[key]) for key in ("samples", "boundaries")]
        return cls(chosen[0], last, chosen[1], level, most)

"""Ends every process below this one, so that no engine worker outlives its runner."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path


def descendants(root: int | None = None) -> list[int]:
    """Process ids of all living descendants of `root` (this process), children before grandchildren.

    Reads /proc; empty where there is none.
    """
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue  # ended in the meantime
        if fields[0] != "Z":
            parents.setdefault(int(fields[1]), []).append(int(entry.parent.name))
    found: list[int] = []
    queue = [os.getpid() if root is None else root]
    while queue:
        children = parents.get(queue.pop(0), [])
        found += children
        queue += children
    return found


def kill_descendants() -> None:
    """SIGKILL to every descendant, repeated until none is left (a fork bomb apart)."""
    for _ in range(10):
        alive = descendants()
        if not alive:
            return
        for process in alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)

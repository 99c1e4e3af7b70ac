"""The append-only journal of a case: one JSON object per line, durable as soon as `append` returns."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from logdiff.jsonio import dumps


class Journal:
    """Events of one case, oldest first.

    A line that a kill cut off is skipped by `read`; `torn` says whether the file ends in one. The next event
    starts on a line of its own, so nothing written later is lost with it.
    """

    def __init__(self, path: Path, before_write: Callable[[], None] = lambda: None) -> None:
        self.path = path
        self._before_write = before_write

    def append(self, event: str, **fields: Any) -> dict[str, Any]:
        """Record one event with the time (UTC) and return it as written.

        Raises:
            CaseError: the case is sealed or another process writes it.
        """
        self._before_write()
        record = {"time": datetime.now(timezone.utc).isoformat(timespec="milliseconds"), "event": event, **fields}
        line = dumps(record).encode() + b"\n"
        if self.torn:
            line = b"\n" + line
        # One write call: a line of another thread never stands inside this one.
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            view = memoryview(line)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        written: dict[str, Any] = json.loads(line)
        return written

    def read(self) -> list[dict[str, Any]]:
        """All whole events; lines that are no JSON object are left out."""
        if not self.path.is_file():
            return []
        events: list[dict[str, Any]] = []
        for line in self.path.read_bytes().split(b"\n"):
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(record, dict) and "event" in record:
                events.append(record)
        return events

    @property
    def torn(self) -> bool:
        """Whether the last line was cut off while it was written."""
        try:
            with self.path.open("rb") as handle:
                if handle.seek(0, os.SEEK_END) == 0:
                    return False
                handle.seek(-1, os.SEEK_END)
                return handle.read(1) != b"\n"
        except FileNotFoundError:
            return False

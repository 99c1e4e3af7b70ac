"""Files as text within limits: what is too large, binary, or no file is told instead of read."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

from logdiff.audit.readers.collect import Collector

MAX_BYTES = 8 << 20
"""Largest file that is read whole."""
MAX_LOG_BYTES = 1 << 30
MAX_LINE = 1 << 20


def refused(path: Path, collector: Collector, shown: str) -> bool:
    """Whether a path is nothing to read; the reason is told."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        collector.unread(shown, f"can't be read: {error.strerror or error}")
        return True
    if not stat.S_ISREG(mode):
        collector.unread(shown, "no regular file")
        return True
    return False


def head(path: Path, size: int = 1 << 16) -> bytes:
    """The first bytes of a file."""
    with path.open("rb") as stream:
        return stream.read(size)


def read_text(path: Path, collector: Collector, shown: str) -> str | None:
    """A whole file as text with line ends of one kind; None, with the reason told, where it can't be."""
    size = path.stat().st_size
    if size > MAX_BYTES:
        collector.unread(shown, f"{size} bytes; at most {MAX_BYTES} are read of a file of this kind")
        return None
    with path.open("rb") as stream:
        raw = stream.read(MAX_BYTES + 1)
    return decoded(raw, collector, shown)


def decoded(raw: bytes, collector: Collector, shown: str) -> str:
    """UTF-8 text, bytes that are none replaced and told."""
    raw = raw.removeprefix(b"\xef\xbb\xbf")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        collector.unread(f"{shown}:{line}", "bytes that are no UTF-8; they are read as unknown characters")
        text = raw.decode("utf-8", "replace")
    return text


def lines(path: Path, collector: Collector, shown: str) -> Iterator[tuple[int, str]]:
    """The numbered lines of a log, one at a time; overlong lines and the end beyond the limit are told."""
    total = 0
    with path.open("rb") as stream:
        number = 0
        while raw := stream.readline(MAX_LINE):
            number += 1
            total += len(raw)
            if total > MAX_LOG_BYTES:
                collector.unread(f"{shown}:{number}", f"the log is read up to {MAX_LOG_BYTES} bytes")
                return
            if len(raw) == MAX_LINE and not raw.endswith(b"\n"):
                collector.unread(f"{shown}:{number}", f"a line longer than {MAX_LINE} bytes is cut")
                while (rest := stream.readline(MAX_LINE)) and not rest.endswith(b"\n"):
                    total += len(rest)
            yield number, raw.decode("utf-8", "replace").rstrip("\r\n")

"""Reading a child's standard output and standard error with bounded memory."""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from pathlib import Path
from typing import IO, Any

MAX_LINE = 16 << 20
MAX_JUNK = 200
MAX_QUEUED = 10_000


class BoundedLog:
    """A log file that keeps the first `head` and the last `tail` bytes of what is written, and the last lines."""

    def __init__(self, path: Path, head: int = 4 << 20, tail: int = 1 << 20, lines: int = 20) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._file = path.open("ab")
        self._head_left = head
        self._tail_size = tail
        self._tail = bytearray()
        self._dropped = 0
        self._lines: deque[str] = deque(maxlen=lines)
        self._partial = b""
        self._lock = threading.Lock()

    def write(self, data: bytes) -> None:
        """Append; what stands between head and tail is dropped and counted."""
        with self._lock:
            if self._file.closed:
                return
            now = data[: self._head_left]
            if now:
                self._file.write(now)
                self._file.flush()
                self._head_left -= len(now)
            rest = data[len(now) :]
            if rest:
                self._tail += rest
                excess = len(self._tail) - self._tail_size
                if excess > 0:
                    del self._tail[:excess]
                    self._dropped += excess
            *whole, last = (self._partial + data).split(b"\n")
            self._partial = last[-2000:]
            self._lines.extend(line.decode("utf-8", "replace").rstrip()[:500] for line in whole if line.strip())

    def last_lines(self, count: int = 8) -> str:
        """The last non-empty lines, for error messages."""
        with self._lock:
            lines = [*self._lines]
            if self._partial.strip():
                lines.append(self._partial.decode("utf-8", "replace").rstrip()[:500])
            return "\n".join(lines[-count:])

    def text(self) -> str:
        """What is still in memory, for looking for well-known words."""
        with self._lock:
            return "\n".join(self._lines)

    def close(self) -> None:
        """Write the tail and close the file. May be called twice."""
        with self._lock:
            if self._file.closed:
                return
            if self._dropped:
                self._file.write(f"\n[... {self._dropped} bytes left out ...]\n".encode())
            self._file.write(self._tail)
            self._file.close()


class LogPump(threading.Thread):
    """Copies a stream into a log until its end."""

    def __init__(self, stream: IO[bytes], log: BoundedLog) -> None:
        super().__init__(daemon=True, name="logdiff-log")
        self._fd = os.dup(stream.fileno())
        self._log = log

    def run(self) -> None:
        """Copy until the end of the stream."""
        try:
            while block := os.read(self._fd, 65536):
                self._log.write(block)
        except OSError:
            pass
        finally:
            os.close(self._fd)


class EventPump(threading.Thread):
    """Parses one JSON event per line. `problem` is set once the stream can't be trusted any more.

    Lines that are no events go to the log. Progress events are dropped, newest first, when nobody reads them.
    """

    def __init__(self, stream: IO[bytes], log: BoundedLog, max_line: int = MAX_LINE) -> None:
        super().__init__(daemon=True, name="logdiff-events")
        self._fd = os.dup(stream.fileno())
        self._log = log
        self._max_line = max_line
        self._events: deque[dict[str, Any]] = deque()
        self._changed = threading.Condition()
        self._junk = 0
        self.problem: str | None = None
        self.ended = False

    def get(self, seconds: float) -> dict[str, Any] | None:
        """The next event, or None when there was none for `seconds` or the stream has ended."""
        with self._changed:
            if not self._events and not self.ended and self.problem is None:
                self._changed.wait(seconds)
            return self._events.popleft() if self._events else None

    def run(self) -> None:
        """Parse until the end of the stream."""
        buffer = bytearray()
        searched = 0
        try:
            while block := os.read(self._fd, 65536):
                if self.problem is not None:
                    continue  # drained, so that the child does not block while it is being ended
                buffer += block
                while (end := buffer.find(b"\n", searched)) >= 0:
                    self._line(bytes(buffer[:end]))
                    del buffer[: end + 1]
                    searched = 0
                searched = len(buffer)
                if searched > self._max_line:
                    self._fail(f"a line of more than {self._max_line} bytes on standard output")
                    buffer.clear()
                    searched = 0
        except OSError:
            pass
        finally:
            os.close(self._fd)
            with self._changed:
                self.ended = True
                self._changed.notify_all()

    def _line(self, line: bytes) -> None:
        if not line.strip():
            return
        event: Any = None
        if len(line) <= self._max_line:
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                event = None
        if not isinstance(event, dict) or not isinstance(event.get("event"), str):
            self._junk += 1
            self._log.write(b"[standard output] " + line[:2000] + b"\n")
            if self._junk > MAX_JUNK:
                self._fail(f"more than {MAX_JUNK} lines on standard output that are no events")
            return
        with self._changed:
            if event["event"] == "progress" and len(self._events) > 1000:
                return
            if len(self._events) > MAX_QUEUED:
                self.problem = f"more than {MAX_QUEUED} events that nobody asked for"
            else:
                self._events.append(event)
            self._changed.notify_all()

    def _fail(self, problem: str) -> None:
        with self._changed:
            self.problem = problem
            self._changed.notify_all()

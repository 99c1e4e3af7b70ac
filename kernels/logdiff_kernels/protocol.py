"""Requests and events of the runner protocol (`logdiff-request/1`, docs/architecture.md)."""

from __future__ import annotations

import json
import math
import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from logdiff_kernels.errors import InputError, RunnerError

PROTOCOL = "logdiff-request/1"

_KINDS: dict[str, type | tuple[type, ...]] = {
    "engine": (str, type(None)),
    "side": str,
    "model": (str, type(None)),
    "dtype": (str, type(None)),
    "args": dict,
    "modules": list,
    "score": dict,
    "sampling": dict,
    "tasks": list,
    "interactive": bool,
}


@dataclass(frozen=True, slots=True)
class Request:
    """One `logdiff-request/1`. `engine` None: engine-free tasks only. `dtype` None: the checkpoint's own."""

    engine: str | None
    side: str = "train"
    model: str | None = None
    dtype: str | None = None
    args: dict[str, Any] = field(default_factory=dict)
    modules: list[str] = field(default_factory=list)
    score: dict[str, Any] = field(default_factory=dict)
    sampling: dict[str, Any] = field(default_factory=dict)
    tasks: list[dict[str, Any]] = field(default_factory=list)
    interactive: bool = False

    @classmethod
    def parse(cls, document: Any) -> Request:
        """Check a decoded JSON document.

        Raises:
            InputError: wrong format, an unknown or missing key, a value of the wrong type; the key is named.
        """
        if not isinstance(document, dict) or document.get("format") != PROTOCOL:
            found = document.get("format") if isinstance(document, dict) else type(document).__name__
            raise InputError(f"not a {PROTOCOL} request", value=found, hint=f'"format" must be "{PROTOCOL}"')
        body = {key: value for key, value in document.items() if key != "format"}
        for key, value in body.items():
            if key not in _KINDS:
                raise InputError(f"unknown key {key!r} in the request", value=key, hint=f"known: {', '.join(_KINDS)}")
            if not isinstance(value, _KINDS[key]):
                raise InputError(f"{key!r} has the wrong type in the request", value=value)
        if "engine" not in body:
            raise InputError("the request names no engine", value=sorted(body), hint='"engine": a name, or null')
        if body["engine"] is not None and not body.get("model"):
            raise InputError("the request names no model", value=body.get("model"), hint='"model": a model folder')
        if not all(isinstance(path, str) for path in body.get("modules", [])):
            raise InputError("'modules' must be a list of paths", value=body["modules"])
        for task in body.get("tasks", []):
            check_task(task)
        return cls(**body)

    @classmethod
    def load(cls, path: Path) -> Request:
        """Read and check a request file. Raises `InputError`."""
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"can't read the request: {error}", value=str(path)) from error
        return cls.parse(document)


def check_task(task: Any) -> dict[str, Any]:
    """A task as it came over the wall, checked for what every task must have. Raises `InputError`."""
    if not isinstance(task, dict) or not isinstance(task.get("task"), str):
        raise InputError("a task must be an object with a 'task' name", value=task)
    return task


def required(task: dict[str, Any], key: str, kind: type) -> Any:
    """The value of `key` in a task. Raises `InputError` when it is missing or of another type."""
    if not isinstance(task.get(key), kind):
        raise InputError(f"task {task.get('task')!r} needs {key!r} ({kind.__name__})", value=task.get(key))
    return task[key]


def plain(value: Any) -> Any:
    """Plain JSON values of numpy scalars, arrays, paths and non-finite floats ("nan", "inf", "-inf"), recursively."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if hasattr(value, "tolist"):  # numpy and torch, without importing either
        return plain(value.tolist())
    return str(value)


class Events:
    """Writes one JSON line per event to a file descriptor; safe from several threads."""

    def __init__(self, descriptor: int, *, progress_interval: float = 0.1) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._interval = progress_interval
        self._last_progress = -math.inf

    def emit(self, event: str, **fields: Any) -> None:
        """Write one event. A reader that went away is not an error here: standard input tells it too."""
        line = json.dumps(plain({"event": event, **fields}), ensure_ascii=False, allow_nan=False) + "\n"
        data = line.encode("utf-8", errors="backslashreplace")
        with self._lock:
            try:
                while data:
                    data = data[os.write(self._descriptor, data) :]
            except BrokenPipeError:
                return

    def progress(self, task: str, done: int, total: int | None, unit: str, message: str) -> None:
        """Write a `progress` event, at most one per interval, the last step of a task always."""
        now = time.monotonic()
        if now - self._last_progress < self._interval and done != total:
            return
        self._last_progress = now
        self.emit("progress", task=task, done=int(done), total=total, unit=unit, message=message)

    def error(self, error: RunnerError, task: str | None, *, fatal: bool) -> None:
        """Write an `error` event."""
        self.emit("error", task=task, error=error.as_dict(), fatal=fatal)

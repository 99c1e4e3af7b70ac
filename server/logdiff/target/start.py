"""One way to start any engine."""

from __future__ import annotations

import threading
from pathlib import Path

from logdiff.target.engine import Engine, EngineSpec, OnProgress
from logdiff.target.timeouts import Timeouts


def start(
    spec: EngineSpec,
    *,
    log: Path,
    timeouts: Timeouts | None = None,
    on_progress: OnProgress | None = None,
    cancel: threading.Event | None = None,
) -> Engine:
    """Start the engine of `spec` and wait until it can take tasks.

    Args:
        spec: the side to start.
        log: file for the standard error of a child process (its request lies beside it).
        timeouts: see `Timeouts`.
        on_progress: called from this thread.
        cancel: set from any thread to give up; the engine is then ended and `CancelledError` raised.

    Raises:
        InputError: the interpreter, model folder, URL or an argument can't be used.
        EngineError: the engine refused or died.
        CancelledError: cancelled or out of time.
    """
    if spec.engine == "vllm-http":
        from logdiff.target.http import HttpEngine

        return HttpEngine.start(spec, timeouts=timeouts, cancel=cancel)
    from logdiff.target.local import LocalRunner

    return LocalRunner.start(spec, log=log, timeouts=timeouts, on_progress=on_progress, cancel=cancel)

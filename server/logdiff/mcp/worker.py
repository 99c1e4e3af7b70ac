"""The child process of one tool call (`jobs.WORKER`).

It reads one JSON line `{"action", "arguments"}` from standard input and writes one JSON object per line on standard
output: `{"event": "progress", ...}`, then `{"event": "result", "data": {...}, "exit_code": n}` or
`{"event": "error", "error": {...}, "exit_code": n}`. Standard input is also its lifeline: when it ends, the server
has gone and the worker unwinds as on SIGTERM, so that no engine outlives the server.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from types import FrameType
from typing import IO, TYPE_CHECKING, Any

from logdiff.errors import CancelledError, LogdiffError, storage_error

if TYPE_CHECKING:
    from logdiff.actions import Done
    from logdiff.target.engine import Progress


def main() -> int:
    """Serve one request and return the exit code that the command line would give."""
    wire = _private_stdout()
    _stop_on_signals()
    lock = threading.Lock()

    def emit(event: dict[str, Any]) -> None:
        from logdiff.jsonio import dumps

        with lock:
            wire.write(dumps(event) + "\n")
            wire.flush()

    try:
        request = json.loads(sys.stdin.readline())
        threading.Thread(target=_watch_lifeline, daemon=True).start()
        done = _perform(request["action"], request["arguments"], emit)
        emit({"event": "result", "data": done.data, "exit_code": done.exit_code})
        return done.exit_code
    except LogdiffError as error:
        emit({"event": "error", "error": error.as_dict()["error"], "exit_code": error.exit_code})
        return error.exit_code
    except KeyboardInterrupt:
        stop = CancelledError("cancelled", hint="what was captured stays in the case; call again with the same case")
        emit({"event": "error", "error": stop.as_dict()["error"], "exit_code": stop.exit_code})
        return stop.exit_code
    except Exception as error:
        traceback.print_exc()
        if isinstance(error, OSError) and (refused := storage_error(error)) is not None:
            emit({"event": "error", "error": refused.as_dict()["error"], "exit_code": refused.exit_code})
            return refused.exit_code
        text = f"{type(error).__name__}: {error}"
        hint = "a bug in logdiff; the job's log has the traceback"
        error_facts = {"type": "InternalError", "message": text, "value": None, "hint": hint}
        emit({"event": "error", "error": error_facts, "exit_code": 3})
        return 3


def _perform(action: str, arguments: dict[str, Any], emit: Callable[[dict[str, Any]], None]) -> Done:
    from logdiff import actions

    def on_progress(p: Progress) -> None:
        facts = {"task": p.task, "done": p.done, "total": p.total, "unit": p.unit, "message": p.message}
        emit({"event": "progress", **facts})

    return actions.perform(action, arguments, on_progress)


def _private_stdout() -> IO[str]:
    wire = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return wire


def _stop_on_signals() -> None:
    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # one unwinding is enough
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the server's terminal reaches us through the server


def _watch_lifeline() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())

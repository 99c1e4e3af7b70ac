"""The child process beside the model: `python -m logdiff_kernels.runner REQUEST.json` (docs/architecture.md).

Exit status: 0 after the last task, `stop`, SIGTERM or end of standard input while idle; 2 after a fatal `error` event;
3 after an unexpected failure of the runner itself; 9 when standard input ended in the middle of a task.
"""

from __future__ import annotations

import json
import os
import platform
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from logdiff_kernels import __version__
from logdiff_kernels.align import parse_switch
from logdiff_kernels.engines.base import Adapter, Progress, TaskOutput
from logdiff_kernels.errors import EngineError, InputError, RunnerError, UnsupportedError
from logdiff_kernels.processes import kill_descendants
from logdiff_kernels.protocol import Events, Request, check_task

CLOSE_SECONDS = 20.0
"""How long a clean end may take after SIGTERM or end of file before everything is killed."""

BUSY_SECONDS = 1.0
"""How long a task in work may go on after the end of standard input."""


class _Terminated(BaseException):
    """SIGTERM arrived. Not an `Exception`, so that no engine swallows it."""


class _Stdin(threading.Thread):
    """Reads standard input to its end: one task per line; its end ends the process, whatever it is doing."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(daemon=True, name="logdiff-stdin")
        self.lines: queue.Queue[str | None] = queue.Queue()
        self.idle = threading.Event()
        self._descriptor = descriptor

    def run(self) -> None:
        with os.fdopen(self._descriptor, encoding="utf-8", errors="replace") as stream:
            try:
                for line in stream:
                    if line.strip():
                        self.lines.put(line)
            except OSError:
                pass  # a closed terminal or socket: the same as its end
        while not self.lines.empty():  # nobody waits for the results of these any more
            self.lines.get_nowait()
        self.lines.put(None)
        if self.idle.wait(BUSY_SECONDS):
            time.sleep(CLOSE_SECONDS)  # the main thread ends the process before this is over
        kill_descendants()
        os._exit(9)


def _watch_signals(read_end: int) -> None:
    """After SIGTERM gives the main thread time to end cleanly, then kills (a native call can hold up the handler)."""
    while True:
        if bytes([signal.SIGTERM]) in os.read(read_end, 64):
            time.sleep(CLOSE_SECONDS)
            kill_descendants()
            os._exit(9)


def _on_sigterm(_number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Terminated


def _redirect() -> tuple[int, int]:
    """Private copies of (standard output, standard input); descriptor 1 becomes 2, descriptor 0 the null device."""
    events, commands = os.dup(1), os.dup(0)
    os.dup2(2, 1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return events, commands


def _as_runner_error(error: Exception) -> RunnerError:
    if isinstance(error, RunnerError):
        return error
    traceback.print_exception(error)
    words = str(error).strip() or repr(error)
    hint = "the traceback is in the log of this side"
    if isinstance(error, ModuleNotFoundError):
        hint = "install it for the interpreter of this side, or give another (`python` of the side, --python)"
        return EngineError(f"{type(error).__name__}: {words}", value=sys.executable, hint=hint)
    return EngineError(f"{type(error).__name__}: {words}", hint=hint)


class Runner:
    """Builds the engine of a request and does its tasks."""

    def __init__(self, request: Request, events: Events) -> None:
        self._request = request
        self._events = events
        self._adapter: Adapter | None = None
        self._ops: frozenset[str] | None = None
        self._switch: dict[str, Any] = {}

    def start(self) -> None:
        """Import the user's modules, then build the engine and announce it."""
        from logdiff_kernels import modules

        request, begin = self._request, time.monotonic()
        if request.modules:
            os.environ[modules.VARIABLE] = os.pathsep.join(request.modules)
            modules.load_modules(request.modules)
        if request.engine is None:
            from logdiff_kernels.actions import EngineFree

            self._adapter = EngineFree()
        else:
            from logdiff_kernels.engines import registry

            self._adapter = registry.create(request)
        self._events.emit("ready", engine=request.engine, seconds=round(time.monotonic() - begin, 3))

    def do(self, task: dict[str, Any]) -> None:
        """Do one task and write its `result`. Raises a `RunnerError`."""
        assert self._adapter is not None
        name, identity = task["task"], str(task.get("id", task["task"]))
        if name == "realign":
            self._ops = None
        if name not in self._adapter.tasks:
            known = ", ".join(sorted(self._adapter.tasks))
            engine = self._request.engine or "no engine"
            raise UnsupportedError(f"{engine} can't do the task {name!r}", value=name, hint=f"it can do: {known}")

        def progress(done: int, total: int | None = None, unit: str = "", message: str = "") -> None:
            self._events.progress(identity, done, total, unit, message)

        switched = self._switched(task, progress)
        begin = time.monotonic()
        output: TaskOutput = self._adapter.run(task, progress)
        data = output.data
        if switched is not None:
            data = {**data, "aligned": {**switched, "task_seconds": round(time.monotonic() - begin, 3)}}
        files = {key: str(path) for key, path in output.files.items()}
        self._events.emit("result", task=identity, files=files, data=data)

    def _switched(self, task: dict[str, Any], progress: Progress) -> dict[str, Any] | None:
        """Bring the engine to the operators that the task's `align` names; facts of the switch, None without it."""
        assert self._adapter is not None
        if "align" not in task:
            return None
        if "realign" not in self._adapter.tasks:
            raise UnsupportedError(f"{self._request.engine} can't switch operators in place", value=task["align"])
        ops = parse_switch(task["align"])
        if ops != self._ops:
            self._ops = None  # unknown, should the switch fail
            done = self._adapter.run({"task": "realign", "ops": sorted(ops)}, progress)
            self._ops, self._switch = ops, done.data
        return self._switch

    def close(self) -> None:
        """Close the engine; a failure to do so is told in the log only, the results stand."""
        adapter, self._adapter = self._adapter, None
        if adapter is not None:
            try:
                adapter.close()
            except Exception:
                traceback.print_exc()


def _tasks(request: Request, stdin: _Stdin) -> Iterator[dict[str, Any] | RunnerError]:
    """The listed tasks, then, when interactive, those on standard input; a bad line is yielded as its error."""
    yield from request.tasks
    while request.interactive:
        stdin.idle.set()
        line = stdin.lines.get()
        stdin.idle.clear()
        if line is None:
            return
        try:
            task = check_task(json.loads(line))
        except ValueError as error:
            yield InputError(f"a task on standard input is not JSON: {error}", value=line[:200])
            continue
        except InputError as error:
            yield error
            continue
        if task["task"] == "stop":
            return
        yield task


def _serve(request: Request, events: Events, stdin: _Stdin) -> int:
    runner = Runner(request, events)
    current: str | None = None
    try:
        try:
            runner.start()
            for task in _tasks(request, stdin):
                if isinstance(task, RunnerError):
                    events.error(task, None, fatal=False)
                    continue
                current = str(task.get("id", task["task"]))
                try:
                    runner.do(task)
                except Exception as error:
                    found = _as_runner_error(error)
                    fatal = found.fatal or not request.interactive
                    events.error(found, current, fatal=fatal)
                    if fatal:
                        return 2
                current = None
        except Exception as error:
            events.error(_as_runner_error(error), current, fatal=True)
            return 2
        finally:
            stdin.idle.set()
            runner.close()
    except _Terminated:
        runner.close()
    events.emit("done")
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run one request file; see the module's text for the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    output, commands = _redirect()
    events = Events(output)
    events.emit(
        "hello", protocol="logdiff-request/1", pid=os.getpid(), python=platform.python_version(), version=__version__
    )
    try:
        if len(arguments) != 1:
            raise InputError("expected one argument, a request file", value=arguments)
        request = Request.load(Path(arguments[0]))
    except InputError as error:
        events.error(error, None, fatal=True)
        return 2
    stdin = _Stdin(commands)
    stdin.start()
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    threading.Thread(target=_watch_signals, args=(read_end,), daemon=True, name="logdiff-signals").start()
    signal.signal(signal.SIGTERM, _on_sigterm)
    try:
        return _serve(request, events, stdin)
    except _Terminated:
        events.emit("done")
        return 0


if __name__ == "__main__":
    status = 3
    try:
        status = main()
    except Exception:
        traceback.print_exc()
    sys.stderr.flush()
    kill_descendants()
    os._exit(status)  # engine threads and interpreter teardown can't hold the process

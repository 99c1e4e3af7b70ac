"""An engine in a child process: `PYTHON -m logdiff_kernels.runner REQUEST.json` (docs/architecture.md)."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from pathlib import Path
from typing import Any

from logdiff.errors import CancelledError, EngineError, InputError, LogdiffError
from logdiff.jsonio import dumps
from logdiff.target.children import Child
from logdiff.target.engine import EngineSpec, OnProgress, Progress, TaskResult, UnsupportedError
from logdiff.target.overlay import interpreter, runner_env
from logdiff.target.redact import redacted
from logdiff.target.streams import BoundedLog, EventPump, LogPump
from logdiff.target.timeouts import Timeouts

PROTOCOL = "logdiff-request/1"

_ANY = frozenset({"tokenize", "decode_text", "weights", "fingerprint", "realign", "dispatch_trace"})
_ROLLOUT = _ANY | {"generate", "force", "rescore", "reload", "capture"}
CAPABILITIES: dict[tuple[str | None, str], frozenset[str]] = {
    ("vllm", "rollout"): _ROLLOUT,
    ("transformers-generate", "rollout"): _ROLLOUT | {"score"},
    ("transformers", "rollout"): _ROLLOUT | {"score"},
    ("transformers", "train"): _ANY | {"score", "update", "capture"},
    (None, ""): frozenset(
        {
            *("environment", "build_model", "list_models", "align_check", "dispatch"),
            *("kernels_list", "kernels_build", "kernels_selftest", "kernels_bench"),
            *("probe_list", "probe_facts", "probe"),
            *("reference", "check_operators"),
        }
    ),
}

_ERRORS: dict[str, type[LogdiffError]] = {
    "InputError": InputError,
    "EngineError": EngineError,
    "UnsupportedError": UnsupportedError,
}
_OUT_OF_MEMORY = re.compile(r"out of memory|OutOfMemory|Cannot allocate memory|bad_alloc", re.IGNORECASE)


class LocalRunner:
    """A runner child process and its engine. Start it with `LocalRunner.start`; one task at a time."""

    def __init__(
        self,
        spec: EngineSpec | None,
        *,
        log: Path,
        python: str | None = None,
        env: dict[str, str] | None = None,
        timeouts: Timeouts | None = None,
        cancel: threading.Event | None = None,
    ) -> None:
        self._engine = spec.engine if spec else None
        self._side = spec.side if spec else ""
        self._timeouts = timeouts or Timeouts()
        self._cancelled = cancel or threading.Event()
        self._own_cancel = threading.Event()
        self._busy = threading.Lock()
        self._count = 0
        self._closed = False
        command = interpreter(spec.python if spec else python)
        variables = runner_env(command, dict(spec.env) if spec else dict(env or {}))
        self._request = _request(spec)
        self._request_file = request = log.with_suffix(".request.json")
        request.parent.mkdir(parents=True, exist_ok=True)
        request.touch(mode=0o600)
        request.write_text(dumps(self._request, indent=1), encoding="utf-8")
        self._log = BoundedLog(log)
        try:
            self._child = Child([command, "-m", "logdiff_kernels.runner", str(request)], variables)
        except OSError as error:
            self._log.close()
            raise InputError(
                f"python of this side can't be run: {error}", value=command, hint="give the path of an interpreter"
            ) from None
        assert self._child.process.stdout is not None
        assert self._child.process.stderr is not None
        self._events = EventPump(self._child.process.stdout, self._log)
        self._errors = LogPump(self._child.process.stderr, self._log)
        self._events.start()
        self._errors.start()
        self.hello: dict[str, Any] = {}

    @classmethod
    def start(
        cls,
        spec: EngineSpec | None,
        *,
        log: Path,
        python: str | None = None,
        env: dict[str, str] | None = None,
        timeouts: Timeouts | None = None,
        on_progress: OnProgress | None = None,
        cancel: threading.Event | None = None,
    ) -> LocalRunner:
        """Start the child and wait until its engine is built. `spec` None: no engine (environment, models), with
        `python` and `env` of its own.

        Raises as `logdiff.target.start`.
        """
        runner = cls(spec, log=log, python=python, env=env, timeouts=timeouts, cancel=cancel)
        try:
            runner.hello = runner._await("hello", None, runner._timeouts.hello, on_progress)
            if runner.hello.get("protocol") != PROTOCOL:
                raise EngineError(
                    "the runner of this side speaks another protocol",
                    value=runner.hello.get("protocol"),
                    hint=f"this logdiff needs {PROTOCOL}; remove the other logdiff from that environment",
                )
            runner._await("ready", None, runner._timeouts.start, on_progress)
        except BaseException:
            runner._end(polite=False)
            raise
        finally:
            runner._redact()
        return runner

    @property
    def capabilities(self) -> frozenset[str]:
        """Names of the tasks that this engine can do."""
        return CAPABILITIES.get((self._engine, self._side), frozenset())

    @property
    def pid(self) -> int:
        """Process id of the child, which is also its process group."""
        return self._child.pid

    def run(self, task: dict[str, Any], on_progress: OnProgress | None = None) -> TaskResult:
        """Do one task and wait for it.

        Raises:
            UnsupportedError, InputError: the engine lives on.
            EngineError: it refused (and lives on) or died; then its exit and its last words are in the message.
            CancelledError: cancelled or out of time; the engine has been ended.
        """
        with self._busy:
            if self._closed:
                raise EngineError("the engine has ended", value=self._engine, hint="start it again")
            self._count += 1
            name = str(task.get("id") or f"{task['task']}-{self._count}")
            try:
                self._send({**task, "id": name})
                event = self._await("result", name, self._timeouts.task, on_progress)
            except LogdiffError as error:
                if isinstance(error, CancelledError) or self._child.exited() is not None or self._events.problem:
                    self._end(polite=False)
                raise
            except BaseException:
                self._end(polite=False)
                raise
        files, data = event.get("files") or {}, event.get("data") or {}
        if not isinstance(files, dict) or not isinstance(data, dict):
            raise EngineError("the runner answered with another shape", value=name, hint="see its log")
        return TaskResult(files={str(k): Path(str(v)) for k, v in files.items()}, data=data)

    def cancel(self) -> None:
        """End the running task and the engine soon, from any thread."""
        self._own_cancel.set()
        self._child.signal(signal.SIGTERM)

    def close(self) -> None:
        """Ask the engine to stop, and end it and every process it started."""
        if not self._closed:
            with contextlib.suppress(LogdiffError):
                self._send({"task": "stop"})
            self._end(polite=True)

    def _redact(self) -> None:
        """The request stays beside the log, without secrets once the runner has read it."""
        clean = redacted(self._request)
        if clean != self._request:
            self._request_file.write_text(dumps(clean, indent=1), encoding="utf-8")

    def _end(self, *, polite: bool) -> None:
        if self._closed:
            return
        self._closed = True
        self._child.end(self._timeouts.stop, polite=polite)
        self._events.join(2.0)
        self._errors.join(2.0)
        for stream in (self._child.process.stdout, self._child.process.stderr):
            if stream is not None:
                stream.close()
        self._log.close()

    def _send(self, line: dict[str, Any]) -> None:
        data = memoryview(dumps(line).encode() + b"\n")
        assert self._child.process.stdin is not None
        try:
            while data:
                data = data[os.write(self._child.process.stdin.fileno(), data) :]
        except (OSError, ValueError):
            self._raise_if_cancelled(None)
            raise self._death() from None

    def _raise_if_cancelled(self, task: str | None) -> None:
        if self._cancelled.is_set() or self._own_cancel.is_set():
            raise CancelledError("cancelled", value=task or self._engine, hint="run again to resume the case")

    def _await(self, wanted: str, task: str | None, seconds: float, on_progress: OnProgress | None) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while True:
            self._raise_if_cancelled(task)
            if self._events.problem is not None:
                raise EngineError(
                    f"the runner wrote {self._events.problem}",
                    value=self._engine,
                    hint=f"something in that environment prints to standard output; see {self._log.path}",
                )
            event = self._events.get(0.2)
            if event is None:
                if time.monotonic() > deadline:
                    raise CancelledError(
                        f"no {wanted} from the engine within {seconds:g} seconds",
                        value=task or self._engine,
                        hint=f"raise the time limit, or see {self._log.path}",
                    )
                if self._child.exited() is not None:
                    self._events.join(2.0)  # what it wrote last
                    event = self._events.get(0.0)
                    if event is None:
                        self._raise_if_cancelled(task)  # it may have been ended since the check above
                        raise self._death()
                else:
                    continue
            kind = event["event"]
            if kind == "progress" and on_progress is not None:
                on_progress(_progress(event))
            elif kind == "error" and (event.get("task") in (None, task) or event.get("fatal")):
                raise self._error(event)
            elif kind == wanted and (task is None or event.get("task") == task):
                return event

    def _error(self, event: dict[str, Any]) -> LogdiffError:
        error = event.get("error")
        error = error if isinstance(error, dict) else {"message": str(error)}
        kind = _ERRORS.get(str(error.get("type")), EngineError)
        message = str(error.get("message") or "no message")[:8000]
        hint = str(error.get("hint") or "")[:4000] or f"see {self._log.path}"
        value = error.get("value")
        return kind(f"{self._engine or 'runner'}: {message}", value=value, hint=hint)

    def _death(self) -> EngineError:
        self._child.wait(2.0)
        self._errors.join(1.0)
        status = self._child.exited()
        words = self._log.last_lines()
        if status is None:
            how, hint = "closed its standard input", f"see {self._log.path}"
        elif status < 0:
            name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
            how, hint = f"was ended by {name}", f"see {self._log.path}"
            if -status == signal.SIGKILL:
                hint = (
                    "most often the system ran out of memory: use a smaller max_model_len, batch or KV cache "
                    "(gpu_memory_utilization; VLLM_CPU_KVCACHE_SPACE on a CPU)"
                )
        else:
            how, hint = f"exited with code {status}", f"see {self._log.path}"
        if _OUT_OF_MEMORY.search(self._log.text()):
            hint = "it ran out of memory: use a smaller max_model_len, batch or KV cache"
        said = f"; its last lines:\n{words}" if words else "; it said nothing"
        return EngineError(f"the {self._engine or 'runner'} process {how}{said}", value=status, hint=hint)


def _request(spec: EngineSpec | None) -> dict[str, Any]:
    if spec is None:
        return {"format": PROTOCOL, "engine": None, "tasks": [], "interactive": True}
    return {
        "format": PROTOCOL,
        "engine": spec.engine,
        "side": spec.side,
        "model": spec.model,
        "dtype": spec.dtype,
        "args": spec.args,
        "modules": spec.modules,
        "score": spec.score,
        "sampling": spec.sampling,
        "tasks": [],
        "interactive": True,
    }


def _progress(event: dict[str, Any]) -> Progress:
    def count(value: Any) -> int | None:
        return int(value) if isinstance(value, (int, float)) and value == value and abs(value) < 1e18 else None

    return Progress(
        task=str(event.get("task") or ""),
        done=count(event.get("done")) or 0,
        total=count(event.get("total")),
        unit=str(event.get("unit") or ""),
        message=str(event.get("message") or "")[:500],
    )

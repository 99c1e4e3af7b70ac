"""Long work: each tool call runs in its own child process, and outlives the call as a job.

The record of a job that writes a case is a JSON file in the hidden folder `.jobs` of that case, so that it can be
asked for after a restart and travels with the evidence; a hidden file is no evidence, so a sealed case stays sealed.
The child ends when the server ends, however the server ends: its standard input is a pipe that closes with us (see
`worker`), and its process group is signalled on a clean exit.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from logdiff.errors import CaseError, InputError

GRACE_SECONDS = 20.0
"""How long a cancelled job may take to close its engines before its process group is killed."""

MAX_LINE = 64 << 20
"""Longest event line taken from a worker, in bytes; far above any bounded result."""

FOLDER = ".jobs"
"""Folder of job records inside a case."""

KEPT = 100
"""Ended jobs that stay in memory."""

WORKER = (
    sys.executable,
    "-c",
    # `-m` would import from the workspace first, and a workspace may well hold a folder `logdiff`: a checkout.
    "import sys; sys.path[:] = [p for p in sys.path if p]; from logdiff.mcp.worker import main; sys.exit(main())",
)


@dataclass(slots=True)
class Record:
    """What is known of one job; `state` is running, done, failed, cancelled or interrupted."""

    job_id: str
    tool: str
    case: str
    state: str
    started: float
    ended: float | None = None
    exit_code: int | None = None
    progress: dict[str, Any] | None = None
    data: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    engines: bool = False
    writes: bool = False


class Job:
    """One running child and its record."""

    def __init__(self, record: Record, process: subprocess.Popen[bytes], file: Path | None, log: Path) -> None:
        self.record = record
        self._process = process
        self._file = file
        self._log = log
        self._changed = threading.Condition()
        self._ended = threading.Event()
        self._cancelled = False
        self._reader = threading.Thread(target=self._read, name=f"job {record.job_id}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Process id, also of the process group."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the child has not ended yet."""
        return not self._ended.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait until the job has ended or time is up; True when it has ended."""
        return self._ended.wait(seconds)

    def wait_change(self, seen: dict[str, Any] | None, seconds: float) -> dict[str, Any] | None:
        """Wait until the progress is another than `seen`, the job has ended, or time is up; the progress now."""
        with self._changed:
            self._changed.wait_for(lambda: self.record.progress is not seen or self._ended.is_set(), seconds)
            return self.record.progress

    def cancel(self, grace: float = GRACE_SECONDS) -> None:
        """Ask the child to unwind (it closes its engines); kill what is left of its group after `grace` seconds."""
        if not self.running:
            return
        self._cancelled = True
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGTERM)
        if not self._ended.wait(grace):
            self._kill()
            self._ended.wait(5.0)

    def _kill(self) -> None:
        import psutil

        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self._process.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    child.kill()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _read(self) -> None:
        stream = self._process.stdout
        assert stream is not None
        record = self.record
        while line := stream.readline(MAX_LINE):
            try:
                event = json.loads(line)
                kind = event["event"]
            except (ValueError, KeyError, TypeError):
                continue  # not a whole event: a worker killed in the middle of a line
            if kind == "progress":
                with self._changed:
                    record.progress = {k: event.get(k) for k in ("task", "done", "total", "unit", "message")}
                    self._changed.notify_all()
            elif kind in ("result", "error"):
                record.data, record.error = event.get("data"), event.get("error")
                record.exit_code = event.get("exit_code")
        code = self._process.wait()
        record.ended = time.time()
        if record.data is not None:
            record.state = "done"
        elif self._cancelled:
            record.state = "cancelled"
        else:
            record.state = "failed"
            record.error = record.error or {
                "type": "InternalError",
                "message": f"the job's process ended with status {code} and no result",
                "value": record.job_id,
                "hint": f"see {self._log}; call again with the same case to resume",
            }
        for pipe in (stream, self._process.stdin):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        with suppress(OSError):
            self._keep()
        with self._changed:
            self._ended.set()
            self._changed.notify_all()

    def _keep(self) -> None:
        if not self._log.stat().st_size:
            self._log.unlink()
        if self._file is None:
            return
        if (self._file.parents[1] / "manifest.json").exists():
            _write(self._file, self.record)
        else:  # the job failed before it made the case: leave no empty folder behind
            self._file.unlink()
            self._file.parent.rmdir()
            self._file.parents[1].rmdir()


class Jobs:
    """All jobs of one server.

    Args:
        root: the workspace; cases of earlier servers are looked for below its `runs`.
        logs: folder for what workers print; made on first use.
        command: argv of the worker.
    """

    def __init__(self, root: Path, logs: Path, command: Sequence[str] = WORKER) -> None:
        self._root = root
        self._logs = logs
        self._command = list(command)
        self._jobs: dict[str, Job] = {}
        self._lock = threading.Lock()
        self._closed = False

    def start(
        self,
        tool: str,
        action: str,
        arguments: dict[str, Any],
        case: str,
        *,
        writes: bool = False,
        engines: bool = False,
    ) -> Job:
        """Start a worker for `action` and return at once.

        Args:
            tool: the tool that was called.
            action: what the worker does (`logdiff.actions.ACTIONS`), with `arguments`.
            case: absolute path of the case it works in; empty where there is none.
            writes: it makes or extends the case; its record is kept there.
            engines: it holds devices; only one such job runs at a time.

        Raises:
            CaseError: another job holds the engines, or writes the same case.
        """
        with self._lock:
            if self._closed:
                raise CaseError("the server is stopping", value=tool, hint="start it again")
            self._refuse_conflict(case if writes else "", engines)
            self._forget_old()
            job_id = f"{tool.removeprefix('logdiff_').replace('_', '-')}-{secrets.token_hex(4)}"
            record = Record(
                job_id, tool, case, "running", time.time(), arguments=arguments, engines=engines, writes=writes
            )
            file = Path(case) / FOLDER / f"{job_id}.json" if writes else None
            if file is not None:
                file.parent.mkdir(parents=True, exist_ok=True)
                _write(file, record)
            self._logs.mkdir(parents=True, exist_ok=True)
            log = self._logs / f"{job_id}.log"
            process = self._spawn(log)
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # a worker that dies at once is reported by its exit
                process.stdin.write(json.dumps({"action": action, "arguments": arguments}).encode() + b"\n")
                process.stdin.flush()
            job = self._jobs[job_id] = Job(record, process, file, log)
            return job

    def get(self, job_id: str) -> Job | Record:
        """A job of this server, or the record that an earlier server left below `runs`.

        Raises:
            InputError: there is no such job.
        """
        if job_id in self._jobs:
            return self._jobs[job_id]
        found = {record.job_id: record for record in self.records()}
        if job_id in found:
            return found[job_id]
        known = ", ".join(list(found)[:5]) or "none"
        raise InputError(
            "no such job", value=job_id, hint=f"latest jobs: {known}; job_status without job_id lists them"
        )

    def records(self, case: str = "") -> list[Record]:
        """Records of all jobs, or of those that worked in `case`, latest first."""
        folders = [Path(case) / FOLDER] if case else list((self._root / "runs").glob(f"*/{FOLDER}"))
        every = {r.job_id: r for folder in folders for r in self._stored(folder)}
        every |= {i: job.record for i, job in self._jobs.items() if not case or job.record.case == case}
        return sorted(every.values(), key=lambda r: r.started, reverse=True)

    def _stored(self, folder: Path) -> list[Record]:
        """Records on disk; one that says running but is not ours was cut off with its server."""
        found = []
        for file in folder.glob("*.json"):
            try:
                record = Record(**json.loads(file.read_text(encoding="utf-8")))
            except (OSError, ValueError, TypeError):
                continue  # torn or foreign file: not a record
            record.case = str(folder.parent)  # the case may have been moved
            if record.state == "running":
                record.state = "interrupted"
            found.append(record)
        return found

    def _forget_old(self) -> None:
        ended = [job_id for job_id, job in self._jobs.items() if not job.running]
        for job_id in ended[:-KEPT]:
            del self._jobs[job_id]

    def close(self, grace: float = GRACE_SECONDS) -> None:
        """Cancel every running job; none is left when this returns."""
        with self._lock:
            self._closed = True
            running = [job for job in self._jobs.values() if job.running]
        threads = [threading.Thread(target=job.cancel, args=(grace,)) for job in running]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _refuse_conflict(self, written_case: str, engines: bool) -> None:
        for job in self._jobs.values():
            busy = job.record
            if not job.running:
                continue
            if engines and busy.engines:
                what = "engines are in use by another job"
            elif written_case and busy.writes and busy.case == written_case:
                what = "another job writes this case"
            else:
                continue
            raise CaseError(what, value=busy.job_id, hint="wait for it with job_status, or end it with cancel: true")

    def _spawn(self, log: Path) -> subprocess.Popen[bytes]:
        with log.open("wb") as errors:
            return subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )


def _write(file: Path, record: Record) -> None:
    temporary = file.with_suffix(".tmp")
    temporary.write_text(json.dumps(asdict(record)), encoding="utf-8")
    temporary.replace(file)

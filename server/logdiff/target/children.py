"""Every child process that is alive, so that none outlives this process."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import time
import weakref
from types import FrameType

import psutil


class Child:
    """A process in its own session, with its process group and all its descendants.

    Its exit is seen without being reaped until `end`, so the group's number can't have been given to another
    process when the group is signalled.
    """

    def __init__(self, argv: list[str], env: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            argv,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            bufsize=0,
        )
        self.pid = self.process.pid
        self._status: int | None = None
        self._ended = False
        _live.add(self)

    def exited(self) -> int | None:
        """The exit code, negative for a signal; None while running."""
        if self._status is None:
            if self._ended:
                return self.process.returncode
            info = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            if info is not None:
                self._status = info.si_status if info.si_code == os.CLD_EXITED else -info.si_status
        return self._status

    def wait(self, seconds: float) -> bool:
        """Whether the child has exited within `seconds`."""
        deadline = time.monotonic() + seconds
        pause = 0.002
        while self.exited() is None:
            if time.monotonic() >= deadline:
                return False
            time.sleep(pause)
            pause = min(pause * 2, 0.05)
        return True

    def signal(self, number: int) -> None:
        """Send a signal to the whole process group."""
        if not self._ended:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def end(self, grace: float, *, polite: bool = True) -> None:
        """End the child and its descendants: closed standard input, SIGTERM, then SIGKILL, `grace` seconds between."""
        if self._ended:
            return
        descendants = self._descendants()
        with contextlib.suppress(OSError):
            if self.process.stdin is not None:
                self.process.stdin.close()
        if not (polite and self.wait(grace)):
            descendants += self._descendants()
            self.signal(signal.SIGTERM)
            self.wait(grace)
        self.signal(signal.SIGKILL)
        self.wait(5.0)
        for other in descendants:  # those that left the process group
            with contextlib.suppress(psutil.Error):
                if other.is_running():
                    other.kill()
        self._ended = True
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5.0)
        _live.discard(self)

    def _descendants(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.pid).children(recursive=True)
        except psutil.Error:
            return []


_live: weakref.WeakSet[Child] = weakref.WeakSet()


def end_children(grace: float = 2.0) -> None:
    """End every living child of this process; called at interpreter exit."""
    for child in list(_live):
        child.signal(signal.SIGTERM)
    for child in list(_live):
        child.end(grace, polite=False)


def end_children_on_signals() -> None:
    """Make SIGTERM and SIGHUP end the children first, for the main thread of a command or a server.

    An ignored SIGHUP (`nohup`) stays ignored. Without these handlers (or on SIGKILL) runners still end by themselves
    when their standard input closes.
    """

    def handler(number: int, _frame: FrameType | None) -> None:
        end_children()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if number == signal.SIGTERM or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


atexit.register(end_children)

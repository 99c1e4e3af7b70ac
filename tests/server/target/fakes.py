"""A fake interpreter whose `-m logdiff_kernels.runner` is `fake_runner.py`."""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

import psutil

RUNNER = Path(__file__).with_name("fake_runner.py")


def fake_python(folder: Path) -> str:
    path = folder / "fake-python"
    ours = f'if [ "$1" = -m ]; then shift 2; exec {sys.executable} {RUNNER} "$@"; fi'
    path.write_text(f'#!/bin/sh\n{ours}\nexec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return str(path)


def gone(pid: int, seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.05)
    return False


def kill_quietly(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)

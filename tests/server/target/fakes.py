"""A fake interpreter whose `-m logdiff_kernels.runner` is `fake_runner.py`, and a model and a run file for it."""

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import psutil

RUNNER = Path(__file__).with_name("fake_runner.py")


def fake_python(folder: Path) -> str:
    path = folder / "fake-python"
    ours = f'if [ "$1" = -m ]; then shift 2; exec {sys.executable} {RUNNER} "$@"; fi'
    path.write_text(f'#!/bin/sh\n{ours}\nexec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return str(path)


def fake_model(folder: Path) -> None:
    """Make `folder/model`."""
    model = folder / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"vocab_size": 23, "eos_token_id": 2}))
    (model / "model.safetensors").write_bytes(b"x")


def fake_run(
    folder: Path, rollout: dict[str, Any] | None = None, train: dict[str, Any] | None = None, **changes: Any
) -> dict[str, Any]:
    """A run file of two fake engines with these arguments on `folder/model`; the train side is 1/4 lower everywhere."""
    python = fake_python(folder)
    return {
        "format": "logdiff-run/1",
        "model": str(folder / "model"),
        "prompts": {"random": {"count": 5, "lengths": [3, 4], "seed": 1}},
        "sampling": {"max_tokens": 4},
        "rollout": {"engine": "vllm", "python": python, "args": rollout or {}},
        "train": {"engine": "transformers", "python": python, "args": {"offset": 0.25, **(train or {})}},
        **changes,
    }


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

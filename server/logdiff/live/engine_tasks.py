"""What an interpreter can tell and do without an engine: its environment, local models, alignment, CPU kernels."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from typing import Any

from logdiff.errors import EngineError
from logdiff.target import EngineSpec, OnProgress, Timeouts
from logdiff.target.alignment import VARIABLE
from logdiff.target.engine import TaskResult
from logdiff.target.local import LocalRunner


def environment(
    python: str | None = None, on_progress: OnProgress | None = None, *, timeouts: Timeouts | None = None
) -> dict[str, Any]:
    """The `logdiff-env/1` of an interpreter (default: the running one). Raises `InputError` where it can't be run."""
    found = _task({"task": "environment"}, python, on_progress, timeouts, None).data
    return {"format": "logdiff-env/1", **found}


def list_models(python: str | None = None) -> list[dict[str, Any]]:
    """The small local models that `build_model` can make, as the interpreter's `logdiff_kernels` lists them."""
    models = _task({"task": "list_models"}, python, None, None, None).data.get("models")
    if not isinstance(models, list):
        raise EngineError("the runner listed no models", value=models, hint="is another logdiff in that environment?")
    return models


def build_model(
    name: str,
    python: str | None = None,
    on_progress: OnProgress | None = None,
    *,
    output: Path | None = None,
    cancel: threading.Event | None = None,
) -> Path:
    """Build or find a small model and return its folder.

    Args:
        name: as `list_models` gives it.
        python: interpreter with torch and transformers; default: the running one.
        on_progress: called from this thread.
        output: folder to build in; default: the cache.
        cancel: set from another thread to give up.

    Raises:
        InputError: no such model.
        EngineError: a package that the builder needs is missing or fails.
    """
    task = {"task": "build_model", "name": name}
    if output is not None:
        task["output"] = str(output.absolute())
    result = _task(task, python, on_progress, None, cancel)
    path = result.data.get("path")
    if not isinstance(path, str):
        raise EngineError("the runner named no model folder", value=path, hint="is another logdiff there?")
    return Path(path)


def align_check(spec: EngineSpec, ops: list[str], on_progress: OnProgress | None = None) -> dict[str, Any]:
    """What a plan needs to know of a side, asked natively: `logdiff_kernels.coverage.align_check`.

    Raises:
        InputError, EngineError: the interpreter or its engine package can't be used.
    """
    task = {"task": "align_check", "dtype": spec.dtype, "args": spec.args, "ops": ops, **_side(spec)}
    return _task(task, spec.python, on_progress, None, None, {**spec.env, VARIABLE: ""}).data


def dispatch(spec: EngineSpec, on_progress: OnProgress | None = None) -> dict[str, Any]:
    """The `logdiff-dispatch/1` of a side as its environment stands, alignment included."""
    return _task({"task": "dispatch", **_side(spec)}, spec.python, on_progress, None, None, dict(spec.env)).data


def kernels(
    what: str, python: str | None = None, on_progress: OnProgress | None = None, **fields: Any
) -> dict[str, Any]:
    """`list`, `build`, `selftest` or `bench` of the kernels that an interpreter has."""
    return _task({"task": f"kernels_{what}", **fields}, python, on_progress, None, None).data


def _side(spec: EngineSpec) -> dict[str, Any]:
    return {"engine": spec.engine, "side": spec.side, "model": spec.model}


def _task(
    task: dict[str, Any],
    python: str | None,
    on_progress: OnProgress | None,
    timeouts: Timeouts | None,
    cancel: threading.Event | None,
    env: dict[str, str] | None = None,
) -> TaskResult:
    with tempfile.TemporaryDirectory(prefix="logdiff-") as folder:
        log = Path(folder) / "runner.log"
        runner = LocalRunner.start(None, log=log, python=python, env=env, timeouts=timeouts, cancel=cancel)
        try:
            return runner.run(task, on_progress)
        finally:
            runner.close()

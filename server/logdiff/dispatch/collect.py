"""Starts each side of a run file and has it say what it runs; nothing of one side's engine is left for the next."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from logdiff.errors import EngineError
from logdiff.jsonio import dumps
from logdiff.live import RunFile
from logdiff.target import OnProgress, Timeouts, start
from logdiff.target.alignment import VARIABLE, overlay_document

PHASES = {"rollout": ("prefill", "decode", "score"), "train": ("score", "backward")}
"""Phases of each side; `prefill` and `decode` of a train side that samples are asked for too."""

ONEDNN_LOG = "ONEDNN_VERBOSE"
"""Variable that makes every copy of oneDNN in a process name its kernels, also one that vLLM has linked in."""


def collect(
    run: RunFile,
    side: str,
    model: Path | None,
    folder: Path,
    *,
    phases: tuple[str, ...] = (),
    on_progress: OnProgress | None = None,
    timeouts: Timeouts | None = None,
    cancel: threading.Event | None = None,
) -> dict[str, Any]:
    """The dispatch document of one side: its engine is started, traced and ended.

    Args:
        run: the run file.
        side: "rollout" or "train".
        model: the side's model folder.
        folder: where its log, overlay and document go.
        phases: of `PHASES`; default: all of the side.
        on_progress: called from this thread.
        timeouts: limits of the engine.
        cancel: set from another thread to stop.

    Raises:
        InputError, EngineError, UnsupportedError, CancelledError: as the engine says.
    """
    wanted = phases_of(side, phases)
    spec = run.spec(side, model)
    if VARIABLE not in spec.env:
        spec = replace(spec, env={**spec.env, VARIABLE: _overlay(run, side, folder)})
    spec = replace(spec, env={ONEDNN_LOG: "1", **spec.env})
    folder.mkdir(parents=True, exist_ok=True)
    output = folder / f"{side}.json"
    engine = start(spec, log=folder / f"{side}.log", timeouts=timeouts, on_progress=on_progress, cancel=cancel)
    try:
        task = {"task": "dispatch_trace", "id": f"dispatch/{side}", "phases": wanted, "output": str(output)}
        engine.run(task, on_progress)
    finally:
        engine.close()
    try:
        data = json.loads(output.read_bytes())
    except (OSError, ValueError) as error:
        raise EngineError(f"the {side} engine left no dispatch document: {error}", value=str(output)) from None
    assert isinstance(data, dict)
    return data


def phases_of(side: str, phases: Sequence[str]) -> list[str]:
    """Those of a side's phases that are asked for; all of them where none is named."""
    return [p for p in PHASES[side] if not phases or p in phases]


def _overlay(run: RunFile, side: str, folder: Path) -> str:
    if not run.align.of(side):
        return ""
    path = (folder / f"{side}-align.json").absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dumps(overlay_document(run.align.ops or [], run.align.sides, "dispatch")), encoding="utf-8")
    return str(path)

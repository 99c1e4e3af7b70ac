"""Dispatch truth: what really runs on each side of a run file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logdiff.actions.capture import operator_names
from logdiff.actions.done import Done, PathLike

if TYPE_CHECKING:
    from logdiff.case import Case
    from logdiff.target.engine import OnProgress


def dispatch(
    *,
    run_file: PathLike,
    side: str | None = None,
    phases: str | Sequence[str] | None = None,
    toggles: Sequence[str] = (),
    align: str | None = None,
    case: PathLike | None = None,
    on_progress: OnProgress | None = None,
) -> Done:
    """Trace both sides of a run file, and again with each switch (`logdiff-dispatch/1`); exit code 1 for a finding.

    Args:
        run_file: whose engines.
        side: "rollout" or "train"; None: both.
        phases: of prefill, decode, score, backward; names with commas or a list. None: all.
        toggles: switches, each tried alone: `env:NAME=VALUE`, `args:NAME=VALUE`, `align=OPS`, `modules=FILE`, with
            `rollout:` or `train:` in front for one side.
        align: operators aligned throughout, in place of the run file's `align.ops`.
        case: case folder that keeps the result as `results/dispatch.json`; made where there is none.
        on_progress: takes progress.
    """
    from logdiff.case import Case
    from logdiff.dispatch.inspect import inspect
    from logdiff.dispatch.toggle import SIDES
    from logdiff.errors import InputError
    from logdiff.live import load_run_file

    run = load_run_file(Path(run_file))
    if align is not None:
        run = run.with_align(ops=operator_names(align))
    if side is not None and side not in SIDES:
        raise InputError(f"unknown side {side!r}", value=side, hint="rollout or train")
    wanted = [p.strip() for p in phases.split(",") if p.strip()] if isinstance(phases, str) else list(phases or [])
    inputs = {"run_file": str(run_file), "side": side, "phases": wanted, "toggles": list(toggles), "align": align}
    opened = None if case is None else Case.open_or_create(case, "dispatch", inputs)  # before minutes of engines
    try:
        data, documents = inspect(
            run, sides=SIDES if side is None else (side,), phases=wanted, toggles=toggles, on_progress=on_progress
        )
        if opened is not None:
            data = _stored(opened, data, documents)
    finally:
        if opened is not None:
            opened.close()
    return Done(data, 1 if data["findings"] else 0)


def _stored(case: Case, data: dict[str, Any], documents: dict[str, dict[str, Any]]) -> dict[str, Any]:
    with case.extended("dispatch"):
        data = {**data, "case": str(case.path)}
        for side, document in documents.items():
            case.write_json(f"results/dispatch-{side}.json", document)
        case.write_result("dispatch", data)
    return data

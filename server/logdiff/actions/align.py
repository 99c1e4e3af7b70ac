"""Alignment of the engines of a workspace: plan, apply, status, revert."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from logdiff.actions.done import Done, PathLike

if TYPE_CHECKING:
    from logdiff.target.engine import OnProgress


def align_plan(
    *,
    source: PathLike,
    ops: str | None = None,
    sides: str | None = None,
    state: PathLike = ".logdiff",
    on_progress: OnProgress | None = None,
) -> Done:
    """Plan an alignment from a run file or case (`logdiff-align-plan/1`); exit code 1 when a part isn't covered."""
    from logdiff.align import State
    from logdiff.align import plan as run_plan

    data = run_plan(Path(source), State(Path(state)), ops=ops, sides=sides, on_progress=on_progress)
    shown = {key: value for key, value in data.items() if key != "facts"}
    return Done(shown, 1 if data["not_covered"] else 0)


def align_apply(*, plan_id: str, state: PathLike = ".logdiff", on_progress: OnProgress | None = None) -> Done:
    """Write the overlay of a plan (`logdiff-align/1`)."""
    from logdiff.align import State
    from logdiff.align import apply as run_apply

    return Done(run_apply(plan_id, State(Path(state)), on_progress=on_progress))


def align_status(*, state: PathLike = ".logdiff", on_progress: OnProgress | None = None) -> Done:
    """What is aligned in this workspace (`logdiff-align/1`); exit code 1 when something is not as it should be."""
    from logdiff.align import State
    from logdiff.align import status as run_status

    data = run_status(State(Path(state)))
    return Done(data, 1 if data["problems"] else 0)


def align_revert(
    *,
    case: PathLike | None = None,
    bits: bool = True,
    state: PathLike = ".logdiff",
    on_progress: OnProgress | None = None,
) -> Done:
    """Remove the overlay and prove native (`logdiff-align/1`); exit code 1 when it could not be proved."""
    from logdiff.align import State
    from logdiff.align import revert as run_revert

    stock = None if case is None else Path(case)
    data = run_revert(State(Path(state)), case=stock, bits=bits, on_progress=on_progress)
    return Done(data, 0 if data["native"] else 1)

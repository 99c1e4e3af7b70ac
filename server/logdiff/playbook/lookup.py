"""Gathers what is known: the state of one case, the workspace around it, the run file that made it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from logdiff.playbook.foreign import Foreign
from logdiff.playbook.situation import Known
from logdiff.playbook.state import read_state
from logdiff.playbook.survey import run_file_of, survey


def look(root: Path, case: Path | None = None) -> Known:
    """What is known in a workspace, of a case where one is given. Starts nothing, writes nothing.

    Args:
        root: workspace; paths in calls are relative to it where they lie below it.
        case: case folder.
    """
    found = survey(root)
    if case is None:
        return Known(workspace=found)
    state = read_state(case, shown(root, case))
    if state.tokens_of is not None:
        state = replace(state, tokens_of=Foreign(shown(root, Path(state.tokens_of))))
    run_file, same = run_file_of(state.run, root, found)
    return Known(state, found, run_file=run_file, same_run=same)


def shown(root: Path, path: Path) -> str:
    """A path relative to the workspace where it lies below it."""
    whole, base = path.resolve(), root.resolve()
    return whole.relative_to(base).as_posix() if whole.is_relative_to(base) else str(path)

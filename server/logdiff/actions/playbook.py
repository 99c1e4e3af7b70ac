"""Guided playbooks: the page for a situation, and the next call."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from logdiff.actions.done import Done, PathLike
from logdiff.errors import InputError

if TYPE_CHECKING:
    from logdiff.target.engine import OnProgress

FORMAT = "logdiff-playbook/1"


def playbook(
    *, name: str = "", case: PathLike | None = None, root: PathLike = ".", on_progress: OnProgress | None = None
) -> Done:
    """A playbook filled with what is known (`logdiff-playbook/1`: `name`, `case`, `situation`, `page`, `next_steps`).

    Args:
        name: of the page; empty: the one that the case's state, or without a case the workspace, calls for. "causes"
            lists the catalogue, "causes/ID" is one entry of it.
        case: case folder.
        root: workspace that is looked through for run files, pair files and cases; paths in calls are relative to it.
        on_progress: not called.

    Raises:
        InputError: no such page, cause or case.
    """
    from logdiff.playbook import PAGES, calls_for, look, situation
    from logdiff.playbook.render import CATALOGUE, render_causes, render_page

    kind, _, entry = name.partition("/")
    if kind == CATALOGUE:
        return Done(_data(name, None, "", render_causes(entry), []))
    if name and name not in PAGES:
        raise InputError("no such playbook", value=name, hint=f"one of {', '.join(PAGES)}, {CATALOGUE}")
    folder = None if case is None else Path(case)
    if folder is not None and not (folder / "manifest.json").is_file():
        raise InputError("no case folder", value=str(case), hint="give a folder that measure, run or import wrote")
    known = look(Path(root), folder)
    made, page = render_page(known, name)
    steps = [call.as_dict() for call in calls_for(known, made)]
    shown = known.state.case if known.state is not None else None
    return Done(_data(made, shown, situation(known), page, steps))


def _data(name: str, case: str | None, situation: str, page: str, steps: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "format": FORMAT, "name": name, "case": case, "situation": situation, "page": page, "next_steps": steps,
    }  # fmt: skip

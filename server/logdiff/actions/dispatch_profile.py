"""Dispatch truth out of recorded Ascend profiles."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logdiff.actions.done import Done, PathLike

if TYPE_CHECKING:
    from logdiff.target.engine import OnProgress


def dispatch_profile(
    *,
    profiles: Sequence[PathLike],
    limit: int = 200,
    case: PathLike | None = None,
    on_progress: OnProgress | None = None,
) -> Done:
    """Read Ascend profiles, offline (`logdiff-dispatch/1` with `profile`); exit code 1 unless two sides ran the same.

    Args:
        profiles: the rollout side's file or folder, then the train side's if there is one.
        limit: most rows of each list.
        case: case folder that keeps the result as `results/dispatch-profile.json`; made where there is none.
        on_progress: takes progress.
    """
    from logdiff.dispatch.ascend_profile import profile_result

    data = profile_result([Path(path) for path in profiles], limit=limit)
    if case is not None:
        data = _stored(Path(case), data, [str(path) for path in profiles])
    return Done(data, 0 if data["profile"].get("verdict", "same") == "same" else 1)


def recorded_alone(**others: object) -> None:
    """Refuse what a recorded profile can't follow: nothing is run for it.

    Raises:
        InputError: one of `others`, by argument name, is given.
    """
    from logdiff.errors import InputError

    given = [name for name, value in others.items() if value]
    if given:
        raise InputError(
            "a profile is a recording: nothing is run for it",
            value=", ".join(given),
            hint="give profiles alone, or a run file without them",
        )


def _stored(folder: Path, data: dict[str, Any], profiles: list[str]) -> dict[str, Any]:
    from logdiff.case import Case

    with Case.open_or_create(folder, "profile", {"profiles": profiles}) as case, case.extended("dispatch-profile"):
        data = {**data, "case": str(case.path)}
        case.write_result("dispatch-profile", data)
    return data

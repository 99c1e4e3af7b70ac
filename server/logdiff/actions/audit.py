"""Configuration audit: files, a running interpreter, or both."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logdiff.actions.done import Done, PathLike
from logdiff.errors import InputError

if TYPE_CHECKING:
    from logdiff.audit import Audit
    from logdiff.target.engine import OnProgress


def audit(
    *,
    paths: Sequence[PathLike] = (),
    live: bool = False,
    python: str | None = None,
    case: PathLike | None = None,
    effective: PathLike | None = None,
    on_progress: OnProgress | None = None,
) -> Done:
    """Audit configurations (`logdiff-audit/1`); exit code 1 when a finding is an error or a warning.

    Args:
        paths: files and folders; `rollout=PATH` and `train=PATH` say whose a file is.
        live: also take the facts of an interpreter: packages, variables.
        python: that interpreter; the running one by default.
        case: case folder that keeps the result as `results/audit.json`; made where there is none.
        effective: file that takes every effective setting as JSON.

    Raises:
        InputError: nothing given, a path that is absent, or nothing in them that can be read.
    """
    from logdiff.audit import audit as judge
    from logdiff.audit import audit_environment
    from logdiff.audit.readers import read_paths

    if not paths and not live:
        raise InputError("nothing to audit", hint="give files or folders, or --live")
    evidence = read_paths([str(p) for p in paths]) if paths else None
    if live:
        from logdiff.live import environment

        evidence = audit_environment(environment(python), python or "this interpreter", evidence)
    assert evidence is not None
    done = judge(evidence)
    data = done.as_dict()
    data["effective"] = None
    if effective is not None:
        _write_effective(Path(effective), done)
        data["effective"] = str(effective)
    if case is not None:
        data = _stored(Path(case), data, done, {"paths": [str(p) for p in paths], "live": live})
    return Done(data, done.exit_code)


def _write_effective(path: Path, done: Audit) -> None:
    from logdiff.case.files import write_atomic
    from logdiff.jsonio import dumps

    if path.is_dir():
        raise InputError("the path for the effective settings is a folder", value=str(path), hint="name a file")
    write_atomic(path, dumps({"settings": done.table.as_rows()}, indent=1).encode())


def _stored(folder: Path, data: dict[str, Any], done: Audit, inputs: dict[str, Any]) -> dict[str, Any]:
    from logdiff.case import Case

    with Case.open_or_create(folder, "audit", inputs) as case, case.extended("audited"):
        written = case.write_json("results/audit-effective.json", {"settings": done.table.as_rows()})
        data = {**data, "case": str(case.path), "effective": data["effective"] or str(written)}
        case.write_result("audit", data)
    return data

"""`logdiff align apply`: write the overlay of a plan, crash-safe, and only while everything is as it was planned."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from pathlib import Path
from typing import Any

from logdiff.align.plan import changes, check_covered, gather, read_source
from logdiff.align.revert import remove_files
from logdiff.align.state import JOURNAL, SWITCH, State
from logdiff.align.status import status
from logdiff.case.files import write_atomic
from logdiff.case.journal import Journal
from logdiff.errors import CaseError, InputError
from logdiff.jsonio import dumps
from logdiff.live import RunFile
from logdiff.target import OnProgress
from logdiff.target.alignment import VARIABLE, overlay_document
from logdiff.target.overlay import interpreter, runner_env

PLUGIN = "logdiff"
VLLM_PLUGINS = "VLLM_PLUGINS"


def apply(identity: str, state: State, *, on_progress: OnProgress | None = None) -> dict[str, Any]:
    """Write the overlay folder of a plan. A plan that is applied already is left as it is.

    Args:
        identity: id of the plan.
        state: where the plan is kept.
        on_progress: called from this thread.

    Returns:
        `logdiff-align/1` (see `status`) with `plan` and `env`: the variables that switch an engine on.

    Raises:
        InputError: no such plan, something that it stands on changed (named), or a part that can't be aligned.
        CaseError: another overlay is on, a folder that is not ours is in the way, or another process is at work.
    """
    document = state.read_plan(identity)
    check_covered(document)
    with state.locked():
        if _is_applied(state, identity):
            return {**status(state), "plan": identity, "env": _read_env(Path(document["overlay"]))}
        run, _ = read_source(Path(document["source"]))
        now = gather(run, document["ops"], document["sides"], on_progress)
        found = changes(document["facts"], now)
        if found:
            raise InputError(
                f"the plan no longer holds: {'; '.join(found)}",
                value=identity,
                hint=f"plan again: logdiff align plan {shlex.quote(document['source'])}",
            )
        overlay = Path(document["overlay"])
        _clear_cut_off(overlay)
        variables = environment(overlay, run, document["sides"])
        _write(overlay, document, now, variables)
    return {**status(state), "plan": identity, "env": variables}


def environment(overlay: Path, run: RunFile, sides: list[str]) -> dict[str, str]:
    """The variables that switch an engine process on: the overlay, and what lets it find our plug-in."""
    variables = {VARIABLE: str(overlay / SWITCH)}
    for side in sides:
        spec = run.spec(side)
        if spec.engine == "vllm-http":
            continue
        restricted = spec.env.get(VLLM_PLUGINS, os.environ.get(VLLM_PLUGINS))
        if spec.engine == "vllm" and restricted is not None and PLUGIN not in restricted.split(","):
            variables[VLLM_PLUGINS] = ",".join(filter(None, [restricted, PLUGIN]))
        before = {**os.environ, **spec.env}.get("PYTHONPATH", "")
        path = runner_env(interpreter(spec.python), spec.env).get("PYTHONPATH", "")
        if path != before:
            variables["PYTHONPATH"] = path
    return variables


def _is_applied(state: State, identity: str) -> bool:
    on = [overlay for overlay in state.overlays() if overlay.on]
    for overlay in on:
        if overlay.plan != identity or overlay.problems:
            raise CaseError(
                f"another alignment is on ({overlay.plan or 'unknown plan'})"
                if overlay.plan != identity
                else f"this plan is applied, but {overlay.problems[0]}",
                value=str(overlay.path),
                hint="take it back first: logdiff align revert",
            )
    return bool(on)


def _clear_cut_off(overlay: Path) -> None:
    """Remove what an apply or revert that was cut off left; refuse a folder that is not ours."""
    if not overlay.is_dir():
        return
    left = remove_files(overlay)
    if left:
        raise CaseError(
            "the overlay's folder holds files of someone else",
            value=str(overlay / left[0]),
            hint="move them away, then apply again",
        )


def _write(overlay: Path, document: dict[str, Any], facts: dict[str, Any], variables: dict[str, str]) -> None:
    """Intent first, the switch last: until `align.json` has its name, every engine is native."""
    sides = document["sides"]
    native = {side: facts[side].get("dispatch") for side in sides}
    lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    contents = {
        "native.json": dumps({"format": "logdiff-dispatch/1", "plan": document["id"], "sides": native}, indent=1),
        "env.json": dumps({"env": variables, "sides": sides}, indent=1),
        "env.sh": "\n".join([f"# aligned engines, plan {document['id']}: source this file", *lines]),
        SWITCH: dumps(overlay_document(document["ops"], sides, document["id"]), indent=1),
    }
    data = {name: (text + "\n").encode() for name, text in contents.items()}
    overlay.mkdir(parents=True, exist_ok=True)
    journal = Journal(overlay / JOURNAL)
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in data.items()}
    journal.append("apply", plan=document["id"], files=hashes)
    for name, content in data.items():
        journal.append("write", file=name)
        write_atomic(overlay / name, content)
    journal.append("applied", plan=document["id"])


def _read_env(overlay: Path) -> dict[str, str]:
    found = json.loads((overlay / "env.json").read_bytes())
    return {str(k): str(v) for k, v in found["env"].items()}

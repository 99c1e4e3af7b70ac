"""`logdiff align revert`: take the overlay away, and prove that the engines are native again."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from logdiff.align.prove import prove
from logdiff.align.state import FILES, JOURNAL, SWITCH, Overlay, State
from logdiff.align.status import status
from logdiff.case.files import sync_folder, temporary_name, write_atomic
from logdiff.case.journal import Journal
from logdiff.errors import CaseError, InputError
from logdiff.target import OnProgress

_ID = re.compile(r"[0-9A-Za-z_-]{1,64}")


def revert(
    state: State, *, case: Path | None = None, bits: bool = True, on_progress: OnProgress | None = None
) -> dict[str, Any]:
    """Remove every overlay of this workspace, finish what was cut off, and prove native.

    Args:
        state: the workspace's alignment.
        case: a case with stock captures of both engines; default: the case that the plan was made from.
        bits: also decode and score the case's tokens again and compare bits with its captures.
        on_progress: called from this thread.

    Returns:
        `logdiff-align/1` with `reverted` (the plans) and `proof` (see `logdiff.align.prove.prove`). `native` is None
        where the proof is undetermined.

    Raises:
        InputError: `case` is no case.
        CaseError: another process applies or reverts here.
        CancelledError: cancelled during the proof; the overlay is gone, and another revert proves.
    """
    if case is not None and not (case / "manifest.json").is_file():
        raise InputError("no case folder", value=str(case), hint="give a case of a native run of the same engines")
    with state.locked():
        taken = []
        for overlay in state.overlays():
            identity = _plan_of(state, overlay)
            _remember(state, identity)
            left = _take_back(state, overlay)
            taken.append({"plan": identity, "overlay": str(overlay.path), "left": left})
        last, plans = state.reverted(), state.plans()
        if not taken and ((last is not None and last.get("native") is not None) or (last is None and not plans)):
            return {**status(state), "reverted": [], "proof": (last or {}).get("proof")}
        identity = str(last.get("plan") or "") if last is not None else str(plans[-1]["id"])
        proof = prove(state, identity, case=case, bits=bits, on_progress=on_progress)
        state.write_reverted({"plan": identity, "native": proof["native"], "proof": proof, "time": _now()})
    return {**status(state), "reverted": taken, "proof": proof}


def remove_files(overlay: Path) -> list[str]:
    """Remove our files from an overlay folder, the switch first, and the folder when it is empty then.

    Returns:
        names of the files that are not ours and stay.
    """
    for name in (SWITCH, *FILES, JOURNAL):
        for path in (overlay / name, temporary_name(overlay / name)):
            _unlink(path)
        if name == SWITCH:
            sync_folder(overlay)
    left = sorted(entry.name for entry in overlay.iterdir())
    if not left:
        overlay.rmdir()
    return left


def _unlink(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        raise CaseError(f"{path.name} is a folder, which apply never makes", value=str(path), hint="move it away")
    path.unlink(missing_ok=True)


def _plan_of(state: State, overlay: Overlay) -> str:
    """The plan of an overlay: as its journal says, as its switch says, or the last one that names its folder."""
    named = [str(plan["id"]) for plan in state.plans() if plan.get("overlay") == str(overlay.path)]
    return overlay.plan or str((overlay.switch or {}).get("id") or "") or (named[-1] if named else "")


def _remember(state: State, identity: str) -> None:
    """Before anything is removed: from now on native is unproven, whatever a kill cuts off."""
    state.write_reverted({"plan": identity, "native": None, "proof": None, "time": _now()})


def _take_back(state: State, overlay: Overlay) -> list[str]:
    journal = Journal(overlay.path / JOURNAL)
    journal.append("revert", plan=overlay.plan)
    _unlink(overlay.path / SWITCH)  # from here on engines are native
    sync_folder(overlay.path)
    _keep_history(state, overlay)
    return remove_files(overlay.path)


def _keep_history(state: State, overlay: Overlay) -> None:
    """Copy journal and native fingerprints beside the plans; a copy that a kill cut off is made again."""
    base = state.root / "history"
    name = overlay.plan if _ID.fullmatch(overlay.plan) else "unknown"  # a journal can be edited: no paths
    number = 1
    while (base / f"{name}-{number}" / JOURNAL).exists():
        number += 1
    for file in ("native.json", JOURNAL):
        if (overlay.path / file).is_file():
            write_atomic(base / f"{name}-{number}" / file, (overlay.path / file).read_bytes())


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")

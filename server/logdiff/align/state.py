"""Where plans and overlays lie, and what the disk says of them at any moment.

    .logdiff/plans/<id>.json        plans
    .logdiff/history/<id>-<n>/      journal and native fingerprints of overlays that were taken back
    .logdiff/reverted.json          what the last revert proved
    <case or .logdiff>/overlay/     journal.jsonl, native.json, env.json, env.sh, and align.json

An engine runs aligned when `LOGDIFF_ALIGN` names an `align.json` that exists. That file is written last and removed
first, in one step each, so its presence alone says whether the overlay is on, whatever a kill cut off.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from logdiff.case.files import write_atomic
from logdiff.case.journal import Journal
from logdiff.errors import CaseError, InputError
from logdiff.jsonio import dumps

PLAN_FORMAT = "logdiff-align-plan/1"
SWITCH = "align.json"
FILES = ("env.json", "env.sh", "native.json")
JOURNAL = "journal.jsonl"


@dataclass(frozen=True, slots=True)
class Overlay:
    """One overlay folder as it stands on the disk.

    Args:
        path: the folder.
        plan: id of the plan that its journal names; empty when not one whole line was written.
        switch: content of `align.json`; None where there is none (the overlay is off) or it can't be read.
        on: whether `align.json` exists.
        problems: what is not as the journal says, one sentence each.
    """

    path: Path
    plan: str
    switch: dict[str, Any] | None
    on: bool
    problems: list[str]


class State:
    """The alignment of one workspace.

    Args:
        root: the folder `.logdiff` (made on the first write).
    """

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()

    @property
    def default_overlay(self) -> Path:
        """Where the overlay of a plan without a case goes."""
        return self.root / "overlay"

    def write_plan(self, plan: dict[str, Any]) -> None:
        """Keep a plan under its id."""
        write_atomic(self.root / "plans" / f"{plan['id']}.json", (dumps(plan, indent=1) + "\n").encode())

    def read_plan(self, identity: str) -> dict[str, Any]:
        """A plan by its id.

        Raises:
            InputError: there is none of that id, or its file is damaged.
        """
        known = sorted(p.stem for p in (self.root / "plans").glob("*.json"))
        if identity not in known:
            hint = f"plans here: {', '.join(known[-5:])}" if known else "make one: logdiff align plan RUN.yaml"
            raise InputError("there is no plan of this id here", value=identity, hint=hint)
        data = _object(self.root / "plans" / f"{identity}.json")
        if data is None or data.get("format") != PLAN_FORMAT or data.get("id") != identity:
            raise InputError("the plan's file is damaged", value=identity, hint="plan again")
        return data

    def plans(self) -> list[dict[str, Any]]:
        """Every readable plan, oldest first."""
        files = sorted((self.root / "plans").glob("*.json"), key=lambda p: p.stat().st_mtime_ns)
        return [data for file in files if (data := _object(file)) and data.get("format") == PLAN_FORMAT]

    def overlays(self) -> list[Overlay]:
        """Overlay folders that exist: the default one, and those that a plan names."""
        places = [self.default_overlay, *(Path(str(plan.get("overlay"))) for plan in self.plans())]
        return [read_overlay(path) for path in dict.fromkeys(places) if _is_folder(path)]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One writer at a time.

        Raises:
            CaseError: another process applies or reverts here, or a file stands where a folder belongs.
        """
        for folder in (self.root, self.root / "plans", self.root / "history"):
            if folder.exists() and not folder.is_dir():
                raise CaseError("a file stands where a folder belongs", value=str(folder), hint="move it away")
        self.root.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.root / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise CaseError(
                    "another process applies or reverts an alignment here",
                    value=str(self.root),
                    hint="wait until it ends",
                ) from None
            yield
        finally:
            os.close(descriptor)

    def reverted(self) -> dict[str, Any] | None:
        """What the last revert left: `plan`, `native`, `proof`, `time`; None before the first."""
        return _object(self.root / "reverted.json")

    def write_reverted(self, record: dict[str, Any]) -> None:
        """Keep what a revert proved, or None's place until it has."""
        write_atomic(self.root / "reverted.json", (dumps(record, indent=1) + "\n").encode())


def read_overlay(path: Path) -> Overlay:
    """What an overlay folder holds now."""
    events = Journal(path / JOURNAL).read()
    began: dict[str, Any] = next((e for e in reversed(events) if e["event"] == "apply"), {})
    on = (path / SWITCH).exists()
    switch = _object(path / SWITCH)
    problems = []
    if on and switch is None:
        problems.append(f"{SWITCH} can't be read: engines that it switches on refuse to start")
    if on:
        files = began.get("files")
        for name, digest in files.items() if isinstance(files, dict) else ():
            if digest_of(path / name) != digest:
                problems.append(f"{name} is missing or changed since it was applied")
        if not isinstance(files, dict):
            problems.append(f"{JOURNAL} does not tell of this overlay: it was not written by apply, or is damaged")
    elif events or any((path / name).exists() for name in FILES):
        taking = any(e["event"] == "revert" for e in events)
        what = "revert" if taking else "apply"
        problems.append(f"{what} was cut off; engines are native, `logdiff align revert` cleans up")
    return Overlay(path, str(began.get("plan") or ""), switch, on, problems)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):  # a name too long, or no name at all
        return False


def digest_of(path: Path) -> str | None:
    """SHA-256 of a file; None where there is none."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def _object(path: Path) -> dict[str, Any] | None:
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None

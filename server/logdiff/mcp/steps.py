"""Next steps of results that belong to a case: from the tables of the playbooks, by what the result says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from logdiff.mcp.jobs import Record
from logdiff.mcp.results import Facts, NextStep
from logdiff.mcp.workspace import Workspace
from logdiff.playbook import Call, Known, calls_for, case_state, survey
from logdiff.playbook.foreign import Foreign

MOST = 3
"""Most next steps of one result."""

LIMIT = 16 << 20
"""Largest file of a case that is read for it, in bytes."""


def step(call: Call | Facts) -> NextStep:
    """A call of the playbooks as the tools name it."""
    facts = call.as_dict() if isinstance(call, Call) else call
    return NextStep(tool=facts["tool"], arguments=facts["arguments"], why=facts["why"], outcomes=facts["outcomes"])


def after_measure(workspace: Workspace, record: Record, data: Facts) -> list[NextStep]:
    """What to call after a measurement, live or recorded."""
    return [step(call) for call in calls_for(known(workspace, record, measure=data))[:MOST]]


def after_verdict(workspace: Workspace, record: Record, data: Facts) -> list[NextStep]:
    """What to call after a diagnosis."""
    return [step(call) for call in calls_for(known(workspace, record, verdict=data))[:MOST]]


def after_localize(workspace: Workspace, record: Record) -> list[NextStep]:
    """What to call after operators were looked at: what the case's verdict calls for, or a diagnosis."""
    measure, verdict = (_object(Path(record.case) / "results" / f"{name}.json") for name in ("measure", "verdict"))
    found = known(workspace, record, verdict=verdict, measure=measure)
    return [step(call) for call in calls_for(found) if call.tool != record.tool][:MOST]


def known(workspace: Workspace, record: Record, *, measure: Facts | None = None, verdict: Facts | None = None) -> Known:
    """What is known after a job: its case's manifest, its result, the run file or pair files that it was given."""
    case = workspace.relative(record.case)
    manifest = _object(Path(record.case) / "manifest.json") or _manifest_of(record)
    state = case_state(case, manifest=manifest, measure=measure, verdict=verdict)
    if state.tokens_of is not None:
        state = replace(state, tokens_of=Foreign(workspace.relative(state.tokens_of)))
    given = _given(record)
    changed = any(record.arguments.get(name) for name in ("align", "tokens"))
    if given["run_file"]:
        return Known(state, run_file=workspace.relative(given["run_file"]), same_run=not changed)
    if state.run:
        from logdiff.playbook.survey import run_file_of

        run_file, same = run_file_of(state.run, workspace.root, survey(workspace.root))
        return Known(state, run_file=run_file, same_run=same)
    return Known(state, pairs=tuple(workspace.relative(path) for path in given["pairs"]))


def _given(record: Record) -> dict[str, Any]:
    """Run file and pair files among the arguments of a job."""
    targets = record.arguments.get("targets") or [record.arguments.get("target")]
    run_file = record.arguments.get("run_file")
    if run_file is None and str(targets[0]).endswith((".yaml", ".yml")):
        run_file = targets[0]
    pairs = record.arguments.get("paths") or targets
    return {"run_file": run_file, "pairs": [path for path in pairs if isinstance(path, str)]}


def _manifest_of(record: Record) -> Facts:
    """What a manifest would say of a case that is not on this disk any more."""
    given = _given(record)
    if not given["run_file"]:
        return {"kind": "measure", "inputs": {}}
    align = {"ops": record.arguments.get("align"), "tokens": record.arguments.get("tokens")}
    return {"kind": "run", "inputs": {"run": {"align": align}}}


def _object(path: Path) -> Facts:
    try:
        data = json.loads(path.read_bytes()) if path.stat().st_size <= LIMIT else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}

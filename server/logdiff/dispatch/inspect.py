"""`logdiff dispatch`: what really runs on each side, side by side, and what each switch changes."""

from __future__ import annotations

import hashlib
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from logdiff.dispatch.collect import collect, phases_of
from logdiff.dispatch.ranks import odd_ones
from logdiff.dispatch.steps import Steps
from logdiff.dispatch.table import PAIRS, by_boundary, side_by_side
from logdiff.dispatch.toggle import SIDES, changes, failed_changes, parse_toggle, verdict, with_toggle
from logdiff.errors import EngineError, InputError
from logdiff.jsonio import dumps
from logdiff.live import RunFile, resolve_models
from logdiff.target import OnProgress

KEPT = ("engine", "native", "aligned", "digest", "skipped", "resolved", "switches", "threads", "patched", "ranks")
PHASE_NAMES = ("prefill", "decode", "score", "backward")


def inspect(
    run: RunFile,
    *,
    sides: Sequence[str] = SIDES,
    phases: Sequence[str] = (),
    toggles: Sequence[str] = (),
    on_progress: OnProgress | None = None,
    cancel: threading.Event | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Trace the sides of a run file, natively or aligned as it says, and again with each switch.

    Args:
        run: the run file.
        sides: which of its sides.
        phases: of `PHASE_NAMES`; default: all that a side has.
        toggles: switches, as `parse_toggle` takes them; each is set alone.
        on_progress: called from this thread.
        cancel: set from another thread to stop.

    Returns:
        (`logdiff-dispatch/1`, {side: the whole document of its engine}).

    Raises:
        InputError: an unknown phase or toggle, or a server, whose process can't be looked into.
        EngineError: an engine that does not run; with a switch set that is the switch's result instead.
    """
    for phase in phases:
        if phase not in PHASE_NAMES:
            raise InputError(f"unknown phase {phase!r}", value=phase, hint=f"of: {', '.join(PHASE_NAMES)}")
    switches = [parse_toggle(text) for text in toggles]
    for side in sides:
        if run.spec(side).engine == "vllm-http":
            raise InputError(
                "a running server's process can't be looked into from here",
                value=f"{side}.engine: vllm-http",
                hint="use engine vllm with the server's arguments, or --side of the other",
            )
    models = resolve_models(run, on_progress, cancel)
    with tempfile.TemporaryDirectory(prefix="logdiff-dispatch-") as folder:
        root = Path(folder)

        traced = [*sides, *(side for toggle in switches for side in toggle.sides if side in sides)]
        steps = Steps([len(phases_of(side, phases)) for side in traced], on_progress)

        def trace(which: RunFile, side: str, name: str, words: str) -> dict[str, Any]:
            steps.start(words)
            return collect(
                which, side, models[side], root / name, phases=tuple(phases), on_progress=steps, cancel=cancel
            )

        documents = {}
        for side in sides:
            documents[side] = trace(run, side, "stock", side)
            _check(side, documents[side])
        proofs = []
        for number, toggle in enumerate(switches):
            changed: dict[str, dict[str, Any]] = {}
            for side in [s for s in toggle.sides if s in documents]:
                try:
                    other = trace(with_toggle(run, toggle), side, f"toggle-{number}", f"{side} with {toggle.text}")
                    found = failed_changes if other.get("failed") else changes
                    changed[side] = found(documents[side], other)
                except EngineError as error:
                    changed[side] = {"error": f"{error.message[:500]}; {error.hint[:300]}".rstrip("; ")}
            proofs.append(verdict(toggle, changed))
        steps.end()
    return result(documents, proofs), documents


def _check(side: str, document: dict[str, Any]) -> None:
    """Raise `EngineError` for a side that fails without any switch."""
    failed = document.get("failed")
    if failed:
        raise EngineError(
            f"the {side} engine failed in {failed['phase']}: {failed['error']}",
            value=next(iter(failed["where"]), None),
            hint=f"called from {', called from '.join(failed['where'][1:])}" if failed["where"][1:] else "",
        )


def result(documents: dict[str, dict[str, Any]], proofs: list[dict[str, Any]]) -> dict[str, Any]:
    """`logdiff-dispatch/1` of the sides' documents and the switches' proofs: pure."""
    facts = {side: _side(document) for side, document in documents.items()}
    tables = {}
    if set(documents) == set(SIDES):
        for rollout, train in PAIRS:
            one = (documents["rollout"]["phases"].get(rollout) or {}).get("entries")
            two = (documents["train"]["phases"].get(train) or {}).get("entries")
            if one is not None and two is not None:
                tables[f"{rollout}|{train}"] = side_by_side(by_boundary(one), by_boundary(two))
    data = {
        "format": "logdiff-dispatch/1",
        "sides": facts,
        "tables": tables,
        "toggles": proofs,
        "findings": [*_findings(documents), *_toggle_findings(proofs)],
    }
    stable = {side: document["ranks"] for side, document in documents.items()}
    return {**data, "digest": hashlib.sha256(dumps(stable).encode()).hexdigest()}


def _side(document: dict[str, Any]) -> dict[str, Any]:
    phases = {}
    for name, phase in document["phases"].items():
        native = document["native_pass"].get(name) or {}
        phases[name] = {
            "boundaries": by_boundary(phase["entries"]),
            "calls": phase["calls"],
            "beyond": phase["beyond"],
            "kernels": native.get("kernels", {}),
            "direct": native.get("direct", {}),
            "generated": native.get("generated", []),
            "compiled": _compiled(phase, native),
        }
    libraries = [lib for lib in document["libraries"] if lib["operators"] or lib["changed"]]
    return {
        **{key: document.get(key) for key in KEPT},
        "phases": phases,
        "operators": document["operators"],
        "libraries": {"loaded": len(document["libraries"]), "operators_or_changed": libraries},
    }


def _compiled(phase: dict[str, Any], native: dict[str, Any]) -> str | None:
    """A sentence when compiled code ran: its operators are inside of generated kernels and not in the trace."""
    generated = native.get("generated") or []
    if not generated:
        return None
    kernels = sum(len(one["kernels"]) for one in generated)
    extern = sum(len(one["extern"]) for one in generated)
    return (
        f"compiled: {len(generated)} generated files with {kernels} kernels and {extern} calls of outer operators ran; "
        f"what the kernels fuse is not among the {phase['calls']} operators of the trace"
    )


def _findings(documents: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    found = []
    for side, document in documents.items():
        for record in document["patched"]["findings"]:
            found.append({"side": side, **_finding(record)})
        for record in document.get("rank_findings") or []:
            found.append({"side": side, **_finding(record), "rank": record["rank"]})
        for library in document["libraries"]:
            if library["changed"]:
                found.append({"side": side, "kind": "library", "what": library["file"], "detail": library["changed"]})
        ranks = {f"rank {number}": facts for number, facts in enumerate(document["ranks"])}
        for odd in odd_ones(ranks):
            found.append({"side": side, "kind": "rank", "what": ", ".join(odd["odd"]), "detail": odd["why"]})
        if document["native"] is False and document["aligned"] is None:
            detail = "functions of logdiff stand in the engine's classes although no overlay is on"
            found.append({"side": side, "kind": "leftover", "what": str(document["engine"]["name"]), "detail": detail})
    return found


def _finding(record: dict[str, Any]) -> dict[str, Any]:
    return {
        "kind": record["kind"],
        "what": record["target"],
        "detail": record["detail"],
        "by": record["by"],
        "where": record["live"],
        "notes": record["notes"],
    }


def _toggle_findings(proofs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"side": "+".join(p["sides"]), "kind": "toggle", "what": p["toggle"], "detail": p["statement"]}
        for p in proofs
        if p["result"] != "changed"
    ]

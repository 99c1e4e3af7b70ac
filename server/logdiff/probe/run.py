"""Asking an interpreter for its probes: known answers from the cache, the rest from a runner."""

from __future__ import annotations

import json
import tempfile
import threading
from pathlib import Path
from typing import Any

from logdiff import __version__
from logdiff.errors import LogdiffError
from logdiff.probe.cache import ALIGNED, Cache, identity
from logdiff.probe.plan import Plan
from logdiff.target import OnProgress, Timeouts
from logdiff.target.local import LocalRunner

FORMAT = "logdiff-probe/1"
_GRACE = 600.0
"""Seconds over the plan's time after which a runner counts as stuck: one call of a kernel can't be interrupted."""


def list_probes(python: str | None = None) -> dict[str, Any]:
    """Operators, providers and relations that an interpreter knows."""
    with tempfile.TemporaryDirectory(prefix="logdiff-") as folder:
        runner = LocalRunner.start(None, log=Path(folder) / "runner.log", python=python)
        try:
            return runner.run({"task": "probe_list"}).data
        finally:
            runner.close()


def run_probes(
    plan: Plan,
    *,
    python: str | None = None,
    fresh: bool = False,
    log: Path | None = None,
    on_progress: OnProgress | None = None,
    cancel: threading.Event | None = None,
) -> dict[str, Any]:
    """The `logdiff-probe/1` of a plan.

    Args:
        plan: what to ask.
        python: interpreter with torch and the providers; default: the running one.
        fresh: ask again what is at hand.
        log: where the runner's standard error goes; default: nowhere that stays.
        on_progress: called from this thread.
        cancel: set from another thread to give up.

    Raises:
        InputError: a name that the interpreter does not know.
        EngineError: the runner died; what it had finished is kept, the same command goes on from there.
    """
    with tempfile.TemporaryDirectory(prefix="logdiff-") as folder:
        output = Path(folder) / "probe.jsonl"
        runner = LocalRunner.start(
            None,
            log=log or Path(folder) / "runner.log",
            python=python,
            timeouts=Timeouts(task=plan.seconds + _GRACE),
            cancel=cancel,
        )
        try:
            facts = runner.run({"task": "probe_facts", "aligned": plan.asks(ALIGNED)}, on_progress).data
            cache = Cache(facts, plan)
            known = [] if fresh else cache.known()
            task = {**plan.task(), "known": [list(identity(entry)) for entry in known], "output": str(output)}
            try:
                data = runner.run(task, on_progress).data
            except LogdiffError as error:
                kept = _read(output)
                for entry in kept:
                    cache.keep(entry)
                if kept:
                    error.hint = (
                        f"{len(kept)} finished checks are kept: run the same command again. {error.hint}".strip()
                    )
                raise
        finally:
            runner.close()
    for entry in data["results"]:
        cache.keep(entry)
    asked = {tuple(who) for who in data["known"]}
    known = [entry for entry in known if identity(entry) in asked]
    return {
        "format": FORMAT,
        "logdiff": __version__,
        "results": _sorted([*known, *data["results"]], data["order"]),
        "skipped": [*data["skipped"], *plan.left_out],
        "cached": len(known),
        "seconds": data["seconds"],
        "device": plan.device,
        "dtype": plan.dtype,
        "seed": plan.seed,
        "model": plan.model,
        "fingerprint": cache.fingerprint,
        "threads": facts.get("threads"),
        "implementations": data["implementations"],
    }


def _read(path: Path) -> list[dict[str, Any]]:
    """The finished entries that a dead runner left; a torn last line is passed over."""
    found = []
    if path.is_file():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if isinstance(entry, dict):
                found.append(entry)
    return found


def _sorted(entries: list[dict[str, Any]], order: dict[str, list[str]]) -> list[dict[str, Any]]:
    operators = {name: i for i, name in enumerate(order["operators"])}
    relations = {name: i for i, name in enumerate(order["relations"])}
    return sorted(
        entries,
        key=lambda entry: (
            operators.get(entry["op"], 0),
            entry["provider"],
            relations.get(entry["relation"], 0),
            identity(entry)[3],
        ),
    )

"""Words, verdict, facts and next steps of probes: pure functions of `logdiff-probe/1`."""

from __future__ import annotations

from collections import Counter
from typing import Any

from logdiff.mcp.results import Facts, NextStep
from logdiff.mcp.summaries import clip
from logdiff.probe import matrix
from logdiff.probe.judge import FAILS, UNPROVEN, short, state, why

FAILURES = 12
REASONS = 6
CELLS = 60


def verdict(data: Facts) -> str:
    """`fails`, `not-proven`, `holds`, or `nothing-probed`."""
    states = {state(entry) for entry in data["results"]}
    if not states:
        return "nothing-probed"
    return "fails" if FAILS in states else "not-proven" if UNPROVEN in states else "holds"


def facts(data: Facts, detail: str) -> Facts:
    """The matrix, failing checks with their shapes, and reasons of what was left out; `full`: everything."""
    if detail == "full":
        return {key: value for key, value in data.items() if key not in ("format", "summary")}
    _, _, cells = matrix(data)
    rows: Facts = {}
    for (op, provider), cell in list(cells.items())[:CELLS]:
        words = f"fails {short(cell.fails)}" if cell.fails else f"{len(cell.holds)} hold"
        rows.setdefault(op, {})[provider] = words + (f", {len(cell.unproven)} not proven" if cell.unproven else "")
    failing = [entry for entry in data["results"] if state(entry) == FAILS]
    reasons = Counter(clip(entry.get("reason"), 120) for entry in data["skipped"])
    unproven = Counter(clip(why(entry), 120) for entry in data["results"] if state(entry) == UNPROVEN)
    return {
        "matrix": rows,
        "failures": [_failure(entry) for entry in failing[:FAILURES]],
        "more_failures": max(0, len(failing) - FAILURES),
        "not_proven": dict(unproven.most_common(REASONS)),
        "skipped": dict(reasons.most_common(REASONS)),
        "seconds": data["seconds"],
        "cached": data["cached"],
    }


def _failure(entry: dict[str, Any]) -> Facts:
    detail = entry["detail"]
    difference = detail.get("difference") or {}
    against = detail.get("against")
    return {
        "op": entry["op"],
        "provider": entry["provider"] + (f" against {against}" if against else ""),
        "relation": entry["relation"],
        "shape": {dim: value for dim, value in (entry["smallest_failing_shape"] or {}).items() if value},
        "what": clip(difference.get("variant") or f"{(detail.get('accuracy') or {}).get('error_in_bars')} bars", 80),
    }


def steps(data: Facts, case: str) -> list[NextStep]:
    """What to call next."""
    failing = [entry for entry in data["results"] if state(entry) == FAILS]
    found: list[NextStep] = []
    late = any(entry.get("reason") == "out of time" for entry in data["skipped"])
    if failing and all(entry["provider"] != "aligned" for entry in data["results"]):
        ops = list(dict.fromkeys(entry["op"] for entry in failing))[:4]
        found.append(
            NextStep(
                tool="probe_run",
                arguments={"ops": ops, "providers": ["aligned"]},
                why="see whether the aligned operator keeps what this one breaks",
                outcomes=["holds: aligning this operator removes the difference", "skipped: no aligned form of it"],
            )
        )
    if late:
        ops = list(dict.fromkeys(str(e["op"]) for e in data["skipped"] if e.get("reason") == "out of time"))[:8]
        found.append(
            NextStep(
                tool="probe_run",
                arguments={"ops": ops, "max_seconds": 600},
                why="checks for which there was no time; finished ones are taken from the cache",
                outcomes=["more of the matrix"],
            )
        )
    if case:
        found.append(
            NextStep(
                tool="report_render", arguments={"case": case}, why="the matrix as a picture", outcomes=["report.html"]
            )
        )
    return found

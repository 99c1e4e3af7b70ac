"""Words, verdict and next steps of config_audit: pure functions over its result."""

from __future__ import annotations

from collections.abc import Callable

from logdiff.audit.words import counted, tally
from logdiff.mcp.results import Facts, NextStep
from logdiff.mcp.summaries import clip

MAX_CHARS = 4400
"""Longest findings of a summary, in characters; errors come first, and the rest is counted."""
MAX_UNREAD = 4


def verdict(data: Facts) -> str:
    """errors, warnings, or clean; what was not read doesn't change it."""
    counts = data["counts"]
    return "errors" if counts["error"] else "warnings" if counts["warning"] else "clean"


def summary(data: Facts) -> str:
    """How many of what, and the first one."""
    counts = data["counts"]
    engines = ", ".join(data["frameworks"]) or "no engine"
    text = f"{tally(counts)} over {counted(data['settings'], 'setting')} of {engines}."
    grave = [f for f in data["findings"] if f["severity"] != "info"]
    if grave:
        first = grave[0]
        text += f" First: {clip(first['title'], 120)} ({clip(first['key'], 100)} at {clip(first['where'], 160)})."
    if data["unread"]:
        text += f" {counted(len(data['unread']), 'place')} could not be read or followed."
    return text


def steps(data: Facts) -> list[NextStep]:
    """Measure when nothing forbids equality."""
    if verdict(data) == "errors":
        return []
    return [
        NextStep(
            tool="env_inspect",
            arguments={},
            why="declared is not executed: compare with what is installed and set",
            outcomes=["versions and variables as audited", "something else runs: audit again with live"],
        )
    ]


def facts(data: Facts, detail: str, relative: Callable[[str], str]) -> Facts:
    """Findings, most severe first, and what was not read; cut unless `detail` is full."""
    if detail == "full":
        return {k: data.get(k) for k in ("findings", "unread", "read", "versions", "counts", "effective")}
    shown: list[Facts] = []
    size = 0
    for finding in data["findings"]:
        row = _short(finding)
        size += len(str(row))
        if size > MAX_CHARS:
            break
        shown.append(row)
    return {
        "findings": shown,
        "left_out": len(data["findings"]) - len(shown),
        "unread": [
            {"file": clip(relative(str(u["file"])), 100), "line": u["line"], "why": clip(u["why"], 120)}
            for u in data["unread"][:MAX_UNREAD]
        ],
        "unread_left_out": max(len(data["unread"]) - MAX_UNREAD, 0),
        "counts": data["counts"],
        "effective": relative(str(data["effective"])) if data.get("effective") else None,
    }


def _short(finding: Facts) -> Facts:
    long = {"rule": 60, "severity": 10, "side": 10, "key": 120, "where": 160, "consequence": 240, "fix": 160}
    return {"value": clip(finding["value"], 100), **{key: clip(finding[key], size) for key, size in long.items()}}

"""The configuration audit in a report: findings by severity, notes, and what could not be read."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from logdiff.audit.words import counted
from logdiff.report.files import read_section

ROWS = 200


@dataclass(slots=True)
class AuditSection:
    """What the page shows of `results/audit.json`."""

    summary: str
    findings: list[dict[str, str]] = field(default_factory=list)
    notes: list[dict[str, str]] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    more: int = 0


def read_audit(case: Path, missing: list[str]) -> AuditSection | None:
    """The section of a case folder; None where nobody audited. A broken file is told in `missing`."""
    return read_section(case, "audit", "logdiff-audit/1", missing, _section)


def _section(data: dict[str, Any]) -> AuditSection:
    rows = [_row(finding) for finding in data["findings"]]
    grave = [row for row in rows if row["severity"] != "info"]
    notes = [row for row in rows if row["severity"] == "info"]
    counts = data["counts"]
    engines = ", ".join(str(name) for name in data["frameworks"]) or "no engine"
    words = (
        f"{counted(counts['error'], 'error')}, {counted(counts['warning'], 'warning')} and "
        f"{counted(counts['info'], 'note')} over {counted(data['settings'], 'setting')} of {engines}, by "
        f"{data['rules']} rules."
    )
    unread = [
        f"{entry['file']}{'' if entry['line'] is None else ':' + str(entry['line'])}: {entry['why']}"
        for entry in data["unread"]
    ]
    more = max(len(grave) - ROWS, 0) + max(len(notes) - ROWS, 0) + max(len(unread) - ROWS, 0)
    return AuditSection(words, grave[:ROWS], notes[:ROWS], unread[:ROWS], more)


def _row(finding: dict[str, Any]) -> dict[str, str]:
    row = {key: str(finding[key]) for key in ("severity", "side", "key", "where", "consequence", "fix", "title")}
    return {**row, "value": "not set" if finding["value"] is None else str(finding["value"])}

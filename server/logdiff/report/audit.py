"""The configuration audit in a report: findings by severity, notes, and what could not be read."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from logdiff.report.texts import FILE_LIMIT

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
    path = case / "results" / "audit.json"
    try:
        if path.stat().st_size > FILE_LIMIT:
            missing.append(f"results/audit.json is larger than {FILE_LIMIT >> 20} MiB and was not read.")
            return None
        return _section(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        missing.append(f"results/audit.json can't be used: {type(error).__name__}: {error}")
        return None


def _section(data: dict[str, Any]) -> AuditSection:
    if data.get("format") != "logdiff-audit/1":
        raise ValueError(f"format {data.get('format')!r}, not logdiff-audit/1")
    rows = [_row(finding) for finding in data["findings"]]
    grave = [row for row in rows if row["severity"] != "info"]
    notes = [row for row in rows if row["severity"] == "info"]
    counts = data["counts"]
    engines = ", ".join(str(name) for name in data["frameworks"]) or "no engine"
    words = (
        f"{_count(counts['error'], 'error')}, {_count(counts['warning'], 'warning')} and "
        f"{_count(counts['info'], 'note')} over {_count(data['settings'], 'setting')} of {engines}, by "
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


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"

"""Configuration audit: effective settings of both sides, judged by rules that are data.

`readers` turn files into settings, `effective` decides which of them hold, `conditions` and `judge` apply
`rules/*.yaml`. Nothing that is read is ever executed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from logdiff.audit.effective import Table
    from logdiff.audit.judge import Finding
    from logdiff.audit.rule import Rules
    from logdiff.audit.settings import Evidence

__all__ = ["Audit", "audit", "audit_environment", "audit_paths"]


@dataclass(frozen=True, slots=True)
class Audit:
    """What was read, what holds, and what is wrong with it."""

    evidence: Evidence
    table: Table
    findings: list[Finding]
    rules: int

    def as_dict(self) -> dict[str, Any]:
        """The `logdiff-audit/1` object."""
        counts = {name: sum(f.severity == name for f in self.findings) for name in ("error", "warning", "info")}
        versions = {
            key.removeprefix("package."): str(found.value)
            for (_, key), found in sorted(self.table.values.items())
            if key.startswith("package.")
        }
        return {
            "format": "logdiff-audit/1",
            "findings": [finding.as_dict() for finding in self.findings],
            "unread": [entry.as_dict() for entry in self.evidence.unread],
            "read": self.evidence.read,
            "counts": counts,
            "rules": self.rules,
            "frameworks": sorted(self.table.frameworks - {"environment"}),
            "versions": versions,
            "settings": len(self.table.values),
        }

    @property
    def exit_code(self) -> int:
        """1 where a finding is an error or a warning; notes of severity info alone give 0."""
        return 1 if any(f.severity in ("error", "warning") for f in self.findings) else 0


def audit_paths(paths: Sequence[str | Path], rules: Rules | None = None) -> Audit:
    """Audit launch scripts, configurations, logs, model folders, package lists and case folders.

    Raises:
        InputError: a path that is absent, or nothing in them that can be read.
    """
    from logdiff.audit.readers import read_paths

    return audit(read_paths(paths), rules)


def audit_environment(facts: dict[str, Any], where: str, evidence: Evidence | None = None) -> Evidence:
    """The settings of a `logdiff-env/1` of a running interpreter, added to what files said."""
    from logdiff.audit.readers.collect import Collector
    from logdiff.audit.readers.facts import environment
    from logdiff.audit.settings import Evidence as Empty

    evidence = evidence if evidence is not None else Empty()
    environment(facts, where, Collector(evidence))
    evidence.read.append({"path": where, "form": "environment"})
    return evidence


def audit(evidence: Evidence, rules: Rules | None = None) -> Audit:
    """Judge what was read, each of several processes of one engine by itself; the table is of the last of them."""
    from logdiff.audit.checks import decides
    from logdiff.audit.effective import resolve
    from logdiff.audit.judge import judge, ordered
    from logdiff.audit.launches import one_by_one
    from logdiff.audit.rule import load_rules

    rules = rules or load_rules()
    tables = [resolve(each) for each in one_by_one(evidence, decides)]
    findings = ordered(finding for table in tables for finding in judge(table, rules))
    whole = tables[-1]
    return Audit(whole.evidence, whole, findings, len(rules.rules))

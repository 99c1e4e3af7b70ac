"""From evidence to a verdict: records, catalogue of causes, features of the token table, judgement. Starts nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logdiff.verdict.records import (
    BudgetShare,
    Candidate,
    Diagnosis,
    Evidence,
    Excluded,
    NextExperiment,
    Verdict,
    path_of,
)

if TYPE_CHECKING:
    from logdiff.verdict.offline import diagnose_case, diagnose_pairs

__all__ = [
    "BudgetShare",
    "Candidate",
    "Diagnosis",
    "Evidence",
    "Excluded",
    "NextExperiment",
    "Verdict",
    "diagnose_case",
    "diagnose_pairs",
    "path_of",
]


def __getattr__(name: str) -> Any:
    """The judges, which bring the statistics with them, when they are asked for."""
    if name in ("diagnose_case", "diagnose_pairs"):
        from logdiff.verdict import offline

        return getattr(offline, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

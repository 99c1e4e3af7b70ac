"""From evidence to a verdict: records, cause catalogue, evidence of the token table, judgement. Pure; starts nothing."""

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

__all__ = [
    "BudgetShare",
    "Candidate",
    "Diagnosis",
    "Evidence",
    "Excluded",
    "NextExperiment",
    "Verdict",
    "path_of",
]

"""From evidence to a verdict: records, catalogue of causes, features of the token table, judgement. Starts nothing."""

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

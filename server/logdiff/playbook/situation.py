"""Which situation a reader is in: one word, decided from the state of a case and of the workspace."""

from __future__ import annotations

from dataclasses import dataclass, field

from logdiff.playbook.state import CaseState
from logdiff.playbook.survey import Survey

IDENTITY = ("ids", "lengths", "masks", "duplicates", "vocabulary", "finite", "range", "coverage", "bypass")
"""Gates over what was recorded."""


@dataclass(frozen=True, slots=True)
class Known:
    """Everything that a step or a page may depend on.

    Args:
        state: of the case in question, None where there is none.
        workspace: what lies around.
        run_file: that the case was made from, or that is to be compared; None where unknown.
        pairs: pair files that the case was made from, or that are to be measured.
        same_run: the case was made by `run_file` as it stands, so that work in it can go on; not with other tokens or
            with aligned operators.
    """

    state: CaseState | None = None
    workspace: Survey = field(default_factory=Survey)
    run_file: str | None = None
    pairs: tuple[str, ...] = ()
    same_run: bool = True


def situation(known: Known) -> str:
    """One of the keys of `tables.PAGE_OF`.

    A verdict speaks before the measurement that it was made from, a proven zero of aligned engines before both.
    """
    state = known.state
    if state is None:
        return _without_case(known)
    if len(state.aligned) == 2 and not state.failed and state.tokens:
        return "aligned-differs" if state.mismatched else "aligned-zero"
    if state.verdict is not None:
        return state.verdict.class_ if state.looked_into else f"{state.verdict.class_}-recorded"
    if not state.measured:
        return "unmeasured" if state.kind in ("run", "demo", "measure", "import") else "results"
    if not state.tokens:
        return "no-tokens"
    if state.failed:
        return _failed(state)
    if not state.mismatched:
        return "equal"
    return "within-floor" if state.within_floor else "differs"


def _without_case(known: Known) -> str:
    found = known.workspace
    if found.cases and (found.case_is_newer or not (found.run_files or found.pairs)):
        return "cases"
    return "evidence" if found.run_files or found.pairs else "nothing"


def _failed(state: CaseState) -> str:
    for gates, word in ((IDENTITY, "failed-identity"), (("weights", "update"), "failed-weights")):
        if any(gate in state.failed for gate in gates):
            return word
    return "failed-configuration"

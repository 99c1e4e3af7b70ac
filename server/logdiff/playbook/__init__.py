"""Guided playbooks: what a case's files say, the one next call, and pages that explain it."""

from logdiff.playbook.calls import Call, all_calls, calls_for, page_for
from logdiff.playbook.lookup import look
from logdiff.playbook.situation import Known, situation
from logdiff.playbook.state import CaseState, case_state, read_state
from logdiff.playbook.survey import Survey, survey
from logdiff.playbook.tables import PAGES

__all__ = [
    "PAGES", "Call", "CaseState", "Known", "Survey", "all_calls", "calls_for", "case_state", "look", "page_for",
    "read_state", "situation", "survey",
]  # fmt: skip

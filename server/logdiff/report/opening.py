"""The opening of a page about results alone: what an audit, a dispatch, probes or profiles found, in their order."""

from __future__ import annotations

from dataclasses import dataclass

from logdiff.report.ascend_profile import ProfileSection
from logdiff.report.audit import AuditSection
from logdiff.report.dispatch import DispatchSection
from logdiff.report.probes import ProbeSection


@dataclass(frozen=True, slots=True)
class Sections:
    """The results of a case that are no comparison of tokens; None where there is none."""

    audit: AuditSection | None = None
    dispatch: DispatchSection | None = None
    probes: ProbeSection | None = None
    ascend_profile: ProfileSection | None = None


def opening(held: Sections) -> tuple[str, str]:
    """(what the sections found, state): "differs" where one has a finding, "told" where none has, "invalid" for none.

    The worst of each stands first; that nothing was compared is told last, and once.
    """
    words = [text for text in (_audit(held.audit), _dispatch(held.dispatch), _probes(held.probes)) if text]
    if held.ascend_profile is not None:
        words.append(f"Profiles: {held.ascend_profile.summary}")
    if not words:
        return "This case holds no result yet.", "invalid"
    found = (
        (held.audit is not None and held.audit.findings)
        or (held.dispatch is not None and held.dispatch.findings)
        or (held.probes is not None and held.probes.failures)
        or (held.ascend_profile is not None and held.ascend_profile.differences)
    )
    return " ".join(words), "differs" if found else "told"


def _audit(section: AuditSection | None) -> str:
    if section is None:
        return ""
    if not section.findings:
        return f"Configuration: no setting that was read forbids equal log-probabilities; {section.summary}"
    first = section.findings[0]
    return f"Configuration: {section.summary} First: {first['title']} ({first['where']})."


def _dispatch(section: DispatchSection | None) -> str:
    if section is None:
        return ""
    switches = [f"{proof['toggle']}: {proof['state']}." for proof in section.toggles]
    return " ".join([f"What runs: {section.summary}", *switches])


def _probes(section: ProbeSection | None) -> str:
    return "" if section is None else f"Operator probes: {section.summary}"

"""What a rule says: a cause that the evidence supports, how strongly, and how much of the difference it explains."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from logdiff.verdict.causes import causes
from logdiff.verdict.features import Features
from logdiff.verdict.records import Evidence, Excluded


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause, or one class without a cause, that is supported.

    Args:
        cause: id of the catalogue, or None.
        class_: its class; the cause's unless given.
        belief: probability that it is at work, 0 to 1, judged alone.
        explains: share of the sum of abs d that it accounts for.
        side: rollout, train, both or unknown.
        component: the cause's first component unless given.
        evidence: claims with their numbers.
    """

    cause: str | None
    belief: float
    explains: float
    evidence: tuple[Evidence, ...]
    class_: str = ""
    side: str = "unknown"
    component: str | None = None

    def __post_init__(self) -> None:
        if self.cause is not None:
            entry = causes()[self.cause]
            if not self.class_:
                object.__setattr__(self, "class_", entry.class_)
            if self.component is None:
                object.__setattr__(self, "component", entry.components[0])


@dataclass(slots=True)
class Board:
    """What the rules have found so far, and what they ruled out."""

    findings: list[Finding] = field(default_factory=list)
    excluded: list[Excluded] = field(default_factory=list)

    def add(self, finding: Finding) -> None:
        """Note a finding; of two with the same cause the stronger stays."""
        for i, known in enumerate(self.findings):
            if known.cause == finding.cause and known.class_ == finding.class_ and known.cause is not None:
                if finding.belief * finding.explains > known.belief * known.explains:
                    self.findings[i] = finding
                return
        self.findings.append(finding)

    def exclude(self, by: str, *names: str) -> None:
        """Rule causes out, with the fact that does."""
        known = {e.cause for e in self.excluded}
        self.excluded += [Excluded(name, by) for name in names if name not in known]

    def rule_out(self, by: str, *names: str) -> None:
        """As `exclude`, and take findings of these causes back: an experiment speaks against them."""
        self.exclude(by, *names)
        self.findings = [f for f in self.findings if f.cause not in names]

    @property
    def explained(self) -> float:
        """The largest share of the difference that a believed finding accounts for."""
        return max((f.explains for f in self.findings if f.belief >= 0.5), default=0.0)


def evidence(f: Features, claim: str, value: Any = None, threshold: Any = None) -> Evidence:
    """A claim with the source and the command of this comparison."""
    return Evidence(claim, value, threshold, f.source, f.repeat)

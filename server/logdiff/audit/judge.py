"""From effective settings and rules to findings."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from logdiff.audit.checks import CHECKS, Hit
from logdiff.audit.conditions import Answer, Judge
from logdiff.audit.effective import Resolved, Table
from logdiff.audit.rule import SEVERITIES, Rule, Rules
from logdiff.audit.settings import SIDES, Unknown


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding of `logdiff-audit/1`."""

    rule: str
    severity: str
    side: str
    key: str
    value: Any
    where: str
    consequence: str
    fix: str
    title: str
    evidence: str

    def as_dict(self) -> dict[str, Any]:
        """As the result shows it."""
        return {name: getattr(self, name) for name in self.__slots__}


def judge(table: Table, rules: Rules) -> list[Finding]:
    """All findings, most severe first, then by place.

    A rule that would fire if something unknown were so (a version, a branch, a variable of the caller) gives a finding
    of severity info that says what is not known.
    """
    found: list[Finding] = []
    certain = Judge(table, rules.terms)
    for rule in rules.rules:
        if rule.applies.framework and not table.frameworks & set(rule.applies.framework):
            continue
        unknown, outside = _versions(rule, table)
        if outside:
            continue
        if rule.check is not None:
            found += [_hit(rule, hit) for hit in CHECKS[rule.check](table, rule)]
            continue
        assert rule.when is not None
        answer = certain.answer(rule.when)
        if answer.truth is False or (answer.truth is None and not answer.why):
            continue
        found.append(_finding(rule, answer, table, [*unknown, *(answer.why if answer.truth is None else ())]))
    unseen = _unseen(table)
    if unseen:
        found = [_beside(finding, unseen) for finding in found]
    return ordered(found)


def _unseen(table: Table) -> str:
    """The side of which nothing was read though the other's launch was; empty where both or none were."""
    launches = [launch for launch in table.evidence.launches if launch.framework != "environment"]
    covered = {side for launch in launches for side in launch.sides}
    covered |= {s.side for s in table.evidence.settings if not s.key.startswith("package.")}
    missing = [side for side in SIDES if side not in covered]
    return missing[0] if launches and len(missing) == 1 and "both" not in covered else ""


_NAMED = {"train": re.compile(r"\btrain(?:er|ing)\b", re.I), "rollout": re.compile(r"\brollout\b", re.I)}


def _beside(finding: Finding, unseen: str) -> Finding:
    """A finding whose words name a side of which nothing was read says so: there they are a supposition."""
    if not _NAMED[unseen].search(f"{finding.title} {finding.consequence}"):
        return finding
    name = "training" if unseen == "train" else "a rollout"
    words = f"{finding.consequence} (Nothing of {name} was read here: what is said of it is supposed.)"
    return replace(finding, consequence=words)


def ordered(found: Iterable[Finding]) -> list[Finding]:
    """Findings once each, most severe first, then by rule and place."""
    return sorted(dict.fromkeys(found), key=lambda f: (SEVERITIES.index(f.severity), f.rule, f.where))


def _versions(rule: Rule, table: Table) -> tuple[list[str], bool]:
    """What is not known of the versions that a rule is for, and whether one is known to be out of range."""
    unknown = []
    for package, wanted in rule.applies.versions.items():
        answer = table.in_range(package, wanted)
        if answer is False:
            return [], True
        if answer is None:
            versions = table.versions(package)
            said = f"is {' and '.join(versions)}" if versions else "is not known"
            unknown.append(f"the version of {package} {said}; the rule is for {wanted}")
    return unknown, False


def _finding(rule: Rule, answer: Answer, table: Table, open_: list[str]) -> Finding:
    subject = _subject(rule, answer, table)
    severity, consequence = rule.severity, rule.consequence
    if open_:
        severity = "info"
        consequence = f"Undetermined: {'; '.join(open_)}. If it is so: {consequence}"
    if not subject:
        key = (rule.at or "").partition(".")[2]
        key = key.removeprefix("env.") or rule.id
        side = rule.side or (rule.at or "both").partition(".")[0].replace("any", "both")
        return _made(rule, severity, side, key, None, _launched(table), consequence)
    sides = {r.side for r in subject}
    differing = len({repr(r.value) for r in subject}) > 1 or any(r.choices for r in subject)
    if len(subject) > 1 and differing:
        value: Any = {r.side: _value(r) for r in subject} if len(sides) > 1 else _value(subject[0])
    else:
        value = _value(subject[0])
    where = ", ".join(dict.fromkeys(r.where for r in subject))
    names = " / ".join(dict.fromkeys(r.raw_key for r in subject))
    side = rule.side or (subject[0].side if len(sides) == 1 else "both")
    return _made(rule, severity, side, names, value, where, consequence)


def _subject(rule: Rule, answer: Answer, table: Table) -> list[Resolved]:
    if rule.at is not None:
        side, _, name = rule.at.partition(".")
        found = [table.get(s, name) for s in (SIDES if side == "any" else (side,))]
        present = [r for r in found if r is not None]
        if present or (rule.when is not None and rule.when.all and any(c.absent for c in rule.when.all)):
            return present
    if not answer.seen:
        return []
    first = answer.seen[0]
    partner = [r for r in answer.seen[1:2] if r.side != first.side and r.key == first.key]
    return [first, *partner]


def _value(found: Resolved) -> Any:
    if found.choices:
        return " or ".join(str(v) for _, v in found.choices)
    return str(found.value) if isinstance(found.value, Unknown) else found.value


def _launched(table: Table) -> str:
    return ", ".join(dict.fromkeys(launch.where for launch in table.evidence.launches)) or "not set"


def _hit(rule: Rule, hit: Hit) -> Finding:
    consequence = f"{rule.consequence} {hit.words}".strip() if hit.words else rule.consequence
    fix = hit.fix or rule.fix
    return Finding(
        rule.id, hit.severity or rule.severity, hit.side, hit.key, hit.value, hit.where, consequence, fix, rule.title,
        hit.evidence or rule.evidence,
    )  # fmt: skip


def _made(rule: Rule, severity: str, side: str, key: str, value: Any, where: str, consequence: str) -> Finding:
    return Finding(
        rule.id, severity, side, key, _hashable(value), where, consequence, rule.fix, rule.title, rule.evidence
    )


def _hashable(value: Any) -> Any:
    if isinstance(value, dict):
        return ", ".join(f"{side} {one}" for side, one in value.items())
    return str(value) if isinstance(value, list) else value

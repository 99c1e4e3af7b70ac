"""Holds one verdict against what is true of its fault."""

from __future__ import annotations

import fnmatch
from dataclasses import asdict, dataclass
from typing import Any

from tests.faults.fault import Fault

NOT_BLAMED = ("undetermined", "invalid-evidence")
"""Answers that blame nothing; `operator` and `none` are claims as well."""


@dataclass(frozen=True, slots=True)
class Judged:
    """Answers about one case; None where the case does not ask.

    Args:
        right_class: the class is a right one, or the answer is an honest `undetermined`.
        honest: the verdict claims no cause and is right so: an `undetermined` of an open case, or `invalid-evidence`
            where a gate has to fail. Cause, side and component are then not asked.
        first, in_three: the cause stands first, or among the first three candidates.
        side, component: those are right.
        false_attribution: a control was blamed for what it does not have.
        confidence: of the verdict; 0 where there is none.
        reason: what a miss looks like, in words.
    """

    right_class: bool
    honest: bool
    first: bool | None
    in_three: bool | None
    side: bool | None
    component: bool | None
    false_attribution: bool | None
    confidence: float
    reason: str

    def as_dict(self) -> dict[str, Any]:
        """Plain fields."""
        return asdict(self)


def judge(fault: Fault, patterns: list[str], answer: dict[str, Any] | None, ended: str) -> Judged:
    """Judge a `logdiff-verdict/1`.

    Args:
        fault: what was asked about.
        patterns: right components, as drawn.
        answer: the document; None where the command gave none.
        ended: how the command ended, for the reason.
    """
    if answer is None or answer.get("format") != "logdiff-verdict/1":
        asked = False if fault.causes else None
        return Judged(False, False, asked, asked, False if fault.sides else None, None, None, 0.0, ended)
    verdict = answer["verdict"]
    candidates = answer.get("candidates") or []
    found, cause, side = verdict.get("class"), verdict.get("cause"), verdict.get("side")
    component = verdict.get("component") or ""
    named = {candidate.get("class") for candidate in candidates[:3]}
    splits = bool(answer.get("next_experiments"))
    honest = fault.open and found == "undetermined" and (splits or bool(named & set(fault.classes)))
    honest = honest or (found == "invalid-evidence" and found in fault.classes)
    right = found in fault.classes or honest
    leading = [cause, *(c.get("cause") for c in candidates if c.get("cause") != cause)][:3]
    first = in_three = right_side = right_component = None
    if fault.causes and not honest:
        first = cause in fault.causes
        in_three = bool(set(leading) & set(fault.causes))
    if fault.sides and not honest:
        right_side = side in fault.sides
    if patterns and not honest:
        right_component = any(fnmatch.fnmatch(component.lower(), pattern.lower()) for pattern in patterns)
    reason = ""
    if not right or first is False:
        wanted = f"{'/'.join(fault.classes)} {'/'.join(fault.causes)}".strip()
        reason = f"{found} {cause} at {component or '-'} ({side}), not {wanted}"
    blamed = not right and found not in NOT_BLAMED if fault.control else None
    return Judged(
        right,
        honest,
        first,
        in_three,
        right_side,
        right_component,
        blamed,
        float(verdict.get("confidence") or 0.0),
        reason,
    )

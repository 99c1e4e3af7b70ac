"""A verdict with everything that belongs to it: candidates, exclusions, next experiments, what was not looked at."""

from __future__ import annotations

from typing import Any

from logdiff.diagnose.known import COLUMNS, Known, share_of
from logdiff.localize.distance import FACTOR
from logdiff.localize.finding import WEIGHTS, Finding
from logdiff.verdict.records import Candidate, Diagnosis, Evidence, Excluded, NextExperiment, Verdict


def diagnosis(known: Known, verdict: Verdict, findings: list[Finding], evidence: tuple[Evidence, ...]) -> Diagnosis:
    """The whole document around a verdict; `findings` become candidates, scored by belief and by what they explain."""
    candidates = []
    left = 1.0
    for finding in findings:
        first = finding.cause == verdict.cause and finding.component == verdict.component
        score = verdict.confidence if first else min(left, finding.belief) * 0.5 * max(share_of(finding, known), 0.1)
        claims = tuple(e.claim for e in finding.evidence)
        candidates.append(
            Candidate(finding.cause, finding.class_, round(score, 3), claims, finding.side, finding.component)
        )
        left = max(0.0, left - score)
        candidates += [
            Candidate(other, finding.class_, round(score * 0.1, 3), claims[:1], finding.side, finding.component)
            for other in finding.others[:2]
        ]
    if not any(c.cause == verdict.cause and c.class_ == verdict.class_ for c in candidates) and verdict.class_ not in (
        "none", "undetermined",
    ):  # fmt: skip
        claims = tuple(e.claim for e in evidence[:3])
        candidates.insert(
            0, Candidate(verdict.cause, verdict.class_, verdict.confidence, claims, verdict.side, verdict.component)
        )
    candidates.sort(key=lambda c: -c.score)
    return Diagnosis(
        verdict=verdict,
        candidates=tuple(candidates[:12]),
        measure=known.measure,
        floor=known.floor,
        evidence=evidence,
        excluded=tuple(excluded(known, findings)),
        budget=tuple(known.budget),
        next_experiments=tuple(next_experiments(known, verdict)),
        extra=_extra(known),
    )


def excluded(known: Known, findings: list[Finding]) -> list[Excluded]:
    """Causes that the experiments ruled out, with the fact that did."""
    out = []
    if not any(f.rank == WEIGHTS for f in findings) and not any(what == "reference" for what, _ in known.skipped):
        out.append(Excluded("weights-changed", "every tensor of both sides has the checkpoint's checksum"))
    tested: dict[str, list[dict[str, Any]]] = {}
    named = {f.cause for f in findings}
    for check in known.operators.get("checks", []):
        for variant in check.get("variants", []):
            cause = variant.get("cause")
            if cause and cause not in named and not variant.get("fits"):
                tested.setdefault(cause, []).append(check)
    for cause, checks in list(tested.items())[:20]:
        if all(c.get("ok") for c in checks):
            out.append(Excluded(cause, f"{len(checks)} operator check(s) hold, and this variant fits none of them"))
    return out


def next_experiments(known: Known, verdict: Verdict) -> list[NextExperiment]:
    """What to do after this verdict, cheapest first."""
    steps = []
    if verdict.class_ in ("operator", "routing"):
        steps.append(
            NextExperiment(
                "run the same tokens with aligned operators on both sides: 0 proves that operators were all of it",
                f"{known.repeat.replace('diagnose', 'run')} --align all --tokens CASE",
                ("operator", "framework-implementation"),
            )
        )
    if verdict.class_ in ("framework-implementation", "framework-config", "weights") and not known.toggles:
        steps.append(
            NextExperiment(
                f"start the {verdict.side} side without its modules, variables and arguments and score the same tokens",
                f"{known.repeat} --resume --max-seconds 600",
                (verdict.class_, "operator"),
            )
        )
    for what, why in known.skipped[:3]:
        steps.append(NextExperiment(f"{what} was left out ({why}): give it more", f"{known.repeat} --resume", ()))
    return steps


def _extra(known: Known) -> dict[str, Any]:
    checks = known.operators.get("checks", [])
    return {
        "distances": {name: d.as_dict() for name, d in known.distances.items()},
        "toggles": known.toggles,
        "routing": known.routing.as_dict() if known.routing is not None else None,
        "operators": {
            "judged": counts(known.operators)[0],
            "off": [c["boundary"] for c in checks if c.get("ok") is False][:20],
            "coverage": known.operators.get("coverage", {}),
        },
        "skipped": [{"what": what, "why": why} for what, why in known.skipped],
        "sufficient": known.sufficient,
        "captures_same_bits": known.same_bits,
    }


def counts(operators: dict[str, Any]) -> tuple[int, int, int]:
    """(judged, off, not judged) of a `logdiff-operators/1`."""
    checks = operators.get("checks", [])
    return (
        sum(1 for c in checks if c.get("ok") is not None),
        sum(1 for c in checks if c.get("ok") is False),
        sum(1 for c in checks if c.get("ok") is None),
    )


def toggle_evidence(known: Known, side: str) -> Evidence | None:
    """What a restart of a side without its own modules, variables or arguments showed; None where there was none."""
    for t in known.toggles:
        if t["side"] == side:
            claim = f"mean d squared of the same tokens after {side} was started without {t['removed']}"
            return Evidence(claim, t["after_ms"], t["before_ms"], "captures/toggles", known.repeat)
    return None


def distance_evidence(known: Known, side: str) -> Evidence | None:
    """How far a side's furthest column is from the checkpoint; None where that was not measured."""
    columns = [known.distances[c] for c in COLUMNS.get(side, ()) if c in known.distances]
    if not columns:
        return None
    worst = max(columns, key=lambda d: d.ratio)
    claim = (
        f"{worst.column} against the checkpoint in fp32, in units of what the run's dtype costs the checkpoint itself"
    )
    return Evidence(claim, worst.ratio, FACTOR, "captures/reference", known.repeat)

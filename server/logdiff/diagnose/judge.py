"""From everything that was found out on live engines to a verdict. Pure: starts nothing, reads nothing."""

from __future__ import annotations

from typing import Any

from logdiff.diagnose.causes import argument_cause, first_divergence, largest, rounding_cause
from logdiff.diagnose.known import MATTERS, Known, far_sides, has_moved, merged, share_of
from logdiff.diagnose.result import counts, diagnosis, distance_evidence, toggle_evidence
from logdiff.localize.budget import UNEXPLAINED
from logdiff.localize.distance import Distance
from logdiff.localize.finding import WEIGHTS, Finding
from logdiff.measure import within_floor
from logdiff.verdict.records import Diagnosis, Evidence, Verdict

LEFT = 0.25
"""Share of mean d squared that may be left with every operator aligned before rounding is no longer the answer."""


def _replaced(known: Known) -> Evidence | None:
    """What is left with all operators replaced."""
    left = next((b.share for b in known.budget if b.component == UNEXPLAINED), None)
    if left is None:
        return None
    claim = "share of mean d squared that is left with every operator aligned on both sides"
    return Evidence(claim, left, LEFT, "results/budget.json", known.repeat)


def judge(known: Known) -> Diagnosis:
    """The verdict on what is known.

    A fault leads where it accounts for a good part of the mismatch; the share is measured by a toggle of that side, or
    bounded by how far the side is from the checkpoint. Faults of weights and data lead whatever their share. Without a
    fault, and with every operator within rounding on its own inputs, the mismatch is the operators'.
    """
    findings = merged(known.findings)
    if not known.measure["mismatched_tokens"]:
        return _equal(known, findings)
    leading = [f for f in findings if f.rank <= WEIGHTS or share_of(f, known) >= MATTERS]
    if leading:
        return _fault(known, sorted(leading, key=lambda f: (f.rank, -share_of(f, known))), findings)
    far = far_sides(known)
    moved = [t for t in known.toggles if has_moved(t)]
    precision = [f for f in findings if f.component == "dtype"]
    if precision and not far and not moved:
        return _fault(known, precision, findings)  # one side rounds where the other does not
    if moved or far or known.reruns:
        return _side(known, far, moved, findings)
    if within_floor(known.measure, known.floor):
        return _floor(known, findings)
    return _operators(known, findings)


def _equal(known: Known, findings: list[Finding]) -> Diagnosis:
    real = [f for f in findings if f.rank <= WEIGHTS]
    if real:
        return _fault(known, real, findings)
    tokens = known.measure["tokens"]
    statement = f"all {tokens} tokens are bitwise equal on both sides; there is no mismatch"
    evidence = (Evidence("tokens whose fp32 bits differ", 0, 0, "results/measure.json", known.repeat),)
    return diagnosis(known, Verdict("none", "both", None, None, 0.99, statement), findings, evidence)


def _floor(known: Known, findings: list[Finding]) -> Diagnosis:
    statement = (
        f"mean |d| {known.measure['mean_abs']:.3g}, p99 {known.measure['p99']:.3g} and max "
        f"{known.measure['max_abs']:.3g} are within what a side shows against itself"
    )
    evidence = (
        Evidence(
            "mean |d| against the floor", known.measure["mean_abs"], known.floor["mean_abs"], "results/floor.json"
        ),
    )
    return diagnosis(known, Verdict("none", "both", None, None, 0.9, statement), findings, evidence)


def _fault(known: Known, leading: list[Finding], findings: list[Finding]) -> Diagnosis:
    first = leading[0]
    share = share_of(first, known)
    evidence = list(first.evidence)
    confidence = first.belief
    proof = toggle_evidence(known, first.side)
    if proof is not None:
        evidence.append(proof)
        confidence = min(0.99, confidence + 0.02)
    elif known.toggles and first.rank > WEIGHTS:
        confidence -= 0.1
    distance = distance_evidence(known, first.side)
    if distance is not None:
        evidence.append(distance)
    statement = first.statement
    if 0 < share < 0.999 and proof is not None:
        statement += f" ({share:.0%} of mean d squared goes away without it)"
    class_ = _config_class(first, known)
    cause, component = first.cause, first.component
    if class_ == "framework-config" and cause is None:
        argument = _moving_argument(known, first.side)
        if argument is not None:
            cause, component = argument_cause(argument), argument
    verdict = Verdict(class_, first.side, cause, component, round(confidence, 3), statement)
    return diagnosis(known, verdict, [*leading, *(f for f in findings if f not in leading)], tuple(evidence))


def _moving_argument(known: Known, side: str) -> str | None:
    """The one argument without which the side does not differ; None where it was more than one, or no argument."""
    for t in known.toggles:
        if t["side"] == side and t["kind"] == "args" and has_moved(t):
            names = str(t["removed"]).removeprefix("args ").split(", ")
            return names[0] if len(names) == 1 else None
    return None


def _config_class(finding: Finding, known: Known) -> str:
    """A function that changed with an argument of the run is a configuration; with a module it is an implementation."""
    if finding.class_ not in ("framework-config", "framework-implementation"):
        return finding.class_
    moved = [t["kind"] for t in known.toggles if t["side"] == finding.side and has_moved(t)]
    if moved and all(kind in ("args", "env", "args+env", "env+args") for kind in moved):
        return "framework-config"
    if moved and all(kind == "modules" for kind in moved):
        return "framework-implementation"
    return finding.class_


def _side(known: Known, far: dict[str, Distance], moved: list[dict[str, Any]], findings: list[Finding]) -> Diagnosis:
    """A side that is off although no operator of it was seen to be."""
    evidence: list[Evidence] = []
    sides = {t["side"] for t in moved} or set(far) or set(known.reruns)
    side = next(iter(sides)) if len(sides) == 1 else "both"
    for one in sorted(sides):
        for found in (toggle_evidence(known, one), distance_evidence(known, one)):
            if found is not None:
                evidence.append(found)
    component, cause, confidence = None, None, 0.75
    class_ = "framework-implementation"
    if moved:
        component = moved[0]["removed"]
        confidence = 0.85
        if moved[0]["kind"] in ("args", "env"):
            class_ = "framework-config"
            argument = _moving_argument(known, side)
            if argument is not None:
                component, cause = argument, argument_cause(argument)
    elif known.reruns and not far:
        cause, confidence = ("dropout-active" if side == "train" else "sampler-race"), 0.6
    column = far[side].column if side in far else ""
    where = f" in {column}" if column else ""
    statement = f"the {side} side computes something else than the checkpoint defines{where}"
    if component:
        statement += f"; without {component} it does not"
    if known.reruns:
        statement += f"; the {' and '.join(known.reruns)} side gives other numbers when nothing changes"
        evidence.append(Evidence("tokens that differ on a rerun of the same task", None, 0, "results/floor.json"))
    verdict = Verdict(class_, side, cause, component, confidence, statement)
    return diagnosis(known, verdict, findings, tuple(evidence))


def _rounding(judged: int, off: int) -> str:
    """What is known of rounding, no more: operators that were held against fp64, else distances alone."""
    if not judged:
        return "both sides are as far from the checkpoint in fp32 as its own dtype costs; no operator was looked into"
    if off:
        return (
            f"{judged - off} of {judged} operators seen are within rounding of their fp64 reference, and the others "
            f"account for less than {MATTERS:.0%} of mean d squared"
        )
    return f"all {judged} operators seen are within rounding of their fp64 reference on both sides"


def _operators(known: Known, findings: list[Finding]) -> Diagnosis:
    """No fault was found: rounding, as far as everything that computes was seen to be within it."""
    judged, off, open_ = counts(known.operators)
    evidence = []
    if judged:
        claim = f"operators off their fp64 reference on their own inputs, of {judged}"
        evidence.append(Evidence(claim, off, 0, "results/operators.json", known.repeat))
    evidence += [e for side in ("rollout", "train") if (e := distance_evidence(known, side)) is not None]
    whole = judged > 0 and not known.skipped and open_ <= 0.1 * judged
    ratios = [d.ratio for d in known.distances.values()]
    if not judged and not ratios:
        text = "nothing but the log-probabilities is known: rounding and a fault can't be told apart"
        return diagnosis(known, Verdict("undetermined", "unknown", None, None, 0.5, text), findings, tuple(evidence))
    confidence = 0.95 if whole else 0.85 if judged and ratios else 0.7
    leader = first_divergence(known.operators)
    flips = known.routing
    if flips is not None and flips.leads:
        statement = (
            f"experts differ on {flips.flipped} of {flips.tokens} tokens, which hold {flips.share:.0%} of mean d "
            f"squared; {_rounding(judged, off)}: near ties of the router flip"
        )
        evidence.insert(0, Evidence("share of mean d squared on tokens with other experts", flips.share, 0.5,
                                    "results/measure.json"))  # fmt: skip
        place = f"layers.{flips.first_layer}.mlp.router" if flips.first_layer is not None else "router"
        verdict = Verdict("routing", "both", "router-near-ties", place, confidence, statement)
        return diagnosis(known, verdict, findings, tuple(evidence))
    component = largest(known.budget) or leader
    said = f"; {leader} is the first to differ" if leader else ""
    statement = f"{_rounding(judged, off)}{said}"
    proof = _replaced(known)
    if proof is not None:
        evidence.insert(0, proof)
        left = float(proof.value)
        statement += f"; with all operators aligned {left:.1%} of mean d squared is left"
        if left > LEFT and not known.own:
            words = f"{statement}: something that no operator explains"
            verdict = Verdict("undetermined", "unknown", None, component, 0.6, words)
            return diagnosis(known, verdict, findings, tuple(evidence))
        if left > LEFT:
            statement += f", since modules of the {' and '.join(known.own)} side keep what they replace"
            confidence = min(confidence, 0.75)
        else:
            confidence = 0.98
    smallest = (known.sufficient or {}).get("ops")
    if smallest:
        statement += f"; {', '.join(smallest)} aligned on both sides give {known.sufficient_words}"
    cause = rounding_cause(component)
    verdict = Verdict("operator", "both", cause, component, confidence, statement)
    return diagnosis(known, verdict, findings, tuple(evidence))

"""Findings from `logdiff-operators/1`: operators that compute another function, and inputs that are wrong."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

from logdiff.localize.finding import INPUTS, OPERATOR, PROCESSING, Finding
from logdiff.localize.places import component, split
from logdiff.verdict.records import Evidence

SOURCE = "results/operators.json"


def operator_findings(
    report: dict[str, Any],
    classes: dict[str, str],
    repeat: str,
    sound: frozenset[str] = frozenset(),
    temperature: float = 1.0,
) -> list[Finding]:
    """Operators that are not within rounding of what the checkpoint defines.

    Args:
        report: `logdiff-operators/1`.
        classes: cause -> class of the catalogue.
        repeat: command that checks again.
        sound: sides whose every tensor has the checkpoint's checksum: an operator that computes as if it had other
            weights is then an implementation that reads others, or changes them on the way.
        temperature: of the run: logits that are scaled by it, or by its inverse, are no other head.

    Checks of one kind of operator in several layers or phases are one finding if the same variant explains them.
    """
    groups: dict[tuple[str, str, str | None], list[dict[str, Any]]] = defaultdict(list)
    for check in report.get("checks", []):
        if check.get("ok") is False:
            best = _fitting(check)
            groups[(check["side"], check["operator"], best["variant"] if best else None)].append(check)
    found = [
        _swapped(_tempered(_finding(side, checks, classes, repeat, report, sound), checks, temperature), checks)
        for (side, _, _), checks in groups.items()
    ]
    return sorted(found, key=lambda f: (f.rank, -f.belief))


def _swapped(finding: Finding, checks: list[dict[str, Any]]) -> Finding:
    """Gate and up of one layer that both use other tensors of the model: each uses the other's."""
    parts: dict[int | None, set[str]] = defaultdict(set)
    for check in checks:
        best = _fitting(check)
        if best is not None and best["variant"] == "weights-of-other":
            layer, part = split(check["boundary"])
            parts[layer].add(part)
    if not any({"gate", "up"} <= names or {"shared_gate", "shared_up"} <= names for names in parts.values()):
        return finding
    others = tuple(dict.fromkeys((finding.cause or "weights-changed", *finding.others)))
    return replace(finding, cause="gate-up-swapped", others=others)


def _tempered(finding: Finding, checks: list[dict[str, Any]], temperature: float) -> Finding:
    """Logits scaled by the run's temperature: it is left out, or applied a second time."""
    best = _fitting(checks[0])
    factor = (best or {}).get("parameters", {}).get("factor")
    if checks[0]["operator"] != "lm_head" or not isinstance(factor, (int, float)) or temperature == 1.0:
        return finding
    if abs(factor / temperature - 1) < 0.01:
        cause = "temperature-missing-train" if finding.side == "train" else "temperature-missing-rollout-raw-logprobs"
    elif abs(factor * temperature - 1) < 0.01:
        cause = "temperature-twice"
    else:
        return finding
    others = tuple(dict.fromkeys(("temperature-differs", finding.cause or "logits-scale", *finding.others)))
    return replace(finding, class_="sampling-processing", cause=cause, rank=PROCESSING, others=others)


def input_findings(report: dict[str, Any], classes: dict[str, str], repeat: str) -> list[Finding]:
    """Inputs of a side that are not what the sequences, the architecture or the cache say."""
    groups: dict[tuple[str, str, str | None], list[dict[str, Any]]] = defaultdict(list)
    for entry in report.get("inputs", []):
        if entry.get("ok") is False:
            groups[(entry["side"], entry["what"], entry.get("cause"))].append(entry)
    found = []
    for (side, what, cause), entries in groups.items():
        first = entries[0]
        others = (cause,) if cause else ()
        cause = "ids-differ" if what == "ids" else cause or _INPUT_CAUSES.get(what)
        if what == "ids":
            others = tuple(c for c in (*others, "template-differs", "retokenised") if c != cause)
        phases = _phases(entries)
        evidence = tuple(
            Evidence(f"{side}, {e['phase']}: {e['detail']}", e.get("rows_off"), 0, SOURCE, repeat) for e in entries[:3]
        )
        where = [e["boundary"] for e in entries if e.get("boundary")]
        place = component(where) if where else _INPUT_PLACES.get(what, what)
        kind = "data" if what == "ids" else classes.get(cause or "", "framework-implementation")
        statement = f"the {side} side ({phases}) was fed other {_INPUT_WORDS.get(what, what)}: {first['detail']}"
        found.append(Finding(kind, cause, side, place, 0.95, INPUTS, statement, evidence, others))
    return found


_INPUT_CAUSES = {"ids": "ids-differ", "positions": "position-offset", "cache": "kv-cache-corrupt"}
_INPUT_PLACES = {"ids": "input_ids", "positions": "positions", "cache": "kv_cache", "edge": "inputs", "rows": "rows"}
_INPUT_WORDS = {"ids": "token ids", "positions": "positions", "cache": "keys and values", "edge": "inputs"}
_ROUNDING_CAUSES = {
    "norm": "norm-rounding", "attention": "attention-rounding", "linear": "linear-rounding", "rope": "rope-rounding",
    "activation": "activation-rounding", "lm_head": "head-rounding", "experts": "linear-rounding",
    "router": "router-dtype",
}  # fmt: skip
_COARSE = 8.0
"""Times the unit roundoff of the dtype: an unexplained error up to this is a coarser implementation, no other function.
"""
_UNIT = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24}


def _fitting(check: dict[str, Any]) -> dict[str, Any] | None:
    fits: list[dict[str, Any]] = [v for v in check.get("variants", []) if v.get("fits")]
    return fits[0] if fits else None


def _finding(
    side: str,
    checks: list[dict[str, Any]],
    classes: dict[str, str],
    repeat: str,
    report: dict[str, Any],
    sound: frozenset[str],
) -> Finding:
    checks = sorted(checks, key=lambda c: -(c.get("ratio") or 0.0))
    worst = checks[0]
    best = _fitting(worst)
    operator = worst["operator"]
    others = [v["cause"] for v in worst.get("variants", []) if v.get("cause") and v is not best]
    cause = best.get("cause") if best else None
    class_ = classes.get(cause or "", "sampling-processing" if operator == "logprob" else "framework-implementation")
    if best is None and operator == "logprob":
        cause = "logprob-not-normalised"  # of the token's own logits, and no other token's, temperature's or cut's
        others.append("truncation-renormalised")
    if class_ == "weights" and side in sound and operator != "attention":
        class_ = "framework-implementation"
    if best is None and (worst.get("error") or 0.0) <= _COARSE * _UNIT.get(str(report.get("dtype")), 0.0):
        cause = _ROUNDING_CAUSES.get(operator, "operator-rounding")
        class_ = classes.get(cause, "operator")
    place = component([c["boundary"] for c in checks])
    phases = _phases(checks)
    everywhere = _phase_note(side, checks, report)
    said = best["statement"] if best else f"it is off by {worst['error']:.3g} of its size, and no known variant fits"
    statement = (
        f"{place} of the {side} side ({phases}{everywhere}) does not compute what the checkpoint defines: {said}"
    )
    evidence = [
        Evidence(
            f"{side}, {c['phase']}, {c['boundary']}: output against the fp64 reference on its own inputs",
            c.get("error"), c.get("clean_error"), SOURCE, repeat,
        )
        for c in checks[:3]
    ]  # fmt: skip
    if best is not None:
        evidence.append(
            Evidence(f"{best['statement']}: regression on this variant", best.get("beta"), 1.0, SOURCE, repeat)
        )
    belief = 0.97 if best else 0.88
    rank = PROCESSING if operator == "logprob" else OPERATOR
    return Finding(class_, cause, side, place, belief, rank, statement, tuple(evidence), tuple(dict.fromkeys(others)))


def _phases(entries: list[dict[str, Any]]) -> str:
    return ", ".join(dict.fromkeys(e["phase"] for e in entries))


def _phase_note(side: str, checks: list[dict[str, Any]], report: dict[str, Any]) -> str:
    """ ", and right in prefill" where the same boundaries of the other phase hold."""
    off = {c["phase"] for c in checks}
    names = {c["boundary"] for c in checks}
    right = {
        c["phase"]
        for c in report.get("checks", [])
        if c["side"] == side and c["boundary"] in names and c.get("ok") is True
    } - off
    return f"; right in {', '.join(sorted(right))}" if right else ""

"""From everything that was found out on live engines to a verdict. Pure: starts nothing, reads nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from logdiff.localize.distance import Distance
from logdiff.localize.finding import CONFIG, DATA, WEIGHTS, Finding
from logdiff.localize.routing import Routing
from logdiff.verdict.records import BudgetShare, Candidate, Diagnosis, Evidence, Excluded, NextExperiment, Verdict

MATTERS = 0.2
"""Share of mean d squared from which on a fault, not rounding, is what a reader must hear first."""

CERTAIN = 3.5
"""Standard errors by which a toggle must lower d squared before it counts as moved."""

SUSPECT = 1.35
"""A side this many times as far off as its dtype costs, and as the other side, is worth a restart."""


@dataclass(slots=True)
class Known:
    """What a live diagnosis found out.

    Args:
        measure: block of decode_train; floor: of `logdiff-measure/1`; pairs: the triangle.
        findings: faults, in any order.
        distances: column -> distance from the checkpoint.
        toggles: results of `Toggle.as_dict` with `side`, `kind`, `removed`, `share`.
        toggle_distances: "side" -> distance of the plain side's first column.
        operators: `logdiff-operators/1`, empty where nothing was checked.
        routing: expert choices, None for a dense model.
        skipped: [(what, why)] of what was not looked at.
        reruns: sides whose numbers change when nothing does.
        same_bits: "side/phase" -> whether a captured pass repeated the measured bits.
        budget, sufficient: shares by replaced operators and the smallest set that is enough, where measured.
        repeat: command that does all of it again.
    """

    measure: dict[str, Any]
    floor: dict[str, Any]
    pairs: dict[str, Any]
    findings: list[Finding] = field(default_factory=list)
    distances: dict[str, Distance] = field(default_factory=dict)
    toggles: list[dict[str, Any]] = field(default_factory=list)
    operators: dict[str, Any] = field(default_factory=dict)
    routing: Routing | None = None
    skipped: list[tuple[str, str]] = field(default_factory=list)
    reruns: list[str] = field(default_factory=list)
    same_bits: dict[str, bool] = field(default_factory=dict)
    budget: list[BudgetShare] = field(default_factory=list)
    sufficient: dict[str, Any] | None = None
    repeat: str = ""

    @property
    def sufficient_words(self) -> str:
        """What the smallest set reaches, for a sentence."""
        return {"zero": "exactly 0"}.get(str((self.sufficient or {}).get("reaches")), "what all of them give")


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
    if within_floor(known):
        return _floor(known, findings)
    return _operators(known, findings)


def share_of(finding: Finding, known: Known) -> float:
    """Share of mean d squared that a finding can account for, 0 to 1."""
    toggled = [t["share"] for t in known.toggles if t["side"] == finding.side]
    if toggled:
        return max(0.0, min(1.0, float(max(toggled))))
    sides = [finding.side] if finding.side in _COLUMNS else list(_COLUMNS)
    ratios = [known.distances[c].ratio for side in sides for c in _COLUMNS[side] if c in known.distances]
    if not ratios:
        return 1.0 if finding.belief >= 0.9 else 0.5
    worst = max(ratios)
    return 1.0 - 1.0 / worst**2 if worst > 1.0 else 0.0


def has_moved(toggle: dict[str, Any]) -> bool:
    """Whether leaving something out made the mismatch smaller, beyond chance and by an amount that matters."""
    return bool(toggle["share"] >= MATTERS and toggle["z"] >= CERTAIN)


def suspects(known: Known) -> list[str]:
    """Sides that are worth a restart although no operator of them is known to be off."""
    worst = {
        side: max((known.distances[c].ratio for c in columns if c in known.distances), default=0.0)
        for side, columns in _COLUMNS.items()
    }
    return [
        side
        for side, ratio in worst.items()
        if ratio > SUSPECT and all(ratio > SUSPECT * other for name, other in worst.items() if name != side)
    ]


def far_sides(known: Known) -> dict[str, Distance]:
    """Sides that are further from the checkpoint than their dtype explains: side -> its furthest column."""
    found = {}
    for side, columns in _COLUMNS.items():
        off = [known.distances[c] for c in columns if c in known.distances and known.distances[c].far]
        if off:
            found[side] = max(off, key=lambda d: d.ratio)
    return found


def within_floor(known: Known) -> bool:
    """mean_abs, p99 and max_abs are all at most those of the floor."""
    names = ("mean_abs", "p99", "max_abs")
    if not all(isinstance(known.floor.get(n), (int, float)) for n in names):
        return False
    return all(known.measure[n] <= known.floor[n] for n in names)


def merged(findings: list[Finding]) -> list[Finding]:
    """Without what only follows from a fault nearer to the root: an operator whose weight or configuration differs."""
    roots = [f for f in findings if f.rank <= WEIGHTS and f.rank != DATA]
    causes = {(f.side, f.cause) for f in findings if f.rank == CONFIG}
    kept = []
    for finding in findings:
        parts = (finding.component or "").rsplit(".", 1)[-1]
        follows = any(
            root is not finding and root.side == finding.side and parts and parts in (root.component or "")
            for root in roots
        ) or (finding.rank > CONFIG and finding.cause is not None and (finding.side, finding.cause) in causes)
        if not follows:
            kept.append(finding)
    return sorted(kept, key=lambda f: (f.rank, -f.belief))


_COLUMNS = {"rollout": ("decode", "prefill"), "train": ("train",)}


def _equal(known: Known, findings: list[Finding]) -> Diagnosis:
    real = [f for f in findings if f.rank <= WEIGHTS]
    if real:
        return _fault(known, real, findings)
    tokens = known.measure["tokens"]
    statement = f"all {tokens} tokens are bitwise equal on both sides; there is no mismatch"
    evidence = (Evidence("tokens whose fp32 bits differ", 0, 0, "results/measure.json", known.repeat),)
    return _diagnosis(known, Verdict("none", "both", None, None, 0.99, statement), findings, evidence)


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
    return _diagnosis(known, Verdict("none", "both", None, None, 0.9, statement), findings, evidence)


def _fault(known: Known, leading: list[Finding], findings: list[Finding]) -> Diagnosis:
    first = leading[0]
    share = share_of(first, known)
    evidence = list(first.evidence)
    confidence = first.belief
    proof = _toggle_evidence(known, first.side)
    if proof is not None:
        evidence.append(proof)
        confidence = min(0.99, confidence + 0.02)
    elif known.toggles and first.rank > WEIGHTS:
        confidence -= 0.1
    distance = _distance_evidence(known, first.side)
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
    return _diagnosis(known, verdict, [*leading, *(f for f in findings if f not in leading)], tuple(evidence))


ARGUMENT_CAUSES = {
    "kv_cache_dtype": "kv-cache-dtype",
    "quantization": "quantised-one-side",
    "quantization_config": "quantised-one-side",
    "dtype": "dtype-differs",
    "attn_implementation": "attention-implementation-drops",
    "attention_backend": "attention-implementation-drops",
    "compilation_config": "compiled-numerics",
}
"""Argument of an engine -> cause, where no operator says more."""


def argument_cause(argument: str) -> str | None:
    """The cause that an argument stands for; keys of a model's configuration through `localize.configuration`."""
    from logdiff.localize.configuration import cause_of

    if argument in ARGUMENT_CAUSES:
        return ARGUMENT_CAUSES[argument]
    found = cause_of(argument, [])
    return None if found == "model-config-differs" else found


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
        for found in (_toggle_evidence(known, one), _distance_evidence(known, one)):
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
    return _diagnosis(known, verdict, findings, tuple(evidence))


def _operators(known: Known, findings: list[Finding]) -> Diagnosis:
    """No fault was found: rounding, as far as everything that computes was seen to be within it."""
    judged, off, open_ = _counts(known.operators)
    evidence = [
        Evidence(
            "operators off their fp64 reference on their own inputs", off, 0, "results/operators.json", known.repeat
        )
    ]
    evidence += [e for side in ("rollout", "train") if (e := _distance_evidence(known, side)) is not None]
    whole = judged > 0 and not known.skipped and open_ <= 0.1 * judged
    ratios = [d.ratio for d in known.distances.values()]
    if not judged and not ratios:
        text = "nothing but the log-probabilities is known: rounding and a fault can't be told apart"
        return _diagnosis(known, Verdict("undetermined", "unknown", None, None, 0.5, text), findings, tuple(evidence))
    confidence = 0.95 if whole else 0.85 if judged and ratios else 0.7
    leader = first_divergence(known.operators)
    flips = known.routing
    if flips is not None and flips.leads:
        statement = (
            f"experts differ on {flips.flipped} of {flips.tokens} tokens, which hold {flips.share:.0%} of mean d "
            f"squared; every operator is within rounding, so near ties of the router flip"
        )
        evidence.insert(0, Evidence("share of mean d squared on tokens with other experts", flips.share, 0.5,
                                    "results/measure.json"))  # fmt: skip
        place = f"layers.{flips.first_layer}.mlp.router" if flips.first_layer is not None else "router"
        verdict = Verdict("routing", "both", "router-near-ties", place, confidence, statement)
        return _diagnosis(known, verdict, findings, tuple(evidence))
    component = _largest(known.budget) or leader
    said = f"; {leader} is the first to differ" if leader else ""
    statement = f"all {judged} operators seen are within rounding of their fp64 reference on both sides{said}"
    if not judged:
        statement = "both sides are as far from the checkpoint in fp32 as its own dtype costs: rounding explains it"
    proof = _replaced(known)
    if proof is not None:
        evidence.insert(0, proof)
        left = float(proof.value)
        statement += f"; with all operators aligned {left:.1%} of mean d squared is left"
        if left > LEFT:
            words = f"{statement}: something that no operator explains"
            verdict = Verdict("undetermined", "unknown", None, component, 0.6, words)
            return _diagnosis(known, verdict, findings, tuple(evidence))
        confidence = 0.98
    smallest = (known.sufficient or {}).get("ops")
    if smallest:
        statement += f"; {', '.join(smallest)} aligned on both sides give {known.sufficient_words}"
    cause = rounding_cause(component)
    verdict = Verdict("operator", "both", cause, component, confidence, statement)
    return _diagnosis(known, verdict, findings, tuple(evidence))


LEFT = 0.25
"""Share of mean d squared that may be left with every operator aligned before rounding is no longer the answer."""


def _replaced(known: Known) -> Evidence | None:
    """What is left with all operators replaced: the share called "unexplained"."""
    left = next((b.share for b in known.budget if b.component == "unexplained"), None)
    if left is None:
        return None
    claim = "share of mean d squared that is left with every operator aligned on both sides"
    return Evidence(claim, left, LEFT, "results/budget.json", known.repeat)


_ROUNDING = (
    ("norm", "norm-rounding"), ("rope", "rope-rounding"), ("attention", "attention-rounding"),
    ("act", "activation-rounding"), ("lm_head", "head-rounding"), ("logprob", "head-rounding"),
    ("proj", "linear-rounding"), ("linear", "linear-rounding"), ("swiglu", "activation-rounding"),
    ("moe", "linear-rounding"), ("router", "router-dtype"),
)  # fmt: skip


def rounding_cause(component: str | None) -> str:
    """The cause of the catalogue that belongs to an operator's rounding."""
    return next((cause for part, cause in _ROUNDING if component and part in component), "operator-rounding")


def first_divergence(operators: dict[str, Any]) -> str | None:
    """The first boundary whose bits differ between the sides, as a reader's component."""
    from logdiff.localize.places import component

    for entry in operators.get("divergence", []):
        if entry["pair"] in ("decode-score", "prefill-score") and (entry.get("bits_differ") or 0) > 0:
            return component([entry["boundary"]])
    return None


_NO_OPERATOR = frozenset({"unexplained", "not measured", "several operators together"})


def _largest(budget: list[BudgetShare]) -> str | None:
    named = [b for b in budget if b.component not in _NO_OPERATOR and b.share > 0]
    return max(named, key=lambda b: b.share).component if named else None


def _counts(operators: dict[str, Any]) -> tuple[int, int, int]:
    checks = operators.get("checks", [])
    return (
        sum(1 for c in checks if c.get("ok") is not None),
        sum(1 for c in checks if c.get("ok") is False),
        sum(1 for c in checks if c.get("ok") is None),
    )


def _toggle_evidence(known: Known, side: str) -> Evidence | None:
    for t in known.toggles:
        if t["side"] == side:
            claim = f"mean d squared of the same tokens after {side} was started without {t['removed']}"
            return Evidence(claim, t["after_ms"], t["before_ms"], "captures/toggles", known.repeat)
    return None


def _distance_evidence(known: Known, side: str) -> Evidence | None:
    columns = [known.distances[c] for c in _COLUMNS.get(side, ()) if c in known.distances]
    if not columns:
        return None
    worst = max(columns, key=lambda d: d.ratio)
    claim = (
        f"{worst.column} against the checkpoint in fp32, in units of what the run's dtype costs the checkpoint itself"
    )
    return Evidence(claim, worst.ratio, 2.0, "captures/reference", known.repeat)


def _diagnosis(known: Known, verdict: Verdict, findings: list[Finding], evidence: tuple[Evidence, ...]) -> Diagnosis:
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
            "judged": sum(1 for c in checks if c.get("ok") is not None),
            "off": [c["boundary"] for c in checks if c.get("ok") is False][:20],
            "coverage": known.operators.get("coverage", {}),
        },
        "skipped": [{"what": what, "why": why} for what, why in known.skipped],
        "sufficient": known.sufficient,
        "captures_same_bits": known.same_bits,
    }

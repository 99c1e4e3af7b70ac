"""A verdict from recorded tokens alone: as far as the evidence carries, and no further."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from logdiff.case.batch import PairBatch, PairMeta
from logdiff.measure import Measurement, RunFacts, measure, within_floor
from logdiff.verdict.causes import causes
from logdiff.verdict.experiments import next_experiments
from logdiff.verdict.features import Features
from logdiff.verdict.findings import Board, Finding, evidence
from logdiff.verdict.places import summary
from logdiff.verdict.records import Candidate, Diagnosis, Evidence, Verdict
from logdiff.verdict.rules import experts, facts, identity, recorded, remainder, semantics, structure, time
from logdiff.verdict.table import Collector, Table

if TYPE_CHECKING:
    from logdiff.case import Case

NEEDED = 0.55
"""Belief below which no cause is named the verdict."""
_SHOWN = 8


def diagnose_pairs(
    meta: PairMeta,
    batches: Iterable[PairBatch],
    run_facts: RunFacts | None = None,
    *,
    floor: dict[str, Any] | None = None,
    case: str | None = None,
    source: str = "tokens.parquet",
    repeat: str = "logdiff diagnose PAIRS...",
    sink: Callable[[PairBatch], None] | None = None,
) -> tuple[Diagnosis, Measurement]:
    """Measure and judge a stream of pair evidence in one pass with bounded memory.

    Args:
        meta: header facts.
        batches: the evidence; see `logdiff.measure.measure`.
        run_facts: what a live run knows beside the tokens.
        floor: `floor` block of an earlier measurement of the same tokens.
        case: folder that the verdict names.
        source, repeat: where evidence says that its numbers come from, and the command that gives them again.
        sink: as in `measure`.
    """
    collector = Collector()
    measurement = measure(meta, collector.watch(batches), run_facts, sink=sink)
    if floor:
        measurement = measurement.with_floor(floor)
    return judge(meta, measurement, collector.table(), case=case, source=source, repeat=repeat), measurement


def diagnose_case(
    case: Case | Measurement,
    run_facts: RunFacts | None = None,
    *,
    meta: PairMeta | None = None,
    table: Table | None = None,
    watch: Callable[[Iterable[PairBatch]], Iterable[PairBatch]] = iter,
) -> Diagnosis:
    """The verdict on an open case, whose tokens are read again, or on a measurement with its token table.

    Args:
        case: an open case, or a measurement.
        run_facts: what a live run left beside the tokens.
        meta, table: header facts and token table of a measurement; without a table only its gates and figures count.
        watch: sees each batch pass, for progress.
    """
    if isinstance(case, Measurement):
        return judge(meta or PairMeta(), case, table if table is not None else Collector().table())
    floor = case.read_result("measure").get("floor") if case.has_result("measure") else None
    found, _ = diagnose_pairs(
        case.meta,
        watch(case.batches()),
        run_facts,
        floor=floor,
        case=str(case.path),
        repeat=f"logdiff diagnose {case.path}",
    )
    return found


def judge(
    meta: PairMeta,
    measurement: Measurement,
    table: Table,
    *,
    case: str | None = None,
    source: str = "tokens.parquet",
    repeat: str = "logdiff diagnose PAIRS...",
) -> Diagnosis:
    """The verdict over a measurement and its token table."""
    f = Features(meta, measurement, table, source, repeat)
    why = identity.broken(f)
    if why is not None:
        return _invalid(f, why, case)
    board = Board()
    identity.identity(f, board)
    if not board.findings:
        if within_floor(measurement.measure, measurement.floor) and not _unsound(f):
            return _none(f, case)
        if measurement.measure["tokens"] == 0 or table.tokens == 0:
            return _invalid(f, "no token to compare", case)
    if table.tokens:
        _apply(f, board)
    if not board.findings:
        board.add(Finding(None, 0.3, 1.0, (), class_="operator", component="layers"))
    return _conclude(f, board, case)


def _unsound(f: Features) -> bool:
    """A failed gate that no cause of the catalogue stands for."""
    return any(g.ok is False for g in f.measurement.gates if g.gate not in ("config", "aligned"))


def _apply(f: Features, board: Board) -> None:
    """All rules, a fault that can be undone first, so that what is left shows the next one."""
    rest = f
    for undo in (semantics.shift, semantics.placeholders):
        left = undo(rest, board)
        if left is not None and left.table.tokens:
            rest = left
    later = Board(excluded=board.excluded)
    if rest.table.tokens > 1:
        _rules(rest, later, board)
    weight = 1.0
    if rest is not f and f.a.sum() > 0:
        weight = float(rest.a.sum() / f.a.sum())
    for finding in later.findings:
        scaled = finding if rest is f else _scaled(finding, min(weight, 1.0))
        board.add(scaled)


def _scaled(finding: Finding, weight: float) -> Finding:
    return Finding(
        finding.cause,
        finding.belief,
        finding.explains * weight,
        finding.evidence,
        finding.class_,
        finding.side,
        finding.component,
    )


def _rules(f: Features, board: Board, known: Board) -> None:
    semantics.constant(f, board)
    recorded.stored_width(f, board)
    recorded.other_token(f, board)
    if not (semantics.temperature(f, board) or semantics.truncation(f, board)) and board.explained < 0.8:
        structure.structure(f, board)
        time.steps(f, board)
        time.policy(f, board)
        time.ranks(f, board)
        experts.routing(f, board)
    if not any(k.belief > 0.8 for k in known.findings):
        remainder.triangle(f, board)
    remainder.head_precision(f, board)
    facts.header(f, board)
    if known.explained < 0.55:
        remainder.rounding_or_not(f, board)


def _strength(finding: Finding) -> float:
    return float(finding.belief * min(1.0, finding.explains) ** 0.5)


def _conclude(f: Features, board: Board, case: str | None) -> Diagnosis:
    ranked = sorted(board.findings, key=_strength, reverse=True)
    lead = ranked[0]
    rival = next((g for g in ranked if g.class_ != lead.class_), None)
    unsure = lead.belief < NEEDED or (
        rival is not None and lead.belief < 0.7 and _strength(rival) > _strength(lead) - 0.12
    )
    candidates = tuple(
        Candidate(g.cause, g.class_, round(_strength(g), 3), tuple(e.claim for e in g.evidence), g.side, g.component)
        for g in ranked[:_SHOWN]
    )
    class_ = "undetermined" if unsure else lead.class_
    next_ = next_experiments(f, class_, candidates)
    if unsure:
        verdict = Verdict(
            "undetermined", confidence=round(min(0.5, lead.belief), 3), statement=_unsure(f, ranked, next_)
        )
    else:
        verdict = Verdict(lead.class_, lead.side, lead.cause, lead.component, round(lead.belief, 3), _statement(lead))
    standing = {g.cause for g in ranked if g.cause is not None}
    excluded = tuple(e for e in board.excluded if e.cause not in standing)
    return _diagnosis(f, verdict, case, candidates, _evidence(f, ranked), excluded, next_)


def _evidence(f: Features, ranked: list[Finding]) -> tuple[Evidence, ...]:
    m = f.measurement.measure
    head = evidence(
        f,
        f"{m['mismatched_tokens']} of {m['tokens']} tokens differ; mean abs d, nats",
        m["mean_abs"],
        f.measurement.floor.get("mean_abs"),
    )
    found = {head.claim: head}
    for finding in ranked[:4]:
        for item in finding.evidence:
            found.setdefault(item.claim, item)
    return tuple(found.values())


def _statement(lead: Finding) -> str:
    side = {"rollout": " on the rollout side", "train": " on the train side", "both": "", "unknown": ""}[lead.side]
    if lead.cause is None:
        return f"The difference is of class {lead.class_}{side}; the evidence names no single cause."
    what = causes()[lead.cause].does
    return f"{lead.cause}{side} ({lead.class_}): {what}"


def _unsure(f: Features, ranked: list[Finding], next_: tuple[Any, ...]) -> str:
    names = list(dict.fromkeys(g.cause or g.class_ for g in ranked[:3]))
    which = " and ".join(names) if len(names) < 3 else f"{names[0]}, {names[1]} and {names[2]}"
    then = f" Next: {next_[0].what}" if next_ else ""
    if f.table.tokens < remainder.FEWEST:
        return f"{f.table.tokens} compared tokens are too few to separate {which}.{then}"
    return f"The recorded tokens cannot separate {which}.{then}"


def _none(f: Features, case: str | None) -> Diagnosis:
    m = f.measurement.measure
    bypass = f.gate("bypass")
    equal = m["mismatched_tokens"] == 0
    items: tuple[Evidence, ...]
    known = bypass is not None and bypass.ok is True
    if equal:
        statement = f"All {m['tokens']} compared tokens are equal to the bit."
        if not known:
            statement += " Nothing in the input shows that the two columns were computed separately."
        items = (evidence(f, "tokens whose fp32 bits differ", 0, 0),)
    else:
        statement = f"The difference of {m['tokens']} tokens lies within the measured floor."
        items = tuple(
            evidence(f, f"{name}, against the floor", m[name], f.measurement.floor[name])
            for name in ("mean_abs", "p99", "max_abs")
        )
    if bypass is not None and not known:
        items += (evidence(f, bypass.detail),)
    confidence = 0.97 if known or not equal else 0.85
    return _diagnosis(f, Verdict("none", confidence=confidence, statement=statement), case, (), items, (), ())


def _invalid(f: Features, why: str, case: str | None) -> Diagnosis:
    failed = tuple(evidence(f, f"gate {g.gate} fails: {g.detail}") for g in f.measurement.gates if g.ok is False)
    candidates: tuple[Candidate, ...] = ()
    if f.failed("finite"):
        claims = tuple(e.claim for e in failed if "finite" in e.claim)
        candidates = (
            Candidate("nan-kernel", "operator", 0.4, claims),
            Candidate("sampler-race", "operator", 0.2, claims),
        )
    verdict = Verdict("invalid-evidence", confidence=0.97, statement=f"The evidence proves nothing: {why}.")
    return _diagnosis(
        f, verdict, case, candidates, failed or (evidence(f, why),), (), next_experiments(f, "invalid-evidence", ())
    )


def _diagnosis(
    f: Features,
    verdict: Verdict,
    case: str | None,
    candidates: tuple[Candidate, ...],
    items: tuple[Evidence, ...],
    excluded: tuple[Any, ...],
    next_: tuple[Any, ...],
) -> Diagnosis:
    extra = {
        "gates": [g.as_dict() for g in f.measurement.gates],
        "structure": summary(f.places) if f.table.tokens else [],
        "tokens_judged": {"tokens": f.table.tokens, "samples": f.table.samples, "groups_kept": f.table.kept_share},
    }
    return Diagnosis(
        verdict=verdict,
        candidates=candidates,
        measure=f.measurement.measure,
        floor=f.measurement.floor,
        evidence=items,
        excluded=excluded,
        next_experiments=next_,
        case=case,
        extra=extra,
    )

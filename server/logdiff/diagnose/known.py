"""What a live diagnosis found out, and what follows from it without weighing: shares, suspects, what has moved."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from logdiff.localize.distance import Distance
from logdiff.localize.finding import CONFIG, DATA, WEIGHTS, Finding
from logdiff.localize.routing import Routing
from logdiff.verdict.records import BudgetShare

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
        operators: `logdiff-operators/1`, empty where nothing was checked.
        routing: expert choices, None for a dense model.
        skipped: [(what, why)] of what was not looked at.
        reruns: sides whose numbers change when nothing does.
        same_bits: "side/phase" -> whether a captured pass repeated the measured bits.
        budget, sufficient: shares by replaced operators and the smallest set that is enough, where measured.
        repeat: command that does all of it again.
        own: sides with modules of their own, which may stand in the way of aligned operators.
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
    own: list[str] = field(default_factory=list)

    @property
    def sufficient_words(self) -> str:
        """What the smallest set reaches, for a sentence."""
        return {"zero": "exactly 0"}.get(str((self.sufficient or {}).get("reaches")), "what all of them give")


def share_of(finding: Finding, known: Known) -> float:
    """Share of mean d squared that a finding can account for, 0 to 1."""
    toggled = [t["share"] for t in known.toggles if t["side"] == finding.side]
    if toggled:
        return max(0.0, min(1.0, float(max(toggled))))
    sides = [finding.side] if finding.side in COLUMNS else list(COLUMNS)
    ratios = [known.distances[c].ratio for side in sides for c in COLUMNS[side] if c in known.distances]
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
        for side, columns in COLUMNS.items()
    }
    return [
        side
        for side, ratio in worst.items()
        if ratio > SUSPECT and all(ratio > SUSPECT * other for name, other in worst.items() if name != side)
    ]


def far_sides(known: Known) -> dict[str, Distance]:
    """Sides that are further from the checkpoint than their dtype explains: side -> its furthest column."""
    found = {}
    for side, columns in COLUMNS.items():
        off = [known.distances[c] for c in columns if c in known.distances and known.distances[c].far]
        if off:
            found[side] = max(off, key=lambda d: d.ratio)
    return found


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


COLUMNS = {"rollout": ("decode", "prefill"), "train": ("train",)}

"""Plain records of `logdiff-verdict/1`: the answer, what speaks for it, what was ruled out, what to do next."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

CLASSES = (
    *("none", "operator", "framework-config", "framework-implementation", "weights"),
    *("routing", "sampling-processing", "data", "undetermined", "invalid-evidence"),
)
PATHS = ("operator", "framework", "none", "undetermined", "invalid")
SIDES = ("rollout", "train", "both", "unknown")

_PATH_OF = {"none": "none", "operator": "operator", "undetermined": "undetermined", "invalid-evidence": "invalid"}


def path_of(class_: str) -> str:
    """The coarse answer that belongs to a class; every cause that is no operator lies on the framework path."""
    return _PATH_OF.get(class_, "framework")


def exit_code(class_: str) -> int:
    """0 for `none`, 2 for `invalid-evidence`, else 1."""
    return {"none": 0, "invalid-evidence": 2}.get(class_, 1)


@dataclass(frozen=True, slots=True)
class Evidence:
    """One measured fact that a verdict rests on.

    Args:
        claim: what it says, one sentence.
        value: the number (or short text) that was measured.
        threshold: what it was held against; None where the claim is no comparison.
        source: file or probe that the number comes from.
        repeat: command that measures it again.
    """

    claim: str
    value: Any = None
    threshold: Any = None
    source: str = ""
    repeat: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Fields as in `logdiff-verdict/1`."""
        return {
            "claim": self.claim,
            "value": self.value,
            "threshold": self.threshold,
            "source": self.source,
            "repeat": self.repeat,
        }


@dataclass(frozen=True, slots=True)
class Candidate:
    """A cause that the evidence leaves standing.

    Args:
        cause: id of the catalogue; None where a class is supported and no single cause is.
        class_: its class.
        score: share of belief, 0 to 1.
        evidence: claims that speak for it.
        side: the side at fault, where the evidence says.
        component: boundary or configuration key, where the evidence says.
    """

    cause: str | None
    class_: str
    score: float
    evidence: tuple[str, ...] = ()
    side: str = "unknown"
    component: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Fields as in `logdiff-verdict/1`."""
        return {
            "cause": self.cause,
            "class": self.class_,
            "score": self.score,
            "evidence": list(self.evidence),
            "side": self.side,
            "component": self.component,
        }


@dataclass(frozen=True, slots=True)
class Excluded:
    """A cause that is ruled out, and by which fact."""

    cause: str
    by: str

    def as_dict(self) -> dict[str, Any]:
        """Fields as in `logdiff-verdict/1`."""
        return {"cause": self.cause, "by": self.by}


@dataclass(frozen=True, slots=True)
class BudgetShare:
    """Share of the residual that a component explains, with its interval; "unexplained" is one of them."""

    component: str
    share: float
    low: float
    high: float

    def as_dict(self) -> dict[str, Any]:
        """Fields as in `logdiff-verdict/1`."""
        return {"component": self.component, "share": self.share, "low": self.low, "high": self.high}


@dataclass(frozen=True, slots=True)
class NextExperiment:
    """An experiment that splits what is left.

    Args:
        what: what to do and what each outcome would mean.
        command: how, as a command line.
        splits: the causes or classes that it tells apart.
    """

    what: str
    command: str
    splits: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Fields as in `logdiff-verdict/1`."""
        return {"what": self.what, "command": self.command, "splits": list(self.splits)}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer.

    Args:
        class_: one of CLASSES.
        side: one of SIDES.
        cause: id of the catalogue, None where none fits.
        component: boundary or configuration key, None where the evidence names none.
        confidence: probability that the class is right, 0 to 1.
        statement: one sentence for a reader.
        path: one of PATHS; follows from the class unless given.
    """

    class_: str
    side: str = "unknown"
    cause: str | None = None
    component: str | None = None
    confidence: float = 0.0
    statement: str = ""
    path: str = ""

    def __post_init__(self) -> None:
        if self.class_ not in CLASSES:
            raise ValueError(f"no class {self.class_!r}")
        if self.side not in SIDES:
            raise ValueError(f"no side {self.side!r}")
        if not 0.0 <= self.confidence <= 1.0:
            raise ValueError(f"confidence {self.confidence} is no probability")
        if not self.path:
            object.__setattr__(self, "path", path_of(self.class_))
        if self.path not in PATHS:
            raise ValueError(f"no path {self.path!r}")

    def as_dict(self) -> dict[str, Any]:
        """Fields as in `logdiff-verdict/1`."""
        return {
            "class": self.class_,
            "path": self.path,
            "side": self.side,
            "cause": self.cause,
            "component": self.component,
            "confidence": self.confidence,
            "statement": self.statement,
        }


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`logdiff-verdict/1` as an object.

    Args:
        verdict: the answer.
        candidates: what stands, strongest first.
        measure, floor: the blocks of `logdiff-measure/1` that were judged.
        evidence: what the answer rests on, most telling first.
        excluded: causes that were ruled out.
        budget: shares of the residual, empty where nothing was replaced.
        next_experiments: cheapest splitting experiment first.
        case: folder of the evidence, None where it was not stored.
        extra: further fields of the document (gates, coverage, ...), never one of the contract's.
    """

    verdict: Verdict
    candidates: tuple[Candidate, ...] = ()
    measure: dict[str, Any] = field(default_factory=dict)
    floor: dict[str, Any] = field(default_factory=dict)
    evidence: tuple[Evidence, ...] = ()
    excluded: tuple[Excluded, ...] = ()
    budget: tuple[BudgetShare, ...] = ()
    next_experiments: tuple[NextExperiment, ...] = ()
    case: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """0 for `none`, 2 for `invalid-evidence`, else 1."""
        return exit_code(self.verdict.class_)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready `logdiff-verdict/1`; non-finite numbers are strings."""
        from logdiff.jsonio import plain  # needs numpy, which the names of classes do not

        result: dict[str, Any] = plain(
            {
                "format": "logdiff-verdict/1",
                "case": self.case,
                "verdict": self.verdict.as_dict(),
                "candidates": [c.as_dict() for c in self.candidates],
                "measure": self.measure,
                "floor": self.floor,
                "evidence": [e.as_dict() for e in self.evidence],
                "excluded": [e.as_dict() for e in self.excluded],
                "budget": [b.as_dict() for b in self.budget],
                "next_experiments": [n.as_dict() for n in self.next_experiments],
                **self.extra,
            }
        )
        return result

"""One thing that was found to be wrong, or to differ, on one side."""

from __future__ import annotations

from dataclasses import dataclass, field

from logdiff.verdict.records import Evidence


@dataclass(frozen=True, slots=True)
class Finding:
    """A fact that may be the cause.

    Args:
        class_: class of `logdiff-verdict/1` that it belongs to.
        cause: id of the catalogue; None where none fits.
        side: "rollout", "train", "both" or "unknown".
        component: boundary or configuration key.
        belief: how sure it is that this is so (not that it matters), 0 to 1.
        rank: what is nearer to the root stands first: a changed weight before the operator that reads it.
        statement: one sentence.
        evidence: what it rests on.
        others: further causes that the same fact allows, likeliest first.
    """

    class_: str
    cause: str | None
    side: str
    component: str | None
    belief: float
    rank: int
    statement: str
    evidence: tuple[Evidence, ...] = ()
    others: tuple[str, ...] = field(default=())


DATA, WEIGHTS, CONFIG, INPUTS, OPERATOR, PROCESSING, SIDE = range(7)
"""Ranks: other tokens; other weights; another configuration; other inputs of an operator; an operator that computes
something else; what is made of the logits; a side that is off without a place."""

"""Which operators to replace next: as few passes as tell who matters, what is enough, and how they add up."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from logdiff.localize.budget import MOST_PLAYERS, Pass, Subset, enough, smallest

LIKELY = ("attention", "rope", "add_rms_norm", "moe", "router")
"""Operators whose stock kernels differ between engines as a rule; the others are left stock together at first."""

WHY = {
    "none": "what there is to explain",
    "all": "what is left when every operator is replaced",
    "leave out": "what comes back when these alone are stock",
    "enough": "whether these alone are enough",
    "alone": "what goes when these alone are replaced",
    "combination": "how the operators that matter add up",
    "again": "the same again",
}


def next_design(
    operators: Sequence[str], seen: Mapping[Subset, Pass], floor: Mapping[str, Any] | None = None
) -> tuple[str, Subset] | None:
    """(kind, set of operators to replace on both sides); None where nothing more is to be learned.

    Decided by what was measured alone, so that an interrupted budget goes on with the same designs.

    Args:
        operators: every operator that the models have, in the contract's order.
        seen: passes so far.
        floor: as `enough` takes it.
    """
    for kind, subset in _wanted(operators, seen, floor):
        if subset not in seen:
            return kind, subset
    return None


def _wanted(
    operators: Sequence[str], seen: Mapping[Subset, Pass], floor: Mapping[str, Any] | None
) -> Iterator[tuple[str, Subset]]:
    """Designs in the order of their use. The caller stops at the first that was not seen, and starts over with it."""
    none, full = frozenset[str](), frozenset(operators)
    yield "none", none
    if seen[none].mean_square == 0:
        return
    yield "all", full
    everything = seen[full]
    likely = [op for op in LIKELY if op in full]
    matter: list[str] = []
    for group in ([op for op in operators if op not in likely], *([op] for op in likely)):
        yield from _leave_out(group, full, seen, everything, floor, matter)
    yield from _shrink(operators, matter, seen, floor)
    players = smallest(operators, seen, floor) or frozenset(matter)
    for op in (op for op in operators if op in players):
        yield "alone", frozenset([op])
    if len(players) <= MOST_PLAYERS:
        ordered = [op for op in operators if op in players]
        for size in range(2, len(ordered)):
            for chosen in itertools.combinations(ordered, size):
                yield "combination", frozenset(chosen)


def _leave_out(
    group: Sequence[str],
    full: Subset,
    seen: Mapping[Subset, Pass],
    everything: Pass,
    floor: Mapping[str, Any] | None,
    matter: list[str],
) -> Iterator[tuple[str, Subset]]:
    """Halve a group until what comes back has a name; names go to `matter`."""
    if not group:
        return
    rest = full - frozenset(group)
    yield "leave out", rest
    if enough(seen[rest], everything, floor):
        return
    if len(group) == 1:
        matter.append(group[0])
        return
    half = len(group) // 2
    for part in (group[:half], group[half:]):
        yield from _leave_out(part, full, seen, everything, floor, matter)


def _shrink(
    operators: Sequence[str], matter: Sequence[str], seen: Mapping[Subset, Pass], floor: Mapping[str, Any] | None
) -> Iterator[tuple[str, Subset]]:
    """From those that matter one by one to a smallest set that is enough: it alone, else take parts away."""
    yield "enough", frozenset(matter)
    now = smallest(operators, seen, floor)
    assert now is not None  # all of them are enough by definition
    spare = [op for op in operators if op in now and op not in matter]
    size = len(spare)
    while size:
        for start in range(0, len(spare), size):
            yield "enough", now - frozenset(spare[start : start + size])
        size //= 2

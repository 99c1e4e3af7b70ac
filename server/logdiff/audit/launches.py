"""Several processes of one engine: each is judged by itself, for a process has one value of a setting."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from itertools import islice, product
from typing import Any

from logdiff.audit.settings import Evidence, Launch, Setting, Unread
from logdiff.audit.values import comparable

MOST = 12
"""Combinations of launches that are judged; more are told in `unread`."""


def one_by_one(evidence: Evidence, decides: Callable[[Setting], bool]) -> list[Evidence]:
    """The evidence once for every choice of one launch an engine; itself alone where no engine is started twice.

    Launches in branches are no choice of ours: their settings carry the branch. Those of an engine whose deciding
    settings are the same count once.

    Args:
        evidence: what was read.
        decides: whether a setting can change a finding, so that launches that differ in it are two.

    Returns:
        Evidences that share what is not of one launch, with the first deciding difference of each pair in `apart`.
    """
    groups = _differing(evidence, decides)
    if not groups:
        return [evidence]
    apart = [pair for launches in groups for pair in _pairs(evidence, launches, decides)]
    listed = {launch.number for launches in groups for launch in launches}
    unread = list(evidence.unread)
    total = 1
    for launches in groups:
        total *= len(launches)
    if total > MOST:
        file, _, line = groups[0][-1].where.rpartition(":")
        words = f"{total} combinations of launches: {MOST} of them were judged"
        unread.append(Unread(file or groups[0][-1].where, int(line) if line.isdigit() else None, words))
    found = []
    for chosen in islice(product(*groups), MOST):
        left_out = listed - {launch.number for launch in chosen}
        found.append(
            replace(
                evidence,
                settings=[s for s in evidence.settings if s.launch not in left_out],
                launches=[launch for launch in evidence.launches if launch.number not in left_out],
                unread=unread,
                repeated=[pair for pair in evidence.repeated if pair[0].launch not in left_out],
                apart=apart,
            )
        )
    return found


def _differing(evidence: Evidence, decides: Callable[[Setting], bool]) -> list[list[Launch]]:
    """Launches of each engine that differ in what decides, first ones of equals; engines with one are left out."""
    engines: dict[str, dict[Any, Launch]] = defaultdict(dict)
    for launch in evidence.launches:
        if launch.number:
            engines[launch.framework].setdefault(_signature(evidence, launch, decides), launch)
    return [list(found.values()) for found in engines.values() if len(found) > 1]


def _signature(evidence: Evidence, launch: Launch, decides: Callable[[Setting], bool]) -> frozenset[tuple[str, str]]:
    return frozenset((key, repr(value)) for key, (value, _) in _values(evidence, launch, decides).items())


def _values(evidence: Evidence, launch: Launch, decides: Callable[[Setting], bool]) -> dict[str, tuple[Any, Setting]]:
    """Deciding key -> (comparable value, setting) of one launch, the last of each."""
    mine = (s for s in evidence.settings if s.launch == launch.number)
    return {s.key: (comparable(s.value), s) for s in mine if decides(s)}


def _pairs(
    evidence: Evidence, launches: list[Launch], decides: Callable[[Setting], bool]
) -> list[tuple[Launch, Setting | None, Launch, Setting | None]]:
    """Each later launch beside the first, with the first key in which they differ; None where one does not set it."""
    first = _values(evidence, launches[0], decides)
    pairs = []
    for launch in launches[1:]:
        other = _values(evidence, launch, decides)
        key = next(k for k in {**first, **other} if repr(first.get(k, (None,))[0]) != repr(other.get(k, (None,))[0])
                   or (k in first) != (k in other))  # fmt: skip
        one, two = first.get(key), other.get(key)
        pairs.append((launches[0], one[1] if one else None, launch, two[1] if two else None))
    return pairs

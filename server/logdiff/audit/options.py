"""Options that an engine's releases know: `engine_options.yaml`, and what is said of one that none of them has."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from functools import lru_cache

from logdiff.audit.data import packaged
from logdiff.audit.versions import parse_version

_ALIKE = 0.8
"""Ratio of `difflib` from which a name is taken for a misspelt one."""


@dataclass(frozen=True, slots=True)
class Absent:
    """An option that is in no release that was asked: those releases, whether that is proof, and the nearest name."""

    releases: tuple[str, ...]
    sure: bool
    nearest: str | None


@lru_cache(maxsize=4)
def releases(engine: str) -> dict[str, frozenset[str]]:
    """Release -> names of its options with underscores, oldest first; empty for an engine that has no table."""
    table = packaged("engine_options.yaml").get(engine)
    if table is None:
        return {}
    return {
        release: frozenset(name for group in table["names"] if release in group["in"] for name in group["options"])
        for release in table["releases"]
    }


def absent(engine: str, name: str, version: str | None) -> Absent | None:
    """What is known of an option that no release has; None where one has it, or nothing is known of the engine.

    A beginning of a name counts as the name: vLLM's parser takes abbreviations. With a version between two releases
    that both lack the option, that is proof; with an older, newer or unknown one it is not.

    Args:
        engine: vllm.
        name: the option with underscores, without dashes, `no_` and what follows a dot.
        version: of the engine; None: unknown.
    """
    known = releases(engine)
    if not known:
        return None
    asked, sure = _neighbours(list(known), version)
    names = frozenset().union(*(known[release] for release in asked))
    if any(one.startswith(name) for one in names):
        return None
    near = difflib.get_close_matches(name, sorted(names), 1, _ALIKE)
    return Absent(tuple(asked), sure, near[0] if near else None)


def _neighbours(known: list[str], version: str | None) -> tuple[list[str], bool]:
    """The releases around a version, and whether it lies between them; all of them where it does not or is unknown."""
    wanted = parse_version(version) if version is not None else None
    parsed = [(parse_version(release), release) for release in known]
    if wanted is None:
        return known, False
    same = [release for at, release in parsed if at is not None and at.release[:2] == wanted.release[:2]]
    if same:
        return same, True
    below = [release for at, release in parsed if at is not None and at < wanted]
    above = [release for at, release in parsed if at is not None and at > wanted]
    return ([below[-1], above[0]], True) if below and above else (known, False)

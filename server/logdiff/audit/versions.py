"""Versions of packages, and ranges of them; a branch such as main is newer than every release."""

from __future__ import annotations

import re
from functools import lru_cache

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

MAIN = Version("9999")
_BRANCHES = frozenset({"main", "master", "dev", "develop", "head", "latest", "nightly"})


@lru_cache(maxsize=4096)
def parse_version(text: str) -> Version | None:
    """A version, tag (`v0.18.0`, `releases/v0.18.0`) or branch; None where it says nothing, as a commit does."""
    bare = text.strip().rsplit("/", 1)[-1].removeprefix("v")
    if bare.lower() in _BRANCHES:
        return MAIN
    try:
        return Version(bare)
    except InvalidVersion:
        match = re.match(r"^\d+(\.\d+)+(rc\d+|\.post\d+)?", bare)
        return Version(match[0]) if match else None


@lru_cache(maxsize=4096)
def specifier(text: str) -> SpecifierSet:
    """A range such as `>=0.20.2rc0,<0.27`.

    Raises:
        ValueError: it is none.
    """
    try:
        return SpecifierSet(text, prereleases=True)
    except InvalidSpecifier as error:
        raise ValueError(str(error)) from None


def within(text: str, wanted: str) -> bool | None:
    """Whether a version lies in a range; None where it can't be told."""
    version = parse_version(text)
    return None if version is None else specifier(wanted).contains(version)

"""The two halves of the corpus.

Rules and thresholds may be tuned on the half `tuning`; the half `scoring` is run with the seed in `scoring_seed.txt`,
which is written after the rules. Within each class and kind (live, pairs, controls apart) the faults are ordered by the
SHA-256 of their names and dealt alternately, the first of a group to the half that the hash of the group's name says:
every class is halved up to one, and a name alone decides nothing that its author could steer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from tests.faults.fault import Fault

HALVES = ("tuning", "scoring")
SEED_FILE = Path(__file__).parent / "scoring_seed.txt"


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def halves(faults: Iterable[Fault]) -> dict[str, str]:
    """Name -> half."""
    groups: dict[str, list[str]] = {}
    for fault in faults:
        group = f"{'control' if fault.control else fault.label}/{fault.kind}"
        groups.setdefault(group, []).append(fault.name)
    found = {}
    for group, names in groups.items():
        first = _digest(group) % 2
        for place, name in enumerate(sorted(names, key=_digest)):
            found[name] = HALVES[(first + place) % 2]
    return found


def scoring_seed() -> int | None:
    """The seed of the scoring half; None while the file says `unset`."""
    text = SEED_FILE.read_text(encoding="utf-8").strip()
    return None if text == "unset" else int(text)

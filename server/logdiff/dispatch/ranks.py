"""Fingerprints of several processes held against each other: ranks of one engine, or hosts of one job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any


def odd_ones(fingerprints: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Processes that differ from the most common value of a part.

    Args:
        fingerprints: {name of the process: {part: hash}}, as `ranks` of `logdiff-dispatch/1` has them; any labels
            do, such as "rank 3 on host-b".

    Returns:
        [{"part", "odd": [names], "of": number of processes, "why"}]; where no value is the most common one, every
        process is listed, for none of them is known to be right.
    """
    found = []
    parts = sorted({part for facts in fingerprints.values() for part in facts})
    for part in parts:
        values = {name: facts.get(part) for name, facts in fingerprints.items()}
        counts = Counter(map(str, values.values())).most_common()
        if len(counts) < 2:
            continue
        tied = counts[0][1] == counts[1][1]
        odd = [name for name, value in values.items() if tied or str(value) != counts[0][0]]
        what = (
            f"{part} differ between {', '.join(odd)}" if tied else f"{part} of {', '.join(odd)} differ from the others"
        )
        found.append({"part": part, "odd": odd, "of": len(values), "why": what})
    return found

"""A pairwise covering design: few rows in which every pair of values of two factors occurs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import combinations

Values = Mapping[str, Hashable]
"""A value for each factor of a row, or of a part of it."""

Pair = tuple[tuple[str, Hashable], tuple[str, Hashable]]


def pairs(row: Values, factors: Sequence[str]) -> Iterator[Pair]:
    """Every two factors of a row with their values, in the order of `factors`."""
    present = [name for name in factors if name in row]
    for one, other in combinations(present, 2):
        yield (one, row[one]), (other, row[other])


def design(
    factors: Mapping[str, Sequence[Hashable]], allowed: Callable[[Values], bool], first: Sequence[Values] = ()
) -> list[dict[str, Hashable]]:
    """Rows that hold every pair which an allowed row can hold. Equal arguments give equal rows.

    Greedy (D. M. Cohen et al., "The AETG system", IEEE Transactions on Software Engineering 23, 1997): a row starts
    from the first missing pair; each further factor takes the value that adds most missing pairs, among equals the one
    whose pairs the rows before have least, and goes back where no value is allowed.

    Args:
        factors: values of each factor.
        allowed: whether a row, or a part of one, breaks no rule.
        first: rows that the design begins with; they don't count among those before.
    """
    names = list(factors)
    missing = dict.fromkeys(
        ((one, a), (other, b))
        for one, other in combinations(names, 2)
        for a in factors[one]
        for b in factors[other]
        if allowed({one: a, other: b})
    )
    used: Counter[Pair] = Counter()
    rows: list[dict[str, Hashable]] = []

    def worth(row: Values, name: str, value: Hashable) -> tuple[int, int]:
        here = names.index(name)
        new = [
            ((other, row[other]), (name, value)) if names.index(other) < here else ((name, value), (other, row[other]))
            for other in row
        ]
        return -sum(pair in missing for pair in new), sum(used[pair] for pair in new)

    def completed(row: dict[str, Hashable]) -> dict[str, Hashable] | None:
        left = [name for name in names if name not in row]
        if not left:
            return row
        name = left[0]
        for value in sorted(factors[name], key=lambda v: worth(row, name, v)):
            wider = {**row, name: value}
            if allowed(wider) and (found := completed(wider)) is not None:
                return found
        return None

    def take(row: Mapping[str, Hashable]) -> None:
        rows.append(dict(row))
        for pair in pairs(row, names):
            used[pair] += 1
            missing.pop(pair, None)

    for row in first:
        take(row)
    used.clear()
    while missing:
        pair = next(iter(missing))
        found = completed(dict(pair))
        if found is None:  # no allowed row holds it
            del missing[pair]
        else:
            take(found)
    return rows

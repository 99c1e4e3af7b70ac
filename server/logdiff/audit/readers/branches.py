"""What a script's variables are after branches of which one is taken, unknown which."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from logdiff.audit.readers.expansion import Variables, Word


@dataclass(slots=True)
class Branch:
    """Variables and exported names at the end of a branch."""

    values: dict[str, Any]
    exported: dict[str, int]


def merge(variables: Variables, after: list[tuple[str, Branch]]) -> Branch:
    """The variables after a test that can't be told: equal ones stay, the others have one choice per branch."""
    merged: dict[str, Any] = {}
    exported: dict[str, int] = {}
    for name in dict.fromkeys(n for _, b in after for n in b.values):
        values = [(text, b.values.get(name)) for text, b in after]
        first = values[0][1]
        if all(plain(v) == plain(first) for _, v in values):
            merged[name] = first
            continue
        choices = tuple((text, v) for text, v in values if isinstance(v, str))
        if any(isinstance(v, list) for _, v in values):
            merged[name] = _joined(variables, name, values)
        else:
            why = f"{name} depends on {after[0][0]!r}"
            merged[name] = variables.unknown(why, choices)
    for _, branch in after:
        exported.update(branch.exported)
    return Branch(merged, exported)


def _joined(variables: Variables, name: str, values: list[tuple[str, Any]]) -> list[Word]:
    """An array whose end differs by branch: the common start, then each end as a conditional word."""
    lists = [(text, v if isinstance(v, list) else []) for text, v in values]
    size = min(len(v) for _, v in lists)
    common = 0
    while common < size and len({v[common].text for _, v in lists}) == 1:
        common += 1
    joined = list(lists[0][1][:common])
    for text, v in lists:
        for word in v[common:]:
            mark = variables.unknown(f"{name} depends on {text!r}", ((text, word.text),))
            joined.append(Word(mark, word.line))
    return joined


def plain(value: Any) -> Any:
    """A variable without line numbers, for comparison."""
    return [w.text for w in value] if isinstance(value, list) else value

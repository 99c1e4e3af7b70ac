"""What the answers of probes mean: exit code, one sentence, the matrix of operators and providers. Pure functions."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from logdiff.audit.words import counted

HOLDS, FAILS, UNPROVEN = "holds", "fails", "not proven"


@dataclass(slots=True)
class Cell:
    """One operator of one provider: relations by result, and the failing entries."""

    holds: list[str] = field(default_factory=list)
    fails: list[str] = field(default_factory=list)
    unproven: list[str] = field(default_factory=list)

    @property
    def state(self) -> str:
        """The worst result in the cell."""
        return FAILS if self.fails else UNPROVEN if self.unproven else HOLDS


def state(entry: dict[str, Any]) -> str:
    """What an entry's `ok` says."""
    ok = entry.get("ok")
    return HOLDS if ok is True else FAILS if ok is False else UNPROVEN


def why(entry: dict[str, Any]) -> str:
    """Why an entry is not proven."""
    return str((entry.get("detail") or {}).get("not_proven") or "no reason was given")


def _kind(reason: str) -> str:
    """A reason without its numbers: `out of time: 1 of 3 shapes ...` is `out of time`."""
    return reason.partition(":")[0]


def exit_code(data: dict[str, Any]) -> int:
    """1 when a relation fails, else 0."""
    return int(any(entry.get("ok") is False for entry in data["results"]))


def matrix(data: dict[str, Any]) -> tuple[list[str], list[str], dict[tuple[str, str], Cell]]:
    """(operators, providers, (operator, provider) -> cell), in the order of the results.

    Relation P stands in the cells of both providers, as `P:other`.
    """
    cells: dict[tuple[str, str], Cell] = {}
    for entry in data["results"]:
        op, provider, relation = str(entry["op"]), str(entry["provider"]), str(entry["relation"])
        against = (entry.get("detail") or {}).get("against")
        places = (
            [(provider, relation)] if not against else [(provider, f"P:{against}"), (str(against), f"P:{provider}")]
        )
        for name, words in places:
            cell = cells.setdefault((op, name), Cell())
            {HOLDS: cell.holds, FAILS: cell.fails, UNPROVEN: cell.unproven}[state(entry)].append(words)
    operators = list(dict.fromkeys(op for op, _ in cells))
    providers = list(dict.fromkeys(provider for _, provider in cells))
    return operators, providers, cells


def short(relations: list[str]) -> str:
    """Relation names for a narrow place: without `I:`, providers differing as `P n`."""
    plain = [name.replace("I:", "") for name in relations if not name.startswith("P:")]
    others = sum(name.startswith("P:") for name in relations)
    return " ".join([*plain, *([f"P×{others}"] if others else [])])


def summary(data: dict[str, Any]) -> str:
    """One sentence."""
    entries = data["results"]
    counts = {word: sum(state(entry) == word for entry in entries) for word in (HOLDS, FAILS, UNPROVEN)}
    if not entries:
        reasons = Counter(str(entry.get("reason")) for entry in data["skipped"])
        return f"Nothing was probed: {reasons.most_common(1)[0][0]}." if reasons else "Nothing was probed."
    failing = [entry for entry in entries if entry.get("ok") is False and not entry["relation"].startswith("P")]
    operators = list(dict.fromkeys(f"{entry['op']} ({entry['provider']})" for entry in failing))
    reasons = Counter(_kind(why(entry)) for entry in entries if state(entry) == UNPROVEN)
    told = ", ".join(f"{reason}: {count}" if len(reasons) > 1 else reason for reason, count in reasons.most_common(3))
    text = (
        f"{counted(len(entries), 'check')}: {counts[HOLDS]} hold, {counts[FAILS]} fail, {counts[UNPROVEN]} not proven"
    )
    text += f" ({told})." if told else "."
    if operators:
        more = f" and {len(operators) - 6} more" if len(operators) > 6 else ""
        text += f" Not invariant or not within rounding: {', '.join(operators[:6])}{more}."
    # One with `shapes` has an answer for its other shapes and is counted there.
    left = sum(entry.get("reason") == "out of time" and "shapes" not in entry for entry in data["skipped"])
    return f"{text} {left} did not run in the time." if left else text

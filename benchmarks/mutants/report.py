"""Tables of a campaign's results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from benchmarks.mutants.campaign import COUNTED
from benchmarks.mutants.operators import OPERATORS


def table(records: Sequence[dict[str, Any]]) -> str:
    """Markdown: a row per operator with its counts and what caught how many, and a last one for all."""
    rows = ["| operator | fault | tried | counted | caught | by |", "| --- | --- | ---: | ---: | ---: | --- |"]
    for name, operator in OPERATORS.items():
        own = [record for record in records if record["operator"] == name]
        if own:
            rows.append(f"| `{name}` | {operator.what} | {_counts(own)} |")
    rows.append(f"| **all** | | {_counts(records)} |")
    return "\n".join(rows)


def rungs(records: Sequence[dict[str, Any]]) -> str:
    """Markdown: which check caught how many, by rung of the ladder."""
    caught = [record for record in records if record["status"] == "caught"]
    columns = list(dict.fromkeys(record["rung"] for record in caught))
    rows = ["| check | " + " | ".join(columns) + " | all |", "| --- |" + " ---: |" * (len(columns) + 1)]
    for check, total in Counter(record["check"] for record in caught).most_common():
        own = Counter(record["rung"] for record in caught if record["check"] == check)
        rows.append(f"| {check} | " + " | ".join(str(own[rung] or "") for rung in columns) + f" | {total} |")
    return "\n".join(rows)


def survivors(records: Sequence[dict[str, Any]]) -> str:
    """One line for each mutant that no check caught."""
    return "\n".join(
        f"- `{record['name']}` {record['file']}:{record['line']} {record['operator']}: "
        f"`{_line(record['before'])}` -> `{_line(record['after'])}`"
        for record in records
        if record["status"] == "survived"
    )


def _counts(records: Sequence[dict[str, Any]]) -> str:
    counted = [record for record in records if record["status"] in COUNTED]
    caught = [record for record in counted if record["status"] == "caught"]
    by = ", ".join(f"{check} {n}" for check, n in Counter(record["check"] for record in caught).most_common())
    return f"{len(records)} | {len(counted)} | {len(caught)} | {by}"


def _line(text: str) -> str:
    return " ".join(text.split())[:100]

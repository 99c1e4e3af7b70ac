"""Probes on a terminal: the matrix of operators and providers, what fails with its smallest shape, what was skipped."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from logdiff.probe import matrix
from logdiff.probe.judge import FAILS, HOLDS, UNPROVEN, Cell, short, state, why

FAILURES = 40
REASONS = 12
_STYLES = {HOLDS: "green", FAILS: "bold red", UNPROVEN: "yellow"}


def probe_table(data: dict[str, Any]) -> list[Any]:
    """Matrix, failures, reasons of what was left out, summary."""
    parts: list[Any] = []
    if data["results"]:
        parts += [_matrix(data), *_failures(data), *_unproven(data)]
    parts += _skipped(data["skipped"])
    parts.append(data["summary"])
    if data.get("case"):
        parts.append(f"case: {data['case']}")
    return parts


def _matrix(data: dict[str, Any]) -> Table:
    operators, providers, cells = matrix(data)
    where = f"{data['dtype']} on {data['device']}, seed {data['seed']}, {data['threads']} threads"
    table = Table(box=box.SIMPLE_HEAD, title=f"relations that fail, or how many hold ({where})", title_justify="left")
    table.add_column("operator")
    for provider in providers:
        table.add_column(provider, overflow="fold")
    for op in operators:
        table.add_row(op, *[_cell(cells.get((op, provider))) for provider in providers])
    return table


def _cell(cell: Cell | None) -> Text:
    if cell is None:
        return Text("")
    total = len(cell.holds) + len(cell.fails) + len(cell.unproven)
    words = short(cell.fails) if cell.fails else f"{len(cell.holds)} of {total}"
    if cell.unproven:
        words += f" ({len(cell.unproven)} not proven)"
    return Text(words, style=_STYLES[cell.state])


def _failures(data: dict[str, Any]) -> list[Any]:
    failing = [entry for entry in data["results"] if state(entry) == FAILS]
    if not failing:
        return []
    table = Table(box=box.SIMPLE_HEAD, title="smallest failing shapes", title_justify="left")
    for name in ("operator", "provider", "relation", "shape", "first difference"):
        table.add_column(name, overflow="fold")
    for entry in failing[:FAILURES]:
        shape = " ".join(f"{dim}={value}" for dim, value in (entry["smallest_failing_shape"] or {}).items() if value)
        against = entry["detail"].get("against")
        table.add_row(
            entry["op"], entry["provider"], entry["relation"] + (f" {against}" if against else ""), shape,
            first_difference(entry),
        )  # fmt: skip
    more = [f"and {len(failing) - FAILURES} more: see --json"] if len(failing) > FAILURES else []
    return [table, *more, f"again: {failing[0]['detail']['repeat']}"]


def _unproven(data: dict[str, Any]) -> list[Any]:
    found = [entry for entry in data["results"] if state(entry) == UNPROVEN]
    if not found:
        return []
    table = Table(box=box.SIMPLE_HEAD, title="not proven", title_justify="left")
    for name in ("operator", "provider", "relation", "why"):
        table.add_column(name, overflow="fold")
    for entry in found[:FAILURES]:
        against = entry["detail"].get("against")
        table.add_row(
            entry["op"], entry["provider"], entry["relation"] + (f" {against}" if against else ""), why(entry)
        )
    return [table, *([f"and {len(found) - FAILURES} more: see --json"] if len(found) > FAILURES else [])]


def first_difference(entry: dict[str, Any]) -> str:
    """What differs, in a few words."""
    difference = entry["detail"].get("difference")
    if difference:
        one, two = difference["bits"]
        words = f"{difference['variant']}: {one} against {two}, {difference['differing']} of {difference['compared']}"
        return f"{words} values, up to {difference['max_ulp']} ulp"
    found = entry["detail"].get("accuracy") or {}
    if "why" in found:
        return str(found["why"])
    bars, share = found.get("error_in_bars"), found.get("relative_norm")
    if isinstance(bars, float) and isinstance(share, float):
        return f"error {share:.3g} of the result, {bars:.3g} times the bar"
    return "outside the bar"


def _skipped(entries: list[dict[str, Any]]) -> list[str]:
    counts = Counter((str(entry.get("provider") or ""), str(entry.get("reason"))) for entry in entries)
    lines = [
        f"skipped: {provider + ': ' if provider else ''}{reason}" + (f" ({count} times)" if count > 1 else "")
        for (provider, reason), count in counts.most_common(REASONS)
    ]
    if len(counts) > REASONS:
        lines.append(f"skipped: {len(counts) - REASONS} more reasons, see --json")
    return lines


def list_table(data: dict[str, Any]) -> list[Any]:
    """Operators with their providers, providers with their devices, relations in words."""
    operators = Table(box=box.SIMPLE_HEAD, title="operators", title_justify="left")
    for name in ("operator", "dimensions", "providers"):
        operators.add_column(name, overflow="fold")
    for row in data["operators"]:
        operators.add_row(row["op"], " ".join(row["dims"]), " ".join(row["providers"]))
    providers = Table(box=box.SIMPLE_HEAD, title="providers", title_justify="left")
    for name in ("provider", "devices", "what"):
        providers.add_column(name, overflow="fold")
    for row in data["providers"]:
        providers.add_row(row["provider"], " ".join(row["devices"]), row["note"])
    relations = Table(box=box.SIMPLE_HEAD, title="relations", title_justify="left")
    for name in ("relation", "what must hold"):
        relations.add_column(name, overflow="fold")
    for name, text in data["relations"].items():
        relations.add_row(name, text)
    return [operators, providers, relations]

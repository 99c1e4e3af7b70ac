"""An audit for a terminal: errors, then warnings, each with its place and the way out; notes in one table."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from logdiff.audit.words import tally
from logdiff.report.wording import visible

_STYLES = {"error": "bold red", "warning": "yellow", "info": "dim"}
_NOTES = 12
_UNREAD = 12


def audit_table(data: dict[str, Any]) -> list[Any]:
    """What was read, what is wrong, what could not be read."""
    findings = data["findings"]
    parts: list[Any] = [_read(data)]
    for severity in ("error", "warning"):
        parts += [part for f in findings if f["severity"] == severity for part in _finding(f)]
    notes = [f for f in findings if f["severity"] == "info"]
    if notes:
        parts += ["", _notes(notes)]
        if len(notes) > _NOTES:
            parts.append(f"  and {len(notes) - _NOTES} more notes (--json has all)")
    if data["unread"]:
        parts.append("")
        parts.append(f"not read or not followed ({len(data['unread'])}):")
        for entry in data["unread"][:_UNREAD]:
            place = entry["file"] if entry["line"] is None else f"{entry['file']}:{entry['line']}"
            parts.append(Text(f"  {visible(place, 120)}: {visible(entry['why'], 200)}"))
        if len(data["unread"]) > _UNREAD:
            parts.append(f"  and {len(data['unread']) - _UNREAD} more (--json has all)")
    counts = data["counts"]
    parts.append("")
    parts.append(f"{tally(counts)} from {data['rules']} rules over {data['settings']} settings")
    if data.get("case"):
        parts.append(f"case: {data['case']}")
    return parts


def _read(data: dict[str, Any]) -> Text:
    forms = ", ".join(f"{visible(entry['path'], 80)} ({entry['form']})" for entry in data["read"][:8])
    more = f" and {len(data['read']) - 8} more" if len(data["read"]) > 8 else ""
    engines = ", ".join(data["frameworks"]) or "no engine"
    named = ("verl", "vllm", "vllm-ascend", "torch", "torch-npu", "mindspeed", "megatron-core", "sglang")
    versions = ", ".join(f"{name} {data['versions'][name]}" for name in named if name in data["versions"])
    return Text(f"read: {forms}{more}\nseen: {engines}; versions: {versions or 'none known'}")


def _finding(finding: dict[str, Any]) -> list[Any]:
    severity = finding["severity"]
    head = Text("\n")
    head.append(f"{severity}", style=_STYLES[severity])
    head.append(f"  {visible(finding['title'], 160)}", style="bold")
    head.append(f"  [{finding['rule']}]", style="dim")
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    value = "not set" if finding["value"] is None else visible(str(finding["value"]), 200)
    grid.add_row(f"  {finding['side']}", Text(f"{visible(finding['key'], 160)} = {value}"))
    grid.add_row("  at", Text(visible(finding["where"], 300)))
    grid.add_row("  so", Text(visible(finding["consequence"], 600)))
    grid.add_row("  fix", Text(visible(finding["fix"], 400)))
    return [head, grid]


def _notes(notes: list[dict[str, Any]]) -> Table:
    table = Table(
        box=None, padding=(0, 1, 0, 0), pad_edge=False, title="notes", title_justify="left", show_header=False
    )
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for note in notes[:_NOTES]:
        value = "not set" if note["value"] is None else visible(str(note["value"]), 80)
        where = visible(note["where"], 100)
        text = Text(f"{visible(note['title'], 160)}: {visible(note['key'], 100)} = {value} ({where})")
        if note["consequence"].startswith("Undetermined"):
            text.append(f"\n{visible(note['consequence'], 300)}", style="dim")
        table.add_row(f"  {note['side']}", text)
    return table

"""A dispatch result for a terminal: findings, one table of both sides, what each switch changed."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from logdiff.report.wording import visible

_STYLES = {"absent": "yellow", "provider": "bold yellow", "dtype": "yellow", "operators": "cyan", "layout": "dim"}
_FINDINGS = 12
_ROWS = 40
_NAMED = 4


def dispatch_table(data: dict[str, Any]) -> list[Any]:
    """What a reader needs first; `--json` has everything."""
    parts: list[Any] = [_side(name, facts) for name, facts in data["sides"].items()]
    for finding in data["findings"][:_FINDINGS]:
        parts += ["", *_finding(finding)]
    if len(data["findings"]) > _FINDINGS:
        parts.append(f"  and {len(data['findings']) - _FINDINGS} more (--json has all)")
    for pair, rows in list(data["tables"].items())[:1]:
        parts += ["", _table(pair, rows)]
    if len(data["tables"]) > 1:
        parts.append(f"  also compared: {', '.join(list(data['tables'])[1:])} (--json)")
    if not data["tables"]:
        parts += [_phases(name, facts) for name, facts in data["sides"].items()]
    for proof in data["toggles"]:
        parts += ["", *_proof(proof)]
    count = len(data["findings"])
    parts += ["", f"{count} finding{'' if count == 1 else 's'}; digest {data['digest'][:16]}"]
    if data.get("case"):
        parts.append(f"case: {data['case']}")
    return parts


def _side(name: str, facts: dict[str, Any]) -> Text:
    resolved = facts.get("resolved") or {}
    attention = resolved.get("attention")
    shown = ", ".join(attention) if isinstance(attention, dict) else str(attention)
    checked = facts["patched"]["checked"]
    text = Text(f"{name}: ", style="bold")
    text.append(visible(f"{facts['engine']['name']} {facts['engine']['version']}", 80), style="")
    text.append(f", attention {visible(shown, 120)}, {len(facts['ranks'])} rank(s)", style="")
    text.append(
        f"\n  {checked['functions']} functions of {checked['modules']} modules compared with their files: "
        f"{len(facts['patched']['findings'])} findings, {len(facts['patched']['explained'])} explained",
        style="",
    )
    for phase, found in facts["phases"].items():
        if found["compiled"]:
            text.append(f"\n  {phase}: {found['compiled']}", style="yellow")
        if found["beyond"]:
            text.append(f"\n  {phase}: {found['beyond']} calls of further operators are not listed", style="yellow")
    for phase, why in (facts.get("skipped") or {}).items():
        text.append(f"\n  {phase}: not traced, {why}", style="dim")
    return text


def _finding(finding: dict[str, Any]) -> list[Any]:
    head = Text(f"{finding['kind']}  ", style="bold red")
    head.append(visible(str(finding["what"]), 160), style="bold")
    head.append(f"  [{finding['side']}]", style="dim")
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    grid.add_row("  so", Text(visible(str(finding["detail"]), 320)))
    if finding.get("by"):
        grid.add_row("  by", Text(visible(f"{finding['by']}  {finding.get('where') or ''}", 240)))
    for note in (finding.get("notes") or [])[:2]:
        grid.add_row("", Text(visible(str(note), 180), style="dim"))
    return [head, grid]


def _table(pair: str, rows: list[dict[str, Any]]) -> Table:
    rollout, _, train = pair.partition("|")
    same = [row["boundary"] for row in rows if row["kind"] == "same"]
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, title_justify="left")
    table.title = f"rollout {rollout} against train {train}, weightiest difference first"
    for heading in ("boundary", "difference", f"rollout {rollout}", f"train {train}"):
        table.add_column(heading, overflow="fold")
    for row in [row for row in rows if row["kind"] != "same"][:_ROWS]:
        table.add_row(
            visible(row["boundary"], 60),
            Text(row["kind"], style=_STYLES[row["kind"]]),
            _cell(row["rollout"]),
            _cell(row["train"]),
        )
    if same:
        table.caption = f"the same on both sides: {', '.join(same)}"
    return table


def _cell(cell: dict[str, Any] | None) -> Text:
    if not cell or not cell["ops"]:
        return Text("-", style="dim")
    short = [op.removesuffix(".default") for op in cell["ops"]]
    more = f" +{len(short) - _NAMED}" if len(short) > _NAMED else ""
    text = Text(visible(", ".join(short[:_NAMED]), 140) + more)
    text.append(f" {'/'.join(cell['dtypes'])}", style="dim")
    return text


def _phases(name: str, facts: dict[str, Any]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, title=name, title_justify="left")
    for heading in ("phase", "boundary", "operators"):
        table.add_column(heading, overflow="fold")
    for phase, found in facts["phases"].items():
        for boundary, cell in list(found["boundaries"].items())[:_ROWS]:
            if cell["ops"]:
                table.add_row(phase, visible(boundary, 60), _cell(cell))
    return table


def _proof(proof: dict[str, Any]) -> list[Any]:
    style = {True: "green", False: "bold red", None: "yellow"}[proof["changed"]]
    parts: list[Any] = [Text(visible(proof["statement"], 800), style=style)]
    for side, found in proof["sides"].items():
        for what, change in (found.get("executed") or found.get("inventory") or {}).items():
            for sign, names in (("-", change["gone"]), ("+", change["new"])):
                parts += [Text(f"  {sign} {side} {what}: {visible(name, 160)}") for name in names[:_NAMED]]
                if len(names) > _NAMED:
                    parts.append(Text(f"  {sign} {side} {what}: and {len(names) - _NAMED} more", style="dim"))
    return parts

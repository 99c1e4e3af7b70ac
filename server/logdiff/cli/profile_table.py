"""A profile's result for a terminal: what was read, what differs, and where the time goes."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from logdiff.report.wording import visible

_DIFFERENCES = 25
_TYPES = 25


def profile_table(data: dict[str, Any]) -> list[Any]:
    """What a reader needs first; `--json` has everything."""
    profile = data["profile"]
    names = [side["side"] for side in profile["sides"]]
    parts: list[Any] = [text for side in profile["sides"] for text in _side(side)]
    if "verdict" in profile:
        parts += ["", Text(f"{profile['verdict']}: {profile['why']}", style="bold")]
        for name, reason in profile["not_compared"].items():
            parts.append(f"  not compared: {name}, {reason}")
        for difference in profile["differences"][:_DIFFERENCES]:
            parts.append(_difference(difference))
        more = profile["difference_count"] - min(_DIFFERENCES, len(profile["differences"]))
        if more > 0:
            parts.append(f"  and {more} more (--json)")
    parts += ["", _types(profile["op_types"][:_TYPES], names)]
    if len(profile["op_types"]) > _TYPES:
        parts.append(f"{len(profile['op_types']) - _TYPES} more operator types (--json)")
    if data.get("case"):
        parts.append(f"case: {data['case']}")
    return parts


def _side(side: dict[str, Any]) -> list[Text]:
    captures = side["captures"]
    text = Text(f"{side['side']}: ", style="bold")
    text.append(visible(side["path"], 160), style="")
    text.append(
        f"\n  {side['tasks']:,} operator tasks, {side['time_ns'] / 1e6:,.3f} ms on the device, "
        f"{len(captures)} capture{'' if len(captures) == 1 else 's'}",
        style="",
    )
    for capture in captures[:8]:
        for note in capture["notes"]:
            text.append(f"\n  {visible(capture['label'], 60)}: {visible(note, 160)}", style="dim")
    odd = [visible(capture["label"], 60) for capture in captures if capture["odd"]]
    if odd:
        text.append(f"\n  ran other kernels than most captures of this side: {', '.join(odd[:20])}", style="yellow")
    for line in side["left_out"][:5]:
        text.append(f"\n  left out: {visible(line, 160)}", style="dim")
    return [text]


def _difference(difference: dict[str, Any]) -> Text:
    line = Text(f"  {difference['kind']:<10} ", style="cyan")
    line.append(visible(difference["statement"], 300), style="")
    if difference["examples"]:
        line.append(f"  at {visible(difference['examples'][0], 80)}", style="dim")
        if difference["shapes"] > 1:
            line.append(f" and {difference['shapes'] - 1} more shapes", style="dim")
    return line


def _types(rows: list[dict[str, Any]], names: list[str]) -> Table:
    table = Table(box=None, pad_edge=False, title="operator types by device time", title_justify="left")
    table.add_column("operator type", overflow="fold", min_width=24)
    for name in names:
        for column in ("calls", "shapes", "time"):
            table.add_column(f"{name} {column}", justify="right")
    table.add_column("called by")
    for row in rows:
        cells = []
        for name in names:
            entry = row[name]
            cells += (
                ["–"] * 3 if entry is None else [f"{entry['count']:,}", str(entry["shapes"]), f"{entry['share']:.1%}"]
            )
        callers = [c for name in names if row[name] for c in row[name]["callers"]]
        called = dict.fromkeys(f"{c['torch_op']}" + (f" in {c['module']}" if c["module"] else "") for c in callers)
        table.add_row(visible(row["op_type"], 60), *cells, visible(", ".join(list(called)[:2]), 100))
    return table

"""A verdict for a terminal: the sentence, what it rests on, what was ruled out, what to do next."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from logdiff.report.wording import as_float, visible

_EVIDENCE = 12
_EXCLUDED = 10


def verdict_table(data: dict[str, Any]) -> list[Any]:
    """Everything of `logdiff-verdict/1` that a reader needs at once; `--json` has all."""
    parts: list[Any] = [_head(data["verdict"])]
    if data["evidence"]:
        parts += ["", _evidence(data["evidence"])]
    rivals = [c for c in data["candidates"] if c["cause"] != data["verdict"]["cause"]]
    if rivals:
        parts += ["", _candidates(rivals)]
    if data["budget"]:
        parts += ["", _budget(data["budget"])]
    if data["excluded"]:
        parts += ["", *_excluded(data["excluded"])]
    if data["next_experiments"]:
        parts += ["", *_next(data["next_experiments"])]
    if data["case"]:
        parts += ["", f"case: {data['case']}"]
    return parts


def _head(verdict: dict[str, Any]) -> Text:
    colour = {"none": "green", "undetermined": "yellow", "invalid-evidence": "red"}.get(verdict["class"], "bold red")
    head = Text()
    head.append(visible(str(verdict["class"]), 60), style=colour)
    if verdict["cause"]:
        head.append(f"  {visible(str(verdict['cause']), 80)}", style="bold")
    facts = [f"confidence {float(verdict['confidence']):.2f}", f"path {verdict['path']}", f"side {verdict['side']}"]
    if verdict["component"]:
        facts.append(f"component {visible(str(verdict['component']), 100)}")
    head.append("\n" + ", ".join(facts), style="dim")
    head.append("\n" + visible(str(verdict["statement"]), 1200))
    return head


def _evidence(items: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), title="evidence", title_justify="left")
    table.add_column("claim", overflow="fold")
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("held against", justify="right", no_wrap=True)
    for item in items[:_EVIDENCE]:
        table.add_row(Text(visible(str(item["claim"]), 400)), _number(item["value"]), _number(item["threshold"]))
    return table


def _number(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return f"{value:.4g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(_number(v) for v in value[:4])
    number = as_float(value) if isinstance(value, str) and value in ("nan", "inf", "-inf") else None
    return str(number) if number is not None else visible(str(value), 40)


def _candidates(items: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), title="also possible", title_justify="left")
    table.add_column("cause")
    table.add_column("class")
    table.add_column("score", justify="right")
    for item in items[:5]:
        table.add_row(str(item["cause"] or "no single cause"), str(item["class"]), f"{float(item['score']):.2f}")
    return table


def _budget(items: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), title="budget", title_justify="left")
    table.add_column("component")
    table.add_column("share", justify="right")
    table.add_column("interval", justify="right")
    for item in items:
        low, high = float(item["low"]), float(item["high"])
        table.add_row(visible(str(item["component"]), 80), f"{float(item['share']):.1%}", f"{low:.1%} to {high:.1%}")
    return table


def _excluded(items: list[dict[str, Any]]) -> list[Any]:
    by: dict[str, list[str]] = {}
    for item in items:
        by.setdefault(str(item["by"]), []).append(str(item["cause"]))
    lines: list[Any] = ["ruled out:"]
    for why, names in list(by.items())[:_EXCLUDED]:
        shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
        lines.append(Text(f"  {shown}: {visible(why, 200)}"))
    return lines


def _next(items: list[dict[str, Any]]) -> list[Any]:
    lines: list[Any] = ["next:"]
    for number, item in enumerate(items, 1):
        line = Text(f"  {number}. {visible(str(item['what']), 400)}\n     ")
        line.append(visible(str(item["command"]), 200), style="bold")
        lines.append(line)
    return lines

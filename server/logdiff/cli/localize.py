"""`logdiff localize`: where two sides part, boundary by boundary."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from logdiff.cli import options
from logdiff.cli.output import Output
from logdiff.cli.progress import ProgressView
from logdiff.report.wording import number, visible

ROWS = 24


def localize(
    ctx: typer.Context,
    target: Annotated[Path, typer.Argument(metavar="CASE|RUN.yaml", help="A diagnosed case, or a run file.")],
    case: options.CaseDir = None,
    max_seconds: Annotated[
        float, typer.Option("--max-seconds", min=0, help="Run file: seconds that experiments may take.")
    ] = 180.0,
    as_json: options.Json = False,
) -> None:
    """Say where two sides part: the first boundary that differs, how the difference grows, operators that are off.

    A run file is diagnosed first. Exit code 0: every boundary is equal to the bit; 1: they part.
    """
    from logdiff import actions

    out: Output = ctx.obj
    with ProgressView() as view:
        done = actions.localize(target=target, case=case, max_seconds=max_seconds, on_progress=view)
    out.show(done.data, localize_table)
    raise typer.Exit(done.exit_code)


def localize_table(data: dict[str, Any]) -> list[Any]:
    """First divergence, operators that are off, wrong inputs, and the growth of the main pair."""
    parts: list[Any] = []
    first = data["first_divergence"]
    if first is None:
        parts.append("No boundary that was captured differs in any bit.")
    else:
        parts.append(
            f"{visible(str(first['boundary']), 80)} is the first boundary that differs ({first['pair']}): "
            f"{float(first['bits_differ']):.1%} of its values, {number(first['relative'], 3)} of its size"
        )
    for entry in data["off"]:
        said = f": {visible(str(entry['why']), 300)}" if entry["why"] else ""
        parts.append(
            f"{entry['side']}, {entry['phase']}: {visible(str(entry['boundary']), 80)} is off by "
            f"{number(entry['error'], 3)} of its size (a clean one by {number(entry['clean_error'], 3)}){said}"
        )
    parts += [
        f"{entry['side']}, {entry['phase']}: other {entry['what']}: {visible(str(entry['detail']), 300)}"
        for entry in data["inputs"]
    ]
    if not data["off"] and not data["inputs"]:
        parts.append(f"{data['judged']} operators were judged on their own inputs; all are within rounding of fp64.")
    growth = [entry for entry in data["divergence"] if first is not None and entry["pair"] == first["pair"]]
    if growth:
        parts += ["", _growth(growth)]
    return [*parts, "", f"case: {data['case']}"]


def _growth(entries: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), title="growth", title_justify="left")
    table.add_column("boundary", overflow="fold")
    table.add_column("values that differ", justify="right")
    table.add_column("relative", justify="right")
    layers = [e for e in entries if str(e["boundary"]).endswith(".residual")]
    shown = entries if len(entries) <= ROWS else [*entries[:8], *layers, *entries[-3:]]
    for entry in list({str(e["boundary"]): e for e in shown}.values())[:ROWS]:
        table.add_row(
            Text(visible(str(entry["boundary"]), 60)),
            f"{float(entry['bits_differ']):.1%}",
            number(entry["relative"], 3),
        )
    return table

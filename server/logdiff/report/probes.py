"""Operator probes in a report: the matrix of operators and providers as a picture, and the smallest failing shapes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logdiff.audit.words import counted
from logdiff.probe.judge import FAILS, HOLDS, UNPROVEN, Cell, matrix, short, state, why
from logdiff.report.axes import Plot
from logdiff.report.files import read_section
from logdiff.report.palette import FLOOR, GRID, INK, MUTED, PAIR_COLOURS
from logdiff.report.wording import visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROWS = 200
MOST_OPERATORS = 40
MOST_PROVIDERS = 14
COLOURS = {HOLDS: PAIR_COLOURS["rescore_train"], FAILS: PAIR_COLOURS["decode_rescore"], UNPROVEN: FLOOR}
_MARKS = {HOLDS: "holds", FAILS: "fails", UNPROVEN: "not proven"}
_CELL = (1.28, 0.46)
_WORDS = 21
"""Characters of one line in a cell."""


@dataclass(slots=True)
class ProbeSection:
    """What the page shows of `results/probe.json`; `plot` None where nothing was probed."""

    summary: str
    where: str
    plot: Plot | None
    failures: list[dict[str, str]] = field(default_factory=list)
    more: int = 0
    skipped: list[tuple[str, int]] = field(default_factory=list)
    unproven: list[dict[str, str]] = field(default_factory=list)


def read_probes(case: Path, missing: list[str]) -> ProbeSection | None:
    """The section of a case folder; None where nobody probed. A broken file is told in `missing`."""
    return read_section(case, "probe", "logdiff-probe/1", missing, _section)


def _section(data: dict[str, Any]) -> ProbeSection:
    failing = [entry for entry in data["results"] if state(entry) == FAILS]
    reasons: dict[str, int] = {}
    for entry in data["skipped"]:
        reason = str(entry["reason"])
        reasons[reason] = reasons.get(reason, 0) + 1
    threads = counted(int(data.get("threads") or 0), "thread")
    where = f"{data['dtype']} on {data['device']}, seed {data['seed']}, {threads}"
    if data.get("model"):
        where += f", shapes of {data['model']}"
    return ProbeSection(
        summary=str(data.get("summary") or ""),
        where=where,
        plot=_plot(data) if data["results"] else None,
        failures=[_failure(entry) for entry in failing[:ROWS]],
        more=max(0, len(failing) - ROWS),
        skipped=sorted(reasons.items(), key=lambda item: -item[1])[:20],
        unproven=[_unproven(entry) for entry in data["results"] if state(entry) == UNPROVEN][:ROWS],
    )


def _unproven(entry: dict[str, Any]) -> dict[str, str]:
    against = f" against {entry['detail']['against']}" if entry["detail"].get("against") else ""
    return {
        "op": str(entry["op"]), "provider": f"{entry['provider']}{against}", "relation": str(entry["relation"]),
        "why": why(entry),
    }  # fmt: skip


def _failure(entry: dict[str, Any]) -> dict[str, str]:
    detail = entry["detail"]
    difference = detail.get("difference") or {}
    shape = " ".join(f"{dim}={value}" for dim, value in (entry["smallest_failing_shape"] or {}).items() if value)
    against = f" against {detail['against']}" if detail.get("against") else ""
    if difference:
        bits = " ".join(str(b) for b in difference["bits"])
        what = f"{difference['variant']}: {bits}, {difference['differing']} of {difference['compared']} values"
    else:
        found = detail.get("accuracy") or {}
        what = f"{found.get('error_in_bars', '?')} times the bar of rounding"
    return {
        "op": str(entry["op"]), "provider": f"{entry['provider']}{against}", "relation": str(entry["relation"]),
        "shape": shape, "what": what, "repeat": str(detail.get("repeat") or ""),
    }  # fmt: skip


def _plot(data: dict[str, Any]) -> Plot:
    operators, providers, cells = matrix(data)
    operators, providers = operators[:MOST_OPERATORS], providers[:MOST_PROVIDERS]
    width = 1.7 + _CELL[0] * len(providers)
    height = 0.95 + _CELL[1] * len(operators)
    counts = {name: sum(cell.state == name for cell in cells.values()) for name in COLOURS}
    words = ", ".join(f"{count} {_MARKS[name]}" for name, count in counts.items() if count)
    return Plot(
        "probes",
        "Operators and providers",
        f"Matrix of {len(operators)} operators by {len(providers)} providers: {words}.",
        "A cell names the relations that fail, or counts those that hold; P×n: other bits than n other providers.",
        (max(width, 5.0), height),
        lambda figure: _draw(figure, operators, providers, cells),
    )


def _draw(figure: Figure, operators: list[str], providers: list[str], cells: dict[tuple[str, str], Cell]) -> None:
    from matplotlib.patches import Patch, Rectangle

    axes = figure.add_subplot()
    axes.set_xlim(0, len(providers))
    axes.set_ylim(len(operators), 0)
    axes.set_xticks([i + 0.5 for i in range(len(providers))], [visible(p, 20) for p in providers], fontsize=8)
    axes.set_yticks([i + 0.5 for i in range(len(operators))], [visible(o, 24) for o in operators], fontsize=8.5)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.grid(False)
    for side in axes.spines.values():
        side.set_visible(False)
    for row, op in enumerate(operators):
        for column, provider in enumerate(providers):
            cell = cells.get((op, provider))
            place = (column + 0.03, row + 0.06)
            if cell is None:
                axes.add_patch(Rectangle(place, 0.94, 0.88, facecolor="none", edgecolor=GRID, linewidth=0.7))
                continue
            colour = COLOURS[cell.state]
            axes.add_patch(Rectangle(place, 0.94, 0.88, facecolor=colour, alpha=0.16, linewidth=0))
            axes.add_patch(Rectangle(place, 0.035, 0.88, facecolor=colour, linewidth=0))
            axes.text(column + 0.09, row + 0.5, _words(cell), va="center", ha="left", fontsize=6.6, color=INK)
    axes.legend(
        handles=[Patch(facecolor=COLOURS[name], label=_MARKS[name]) for name in (HOLDS, FAILS, UNPROVEN)],
        loc="upper left", bbox_to_anchor=(0, -0.01), ncols=3, fontsize=8, labelcolor=MUTED,
    )  # fmt: skip


def _words(cell: Cell) -> str:
    """At most three short lines."""
    total = len(cell.holds) + len(cell.fails) + len(cell.unproven)
    if not cell.fails:
        text = f"{len(cell.holds)} of {total} hold"
        return text + (f"\n{len(cell.unproven)} not proven" if cell.unproven else "")
    lines: list[str] = [""]
    names = short(cell.fails).split(" ")
    for at, name in enumerate(names):
        longer = f"{lines[-1]} {name}".strip()
        if len(longer) <= _WORDS:
            lines[-1] = longer
        elif len(lines) < 3:
            lines.append(name)
        else:
            shown, left = lines[-1].split(" "), len(names) - at
            while shown and len(" ".join([*shown, f"+{left}"])) > _WORDS:
                shown.pop()
                left += 1
            lines[-1] = " ".join([*shown, f"+{left}"])
            break
    return "\n".join(lines)

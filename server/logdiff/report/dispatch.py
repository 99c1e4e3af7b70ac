"""Dispatch in a report: what runs on each side by model boundary as a picture, findings, and what switches changed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logdiff.report.axes import Plot
from logdiff.report.files import read_section
from logdiff.report.palette import FLOOR, GRID, INK, MUTED, PAIR_COLOURS
from logdiff.report.wording import visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROWS = 200
MOST_BOUNDARIES = 32
COLOURS = {
    "provider": PAIR_COLOURS["decode_rescore"],
    "dtype": PAIR_COLOURS["decode_train"],
    "operators": PAIR_COLOURS["decode_train"],
    "layout": FLOOR,
    "absent": FLOOR,
    "same": PAIR_COLOURS["rescore_train"],
}
_MARKS = {
    "provider": "other provider",
    "dtype": "other dtypes or operators",
    "layout": "other layout, or on one side only",
    "same": "the same",
}
_WORDS = 46
"""Characters of a cell."""


@dataclass(slots=True)
class DispatchSection:
    """What the page shows of `results/dispatch.json`; `plot` None where one side alone was traced."""

    summary: str
    plot: Plot | None
    sides: list[dict[str, str]] = field(default_factory=list)
    findings: list[dict[str, str]] = field(default_factory=list)
    toggles: list[dict[str, Any]] = field(default_factory=list)


def read_dispatch(case: Path, missing: list[str]) -> DispatchSection | None:
    """The section of a case folder; None where nobody looked. A broken file is told in `missing`."""
    return read_section(case, "dispatch", "logdiff-dispatch/1", missing, _section)


def _section(data: dict[str, Any]) -> DispatchSection:
    pair, rows = next(iter(data["tables"].items()), ("", []))
    count = len(data["findings"])
    found = f"{count} finding{'' if count == 1 else 's'}" if count else "No finding"
    different = sum(row["kind"] != "same" for row in rows)
    words = f" Of {len(rows)} boundaries {different} run other code or dtypes on the two sides." if rows else ""
    return DispatchSection(
        summary=f"{found}: functions, operators and libraries compared with what the packages bring.{words}",
        plot=_plot(pair, rows) if rows else None,
        sides=[_side(name, facts) for name, facts in data["sides"].items()],
        findings=[
            {k: str(f.get(k) or "") for k in ("kind", "side", "what", "detail", "by")} for f in data["findings"][:ROWS]
        ],
        toggles=[_toggle(proof) for proof in data["toggles"][:ROWS]],
    )


def _side(name: str, facts: dict[str, Any]) -> dict[str, str]:
    resolved = facts.get("resolved") or {}
    attention = resolved.get("attention")
    compiled = next((phase["compiled"] for phase in facts["phases"].values() if phase["compiled"]), None)
    return {
        "side": name,
        "engine": f"{facts['engine']['name']} {facts['engine']['version']}",
        "attention": ", ".join(attention) if isinstance(attention, dict) else str(attention),
        "phases": ", ".join(facts["phases"]),
        "compiled": compiled or "no generated code ran",
        "ranks": str(len(facts["ranks"])),
    }


def _toggle(proof: dict[str, Any]) -> dict[str, Any]:
    lines = []
    for side, found in proof["sides"].items():
        for what, change in (found.get("executed") or found.get("inventory") or {}).items():
            lines += [f"{side} {what}: gone {one}" for one in change["gone"][:3]]
            lines += [f"{side} {what}: new {one}" for one in change["new"][:3]]
    known = {True: "changed", False: "changed nothing", None: "not proven"}
    state = str(proof.get("result") or known[proof["changed"]])
    return {"toggle": str(proof["toggle"]), "state": state, "statement": str(proof["statement"]), "lines": lines}


def _plot(pair: str, rows: list[dict[str, Any]]) -> Plot:
    rollout, _, train = pair.partition("|")
    shown = rows[:MOST_BOUNDARIES]
    counts = {kind: sum(row["kind"] == kind for row in rows) for kind in COLOURS}
    words = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    return Plot(
        "dispatch",
        "What runs at each boundary",
        f"Table of {len(rows)} model boundaries with the operators of both sides: {words}.",
        f"Rollout {rollout} beside train {train}, the weightiest difference first; dtypes stand after the operators.",
        (9.6, 1.0 + 0.3 * len(shown)),
        lambda figure: _draw(figure, shown, rollout, train),
    )


def _draw(figure: Figure, rows: list[dict[str, Any]], rollout: str, train: str) -> None:
    from matplotlib.patches import Patch, Rectangle

    axes = figure.add_subplot()
    axes.set_xlim(0, 2)
    axes.set_ylim(len(rows), 0)
    axes.set_xticks([0.5, 1.5], [f"rollout {rollout}", f"train {train}"], fontsize=9)
    axes.set_yticks([i + 0.5 for i in range(len(rows))], [visible(row["boundary"], 32) for row in rows], fontsize=8)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.grid(False)
    for side in axes.spines.values():
        side.set_visible(False)
    for at, row in enumerate(rows):
        colour = COLOURS[row["kind"]]
        for column, cell in enumerate((row["rollout"], row["train"])):
            place = (column + 0.01, at + 0.06)
            if not cell or not cell["ops"]:
                axes.add_patch(Rectangle(place, 0.98, 0.88, facecolor="none", edgecolor=GRID, linewidth=0.7))
                continue
            axes.add_patch(Rectangle(place, 0.98, 0.88, facecolor=colour, alpha=0.16, linewidth=0))
            axes.add_patch(Rectangle(place, 0.012, 0.88, facecolor=colour, linewidth=0))
            axes.text(column + 0.035, at + 0.5, _words(cell), va="center", ha="left", fontsize=6.8, color=INK)
    axes.legend(
        handles=[Patch(facecolor=COLOURS[kind], label=words) for kind, words in _MARKS.items()],
        loc="upper left", bbox_to_anchor=(0, -0.005), ncols=4, fontsize=8, labelcolor=MUTED,
    )  # fmt: skip


def _words(cell: dict[str, Any]) -> str:
    ops = [str(op).removesuffix(".default") for op in cell["ops"]]
    dtypes = "/".join(cell["dtypes"])
    room = _WORDS - len(dtypes)
    text = ops[0]
    used = 1
    while used < len(ops) and len(text) + len(ops[used]) + 2 <= room:
        text += f", {ops[used]}"
        used += 1
    more = f" +{len(ops) - used}" if used < len(ops) else ""
    return visible(f"{text[:room]}{more}  {dtypes}", _WORDS + 8)

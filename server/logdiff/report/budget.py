"""The budget in a report: which operators a mismatch is made of, as bars with their bounds, and what is enough."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logdiff.audit.words import counted
from logdiff.report.axes import Plot, legend
from logdiff.report.files import read_section
from logdiff.report.palette import FLOOR, INK, MUTED, PAIR_COLOURS
from logdiff.report.wording import number, visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROWS = 40
_BAR, _REST = PAIR_COLOURS["decode_train"], FLOOR
_KINDS = {"unexplained": "left with every operator replaced", "not measured": "operators without a pass of their own"}


@dataclass(slots=True)
class BudgetSection:
    """What the page shows of `results/budget.json`; `plot` None where there are no shares."""

    summary: str
    enough: str
    cost: str
    plot: Plot | None
    rows: list[dict[str, str]] = field(default_factory=list)
    quiet: str = ""
    notes: list[str] = field(default_factory=list)


def read_budget(case: Path, missing: list[str]) -> BudgetSection | None:
    """The section of a case folder; None where nobody measured a budget. A broken file is told in `missing`."""
    return read_section(case, "budget", "logdiff-budget/1", missing, _section)


def _section(data: dict[str, Any]) -> BudgetSection:
    shares = [row for row in data["shares"] if row["share"] or row["component"] == "unexplained"]
    quiet = [str(row["component"]) for row in data["shares"] if row not in shares]
    reason = str(data["reason"] or "")
    if not shares:
        return BudgetSection(f"No shares: {reason}." if reason else "Nothing differs.", "", "", None)
    whole = data["whole"]
    summary = (
        f"Operators replaced on both sides by aligned ones, one at a time and together, on {whole['tokens']:,} tokens "
        f"of {counted(whole['samples'], 'sample')}. The whole is the mean of d squared, "
        f"{number(whole['mean_square'], 3)} nats squared; the shares and what is unexplained sum to one."
    )
    notes = [] if data["complete"] else ["Passes are missing, so shares are bounds only."]
    notes += [f"{reason}."] if reason else []
    notes += [f"{op} could not be replaced: {why}." for op, why in data["not_covered"].items()]
    if data["stock_again"] is False:
        notes.append("Stock engines did not repeat their own bits after the last switch: shares hold that noise too.")
    return BudgetSection(
        summary,
        *_enough(data["smallest"]),
        _plot(shares[:ROWS]),
        [_row(row) for row in shares[:ROWS]],
        f"Without a share: {', '.join(quiet)}." if quiet else "",
        [visible(note, 500) for note in notes],
    )


def _enough(smallest: dict[str, Any] | None) -> tuple[str, str]:
    """What the smallest set is and reaches, and what it costs, in a sentence each."""
    if smallest is None:
        return "No set of operators was measured to be enough.", ""
    names = ", ".join(smallest["ops"]) or "nothing"
    tokens = f"{smallest['tokens']:,} tokens" + (", all of the run" if smallest["all_tokens"] else "")
    if smallest["reaches"] == "zero":
        what = f"d is exactly 0 on {tokens}"
    elif smallest["reaches"] == "the floor":
        what = f"d stays within the floor on {tokens}"
    else:
        what = f"as much is left on {tokens} as with every operator replaced"
    times = ", ".join(f"{side} {ratio:.2f} times" for side, ratio in smallest["time"].items())
    cost = f"Time of a pass against stock: {times}. " if times else ""
    return (
        f"Replacing {names} is enough: {what}.",
        f"{cost}Raw weights kept for the switch: {_size(smallest['bytes'])}.",
    )


def _size(count: int) -> str:
    return f"{count / 2**20:.1f} MiB" if count else "none"


def _row(row: dict[str, Any]) -> dict[str, str]:
    texts = {key: _percent(row[key]) for key in ("share", "low", "high", "first_in", "last_out", "interaction")}
    return {
        **texts,
        "component": str(row["component"]),
        "confidence": _percent(row["confidence"]),
        "how": str(row["how"]),
    }


def _percent(value: Any) -> str:
    return "" if value is None else f"{100 * float(value):.1f} %"


def _plot(shares: list[dict[str, Any]]) -> Plot:
    words = "; ".join(f"{row['component']} {_percent(row['share'])}" for row in shares)
    return Plot(
        "budget",
        "What the mismatch is made of",
        f"Bars of shares of mean d squared, which sum to one: {words}.",
        "Bar: share. Line: from the smallest to the largest of the two ways to measure it and its 90 % interval over "
        "samples. Where the marks lie apart, operators hide behind each other: shares don't simply add up.",
        (7.6, 1.1 + 0.42 * len(shares)),
        lambda figure: _draw(figure, shares),
    )


def _draw(figure: Figure, shares: list[dict[str, Any]]) -> None:
    axes = figure.add_subplot()
    for at, row in enumerate(shares):
        operator = row["component"] not in _KINDS
        axes.barh(at, row["share"], height=0.56, color=_BAR if operator else _REST, alpha=0.8)
        axes.plot([row["low"], row["high"]], [at, at], color=INK, linewidth=1.1)
        axes.text(1.04, at, _percent(row["share"]), va="center", ha="left", fontsize=8.5, color=INK)
    for key, marker, label in (("first_in", "<", "it alone replaced"), ("last_out", ">", "it alone stock")):
        known = [(row[key], at) for at, row in enumerate(shares) if row[key] is not None]
        if known:
            x, y = zip(*known, strict=True)
            axes.plot(x, y, marker, color=INK, markersize=5, markerfacecolor="none", label=label, clip_on=False)
    axes.set_yticks(range(len(shares)), [visible(str(row["component"]), 32) for row in shares])
    axes.set_ylim(len(shares) - 0.4, -0.6)
    left = min(row["first_in"] or 0.0 for row in shares)
    axes.set_xlim(left - 0.03 if left < 0 else 0.0, 1.0)
    axes.set_xlabel("share of mean d squared")
    axes.tick_params(axis="y", length=0, labelcolor=MUTED)
    axes.grid(False, axis="y")
    if axes.get_legend_handles_labels()[0]:
        legend(axes, 2)

"""From judged cases to the figures of `make faults`: shares per class, the bars, calibration, misses, the peers."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from tests.faults import peers
from tests.faults.fault import CLASSES

BARS = {"class": 0.95, "first": 0.85, "in_three": 0.95, "side": 0.90}
"""Least shares over the faults; on controls there is no false attribution at all."""

FIELDS = {"class": "right_class", "first": "first", "in_three": "in_three", "side": "side", "component": "component"}
BINS = (0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 1.0)


def share(rows: list[dict[str, Any]], field: str) -> dict[str, Any]:
    """Right answers among those that were asked for."""
    asked = [row["judged"][field] for row in rows if row["judged"][field] is not None]
    return {"right": sum(asked), "of": len(asked), "share": sum(asked) / len(asked) if asked else None}


def calibration(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per bin of confidence: how many verdicts, their mean confidence, and how many are right in class and cause."""
    bins = []
    for low, high in itertools.pairwise(BINS):
        top = 1.1 if high == BINS[-1] else high
        inside = [row for row in rows if low <= row["judged"]["confidence"] < top]
        right = [row["judged"]["right_class"] and row["judged"]["first"] is not False for row in inside]
        bins.append(
            {
                "low": low,
                "high": high,
                "verdicts": len(inside),
                "confidence": sum(row["judged"]["confidence"] for row in inside) / len(inside) if inside else None,
                "right": sum(right) / len(right) if right else None,
            }
        )
    return bins


def summarise(rows: list[dict[str, Any]], expected: int) -> dict[str, Any]:
    """The last line of `make faults`. `expected`: cases of the set; fewer rows do not pass."""
    faults = [row for row in rows if not row["control"]]
    controls = [row for row in rows if row["control"]]
    figures = {name: share(faults, field) for name, field in FIELDS.items()}
    blamed = [row["name"] for row in controls if row["judged"]["false_attribution"]]
    unanswered = [row["name"] for row in controls if row["judged"]["false_attribution"] is None]
    bars = {name: figures[name]["share"] is not None and figures[name]["share"] >= bar for name, bar in BARS.items()}
    bars["no_false_attribution"] = not blamed and not unanswered and bool(controls)
    bars["limits"] = not any(row["over_limit"] for row in rows)
    bars["complete"] = len(rows) >= expected
    return {
        "format": "logdiff-faults/1",
        "cases": len(rows),
        "of": expected,
        "faults": len(faults),
        "controls": len(controls),
        "figures": figures,
        "by_class": {
            label: {name: share([r for r in faults if r["label"] == label], field) for name, field in FIELDS.items()}
            for label in CLASSES
        },
        "honest_undetermined": sum(row["judged"]["honest"] for row in rows),
        "controls_right": share(controls, "right_class"),
        "false_attributions": blamed,
        "calibration": calibration(rows),
        "seconds": {
            "total": round(sum(row["seconds"] for row in rows), 1),
            "longest": max((row["seconds"] for row in rows), default=0.0),
        },
        "engine_starts": {
            "total": sum(row["starts"] for row in rows),
            "most": max((row["starts"] for row in rows), default=0),
        },
        "over_limit": [row["name"] for row in rows if row["over_limit"]],
        "peers": peers.table(rows),
        "misses": [{"name": row["name"], "reason": row["judged"]["reason"]} for row in rows if row["judged"]["reason"]],
        "bars": bars,
        "holds": all(bars.values()),
    }


def text(summary: dict[str, Any]) -> str:
    """The table for people."""
    lines = [f"{'class':26}{'class':>11}{'first':>11}{'in three':>11}{'side':>11}{'component':>11}"]
    for label, figures in [*summary["by_class"].items(), ("all faults", summary["figures"])]:
        cells = "".join(f"{_cell(figures[name]):>11}" for name in FIELDS)
        lines.append(f"{label:26}{cells}")
    lines.append(f"{'controls':26}{_cell(summary['controls_right']):>11}")
    lines.append(f"false attributions: {', '.join(summary['false_attributions']) or 'none'}")
    for row in summary["calibration"]:
        if row["verdicts"]:
            lines.append(
                f"confidence {row['low']:.1f} to {row['high']:.1f}: {row['verdicts']} verdicts, "
                f"mean {row['confidence']:.2f}, right {row['right']:.2f}"
            )
    for peer, row in summary["peers"].items():
        called = ", ".join(f"{row[kind]['called']} of {row[kind]['of']} {kind}" for kind in ("faults", "controls"))
        lines.append(f"{peer} ({row['rule']}) calls a mismatch on {called}; it names no class, cause or side")
    lines.append(
        f"{summary['seconds']['total']:.0f} s, longest {summary['seconds']['longest']:.0f} s; "
        f"{summary['engine_starts']['total']} engine starts, at most {summary['engine_starts']['most']}"
    )
    lines += [f"miss {miss['name']}: {miss['reason']}" for miss in summary["misses"]]
    lines.append("bars: " + ", ".join(f"{name} {'holds' if ok else 'missed'}" for name, ok in summary["bars"].items()))
    return "\n".join(lines)


def _cell(figure: dict[str, Any]) -> str:
    return "-" if not figure["of"] else f"{figure['right']}/{figure['of']}"


def plot(summary: dict[str, Any], path: Path) -> None:
    """The reliability diagram as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    filled = [row for row in summary["calibration"] if row["verdicts"]]
    figure, axes = pyplot.subplots(figsize=(4.5, 4.5), layout="constrained")
    axes.plot([0, 1], [0, 1], color="0.7", linewidth=1)
    axes.plot([row["confidence"] for row in filled], [row["right"] for row in filled], marker="o")
    for row in filled:
        axes.annotate(str(row["verdicts"]), (row["confidence"], row["right"]), (4, -10), textcoords="offset points")
    axes.set(xlabel="confidence of the verdict", ylabel="share right", xlim=(0, 1.02), ylim=(0, 1.02))
    axes.set_title("calibration, with the number of verdicts", fontsize=9)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)

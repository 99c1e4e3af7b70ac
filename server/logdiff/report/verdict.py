"""The verdict in a report: what was seen, what was ruled out, what was changed to prove it, what to do."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from logdiff.report.axes import Plot, legend, message, zero_level
from logdiff.report.files import read_section
from logdiff.report.palette import EARLIER, INK, MUTED, PAIR_COLOURS
from logdiff.report.texts import FILE_LIMIT
from logdiff.report.wording import number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROWS = 60
_PAIRS = {"decode-score": "decode_train", "prefill-score": "rescore_train", "decode-prefill": "decode_rescore"}
_TITLES = {"decode-score": "decode against train", "prefill-score": "prefill against train",
           "decode-prefill": "decode against prefill"}  # fmt: skip


@dataclass(slots=True)
class VerdictSection:
    """What the page shows of `results/verdict.json`."""

    statement: str
    facts: list[tuple[str, str]]
    evidence: list[dict[str, str]] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    candidates: list[dict[str, str]] = field(default_factory=list)
    excluded: list[tuple[str, str]] = field(default_factory=list)
    steps: list[tuple[str, str]] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)


def read_verdict(case: Path, missing: list[str]) -> VerdictSection | None:
    """The section of a case folder; None where nothing was diagnosed. A broken file is told in `missing`."""
    section = read_section(case, "verdict", "logdiff-verdict/1", missing, _section)
    if section is not None:
        growth = _growth(case)
        if growth is not None:
            section.plots.append(growth)
    return section


def _section(data: dict[str, Any]) -> VerdictSection:
    verdict = data["verdict"]
    facts = [
        ("class", str(verdict["class"])),
        ("path", str(verdict["path"])),
        ("side", str(verdict["side"])),
        ("cause", str(verdict["cause"] or "none of the catalogue")),
        ("component", str(verdict["component"] or "not named")),
        ("confidence", f"{float(verdict['confidence']):.2f}"),
    ]
    evidence = [
        {
            "claim": str(entry["claim"]),
            "value": _value(entry["value"]),
            "threshold": _value(entry["threshold"]),
            "source": str(entry["source"]),
            "repeat": str(entry["repeat"]),
        }
        for entry in data["evidence"][:ROWS]
    ]
    changed = [
        f"{t['side']} started without {t['removed']}: mean d² {_value(t['before_ms'])} before, {_value(t['after_ms'])} "
        f"after ({_share(t['share'])})"
        for t in data.get("toggles") or []
    ]
    changed += [
        f"aligned {entry['component']}: {float(entry['share']):.1%} of mean d² ({float(entry['low']):.1%} to "
        f"{float(entry['high']):.1%})"
        for entry in data["budget"]
    ]
    candidates = [
        {
            "cause": str(c["cause"] or "no known cause"),
            "class": str(c["class"]),
            "side": str(c.get("side", "unknown")),
            "component": str(c.get("component") or ""),
            "score": f"{float(c['score']):.2f}",
        }
        for c in data["candidates"][:ROWS]
    ]
    excluded = [(str(e["cause"]), str(e["by"])) for e in data["excluded"][:ROWS]]
    steps = [(str(n["what"]), str(n["command"])) for n in data["next_experiments"][:ROWS]]
    skipped = [f"{s['what']}: {s['why']}" for s in data.get("skipped") or []]
    plots = [plot for plot in (_distance_plot(data.get("distances") or {}),) if plot is not None]
    return VerdictSection(
        str(verdict["statement"]), facts, evidence, changed, candidates, excluded, steps, skipped, plots
    )


def _value(value: Any) -> str:
    if value is None:
        return ""
    return number(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)


def _share(share: Any) -> str:
    value = float(share)
    return f"{value:.0%} gone" if value >= 0 else f"{-value:.0%} more"


def _distance_plot(distances: dict[str, Any]) -> Plot | None:
    rows = [
        (name, float(entry["ratio"]))
        for name in ("decode", "prefill", "train")
        if isinstance(entry := distances.get(name), dict) and math.isfinite(float(entry["ratio"]))
    ]
    if not rows:
        return None
    words = ", ".join(f"{name} {ratio:.2f}" for name, ratio in rows)
    return Plot(
        "verdict-distance",
        "How far each side is from the checkpoint in fp32",
        f"Bars: {words} times as far as the checkpoint in the run's own dtype.",
        "In units of what the run's dtype costs the checkpoint itself. Bars beyond 2 are not rounding.",
        (9.0, 0.8 + 0.34 * len(rows)),
        lambda figure: _draw_distances(figure, rows),
    )


def _draw_distances(figure: Figure, rows: list[tuple[str, float]]) -> None:
    axes = figure.add_subplot()
    colours = {"decode": PAIR_COLOURS["decode_train"], "prefill": PAIR_COLOURS["rescore_train"], "train": EARLIER}
    axes.barh([n for n, _ in rows], [r for _, r in rows], color=[colours[n] for n, _ in rows], height=0.6)
    for place, (_, ratio) in enumerate(rows):
        axes.text(ratio, place, f" {ratio:.2f}", va="center", color=INK, fontsize=8.5)
    axes.axvline(1.0, color=MUTED, linewidth=0.9)
    axes.axvline(2.0, color=MUTED, linewidth=0.9, linestyle="--")
    axes.set_xlim(0, max(2.4, 1.15 * max(r for _, r in rows)))
    axes.invert_yaxis()
    axes.grid(False, axis="y")


def _growth(case: Path) -> Plot | None:
    """The growth of the difference along the model, from `results/operators.json`."""
    path = case / "results" / "operators.json"
    try:
        if path.stat().st_size > FILE_LIMIT:
            return None
        entries = json.loads(path.read_bytes()).get("divergence") or []
        series: dict[str, list[tuple[str, float]]] = {}
        for entry in entries:
            value = float(entry["relative"])
            if entry["pair"] in _PAIRS and math.isfinite(value):
                series.setdefault(entry["pair"], []).append((str(entry["boundary"]), value))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    if not series:
        return None
    lead = next(pair for pair in _PAIRS if pair in series)
    first = next((name for name, value in series[lead] if value > 0), None)
    said = f"{first} is the first boundary that differs" if first else "no boundary differs"
    return Plot(
        "verdict-growth",
        "Where the sides part",
        f"Relative difference of {len(series[lead])} boundaries in execution order; {said}.",
        f"rms of the difference over rms, boundary by boundary in execution order: {said}.",
        (9.0, 3.0),
        lambda figure: _draw_growth(figure, series),
    )


def _draw_growth(figure: Figure, series: dict[str, list[tuple[str, float]]]) -> None:
    axes = figure.add_subplot()
    names = list(dict.fromkeys(name for rows in series.values() for name, _ in rows))
    place = {name: i for i, name in enumerate(names)}
    values = np.array([v for rows in series.values() for _, v in rows])
    if not np.any(values > 0):
        message(axes, "Every boundary is equal to the bit")
        return
    level = zero_level(axes, values)
    for pair, rows in series.items():
        x = [place[name] for name, _ in rows]
        y = [value if value > 0 else level for _, value in rows]
        colour = PAIR_COLOURS[_PAIRS[pair]]
        axes.plot(x, y, color=colour, linewidth=1.1, marker="o", markersize=2.2, label=_TITLES[pair])
    layers = [i for i, name in enumerate(names) if name.endswith(".residual")]
    step = max(1, len(layers) // 12)
    axes.set_xticks(layers[::step], [names[i].removesuffix(".residual") for i in layers[::step]], fontsize=8)
    legend(axes, 3)

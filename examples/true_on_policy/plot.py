"""Stock and aligned side by side: one PNG and one HTML page from the metrics files."""

from __future__ import annotations

import html
import io
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Lines = list[dict[str, Any]]
COLOURS = {"stock": "#d55e00", "aligned": "#0072b2"}
STYLES = {"stock": ("-", "o"), "aligned": ("--", "s")}

SUMMARY: tuple[tuple[str, Callable[[Lines], str]], ...] = (
    ("steps", lambda m: str(len(m))),
    ("response tokens", lambda m: f"{_total(m, 'tokens'):,}"),
    ("tokens whose bits differ", lambda m: f"{_total(m, 'mismatched'):,}"),
    ("max abs d (nats)", lambda m: f"{max(x['max_abs'] for x in m):.3g}"),
    ("mean k3 KL (nats)", lambda m: f"{sum(x['k3'] for x in m) / len(m):.3g}"),
    ("ratios off 1 in first updates", lambda m: f"{sum(x['first_update']['not_one'] for x in m):,}"),
    ("ratios off 1 in last updates", lambda m: f"{sum(x['last_update']['not_one'] for x in m):,}"),
    ("largest ratio, first update", lambda m: f"{max(x['first_update']['max'] for x in m):.6g}"),
    ("largest ratio, last update", lambda m: f"{max(x['last_update']['max'] for x in m):.6g}"),
    ("reward, first and last quarter", lambda m: " to ".join(f"{x:.3f}" for x in _quarters(m))),
    ("rollout tokens/s (median)", lambda m: f"{_median([x['rollout_tokens_per_second'] for x in m]):.0f}"),
    ("seconds per step (median)", lambda m: f"{_median([x['seconds']['step'] for x in m]):.2f}"),
)
"""Rows of the summary: title and how to read it from a run's metrics."""


def read_metrics(path: Path) -> Lines:
    """The lines of a `metrics.jsonl`."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def comparable_runs(folder: Path) -> dict[str, Lines]:
    """Runs in `folder` by mode; of two whose settings differ in more than the mode only the newer one."""
    found: dict[str, tuple[float, dict[str, Any], Lines]] = {}
    for mode in COLOURS:
        metrics, settings = folder / mode / "metrics.jsonl", folder / mode / "settings.json"
        if metrics.is_file() and settings.is_file() and (lines := read_metrics(metrics)):
            given = json.loads(settings.read_text(encoding="utf-8"))
            shared = {key: value for key, value in given.items() if key not in ("mode", "ops", "check_weights")}
            found[mode] = (metrics.stat().st_mtime, shared, lines)
    if len({json.dumps(shared, sort_keys=True) for _, shared, _ in found.values()}) > 1:
        newest = max(found, key=lambda mode: found[mode][0])
        found = {newest: found[newest]}
    return {mode: lines for mode, (_, _, lines) in found.items()}


def summary(runs: dict[str, Lines]) -> list[list[str]]:
    """Header row, then one row per entry of `SUMMARY`."""
    return [["", *runs], *([title, *(value(lines) for lines in runs.values())] for title, value in SUMMARY)]


def write_plots(runs: dict[str, Lines], folder: Path, title: str) -> tuple[Path, Path]:
    """Draw `runs` (mode -> metrics). Returns the paths of `true-on-policy.png` and `.html`."""
    figure = _figure(runs, title)
    png, page = folder / "true-on-policy.png", folder / "true-on-policy.html"
    figure.savefig(png, dpi=100)
    svg = io.StringIO()
    figure.savefig(svg, format="svg")
    drawing = svg.getvalue()
    page.write_text(_page(title, drawing[drawing.index("<svg") :], summary(runs)), encoding="utf-8")
    return png, page


def _figure(runs: dict[str, Lines], title: str) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 7), layout="constrained")
    figure.suptitle(title, fontsize=12)
    panels: tuple[tuple[str, Callable[[dict[str, Any]], float], bool], ...] = (
        ("max |d| of the step (nats)", lambda x: x["max_abs"], True),
        ("tokens whose bits differ (share)", lambda x: x["mismatched"] / x["tokens"], False),
        ("KL, rollout to train, k3 (nats)", lambda x: x["k3"], True),
        ("first update: largest |ratio - 1|", lambda x: _reach(x["first_update"]), True),
        ("last update: largest |ratio - 1|", lambda x: _reach(x["last_update"]), True),
        ("reward", lambda x: x["reward"], False),
        ("rollout tokens/s", lambda x: x["rollout_tokens_per_second"], False),
        ("seconds per step", lambda x: x["seconds"]["step"], False),
    )
    for axes, (name, value, wide) in zip(figure.subplots(2, 4).flat, panels, strict=True):
        _panel(axes, name, {mode: [value(x) for x in lines] for mode, lines in runs.items()}, wide)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper right", ncols=len(runs), frameon=False)
    return figure


def _panel(axes: Axes, name: str, series: dict[str, list[float]], wide: bool) -> None:
    """One panel. A `wide` one has a logarithmic axis with exact zero at its foot."""
    axes.set_title(name, fontsize=10)
    for mode, values in series.items():
        style, marker = STYLES[mode]
        axes.plot(values, style, marker=marker, markersize=3, linewidth=1.3, color=COLOURS[mode], label=mode)
    values = [v for run in series.values() for v in run]
    if wide and max(values) > 0:
        _log_with_zero(axes, min(v for v in values if v > 0), max(values))
    else:
        axes.margins(y=0.1)
        axes.set_ylim(bottom=min(0.0, *values), top=None if max(values) > 0 else 1.0)
    axes.set_xlabel("step", fontsize=9)
    axes.grid(color="#e3e6eb", linewidth=0.7)
    axes.tick_params(labelsize=8)


def _log_with_zero(axes: Axes, least: float, most: float) -> None:
    """A logarithmic axis over [least, most] whose foot is exact zero."""
    low, high = math.floor(math.log10(least)), math.ceil(math.log10(most))
    high = max(high, low + 1)
    axes.set_yscale("symlog", linthresh=10.0**low, linscale=0.5)
    axes.set_ylim(-0.15 * 10.0**low, 10.0**high)
    decades = range(low, high + 1, max(1, (high - low) // 5))
    axes.set_yticks([0.0, *(10.0**k for k in decades)], ["0", *(f"$10^{{{k}}}$" for k in decades)])
    axes.minorticks_off()
    axes.axhline(0, color="#5f6877", linewidth=0.8)


def _page(title: str, svg: str, rows: list[list[str]]) -> str:
    head, *body = rows
    cells = "".join(f"<th>{html.escape(c)}</th>" for c in head)
    lines = "".join(
        f"<tr><th>{html.escape(row[0])}</th>" + "".join(f"<td>{html.escape(c)}</td>" for c in row[1:]) + "</tr>"
        for row in body
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title><style>'
        "body{font:15px/1.5 system-ui,sans-serif;color:#1f2430;max-width:1320px;margin:2em auto;padding:0 1em}"
        "svg{width:100%;height:auto}table{border-collapse:collapse}th,td{padding:.25em 1em;text-align:right;"
        "border-bottom:1px solid #e3e6eb}tr th:first-child{text-align:left;font-weight:400}</style></head>"
        f"<body><h1>{html.escape(title)}</h1><p>d = logp_train - logp_rollout of one response token, at the weights "
        "that sampled it. The importance ratio is exp d with the rollout's own log-probability as the old policy: on "
        "the first update of a step it is 1 exactly where the two sides are equal.</p>"
        f"<table><thead><tr>{cells}</tr></thead><tbody>{lines}</tbody></table>{svg}</body></html>\n"
    )


def _reach(update: dict[str, Any]) -> float:
    return float(max(abs(update["max"] - 1), abs(update["min"] - 1)))


def _total(lines: Lines, name: str) -> int:
    return sum(int(x[name]) for x in lines)


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _quarters(lines: Lines) -> tuple[float, float]:
    """Mean reward of the first and of the last quarter of the steps."""
    rewards = [x["reward"] for x in lines]
    size = max(1, len(rewards) // 4)
    return sum(rewards[:size]) / size, sum(rewards[-size:]) / size

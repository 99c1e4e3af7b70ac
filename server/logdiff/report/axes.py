"""How every figure of the report looks: style, logarithmic axes with a place for exact zeros, legends."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from logdiff.report.palette import GRID, INK, MUTED
from logdiff.report.profile import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ALL_ZERO = "All differences are exactly 0"
SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
RC: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "text.color": INK,
    "text.parse_math": False,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "legend.handlelength": 2.4,
    "svg.fonttype": "none",
    "svg.hashsalt": "logdiff",
    "figure.facecolor": "white",
    "axes.facecolor": "none",
    "savefig.dpi": 160,
}


@dataclass(frozen=True, slots=True)
class Plot:
    """A figure to draw: `name` of its file, `title`, `alt` text, `caption`, and `draw(figure)`. Size in inches."""

    name: str
    title: str
    alt: str
    caption: str
    size: tuple[float, float]
    draw: Callable[[Figure], None]


def log_label(value: float, _: object = None) -> str:
    """A whole power of ten as text, anything else as nothing."""
    if value <= 0 or not math.isfinite(value):
        return ""
    exponent = math.log10(value)
    if abs(exponent - round(exponent)) > 1e-6:
        return ""
    if -3 <= round(exponent) <= 3:
        return f"{value:g}"
    return "10" + str(round(exponent)).translate(SUPERSCRIPT)


def log_axis(axis: Any) -> None:
    """Ticks of an axis that is logarithmic already."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(numticks=9))
    axis.set_major_formatter(FuncFormatter(log_label))
    axis.set_minor_formatter(NullFormatter())


def decades(values: list[float], *, above: float = 1.0) -> tuple[float, float]:
    """Whole decades around the positive finite values, the largest times `above`; 0.001 to 1 where there are none."""
    known = [v for v in values if v > 0 and math.isfinite(v)]
    if not known:
        return 1e-3, 1.0
    low, high = math.floor(math.log10(min(known)) + 1e-9), math.ceil(math.log10(max(known) * above) - 1e-9)
    return 10.0**low, 10.0 ** max(high, low + 1)


def legend(axes: Axes, columns: int = 1) -> None:
    """A legend above the plot, where it covers no data."""
    axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=columns, borderaxespad=0.2, columnspacing=1.4)


def message(axes: Axes, text: str) -> None:
    """A sentence in the middle of a plot that has no curve."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=MUTED, fontsize=11)


def zero_level(axes: Axes, values: Floats) -> float:
    """Make the y axis logarithmic with a labelled place for exact zeros; returns that place."""
    known = values[np.isfinite(values)]
    low, high = decades(known.tolist(), above=1.1)
    axes.set_yscale("log")
    log_axis(axes.yaxis)
    if not np.any(known == 0):
        axes.set_ylim(low, high)
        return low
    level = low / 10 ** max(1.0, 0.12 * math.log10(high / low))
    axes.set_ylim(level / 2, high)
    axes.axhline(level, color=MUTED, linewidth=0.7, linestyle=":")
    axes.text(
        0.995,
        level,
        "exactly 0",
        transform=axes.get_yaxis_transform(),
        ha="right",
        va="bottom",
        color=MUTED,
        fontsize=8,
    )
    return level


def lines(axes: Axes, x: Floats, series: list[tuple[str, Floats, str, str]]) -> None:
    """Curves (label, values, colour, line style) over `x` [n] on a log axis, exact zeros at their own place."""
    level = zero_level(axes, np.concatenate([values for _, values, _, _ in series]))
    marker = "o" if len(x) <= 40 else ""
    for label, values, colour, style in series:
        shown = np.where(values == 0, level, values)
        axes.plot(x, shown, label=label, color=colour, linestyle=style, linewidth=1.4, marker=marker, markersize=3)

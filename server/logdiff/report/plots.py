"""The report's figures, drawn from binned counts with matplotlib's object interface (no display, no pyplot state)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from logdiff.report.floor import Floor, FloorRow
from logdiff.report.palette import EARLIER, FLOOR, GRID, INK, MUTED, PAIR_COLOURS, PAIR_STYLES
from logdiff.report.profile import (
    LOGPROB_BINS,
    LOGPROB_FLOOR,
    POSITION_BINS,
    PROBABILITY_BINS,
    Floats,
    GroupStats,
    Ints,
    PairProfile,
    Profile,
    magnitude_edges,
)
from logdiff.report.summary import PAIR_TITLES, PairRow
from logdiff.report.wording import as_float, number, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ALL_ZERO = "All differences are exactly 0"
HISTOGRAM_BINS = 81
FLOOR_BARS = 24
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


def _log_label(value: float, _: object = None) -> str:
    if value <= 0 or not math.isfinite(value):
        return ""
    exponent = math.log10(value)
    if abs(exponent - round(exponent)) > 1e-6:
        return ""
    if -3 <= round(exponent) <= 3:
        return f"{value:g}"
    return "10" + str(round(exponent)).translate(SUPERSCRIPT)


def _log_axis(axis: Any) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(numticks=9))
    axis.set_major_formatter(FuncFormatter(_log_label))
    axis.set_minor_formatter(NullFormatter())


def _decades(values: list[float], *, above: float = 1.0) -> tuple[float, float]:
    """Whole decades around the positive finite values."""
    known = [v for v in values if v > 0 and math.isfinite(v)]
    if not known:
        return 1e-3, 1.0
    low, high = math.floor(math.log10(min(known)) + 1e-9), math.ceil(math.log10(max(known) * above) - 1e-9)
    return 10.0**low, 10.0 ** max(high, low + 1)


def _legend(axes: Axes, columns: int = 1) -> None:
    axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=columns, borderaxespad=0.2, columnspacing=1.4)


def _message(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=MUTED, fontsize=11)


def _title(name: str, pair: PairProfile) -> str:
    title = PAIR_TITLES[name]
    if pair.zero == pair.finite:
        return f"{title}: all exactly 0"
    return f"{title} ({percent(pair.zero, pair.finite)} exactly 0)" if pair.zero else title


def _drawn(profile: Profile) -> list[tuple[str, PairProfile]]:
    return [(name, pair) for name, pair in profile.pairs.items() if pair.finite]


# --- both probabilities ---------------------------------------------------------------------------------------------


def _density(axes: Axes, counts: Ints, extent: tuple[float, float, float, float], colour: str) -> None:
    from matplotlib.colors import to_rgb

    image = np.zeros((*counts.shape, 4))
    image[..., :3] = to_rgb(colour)
    strength = np.log1p(counts) / math.log1p(max(int(counts.max()), 1))
    image[..., 3] = np.where(counts > 0, 0.15 + 0.85 * strength, 0.0)
    axes.imshow(image, origin="lower", extent=extent, interpolation="none", aspect="auto", zorder=2)


def _square(axes: Axes, low: float, high: float, first: str, second: str, unit: str) -> None:
    axes.plot([low, high], [low, high], color=MUTED, linewidth=0.8, zorder=1.5)
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    axes.set_box_aspect(1)
    axes.set_xlabel(f"{first} {unit}")
    axes.set_ylabel(f"{second} {unit}")


def _points(profile: Profile, pair: PairProfile) -> Floats | None:
    return np.concatenate(pair.points, axis=1) if pair.points else None


def _worst_points(profile: Profile) -> Floats:
    rows = [(w.first, w.second) for w in profile.worst if math.isfinite(w.d) and w.d != 0]
    return np.asarray(rows, dtype=np.float64).reshape(-1, 2).T


def _scatter(axes: Axes, points: Floats, colour: str) -> None:
    axes.scatter(points[0], points[1], s=9, color=colour, alpha=0.55, linewidths=0, zorder=3)


def _mark_worst(axes: Axes, worst: Floats) -> None:
    axes.scatter(worst[0], worst[1], s=22, facecolors="none", edgecolors=PAIR_COLOURS["decode_rescore"], zorder=4)


def _probability_plot(profile: Profile, name: str, pair: PairProfile) -> Plot:
    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        points = _points(profile, pair)
        if points is not None:
            _scatter(axes, np.exp(np.minimum(points, 0.0)), PAIR_COLOURS[name])
        else:
            _density(axes, pair.probability, (0, 1, 0, 1), PAIR_COLOURS[name])
            _mark_worst(axes, np.exp(np.minimum(_worst_points(profile), 0.0)))
        _square(axes, 0.0, 1.0, pair.first, pair.second, "probability")

    how = _how_many(pair, f"a {PROBABILITY_BINS} x {PROBABILITY_BINS} grid")
    return Plot(
        "probability",
        "Both probabilities",
        f"Probability of each token on the {pair.second} side against the {pair.first} side; the diagonal is agreement.",
        f"Tokens on the diagonal have the same probability on both sides. {how}",
        (5.4, 4.7),
        draw,
    )


def _how_many(pair: PairProfile, grid: str) -> str:
    if pair.points:
        return f"Every one of the {pair.finite:,} tokens is a dot."
    return (
        f"{pair.finite:,} tokens counted on {grid}; a fuller cell is stronger (log scale). Circles: the worst tokens."
    )


def _logprob_plot(profile: Profile, name: str, pair: PairProfile) -> Plot:
    used = np.flatnonzero(pair.logprobs.any(axis=0) | pair.logprobs.any(axis=1))
    cell = -LOGPROB_FLOOR / LOGPROB_BINS
    start, stop = max(int(used[0]) - 1, 0), min(int(used[-1]) + 2, LOGPROB_BINS)
    low, high = LOGPROB_FLOOR + start * cell, LOGPROB_FLOOR + stop * cell

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        points = _points(profile, pair)
        if points is not None:
            _scatter(axes, np.clip(points, low, high), PAIR_COLOURS[name])
        else:
            block = pair.logprobs[start:stop, start:stop]
            fold = max(1, math.ceil(len(block) / 128))
            size = math.ceil(len(block) / fold) * fold
            block = np.pad(block, (0, size - len(block)))
            block = block.reshape(size // fold, fold, size // fold, fold).sum(axis=(1, 3))
            end = low + size * cell
            _density(axes, block, (low, end, low, end), PAIR_COLOURS[name])
            _mark_worst(axes, np.clip(_worst_points(profile), low, high))
        _square(axes, low, high, pair.first, pair.second, "log-probability (nats)")

    note = f" Values below {LOGPROB_FLOOR:g} or above 0 stand at the border." if used[0] == 0 or high >= 0 else ""
    return Plot(
        "logprob",
        "Both log-probabilities",
        f"Log-probability of each token on the {pair.second} side against the {pair.first} side, in nats.",
        "Unlikely tokens, hidden in the corner of the plot of probabilities, spread out here. "
        + _how_many(pair, f"cells of {cell:g} nats")
        + note,
        (5.4, 4.7),
        draw,
    )


# --- distribution of d ----------------------------------------------------------------------------------------------


def linear_shares(pair: PairProfile, reach: float) -> Floats:
    """Share of tokens per bin of `HISTOGRAM_BINS` equal bins over [-reach, reach], [HISTOGRAM_BINS].

    Magnitude bins are spread evenly over the bins that they overlap; exact zeros stand in the middle one.
    """
    edges = magnitude_edges()
    borders = np.linspace(-reach, reach, HISTOGRAM_BINS + 1)

    def cumulative(counts: Ints, at: Floats) -> Floats:
        running = np.concatenate([[0.0], np.cumsum(counts)])
        return np.asarray(np.interp(at, edges, running, left=0.0), dtype=np.float64)

    above = np.diff(cumulative(pair.above, np.maximum(borders, 0.0)))
    below = np.diff(cumulative(pair.below, np.maximum(-borders, 0.0))) * -1.0
    result = above + below
    result[HISTOGRAM_BINS // 2] += pair.zero
    return np.asarray(result / pair.finite, dtype=np.float64)


def _histogram_plot(profile: Profile) -> Plot:
    drawn = _drawn(profile)
    reach = max((pair.quantile(0.999) for _, pair in drawn), default=0.0) or max(
        (pair.max_abs for _, pair in drawn), default=0.0
    )
    reach *= 1.05

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.set_xlabel("d (nats)")
        axes.set_ylabel("share of tokens per bin")
        if not reach:
            _message(axes, ALL_ZERO if drawn else "No token to compare")
            return
        borders = np.linspace(-reach, reach, HISTOGRAM_BINS + 1)
        shares = []
        for name, pair in drawn:
            share = linear_shares(pair, reach)
            shares.extend(share[share > 0].tolist())
            style: dict[str, Any] = {"color": PAIR_COLOURS[name], "linestyle": PAIR_STYLES[name], "linewidth": 1.4}
            axes.stairs(np.where(share > 0, share, np.nan), borders, label=_title(name, pair), baseline=None, **style)
        axes.set_yscale("log")
        _log_axis(axes.yaxis)
        lower = max(min(shares), 1e-9) if shares else 1e-3
        axes.set_ylim(10 ** math.floor(math.log10(lower)), 1.5)
        axes.axvline(0, color=MUTED, linewidth=0.8)
        _legend(axes)

    beyond = max((int(pair.finite - round(float(linear_shares(pair, reach).sum()) * pair.finite)) for _, pair in drawn), default=0) if reach else 0
    tail = f" Up to {beyond:,} tokens of a pair lie beyond the range drawn (at least 99.9 % lie in it)." if beyond else ""
    return Plot(
        "histogram",
        "Distribution of d",
        "Histogram of d for each pair of sides, share of tokens on a log scale.",
        f"d is the second side's log-probability minus the first's; the exact zeros stand in the middle bin.{tail}",
        (5.4, 3.7),
        draw,
    )


def _floor_curve(row: FloorRow) -> tuple[list[float], list[float]]:
    points = [(row.p50, 0.5), (row.p90, 0.1), (row.p99, 0.01), (row.p999, 0.001)]
    if row.max_abs is not None and row.tokens:
        points.append((row.max_abs, 1 / row.tokens))
    known = [(value, share) for value, share in points if value is not None and value > 0]
    known.sort(key=lambda item: -item[1])
    return [v for v, _ in known], [s for _, s in known]


def _survival_plot(profile: Profile, floor: Floor, earlier: PairProfile | None) -> Plot:
    drawn = _drawn(profile)
    base = floor.reference

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.set_xlabel("|d| (nats)")
        axes.set_ylabel("share of tokens with |d| at least this")
        sizes: list[float] = []
        shares: list[float] = []
        for name, pair in drawn:
            value, share = pair.survival()
            style: dict[str, Any] = {"color": PAIR_COLOURS[name], "linestyle": PAIR_STYLES[name], "linewidth": 1.5}
            axes.plot(value, share, label=_title(name, pair), **style)
            sizes += value.tolist()
            shares += share.tolist()
        if earlier is not None and earlier.finite:
            value, share = earlier.survival()
            axes.plot(value, share, color=EARLIER, linewidth=1.5, linestyle=":", label="the earlier case")
            sizes += value.tolist()
            shares += share.tolist()
        if base is not None:
            value_list, share_list = _floor_curve(base)
            label = f"floor ({base.name})" if base.name != "floor" else "floor"
            if value_list:
                axes.plot(value_list, share_list, color=FLOOR, marker="s", markersize=3.5, linewidth=1, label=label)
            elif base.max_abs is not None and base.max_abs > 0:
                axes.axvline(base.max_abs, color=FLOOR, linewidth=1, linestyle=":", label=f"max |d| of the {label}")
                sizes.append(base.max_abs)
            elif base.max_abs == 0:
                axes.plot([], [], color=FLOOR, label=f"{label}: exactly 0")
            sizes += value_list
            shares += share_list
        if drawn or base is not None:
            _legend(axes)
        if not sizes:
            _message(axes, ALL_ZERO if drawn else "No token to compare")
            return
        axes.set_xscale("log")
        axes.set_yscale("log")
        _log_axis(axes.xaxis)
        _log_axis(axes.yaxis)
        axes.set_xlim(*_decades(_upper_part(sizes)))
        axes.set_ylim(_decades(shares)[0] if shares else 1e-3, 1.3)

    shown = "The floor is drawn through its percentiles." if base is not None else "No floor was measured."
    return Plot(
        "survival",
        "How many tokens lie how far apart",
        "Share of tokens whose |d| is at least a given size, both axes logarithmic, for each pair and the floor.",
        f"The further a curve reaches to the right, the larger the differences. Exact zeros lie left of every point. {shown}",
        (5.4, 3.9),
        draw,
    )


def _upper_part(sizes: list[float]) -> list[float]:
    """At most seven decades below the largest: what lies left of it carries no shape."""
    largest = max(sizes)
    return [s for s in sizes if s >= largest * 1e-7] or [largest]


# --- along the response, over steps and ranks -----------------------------------------------------------------------


def _zero_level(axes: Axes, values: Floats) -> float:
    """Make the y axis logarithmic with a labelled place for exact zeros; returns that place."""
    known = values[np.isfinite(values)]
    low, high = _decades(known.tolist(), above=1.1)
    axes.set_yscale("log")
    _log_axis(axes.yaxis)
    if not np.any(known == 0):
        axes.set_ylim(low, high)
        return low
    level = low / 10 ** max(1.0, 0.12 * math.log10(high / low))
    axes.set_ylim(level / 2, high)
    axes.axhline(level, color=MUTED, linewidth=0.7, linestyle=":")
    axes.text(
        0.995, level, "exactly 0", transform=axes.get_yaxis_transform(), ha="right", va="bottom", color=MUTED, fontsize=8
    )
    return level


def _lines(axes: Axes, x: Floats, series: list[tuple[str, Floats, str, str]]) -> None:
    level = _zero_level(axes, np.concatenate([values for _, values, _, _ in series]))
    marker = "o" if len(x) <= 40 else ""
    for label, values, colour, style in series:
        shown = np.where(values == 0, level, values)
        axes.plot(x, shown, label=label, color=colour, linestyle=style, linewidth=1.4, marker=marker, markersize=3)


def _position_plot(profile: Profile, name: str, pair: PairProfile) -> Plot:
    grid = pair.position
    median, high, largest = grid.quantile(0.5), grid.quantile(0.9), np.where(grid.largest < 0, np.nan, grid.largest)
    used = np.flatnonzero(grid.counts.sum(axis=1))
    x = np.asarray(used * grid.width + (grid.width - 1) / 2, dtype=np.float64)

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.set_xlabel("position in the response (tokens)")
        axes.set_ylabel("|d| (nats)")
        colour = PAIR_COLOURS[name]
        series = [
            ("maximum", largest[used], colour, ":"),
            ("90 % below", high[used], colour, "--"),
            ("median", median[used], colour, "-"),
        ]
        _lines(axes, x, series)
        axes.margins(x=0.03)
        _legend(axes, 3)
        if pair.zero == pair.finite:
            _message(axes, ALL_ZERO)

    bins = f"Bins of {grid.width:,} positions, at most {POSITION_BINS}." if grid.width > 1 else "One bin per position."
    return Plot(
        "position",
        "|d| along the response",
        f"Median, 90 % quantile and maximum of |d| against the position in the response, {PAIR_TITLES[name]}.",
        f"{PAIR_TITLES[name]}. {bins} A rise to the right points at an error that builds up with length.",
        (5.4, 3.7),
        draw,
    )


def _group_plot(what: str, groups: dict[int, GroupStats]) -> Plot:
    keys = sorted(groups)

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.set_xlabel(what)
        axes.set_ylabel("|d| (nats)")
        means = np.asarray([groups[k].sum_abs / groups[k].tokens for k in keys])
        largest = np.asarray([groups[k].max_abs for k in keys])
        colour = PAIR_COLOURS["decode_train"]
        _lines(axes, np.asarray(keys, np.float64), [("maximum", largest, colour, ":"), ("mean", means, colour, "-")])
        from matplotlib.ticker import MaxNLocator

        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        _legend(axes, 2)
        if not largest.any():
            _message(axes, ALL_ZERO)

    return Plot(
        f"{what}s",
        f"|d| by {what}",
        f"Mean and maximum of |d| for each {what}.",
        f"{len(keys):,} {what}s, the main pair of sides.",
        (5.4, 3.4),
        draw,
    )


# --- floor beside signal --------------------------------------------------------------------------------------------


def _floor_plot(rows: list[PairRow], floor: Floor) -> Plot:
    bars: list[tuple[str, float | None, float | None, str]] = [
        (row.title, as_float(row.block.get("mean_abs")), as_float(row.block.get("max_abs")), PAIR_COLOURS[row.name])
        for row in rows
        if row.block
    ]
    axes_rows = floor.rows or ([floor.overall] if floor.overall else [])
    bars += [(f"floor: {r.name}", r.mean_abs, r.max_abs, FLOOR) for r in axes_rows[:FLOOR_BARS]]
    values = [v for _, mean, top, _ in bars for v in (mean, top) if v is not None and v > 0 and math.isfinite(v)]
    low, high = _decades(values, above=1.3)
    low = low / 10 if values else low

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.set_xscale("log")
        _log_axis(axes.xaxis)
        axes.set_xlim(low, high * 10 ** (0.22 * math.log10(high / low)))
        for index, (_, mean, top, colour) in enumerate(bars):
            for value, offset, alpha in ((mean, -0.18, 1.0), (top, 0.18, 0.45)):
                y = index + offset
                if value is None or not math.isfinite(value) or value <= 0:
                    text = "exactly 0" if value == 0 else "not known" if value is None else number(value)
                    axes.text(low, y, f" {text}", va="center", fontsize=7.5, color=MUTED)
                    continue
                axes.barh(y, value - low, 0.32, left=low, color=colour, alpha=alpha)
                axes.text(value, y, f" {number(value)}", va="center", fontsize=7.5, color=INK)
        axes.set_yticks(range(len(bars)), [name for name, _, _, _ in bars])
        axes.tick_params(axis="y", length=0, labelcolor=INK)
        axes.set_ylim(len(bars) - 0.4, -0.6)
        axes.grid(False, axis="y")
        axes.set_xlabel("|d| (nats); upper bar: mean, lower and paler bar: maximum")

    left_out = max(0, len(axes_rows) - FLOOR_BARS)
    return Plot(
        "floor",
        "Floor beside signal",
        "Mean and maximum of |d| for each pair of sides and for each axis of the floor, on a log scale.",
        "The floor is what a side shows against itself when only shape or order varies."
        + (f" {left_out} axes are in the table only." if left_out else ""),
        (7.6, 1.0 + 0.42 * max(len(bars), 2)),
        draw,
    )


def plots(profile: Profile | None, rows: list[PairRow], floor: Floor, earlier: PairProfile | None = None) -> list[Plot]:
    """The figures that the evidence allows, in reading order."""
    result: list[Plot] = []
    if profile is not None and profile.main is not None and profile.pairs[profile.main].finite:
        pair = profile.pairs[profile.main]
        result += [_probability_plot(profile, profile.main, pair), _logprob_plot(profile, profile.main, pair)]
        result += [_histogram_plot(profile), _survival_plot(profile, floor, earlier)]
        result.append(_position_plot(profile, profile.main, pair))
        result += [
            _group_plot(what, groups)
            for what, groups in (("step", profile.steps), ("rank", profile.ranks))
            if len(groups) > 1
        ]
    if floor.rows or floor.overall:
        result.append(_floor_plot(rows, floor))
    return result

"""The report's figures, drawn from binned counts with matplotlib's object interface (no display, no pyplot state)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from logdiff.report.axes import ALL_ZERO, Plot, decades, legend, lines, log_axis, message
from logdiff.report.floor import Floor, FloorRow
from logdiff.report.palette import EARLIER, FLOOR, INK, MUTED, PAIR_COLOURS, PAIR_STYLES
from logdiff.report.planes import logprob_plot, probability_plot
from logdiff.report.profile import POSITION_BINS, Floats, GroupStats, Ints, PairProfile, Profile, magnitude_edges
from logdiff.report.summary import PAIR_TITLES, PairRow
from logdiff.report.wording import as_float, number, percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HISTOGRAM_BINS = 61
FLOOR_BARS = 24
FULL_BIN = 10


def _title(name: str, pair: PairProfile) -> str:
    title = PAIR_TITLES[name]
    if pair.zero == pair.finite:
        return f"{title}: all exactly 0"
    return f"{title} ({percent(pair.zero, pair.finite)} exactly 0)" if pair.zero else title


def _drawn(profile: Profile) -> list[tuple[str, PairProfile]]:
    return [(name, pair) for name, pair in profile.pairs.items() if pair.finite]


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
            message(axes, ALL_ZERO if drawn else "No token to compare")
            return
        borders = np.linspace(-reach, reach, HISTOGRAM_BINS + 1)
        for name, pair in drawn:
            share = np.maximum(linear_shares(pair, reach), 1e-12)
            style: dict[str, Any] = {"color": PAIR_COLOURS[name], "linestyle": PAIR_STYLES[name], "linewidth": 1.4}
            axes.stairs(share, borders, label=_title(name, pair), **style)
        axes.set_yscale("log")
        log_axis(axes.yaxis)
        axes.set_ylim(0.5 / max(pair.finite for _, pair in drawn), 1.5)
        axes.axvline(0, color=MUTED, linewidth=0.8)
        legend(axes)

    beyond = max(
        (round((1 - float(linear_shares(pair, reach).sum())) * pair.finite) for _, pair in drawn if reach), default=0
    )
    tail = (
        f" Up to {beyond:,} tokens of a pair lie beyond the range drawn (at least 99.9 % lie in it)." if beyond else ""
    )
    return Plot(
        "histogram",
        "Distribution of d",
        "Histogram of d for each pair of sides, share of tokens on a log scale.",
        f"d is the second side's log-probability minus the first's; the exact zeros stand in the middle bin.{tail}",
        (5.4, 3.7),
        draw,
    )


def _floor_curve(row: FloorRow) -> tuple[list[float], list[float]]:
    if not row.tokens:
        return [], []
    points = [(row.p50, 0.5), (row.p90, 0.1), (row.p99, 0.01), (row.p999, 0.001)]
    points = [(value, share) for value, share in points if share > 1 / row.tokens] + [(row.max_abs, 1 / row.tokens)]
    known = [(value, share) for value, share in points if value is not None and 0 < value < math.inf]
    return [v for v, _ in known], [s for _, s in known]


def _floor_label(rows: list[FloorRow]) -> str:
    zero = sum(row.is_zero for row in rows)
    if zero == len(rows):
        return "floor: exactly 0 on every axis"
    return f"floor, {len(rows) - zero} axes" + (f" ({zero} more exactly 0)" if zero else "")


def _survival_plot(profile: Profile, floor: Floor, earlier: PairProfile | None) -> Plot:
    drawn = _drawn(profile)

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.set_xlabel("|d| (nats)")
        axes.set_ylabel("share of tokens with |d| at least this")
        sizes: list[float] = []
        shares: list[float] = []
        low = math.inf
        for name, pair in drawn:
            value, share = pair.survival()
            low = min(low, _bend(value, share))
            style: dict[str, Any] = {"color": PAIR_COLOURS[name], "linestyle": PAIR_STYLES[name], "linewidth": 1.5}
            axes.plot(value, share, label=_title(name, pair), **style)
            sizes += value.tolist()
            shares += share.tolist()
        if earlier is not None and earlier.finite:
            value, share = earlier.survival()
            low = min(low, _bend(value, share))
            axes.plot(value, share, color=EARLIER, linewidth=1.5, linestyle=":", label="the earlier case")
            sizes += value.tolist()
            shares += share.tolist()
        for row in floor.rows:
            reach, part = _floor_curve(row)
            axes.plot(reach, part, color=FLOOR, marker="s", markersize=3, linewidth=0.9, alpha=0.7)
            sizes += reach
            shares += part
        if floor.rows:
            axes.plot([], [], color=FLOOR, marker="s", markersize=3, linewidth=0.9, label=_floor_label(floor.rows))
        if drawn or floor.rows:
            legend(axes)
        if not sizes:
            message(axes, ALL_ZERO if drawn else "No token to compare")
            return
        axes.set_xscale("log")
        axes.set_yscale("log")
        log_axis(axes.xaxis)
        log_axis(axes.yaxis)
        axes.set_xlim(*decades([min(low, max(sizes)), max(sizes)]))
        axes.set_ylim(decades(shares)[0] if shares else 1e-3, 1.3)

    shown = "Each axis of the floor is drawn through its percentiles." if floor.rows else "No floor was measured."
    return Plot(
        "survival",
        "How many tokens lie how far apart",
        "Share of tokens whose |d| is at least a given size, both axes logarithmic, for each pair and the floor.",
        "The further a curve reaches to the right, the larger the differences. Exact zeros lie left of every point, "
        f"and left of the axis the curves are flat. {shown}",
        (5.4, 3.9),
        draw,
    )


def _bend(value: Floats, share: Floats) -> float:
    """The |d| up to which a survival curve is flat within 3 %; inf for an empty curve."""
    return float(value[share >= 0.97 * share[0]].max()) if len(value) else math.inf


def _position_plot(profile: Profile, name: str, pair: PairProfile) -> Plot:
    grid = pair.position
    median, high, largest = grid.quantile(0.5), grid.quantile(0.9), np.where(grid.largest < 0, np.nan, grid.largest)
    per_bin = grid.counts.sum(axis=1)
    used = np.flatnonzero(per_bin)
    enough = per_bin >= FULL_BIN
    if enough.any():
        median, high = np.where(enough, median, np.nan), np.where(enough, high, np.nan)
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
        lines(axes, x, series)
        axes.margins(x=0.03)
        legend(axes, 3)
        if pair.zero == pair.finite:
            message(axes, ALL_ZERO)

    bins = f"Bins of {grid.width:,} positions, at most {POSITION_BINS}." if grid.width > 1 else "One bin per position."
    if enough.any() and not enough[used].all():
        bins += f" Median and 90 % only where a bin holds {FULL_BIN} tokens or more."
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
        lines(axes, np.asarray(keys, np.float64), [("maximum", largest, colour, ":"), ("mean", means, colour, "-")])
        from matplotlib.ticker import MaxNLocator

        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        legend(axes, 2)
        if not largest.any():
            message(axes, ALL_ZERO)

    return Plot(
        f"{what}s",
        f"|d| by {what}",
        f"Mean and maximum of |d| for each {what}.",
        f"{len(keys):,} {what}s, the main pair of sides.",
        (5.4, 3.4),
        draw,
    )


def _floor_plot(rows: list[PairRow], floor: Floor) -> Plot:
    bars: list[tuple[str, float | None, float | None, str]] = [
        (row.title, as_float(row.block.get("mean_abs")), as_float(row.block.get("max_abs")), PAIR_COLOURS[row.name])
        for row in rows
        if row.block
    ]
    axes_rows = floor.rows
    bars += [(f"floor, {r.name}", r.mean_abs, r.max_abs, FLOOR) for r in axes_rows[:FLOOR_BARS]]
    values = [v for _, mean, top, _ in bars for v in (mean, top) if v is not None and v > 0 and math.isfinite(v)]
    low, high = decades(values, above=1.3)
    low = low / 10 if values else low

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.set_xscale("log")
        log_axis(axes.xaxis)
        axes.set_xlim(low, high * 10 ** (0.12 * math.log10(high / low)))
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
        result += [probability_plot(profile, profile.main, pair), logprob_plot(profile, profile.main, pair)]
        result += [_histogram_plot(profile), _survival_plot(profile, floor, earlier)]
        result.append(_position_plot(profile, profile.main, pair))
        result += [
            _group_plot(what, groups)
            for what, groups in (("step", profile.steps), ("rank", profile.ranks))
            if len(groups) > 1
        ]
    if floor.rows:
        result.append(_floor_plot(rows, floor))
    return result

"""The figure that sets an earlier case beside this one: how the distribution of d changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from logdiff.report.axes import Plot, legend, log_axis, message
from logdiff.report.palette import EARLIER, MUTED, PAIR_COLOURS
from logdiff.report.plots import HISTOGRAM_BINS, linear_shares
from logdiff.report.profile import PairProfile
from logdiff.report.wording import number, percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def before_after_plot(earlier: PairProfile, now: PairProfile, colour: str = PAIR_COLOURS["decode_train"]) -> Plot:
    """Shares of tokens by d, before and now, over the range of both."""
    reach = 1.05 * max(earlier.quantile(0.999), now.quantile(0.999), earlier.max_abs / 4, now.max_abs / 4)

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.set_xlabel("d (nats)")
        axes.set_ylabel("share of tokens per bin")
        if not reach:
            message(axes, "All differences were and are exactly 0")
            return
        borders = np.linspace(-reach, reach, HISTOGRAM_BINS + 1)
        for name, pair, line in (("before", earlier, EARLIER), ("now", now, colour)):
            share = np.maximum(linear_shares(pair, reach), 1e-12)
            axes.stairs(share, borders, label=_label(name, pair), color=line, fill=name == "before", alpha=0.75)
            if pair.zero == pair.finite:
                note = f"{name}: all {pair.finite:,} tokens exactly 0"
                axes.annotate(note, (0, 1), (8, -4), textcoords="offset points", fontsize=8, color=line, va="top")
        axes.set_yscale("log")
        log_axis(axes.yaxis)
        axes.set_ylim(0.5 / max(earlier.finite, now.finite), 1.6)
        axes.axvline(0, color=MUTED, linewidth=0.8, zorder=0)
        legend(axes)

    return Plot(
        "before-after",
        "Before and after",
        f"Histogram of d in the earlier case and in this one: {_label('before', earlier)}; {_label('now', now)}.",
        "The same pair of sides in both cases, share of tokens on a log scale; exact zeros stand in the middle bin.",
        (7.6, 3.7),
        draw,
    )


def _label(name: str, pair: PairProfile) -> str:
    zero = percent(pair.zero, pair.finite)
    return f"{name}: max |d| {number(pair.max_abs, 3)}, {zero} of tokens exactly 0"

"""Both probabilities of every token against each other."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from logdiff.report.axes import Plot
from logdiff.report.palette import MUTED, PAIR_COLOURS
from logdiff.report.profile import LOGPROB_BINS, LOGPROB_FLOOR, PROBABILITY_BINS, Floats, Ints, PairProfile, Profile

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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


def probability_plot(profile: Profile, name: str, pair: PairProfile) -> Plot:
    """Scatter of both probabilities, or their density where the tokens are many."""

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
        f"Probability of each token on the {pair.second} side against the {pair.first} side.",
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


def logprob_plot(profile: Profile, name: str, pair: PairProfile) -> Plot:
    """Scatter of both log-probabilities in nats, or their density where the tokens are many."""
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

    outside = pair.outside
    note = (
        f" {outside:,} tokens with a value below {LOGPROB_FLOOR:g} or above 0 stand at the border." if outside else ""
    )
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

"""Colours of the plots: the Okabe-Ito set, told apart with every common colour vision, one CSS variable each."""

from __future__ import annotations

INK = "#1f2430"
MUTED = "#5f6877"
GRID = "#e3e6eb"
PAIR_COLOURS = {"decode_train": "#0072b2", "decode_rescore": "#d55e00", "rescore_train": "#009e73"}
EARLIER = "#a05195"
FLOOR = "#6d7380"
PAIR_STYLES = {"decode_train": "-", "decode_rescore": "--", "rescore_train": "-."}

THEME_VARIABLES = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--grid",
    PAIR_COLOURS["decode_train"]: "--pair-a",
    PAIR_COLOURS["decode_rescore"]: "--pair-b",
    PAIR_COLOURS["rescore_train"]: "--pair-c",
    EARLIER: "--earlier",
    FLOOR: "--floor",
}
"""Colour as matplotlib writes it -> variable of style.css that gives it in light and dark."""

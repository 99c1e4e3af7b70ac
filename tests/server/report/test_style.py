from __future__ import annotations

import re
from importlib.resources import files

import pytest
from logdiff.report.palette import THEME_VARIABLES

STYLE = (files("logdiff.report") / "templates" / "style.css").read_text(encoding="utf-8")
Colour = tuple[float, float, float]


def _themes() -> dict[str, dict[str, Colour]]:
    """Theme -> variable -> sRGB in 0..1; dark overrides light, as the cascade does."""
    blocks = re.findall(r":root \{(.*?)\}", STYLE, re.S)
    assert len(blocks) == 3
    read = []
    for block in blocks:
        found: dict[str, Colour] = {}
        for name, value in re.findall(r"--([\w-]+): ([^;]+);", block):
            digits = [int(value[i : i + 2], 16) for i in (1, 3, 5)] if value[0] == "#" else map(int, value.split(","))
            r, g, b = (d / 255 for d in digits)
            found[name] = (r, g, b)
        read.append(found)
    return {"light": read[0], "dark": {**read[0], **read[1]}, "print": {**read[0], **read[2]}}


def _luminance(colour: Colour) -> float:
    """WCAG 2.2 relative luminance."""
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def _contrast(a: Colour, b: Colour) -> float:
    high, low = sorted((_luminance(a), _luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def _over(front: Colour, alpha: float, back: Colour) -> Colour:
    r, g, b = (f * alpha + k * (1 - alpha) for f, k in zip(front, back, strict=True))
    return (r, g, b)


@pytest.mark.parametrize("theme", ["light", "dark", "print"])
def test_text_has_the_contrast_that_wcag_aa_asks_for(theme: str) -> None:
    c = _themes()[theme]
    pairs = [("ink", "page"), ("muted", "page"), ("ink", "panel"), ("good", "good-soft"), ("bad", "bad-soft")]
    pairs += [("ink", "plain-soft"), ("ink", "mark"), ("ink", "same"), ("heat-ink", "heat"), ("page", "ink")]
    for text, back in pairs:
        assert _contrast(c[text], c[back]) >= 4.5, (text, back)
    for alpha in map(float, re.findall(r"rgba\(var\(--heat\), (0?\.\d+)\)", STYLE)):
        assert _contrast(c["ink"], _over(c["heat"], alpha, c["page"])) >= 4.5, alpha


@pytest.mark.parametrize("theme", ["light", "dark", "print"])
def test_curves_stand_out_from_the_page(theme: str) -> None:
    c = _themes()[theme]
    for name in THEME_VARIABLES.values():
        if name != "--grid":
            assert _contrast(c[name.removeprefix("--")], c["page"]) >= 3.0, name


def test_every_variable_that_is_used_is_defined_in_every_theme() -> None:
    used = set(re.findall(r"var\(--([\w-]+)\)", STYLE)) | {v.removeprefix("--") for v in THEME_VARIABLES.values()}
    for theme, defined in _themes().items():
        assert used <= set(defined), theme

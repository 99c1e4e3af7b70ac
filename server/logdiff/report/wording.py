"""Numbers and foreign text as a reader should see them."""

from __future__ import annotations

import math
import unicodedata
from typing import Any

_SHOWN = {"\n": "⏎", "\r": "␍", "\t": "⇥"}
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def visible(text: str, limit: int = 400) -> str:
    """`text` with every control, format, bidi, surrogate, private and unassigned character spelled as an escape.

    Longer text than `limit` characters is cut, and the cut is marked with how much was left out.
    """
    if text.isprintable() and len(text) <= limit:  # the common case, at the speed of C
        return text
    cut = text[:limit]
    shown = "".join(_SHOWN.get(c) or (_escape(c) if unicodedata.category(c) in _HIDDEN else c) for c in cut)
    return f"{shown}… ({len(text) - limit} more)" if len(text) > limit else shown


def _escape(char: str) -> str:
    code = ord(char)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def as_float(value: Any) -> float | None:
    """A number of a result file, its "nan", "inf", "-inf" strings included; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    if value in ("nan", "inf", "-inf"):
        return float(value)
    return None


def number(value: Any, digits: int = 4) -> str:
    """`digits` significant digits; a whole number is written out with separators; absent is an en dash."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}" if abs(value) < 10**15 else f"{as_float(value):.3e}"
    x = as_float(value)
    if x is None:
        return "–"
    if not math.isfinite(x):
        return {math.inf: "inf", -math.inf: "-inf"}.get(x, "nan")
    if x == 0:
        return "0"
    if 1e-4 <= abs(x) < 1e5:
        places = max(0, digits - 1 - math.floor(math.log10(abs(x))))
        return f"{x:.{places}f}"
    return f"{x:.{digits - 1}e}"


def percent(part: int, whole: int) -> str:
    """Share in percent that never rounds a part to nothing or to everything."""
    if whole <= 0:
        return "–"
    if part == 0:
        return "0 %"
    if part == whole:
        return "100 %"
    share = 100 * part / whole
    if share < 0.01:
        return "< 0.01 %"
    return "> 99.99 %" if share > 99.99 else f"{share:.2f} %".replace(".00 ", " ")


def bits(value: int) -> str:
    """fp32 bits as eight hexadecimal digits."""
    return f"0x{value:08x}"

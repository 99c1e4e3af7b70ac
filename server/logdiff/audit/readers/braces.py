"""Bash's brace expansion, `{a,b}` and `{1..3}`, on words whose unquoted braces are marked."""

from __future__ import annotations

import re

_OPEN, _COMMA, _CLOSE = "\x01", "\x02", "\x03"
MARKS = str.maketrans({"{": _OPEN, ",": _COMMA, "}": _CLOSE})
UNMARK = str.maketrans({_OPEN: "{", _COMMA: ",", _CLOSE: "}"})


def braces(text: str, limit: int, depth: int = 0) -> list[str]:
    """Brace expansion of marked braces: `{a,b}` and `{1..3}`."""
    start = text.find(_OPEN)
    while start >= 0:
        parts, end = _brace_parts(text, start)
        if parts:
            head, tail = text[:start], text[end:]
            out = [head + p + t for p in parts for t in braces(tail, limit, depth)] if depth < 8 else [text]
            return [one for value in out for one in (braces(value, limit, depth + 1) if depth < 8 else [value])][:limit]
        start = text.find(_OPEN, start + 1)
    return [text]


def _brace_parts(text: str, start: int) -> tuple[list[str], int]:
    depth, parts, begin = 0, [], start + 1
    for at in range(start, len(text)):
        mark = text[at]
        if mark == _OPEN:
            depth += 1
        elif mark == _COMMA and depth == 1:
            parts.append(text[begin:at])
            begin = at + 1
        elif mark == _CLOSE:
            depth -= 1
            if depth == 0:
                if parts:
                    return [*parts, text[begin:at]], at + 1
                span = re.match(r"^(-?\d{1,4})\.\.(-?\d{1,4})$", text[begin:at])
                if span is None:
                    return [], at
                first, last = int(span[1]), int(span[2])
                step = 1 if first <= last else -1
                return [str(n) for n in range(first, last + step, step)], at + 1
    return [], len(text)

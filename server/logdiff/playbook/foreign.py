"""Text that came out of files: kept as data, shown quoted and bounded, never as words of ours."""

from __future__ import annotations

LONGEST = 160
"""Most characters of one foreign text on a page."""


class Foreign(str):
    """A text from a file. Pages show it through `quoted`, whatever a template does with it."""

    __slots__ = ()


def foreign(value: object) -> Foreign | None:
    """Text of a file's field, None where it is no text or empty."""
    return Foreign(value) if isinstance(value, str) and value else None


def quoted(value: str, longest: int = LONGEST) -> str:
    """One line of inline code: control characters out, backticks replaced, at most `longest` characters."""
    text = "".join(c if c.isprintable() else " " for c in str(value)).replace("`", "'").strip()
    text = text if len(text) <= longest else text[: longest - 1] + "…"
    return f"`{text}`" if text else "(empty)"

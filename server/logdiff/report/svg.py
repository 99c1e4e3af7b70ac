"""matplotlib figures as inline SVG without styles: a strict content policy holds, and colours follow the theme."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

from logdiff.report.palette import THEME_VARIABLES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SVG = "http://www.w3.org/2000/svg"
_XLINK = "http://www.w3.org/1999/xlink"
_URL = re.compile(r"url\(#([^)]+)\)")
_FONT_SIZE = re.compile(r"([\d.]+)px")


def inline_svg(figure: Figure, name: str, description: str) -> str:
    """The figure as one `<svg>` element with `role="img"` and `description` as its label.

    Every `style` is turned into presentation attributes, every colour of the palette into its CSS variable, and ids
    are kept only where something refers to them, prefixed with `name`.
    """
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    root = ET.fromstring(buffer.getvalue())
    _drop(root, {f"{{{_SVG}}}style", f"{{{_SVG}}}metadata"})
    for element in root.iter():
        _present(element)
    used = {_target(key, value) for element in root.iter() for key, value in element.attrib.items()}
    for element in root.iter():
        identity = element.attrib.pop("id", None)
        if identity is not None and identity in used:
            element.set("id", f"{name}-{identity}")
        for key, value in list(element.attrib.items()):
            if _target(key, value):
                element.set(key, value.replace("#", f"#{name}-", 1))
    for key in ("width", "height", "version"):
        root.attrib.pop(key, None)
    root.attrib.update({"role": "img", "aria-label": description, "stroke-linejoin": "round", "stroke-linecap": "butt"})
    ET.register_namespace("", _SVG)
    ET.register_namespace("xlink", _XLINK)
    return ET.tostring(root, encoding="unicode")


def _drop(root: ET.Element, tags: set[str]) -> None:
    for parent in list(root.iter()):
        for child in [c for c in parent if c.tag in tags]:
            parent.remove(child)


def _target(key: str, value: str) -> str | None:
    """The id that an attribute refers to: `url(#id)` anywhere, `#id` in a link (elsewhere it is a colour)."""
    match = _URL.search(value)
    if match:
        return match.group(1)
    return value[1:] if key.endswith("href") and value.startswith("#") else None


def _present(element: ET.Element) -> None:
    declarations = element.attrib.pop("style", "")
    for declaration in re.split(r";\s*(?![^(]*\))", declarations):
        key, colon, value = declaration.partition(":")
        key, value = key.strip(), value.strip()
        if not colon:
            continue
        if key == "font":  # matplotlib before 3.11 writes the short form
            size = _FONT_SIZE.search(value)
            if size:
                element.set("font-size", size.group())
        elif key != "font-family":  # the page's own font, which is there on every machine
            element.set(key, value)
    for key in ("fill", "stroke"):
        colour = element.attrib.get(key, "").lower()
        if colour in THEME_VARIABLES:
            element.set(key, f"var({THEME_VARIABLES[colour]})")

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest
from logdiff.report.palette import MUTED
from logdiff.report.svg import inline_svg
from matplotlib.figure import Figure


@pytest.mark.parametrize(
    "style", ["font: 10px 'DejaVu Sans', sans-serif", "font-size: 10px; font-family: 'DejaVu Sans', sans-serif"]
)
def test_text_keeps_its_size_and_takes_the_pages_font(style: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways in which releases of matplotlib write a font."""

    def savefig(self: Figure, target: object, **_: object) -> None:
        source = f'<svg xmlns="http://www.w3.org/2000/svg"><text style="{style}; fill: {MUTED}">x</text></svg>'
        target.write(source.encode())  # type: ignore[attr-defined]

    monkeypatch.setattr(Figure, "savefig", savefig)
    (text,) = ET.fromstring(inline_svg(Figure(), "n", "described"))
    assert text.attrib == {"font-size": "10px", "fill": "var(--muted)"}


def test_two_drawings_share_no_id_and_colours_outside_of_the_palette_stay() -> None:
    drawn = []
    for name in ("one", "two"):
        figure = Figure()
        axes = figure.add_subplot()
        axes.plot([0, 1], [0, 1], color="#123456")
        drawn.append(ET.fromstring(inline_svg(figure, name, "described")))
    ids = [{e.attrib["id"] for e in root.iter() if "id" in e.attrib} for root in drawn]
    assert ids[0]
    assert not ids[0] & ids[1]
    assert any(e.attrib.get("stroke") == "#123456" for e in drawn[0].iter())
    assert not [e for e in drawn[0].iter() if "style" in e.attrib or e.tag.endswith("}style")]

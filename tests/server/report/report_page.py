"""Reading a rendered page back, with the standard library's parser."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

VOID = {"meta", "link", "img", "br", "hr", "input", "base", "source"}


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    parts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.parts)

    @property
    def words(self) -> str:
        """The text with one space wherever there is white space or a tag."""
        return " ".join(" ".join(self.parts).split())


@dataclass
class Page(HTMLParser):
    """Every element in order, with its own text, and how often a tag was closed out of order."""

    source: str
    elements: list[Element] = field(default_factory=list)
    stack: list[Element] = field(default_factory=list)
    unbalanced: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.feed(self.source)
        self.close()
        self.unbalanced += [e.tag for e in self.stack]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {key: value or "" for key, value in attrs})
        self.elements.append(element)
        if tag not in VOID:
            self.stack.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(Element(tag, {key: value or "" for key, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if self.stack and self.stack[-1].tag == tag:
            self.stack.pop()
        else:
            self.unbalanced.append(tag)

    def handle_data(self, data: str) -> None:
        for element in self.stack:
            element.parts.append(data)

    def all(self, tag: str, **attributes: str) -> list[Element]:
        wanted = {key.rstrip("_"): value for key, value in attributes.items()}
        return [e for e in self.elements if e.tag == tag and wanted.items() <= e.attributes.items()]

    def by_id(self, identity: str) -> Element:
        (found,) = [e for e in self.elements if e.attributes.get("id") == identity]
        return found

    def has_id(self, identity: str) -> bool:
        return any(e.attributes.get("id") == identity for e in self.elements)


def read_page(path: Path) -> Page:
    return Page(path.read_text(encoding="utf-8"))

"""C++ source text as mutation operators read it: code without comments, calls with their arguments, statements."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
_DIRECTIVE = re.compile(r"^[ \t]*#(?!\s*define\b)[^\n]*", re.MULTILINE)
_OPENING, _CLOSING = "([{", ")]}"
_TEMPLATE = r"(?:<[\w:, *]*>)?"


@dataclass(frozen=True, slots=True)
class Edit:
    """One rewriting: `text` instead of the characters [start, end)."""

    start: int
    end: int
    text: str

    def applied(self, source: str) -> str:
        """The source after it."""
        return source[: self.start] + self.text + source[self.end :]


@dataclass(frozen=True, slots=True)
class Call:
    """A call in the code.

    Attributes:
        code: all of it, comments blanked.
        name: what is called, with what stands before a dot.
        start: of the name.
        open: of its parenthesis.
        close: of the parenthesis that ends it.
    """

    code: str
    name: str
    start: int
    open: int
    close: int

    @property
    def text(self) -> str:
        """The whole call."""
        return self.code[self.start : self.close + 1]

    @property
    def arguments(self) -> list[tuple[int, int]]:
        """[start, end) of each argument, without spaces around."""
        found, depth, start = [], 0, self.open + 1
        for at in range(self.open + 1, self.close + 1):
            letter = self.code[at]
            if depth == 0 and (letter == "," or at == self.close):
                words = self.code[start:at]
                left = start + len(words) - len(words.lstrip())
                found.append((left, left + len(words.strip())))
                start = at + 1
            elif letter in _OPENING:
                depth += 1
            elif letter in _CLOSING:
                depth -= 1
        return [] if len(found) == 1 and found[0][0] == found[0][1] else found

    def argument(self, index: int) -> str:
        """Text of one argument."""
        start, end = self.arguments[index]
        return self.code[start:end]

    @property
    def statement(self) -> bool:
        """Whether the call is a whole statement."""
        before = self.code[: self.start].rstrip(" \t\n\\")
        after = self.code[self.close + 1 :].lstrip(" \t\n\\")
        return after[:1] == ";" and (not before or before[-1] in ";{})" or before.endswith("else"))

    def replaced(self, text: str) -> Edit:
        """The edit that puts `text` in its place."""
        return Edit(self.start, self.close + 1, text)

    def with_argument(self, index: int, text: str) -> Edit:
        """The edit that gives it another argument."""
        return Edit(*self.arguments[index], text)


def blanked(source: str) -> str:
    """The source with comments, strings and directives (but for #define) made spaces: every place stays the same."""

    def spaces(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match.group())

    return _DIRECTIVE.sub(spaces, _COMMENT.sub(spaces, source))


def closing(code: str, opening: int) -> int:
    """Where the bracket at `opening` closes, or -1."""
    depth = 0
    for at in range(opening, len(code)):
        if code[at] in _OPENING:
            depth += 1
        elif code[at] in _CLOSING:
            depth -= 1
            if depth == 0:
                return at
    return -1


def calls(code: str, names: str) -> Iterator[Call]:
    """Calls of functions and methods whose last name matches the pattern `names`."""
    for match in re.finditer(
        rf"(?<![\w.>:])((?:[\w\[\]]+(?:\.|->|::)(?:template )?)*)\b({names})({_TEMPLATE})\(", code
    ):
        opening = match.end() - 1
        end = closing(code, opening)
        if end > 0:
            yield Call(code, match.group(1) + match.group(2), match.start(), opening, end)


def statement_before(call: Call) -> tuple[int, int] | None:
    """[start, end) of the statement before a statement that is a call, if that one is a call or an assignment too."""
    end = len(call.code[: call.start].rstrip(" \t\n\\"))
    if call.code[end - 1 : end] != ";":
        return None
    start = max(call.code.rfind(letter, 0, end - 1) for letter in ";{}") + 1
    return _simple(call.code, start, end)


def statement_after(call: Call) -> tuple[int, int] | None:
    """The same for the statement behind it."""
    start = call.code.index(";", call.close) + 1
    end = call.code.find(";", start) + 1
    return _simple(call.code, start, end)


def _simple(code: str, start: int, end: int) -> tuple[int, int] | None:
    words = code[start:end]
    start += len(words) - len(words.lstrip())
    words = words.strip()
    simple = re.match(r"[\w.:<>\[\]]+\s*[(=]", words)
    keyword = re.match(r"(?:if|for|while|return|else|do|switch|const|using)\b", words)
    if not simple or keyword or "{" in words or "}" in words or words.count("(") != words.count(")"):
        return None
    return start, end


def line_of(source: str, at: int) -> int:
    """Number of the line, from 1."""
    return source.count("\n", 0, at) + 1

"""How bash would expand a word, as far as that is known without running anything.

Pieces that depend on the outside (a command's output, a variable of the caller) become private-use characters that
stand for a `Reason`; everything around them stays readable.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from logdiff.audit.readers.braces import MARKS, UNMARK, braces

_FIRST, _LAST = 0xE000, 0xF8FF
UNKNOWN = re.compile(f"[{chr(_FIRST)}-{chr(_LAST)}]")
MAX_FIELDS = 20_000
MAX_CHARS = 1_000_000
_PARAMETER = re.compile(r"^\$\{([#!]?)([A-Za-z_]\w*|\d+|[@*#?$!-])(?:\[([^\]]*)\])?(.*)\}$", re.S)
_ANSI = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "a": "\a", "b": "\b", "e": "\x1b"}


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a piece is unknown; `choices` are (condition, text) where it is one of a few."""

    why: str
    choices: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Word:
    """One field with the line that it stands on."""

    text: str
    line: int


@dataclass(slots=True)
class Variables:
    """Shell variables: text, or a list of words for an array; and the reasons behind unknown pieces."""

    values: dict[str, str | list[Word]] = field(default_factory=dict)
    reasons: list[Reason] = field(default_factory=list)
    positional: list[str] = field(default_factory=list)
    expanded: int = 0

    def unknown(self, why: str, choices: tuple[tuple[str, str], ...] = ()) -> str:
        """A character that stands for an unknown piece."""
        reason = Reason(why, choices)
        if reason in self.reasons:
            return chr(_FIRST + self.reasons.index(reason))
        if len(self.reasons) > _LAST - _FIRST - 1:
            return chr(_LAST)
        self.reasons.append(reason)
        return chr(_FIRST + len(self.reasons) - 1)

    def reason(self, text: str) -> Reason | None:
        """The first reason in a text; None where all of it is known."""
        found = UNKNOWN.search(text)
        if found is None:
            return None
        index = ord(found[0]) - _FIRST
        return self.reasons[index] if index < len(self.reasons) else Reason("too many unknown pieces")

    def get(self, name: str) -> str | None:
        """A variable as `$name`; None where it is not set here."""
        if name.isdigit():
            at = int(name) - 1
            return self.positional[at] if 0 <= at < len(self.positional) else None
        value = self.values.get(name)
        if isinstance(value, list):
            return value[0].text if value else None
        return value


@dataclass(slots=True)
class _Piece:
    text: str = ""
    quoted: bool = False
    split: bool = False
    many: list[Word] | None = None


class _Fields:
    """Fields as field splitting makes them."""

    def __init__(self, line: int) -> None:
        self.done: list[Word] = []
        self._line = line
        self._at = line
        self._open: str | None = None

    def add(self, text: str, quoted: bool, line: int = 0) -> None:
        """Append to the open field; quoted text opens one even where it is empty."""
        if text or quoted:
            if self._open is None:
                self._at = line or self._line
            self._open = (self._open or "") + text

    def split(self, text: str, line: int = 0) -> None:
        """Append unquoted text: white space ends fields."""
        if text[:1].isspace():
            self.end()
        for index, part in enumerate(text.split()):
            if index:
                self.end()
            self.add(part, False, line)
        if text[-1:].isspace():
            self.end()

    def end(self) -> None:
        """Close the open field."""
        if self._open is not None:
            self.done.append(Word(self._open, self._at))
        self._open = None


_HELD = 0xF0000


def _brace_expanded(pieces: list[_Piece]) -> list[list[_Piece]]:
    """The words that brace expansion makes of one: before anything is split, so that each copy keeps every piece."""
    literal = [p.many is None and not p.split and not p.quoted for p in pieces]
    text = "".join(
        p.text if plain else chr(_HELD + i) for i, (p, plain) in enumerate(zip(pieces, literal, strict=True))
    )
    words = braces(text, MAX_FIELDS)
    if len(words) == 1:
        return [pieces]
    parts = []
    for word in words:
        part: list[_Piece] = []
        for piece in re.split(f"([{chr(_HELD)}-{chr(_HELD + 0xFFFD)}])", word):
            held = len(piece) == 1 and ord(piece) >= _HELD
            part.append(pieces[ord(piece) - _HELD] if held else _Piece(piece))
        parts.append(part)
    return parts


def _joined(piece: _Piece) -> str:
    return piece.text if piece.many is None else " ".join(w.text for w in piece.many)


class Expander:
    """Expands syntax nodes of one script over its variables."""

    def __init__(self, variables: Variables, parse: Callable[[bytes], Any]) -> None:
        self.variables = variables
        self._parse = parse
        self._depth = 0

    def text(self, node: Any) -> str:
        """A node as one text, as in an assignment: no field splitting."""
        parts = [_joined(p) for p in self._pieces(node, False)]
        return self._bounded("".join(parts).translate(UNMARK))

    def words(self, *nodes: Any) -> list[Word]:
        """Adjoining nodes as the fields that bash makes of them; an element of an array keeps its own line."""
        fields = _Fields(nodes[0].start_point[0] + 1)
        pieces = [piece for node in nodes for piece in self._pieces(node, False)]
        for part in _brace_expanded(pieces):
            for piece in part:
                if piece.many is not None:
                    for index, item in enumerate(piece.many):
                        if index:
                            fields.end()
                        if piece.quoted:
                            fields.add(item.text, True, item.line)
                        else:
                            fields.split(item.text, item.line)
                elif piece.split:
                    fields.split(piece.text)
                elif piece.text or piece.quoted:
                    fields.add(piece.text, piece.quoted)
            fields.end()
        if len(fields.done) > MAX_FIELDS:
            raise ValueError(f"more than {MAX_FIELDS} words")
        return [Word(self._bounded(word.text.translate(UNMARK)), word.line) for word in fields.done]

    def _bounded(self, text: str) -> str:
        """Text within the budget of one script: nested doubling must not grow without end."""
        self.variables.expanded += len(text)
        if len(text) > MAX_CHARS or self.variables.expanded > 64 * MAX_CHARS:
            return self.variables.unknown(f"longer than {MAX_CHARS} characters")
        return text

    def _pieces(self, node: Any, quoted: bool) -> Iterator[_Piece]:
        kind = node.type
        if kind == "raw_string":
            yield _Piece(_text(node)[1:-1], quoted=True)
        elif kind == "ansi_c_string":
            yield _Piece(_ansi(_text(node)[2:-1]), quoted=True)
        elif kind in ("string", "translated_string"):
            yield from self._string(node)
        elif kind in ("simple_expansion", "expansion"):
            yield self._parameter(_text(node).lstrip(), quoted)
        elif kind in ("command_substitution", "process_substitution"):
            yield _Piece(self.variables.unknown(f"output of {_short(node)}"), quoted=quoted)
        elif kind == "arithmetic_expansion":
            yield _Piece(self._arithmetic(node), quoted=quoted)
        elif node.named_child_count and kind not in ("word", "brace_expression", "number"):
            yield from self._gapped(node, quoted)
        else:
            yield _Piece(_unescape(_text(node)))

    def _gapped(self, node: Any, quoted: bool) -> Iterator[_Piece]:
        if not node.child_count:
            yield _Piece(_unescape(_text(node)))
            return
        at = node.start_byte
        raw = node.text
        for child in node.children:
            gap = raw[at - node.start_byte : child.start_byte - node.start_byte]
            if gap.strip():
                yield _Piece(_unescape(gap.decode("utf-8", "replace")))
            yield from self._pieces(child, quoted)
            at = child.end_byte

    def _string(self, node: Any) -> Iterator[_Piece]:
        pieces = list(self._template(node, 1, 1))
        if all(p.many is not None or not p.text for p in pieces) and any(p.many is not None for p in pieces):
            yield from (p for p in pieces if p.many is not None)  # "$@" without arguments is no word at all
            return
        yield _Piece("", quoted=True)
        yield from pieces

    def _template(self, node: Any, first: int, last: int) -> Iterator[_Piece]:
        """Text with expansions in it: inside double quotes, or a heredoc. `first` and `last` bytes are left off."""
        raw, base = node.text, node.start_byte
        at, end = first, len(raw) - last
        if node.type == "translated_string":
            at += 1
        for child in _expansions(node):
            begin = child.start_byte - base
            begin += len(child.text) - len(child.text.lstrip())  # the grammar counts white space before ${ to it
            yield _Piece(_double_quoted(raw[at:begin]), quoted=True)
            for piece in self._pieces(child, True):
                piece.quoted = True
                yield piece
            at = child.end_byte - base
        yield _Piece(_double_quoted(raw[at:end]), quoted=True)

    def template(self, node: Any) -> str:
        """The body of a heredoc."""
        parts = [_joined(p) for p in self._template(node, 0, 0)]
        return self._bounded("".join(parts))

    def _parameter(self, raw: str, quoted: bool) -> _Piece:
        if not raw.startswith("${"):
            name = raw[1:]
            if name in ("@", "*"):
                return _Piece(many=[Word(v, 0) for v in self.variables.positional], quoted=quoted)
            return _Piece(self._value(name), quoted=quoted, split=not quoted)
        match = _PARAMETER.match(raw)
        if match is None:
            return _Piece(self.variables.unknown(f"{raw[:60]} is not understood"), quoted=quoted)
        mark, name, index, operation = match[1], match[2], match[3], match[4]
        if mark == "!" or (mark == "#" and operation):
            return _Piece(self.variables.unknown(f"{raw[:60]} is not followed"), quoted=quoted)
        if index is not None or name in ("@", "*"):
            return self._array(raw, mark, name, index or name, operation, quoted)
        value = self.variables.get(name)
        if mark == "#":
            return _Piece(str(len(self._value(name))) if value is None or not UNKNOWN.search(value) else value)
        text = self._operated(name, value, operation, quoted, raw)
        return _Piece(text, quoted=quoted, split=not quoted)

    def _array(self, raw: str, mark: str, name: str, index: str, operation: str, quoted: bool) -> _Piece:
        value = self.variables.values.get(name)
        if name in ("@", "*"):
            items = [Word(v, 0) for v in self.variables.positional]
        elif value is None:
            if operation:
                return _Piece(self._operated(name, None, operation, quoted, raw), quoted=quoted, split=not quoted)
            return _Piece(self.variables.unknown(f"array {name} is not set in this script"), quoted=quoted)
        else:
            items = value if isinstance(value, list) else [Word(value, 0)]
        if mark == "#":
            return _Piece(str(len(items)))
        if operation and not operation.startswith(("-", ":-", "+", ":+")):
            return _Piece(self.variables.unknown(f"{raw[:60]} is not followed"), quoted=quoted)
        if operation.startswith(("+", ":+")):
            if not items:
                return _Piece(many=[], quoted=quoted)
            inner = operation.lstrip(":")[1:].strip().strip('"')
            same = _PARAMETER.match(inner)
            if same is None or same[2] != name:
                return _Piece(self._inner(operation.lstrip(":")[1:], quoted), quoted=quoted, split=not quoted)
        if index == "*" and quoted:
            return _Piece(" ".join(w.text for w in items), quoted=True)
        if index in ("@", "*"):
            return _Piece(many=items, quoted=quoted)
        try:
            return _Piece(items[int(index)].text, quoted=quoted, split=not quoted)
        except (ValueError, IndexError):
            return _Piece(self.variables.unknown(f"{raw[:60]} is not followed"), quoted=quoted)

    def _value(self, name: str) -> str:
        if name == "#":
            return str(len(self.variables.positional))
        value = self.variables.get(name)
        if value is None:
            why = "the script's arguments" if name.isdigit() else f"{name} is not set in this script"
            return self.variables.unknown(why)
        return value

    def _operated(self, name: str, value: str | None, operation: str, quoted: bool, raw: str) -> str:
        if not operation:
            return self._value(name)
        match = re.match(r"^(:?[-=+?]|##?|%%?|//?|\^\^?|,,?|:)(.*)$", operation, re.S)
        if match is None:
            return self.variables.unknown(f"{raw[:60]} is not followed")
        operator, rest = match[1], match[2]
        if operator in ("-", ":-", "=", ":=", "+", ":+", "?", ":?"):
            absent = value is None or (operator.startswith(":") and value == "")
            if operator.endswith("+"):
                return "" if absent else self._inner(rest, quoted)
            if not absent and value is not None:
                return value
            if operator.endswith("?"):
                return self.variables.unknown(f"{name} must be set by the caller")
            text = self._inner(rest, quoted)
            if operator.endswith("="):
                self.variables.values[name] = text
            return text
        if value is None:
            return self._value(name)
        if UNKNOWN.search(value) and operator not in ("%", "%%", "#", "##"):
            return value
        return self._edited(operator, rest, value, raw)

    def _edited(self, operator: str, rest: str, value: str, raw: str) -> str:
        if operator in ("^^", ",,") and not rest:
            return value.upper() if operator == "^^" else value.lower()
        if operator in ("^", ",") and not rest:
            return (value[:1].upper() if operator == "^" else value[:1].lower()) + value[1:]
        if operator in ("#", "##", "%", "%%"):
            pattern = self._inner(rest, False)
            sizes = range(len(value) + 1) if len(operator) == 1 else range(len(value), -1, -1)
            for size in sizes:
                part = value[:size] if operator[0] == "#" else value[len(value) - size :]
                if fnmatch.fnmatchcase(part, pattern):
                    return value[size:] if operator[0] == "#" else value[: len(value) - size]
            return value
        if operator in ("/", "//"):
            old, _, new = rest.partition("/")
            old, new = self._inner(old, False), self._inner(new, False)
            if not old or re.search(r"[*?\[\\]", old) or old[0] in "#%":
                return self.variables.unknown(f"{raw[:60]} is not followed")
            return value.replace(old, new, 1 if operator == "/" else -1)
        match = re.match(r"^\s*(\d+)(?::(\d+))?$", rest)
        if match:
            start = int(match[1])
            return value[start : start + int(match[2])] if match[2] else value[start:]
        return self.variables.unknown(f"{raw[:60]} is not followed")

    def _inner(self, word: str, quoted: bool) -> str:
        """The word of `${X:-word}`, expanded."""
        if not re.search(r"[$`\"'\\]", word):
            return word
        if self._depth > 20:
            return self.variables.unknown("nested too deeply")
        self._depth += 1
        try:
            plain = not re.search("[\"']", word)
            source = f'_ "{word}"' if quoted and '"' not in word else f'x="{word}"' if plain else f"x={word}"
            tree = self._parse(source.encode())
            nodes = _arguments(tree.root_node)
            if len(nodes) != 1 or tree.root_node.has_error:
                return self.variables.unknown(f"{word[:60]} is not understood")
            return self.text(nodes[0])
        finally:
            self._depth -= 1

    def _arithmetic(self, node: Any) -> str:
        from logdiff.audit.readers.arithmetic import integer

        found = integer(_text(node)[3:-2], self.variables)
        return found if found is not None else self.variables.unknown(f"{_short(node)} is not followed")


def _expansions(node: Any) -> Iterator[Any]:
    for child in node.children:
        if child.type in (
            "simple_expansion", "expansion", "command_substitution", "arithmetic_expansion", "process_substitution",
        ):  # fmt: skip
            yield child
        elif child.child_count:
            yield from _expansions(child)


def _arguments(root: Any) -> list[Any]:
    for node in root.named_children:
        if node.type == "command":
            return [c for c in node.named_children if c.type != "command_name"]
        if node.type == "variable_assignment":
            return [c for c in node.named_children if c.type != "variable_name"]
    return []


def _text(node: Any) -> str:
    found: str = node.text.decode("utf-8", "replace")
    return found


def _short(node: Any) -> str:
    text = " ".join(_text(node).split())
    return text if len(text) <= 60 else text[:57] + "..."


def _unescape(text: str) -> str:
    """Unquoted text: backslashes taken off, braces marked for brace expansion."""
    if "\\" not in text:
        return text.translate(MARKS)
    out, at = [], 0
    while at < len(text):
        if text[at] == "\\" and at + 1 < len(text):
            if text[at + 1] != "\n":
                out.append(text[at + 1])
            at += 2
        else:
            out.append(text[at].translate(MARKS))
            at += 1
    return "".join(out)


def _double_quoted(raw: bytes) -> str:
    return re.sub(r"\\([$`\"\\\n])", lambda m: "" if m[1] == "\n" else m[1], raw.decode("utf-8", "replace"))


def _ansi(text: str) -> str:
    def one(match: re.Match[str]) -> str:
        code = match[1]
        if code[0] == "x":
            return chr(int(code[1:], 16))
        return _ANSI.get(code, "\\" + code)

    return re.sub(r"\\(x[0-9a-fA-F]{1,2}|.)", one, text, flags=re.S)

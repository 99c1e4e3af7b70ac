"""Shell scripts: which variables, arguments and files reach the commands that they start. Nothing is executed.

A script is read as it would run without arguments and with none of its variables set by the caller. What hangs on a
test that can't be told here is read in every branch, and its settings carry the branch as condition.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from logdiff.audit.readers import flow
from logdiff.audit.readers.expansion import UNKNOWN, Expander, Variables, Word
from logdiff.audit.readers.flow import line_of
from logdiff.audit.readers.shell_tests import Tests

MAX_STEPS = 200_000
_EMPTY_VALUE = re.compile(rb"^([ \t]*(?:(?:export|local|declare|readonly)[ \t]+)?\w+=)[ \t]*(?=$|;)", re.M)
"""The grammar takes the next line for a part of an assignment that has no value."""
_REPAIRS = 40
_SKIPPED = frozenset({"comment", "heredoc_redirect", "file_redirect", "herestring_redirect"})


@dataclass(slots=True)
class Command:
    """A command as it would be started: words with lines, the environment, and where it hangs."""

    words: list[Word]
    env: dict[str, Word]
    exported: dict[str, Word]
    line: int
    conditions: tuple[str, ...]
    stdin: str | None = None


class Script:
    """One script being read.

    Args:
        commands: called for each command, with its words and environment.
        unread: called with line and reason for what could not be followed.
        source: gives the text of a file that is sourced; None where there is none.
    """

    def __init__(
        self,
        commands: Callable[[Command], None],
        unread: Callable[[int, str], None],
        source: Callable[[str, int], bytes | None],
    ) -> None:
        self.commands, self.unread, self.source = commands, unread, source
        self.variables = Variables()
        self.exported: dict[str, int] = {}
        self.assigned: dict[str, int] = {}
        self.files: dict[str, str] = {}
        self.functions: dict[str, Any] = {}
        self.called: set[str] = set()
        self.conditions: tuple[str, ...] = ()
        self.repeated: list[tuple[str, str, int, str, int]] = []
        self._all_exported = False
        self._depth = 0
        self._steps = 0
        self._stopped = False
        self._parse = _parser()
        self.expander = Expander(self.variables, self._parse)
        self.tests = Tests(self.expander)

    def run(self, text: bytes) -> None:
        """Read a script's text."""
        tree = self._parsed(_EMPTY_VALUE.sub(rb"\1''", text))
        for node in _broken(tree.root_node):
            words = " ".join(node.text.decode("utf-8", "replace").split())[:60]
            what = (
                "quotes or brackets don't close, or this is no shell" if not node.is_missing else "something is missing"
            )
            self.unread(node.start_point[0] + 1, f"{what}: {words!r}")
        self.block(tree.root_node)

    def _parsed(self, text: bytes) -> Any:
        """The tree of a script. The grammar takes the line after one of several assignments for its command; a
        semicolon that is put between them, where the newline says the same, tells it better."""
        tree = self._parse(text)
        for _ in range(_REPAIRS):
            cuts = _run_on(tree.root_node)
            if not cuts:
                break
            for at in sorted(cuts, reverse=True):
                text = text[:at] + b";" + text[at:]
            tree = self._parse(text)
        return tree

    def block(self, node: Any) -> None:
        """Read every statement in a node."""
        for child in node.named_children:
            self.statement(child)

    def statement(self, node: Any) -> None:
        """Read one statement."""
        self._steps += 1
        if self._steps > MAX_STEPS:
            if not self._stopped:
                self.unread(line_of(node), f"more than {MAX_STEPS} commands: the rest is not followed")
                self._stopped = True
            return
        kind = node.type
        if kind in _SKIPPED or kind == "ERROR":
            return
        handler = _STATEMENTS.get(kind)
        if handler is not None:
            handler(self, node)
        elif node.named_child_count and kind not in ("word", "test_command"):
            self.block(node)

    # --- assignments

    def _assignment(self, node: Any) -> tuple[str, str | list[Word]] | None:
        name_node = node.child_by_field_name("name")
        value_node = node.child_by_field_name("value")
        if name_node is None or name_node.type == "subscript":
            base = node.text.decode("utf-8", "replace").split("[", 1)[0]
            self.variables.values[base] = self.variables.unknown(f"element of {base} set on line {line_of(node)}")
            return None
        name = name_node.text.decode("utf-8", "replace")
        adds = any(child.type == "+=" for child in node.children)
        value: str | list[Word]
        if value_node is not None and value_node.type == "array":
            value = self._array(value_node)
            old = self.variables.values.get(name)
            if adds and old is not None:
                value = [*(old if isinstance(old, list) else [Word(old, line_of(node))]), *value]
        else:
            value = "" if value_node is None else self.expander.text(value_node)
            if adds:
                value = (self.variables.get(name) or "") + value
        return name, value

    def _array(self, node: Any) -> list[Word]:
        return self.fields([c for c in node.named_children if c.type != "comment"])

    def fields(self, nodes: list[Any]) -> list[Word]:
        """The words of a list of nodes; nodes with nothing between them are one word, which the grammar cut."""
        groups: list[list[Any]] = []
        for node in nodes:
            if groups and groups[-1][-1].end_byte == node.start_byte:
                groups[-1].append(node)
            else:
                groups.append([node])
        return [word for group in groups for word in self.expander.words(*group)]

    def assign(self, name: str, value: str | list[Word], line: int) -> None:
        """Set a variable, and note when it had another value that nothing read."""
        old = self.variables.values.get(name)
        was = self.assigned.get(name)
        if isinstance(old, str) and isinstance(value, str) and was is not None and not self.conditions:
            known = not UNKNOWN.search(old) and not UNKNOWN.search(value)
            if known and old != value and (name in self.exported) and old not in value:
                self.repeated.append((name, old, was, value, line))
        self.variables.values[name] = value
        self.assigned[name] = line
        if self._all_exported:
            self.exported[name] = line

    def _on_assignment(self, node: Any) -> None:
        found = self._assignment(node)
        if found is not None:
            self.assign(*found, line_of(node))

    def _on_assignments(self, node: Any) -> None:
        for child in node.named_children:
            if child.type == "variable_assignment":
                self._on_assignment(child)

    def _on_declaration(self, node: Any) -> None:
        word = node.children[0].text.decode()
        flags = [c.text.decode() for c in node.named_children if c.type == "word" and c.text.startswith(b"-")]
        exports = word == "export" or any("x" in flag for flag in flags)
        removes = word == "export" and "-n" in flags
        assignments = [c for c in node.named_children if c.type == "variable_assignment"]
        for child, found in [(c, self._assignment(c)) for c in assignments]:  # all are expanded before one is set
            if found is not None:
                if exports:
                    self.exported.setdefault(found[0], line_of(child))
                self.assign(*found, line_of(child))
        for child in node.named_children:
            if child.type == "variable_assignment":
                continue
            if child.type == "variable_name":
                name = child.text.decode("utf-8", "replace")
                if removes:
                    self.exported.pop(name, None)
                elif exports:
                    self.exported[name] = self.assigned.get(name, line_of(child))
            else:
                for text in (w.text for w in self.expander.words(child)):
                    name, equals, value = text.partition("=")
                    if not exports or text.startswith("-") or not re.fullmatch(r"\w+", name):
                        continue
                    self.exported.setdefault(name, line_of(child))
                    if equals:
                        self.assign(name, value, line_of(child))

    def _on_unset(self, node: Any) -> None:
        for child in node.named_children:
            for word in self.expander.words(child):
                self.forget(word.text)

    def forget(self, name: str) -> None:
        """Unset a variable."""
        self.variables.values.pop(name, None)
        self.exported.pop(name, None)
        self.assigned.pop(name, None)

    # --- commands

    def _on_function(self, node: Any) -> None:
        name = (node.child_by_field_name("name") or node.named_children[0]).text.decode("utf-8", "replace")
        self.functions[name] = node.child_by_field_name("body")

    def _on_redirected(self, node: Any) -> None:
        body = node.child_by_field_name("body")
        heredoc = next((c for c in node.named_children if c.type == "heredoc_redirect"), None)
        target = next((c for c in node.named_children if c.type == "file_redirect"), None)
        stdin = self._heredoc(heredoc) if heredoc is not None else None
        if stdin is not None and target is None and heredoc is not None:
            target = next((c for c in heredoc.named_children if c.type == "file_redirect"), None)
        if body is None:
            return
        if stdin is not None and body.type == "command":
            words = [w.text for c in body.named_children for w in self.expander.words(c)]
            path = None
            if target is not None and target.named_children:
                path = self.expander.text(target.named_children[-1])
            if words[:1] == ["tee"] and len(words) > 1:
                path = words[-1]
            if words[:1] in (["cat"], ["tee"]) and path is not None:
                self.files[path] = stdin
                return
        if body.type == "command":
            self._on_command(body, stdin)
        else:
            self.statement(body)

    def _heredoc(self, node: Any) -> str:
        start = next((c.text for c in node.named_children if c.type == "heredoc_start"), b"")
        body = next((c for c in node.named_children if c.type == "heredoc_body"), None)
        if body is None:
            return ""
        if start[:1] in (b"'", b'"', b"\\"):
            found: str = body.text.decode("utf-8", "replace")
            return found
        return self.expander.template(body)

    def _on_command(self, node: Any, stdin: str | None = None) -> None:
        """A command with its prefix assignments.

        The grammar takes assignments on lines of their own for a prefix where a value is empty, and cuts a value
        before an escape; both are told by what stands between.
        """
        env: dict[str, tuple[str | list[Word], int]] = {}
        groups: list[list[Any]] = []
        last: str | None = None
        end = node.start_byte
        for child in node.named_children:
            gap = node.text[end - node.start_byte : child.start_byte - node.start_byte]
            end = child.end_byte
            if child.type in _SKIPPED:
                continue
            if not groups and b"\n" in gap.replace(b"\\\n", b""):
                for name, (value, line) in env.items():
                    self.assign(name, value, line)
                env, last = {}, None
            if child.type == "variable_assignment":
                found = self._assignment(child)
                last = found[0] if found is not None else None
                if found is not None:
                    env[found[0]] = (found[1], line_of(child))
            elif last is not None and not gap and isinstance(env[last][0], str):
                env[last] = (str(env[last][0]) + self.expander.text(child), env[last][1])
            elif groups and not gap:
                groups[-1].append(child)
            else:
                groups.append([child])
                last = None
        words = [word for group in groups for word in self.expander.words(*group)]
        if words:
            prefix = {n: Word(v, line) for n, (v, line) in env.items() if isinstance(v, str)}
            self._start(words, prefix, node, stdin)
        else:
            for name, (value, line) in env.items():
                self.assign(name, value, line)

    def _start(self, words: list[Word], env: dict[str, Word], node: Any, stdin: str | None) -> None:
        name = words[0].text
        if name in self.functions:
            self._call(name, [w.text for w in words[1:]], line_of(node))
        elif name in ("source", "."):
            self._source(words, line_of(node))
        elif name == "set":
            self._set([w.text for w in words[1:]])
        elif name in ("eval", "read", "mapfile", "readarray", "printf", "getopts"):
            self._writes(name, words, line_of(node))
        elif name in ("exit", "return") and not self.conditions and not self._depth:
            self._steps = MAX_STEPS
            self._stopped = True
        else:
            self.commands(Command(words, env, self.visible(), line_of(node), self.conditions, stdin))

    def visible(self) -> dict[str, Word]:
        """The environment that a command started now would get, as far as the script made it."""
        return {
            name: Word(value, self.assigned.get(name, line))
            for name, line in self.exported.items()
            if isinstance(value := self.variables.values.get(name, ""), str)
        }

    def _call(self, name: str, arguments: list[str], line: int) -> None:
        self.called.add(name)
        if self._depth > 20:
            self.unread(line, f"function {name} calls itself without end")
            return
        before, self.variables.positional = self.variables.positional, arguments
        self._depth += 1
        self.statement(self.functions[name])
        self._depth -= 1
        self.variables.positional = before

    def _source(self, words: list[Word], line: int) -> None:
        if len(words) < 2:
            return
        if self._depth > 20:
            self.unread(line, "files source each other without end")
            return
        text = self.source(words[1].text, line)
        if text is not None:
            self._depth += 1
            self.run(text)
            self._depth -= 1

    def _set(self, arguments: list[str]) -> None:
        for at, argument in enumerate(arguments):
            if argument == "--":
                self.variables.positional = arguments[at + 1 :]
                return
            if argument in ("-a", "-o") and (argument == "-a" or "allexport" in arguments):
                self._all_exported = True
            elif argument in ("+a", "+o"):
                self._all_exported = False

    def _writes(self, name: str, words: list[Word], line: int) -> None:
        """Builtins that set variables in ways that are not followed."""
        texts = [w.text for w in words[1:]]
        if name == "eval":
            self.unread(line, "eval is not followed: what it sets is not known")
        targets = texts[texts.index("-v") + 1 : texts.index("-v") + 2] if "-v" in texts else []
        targets += [t for t in texts if name in ("read", "mapfile", "readarray") and re.fullmatch(r"[A-Za-z_]\w*", t)]
        for target in targets:
            self.variables.values[target] = self.variables.unknown(f"{name} sets {target} on line {line}")


_STATEMENTS: dict[str, Callable[[Script, Any], None]] = {
    "variable_assignment": Script._on_assignment,
    "variable_assignments": Script._on_assignments,
    "declaration_command": Script._on_declaration,
    "unset_command": Script._on_unset,
    "if_statement": flow.on_if,
    "case_statement": flow.on_case,
    "list": flow.on_list,
    "for_statement": flow.on_for,
    "c_style_for_statement": flow.on_loop,
    "while_statement": flow.on_loop,
    "function_definition": Script._on_function,
    "redirected_statement": Script._on_redirected,
    "command": Script._on_command,
}


def _broken(root: Any) -> Iterator[Any]:
    """Nodes that the parser could not fit: the outermost of each fault, at most ten."""
    if not root.has_error:
        return
    pending, found = [root], 0
    while pending and found < 10:
        node = pending.pop()
        if node.type == "ERROR" or node.is_missing:
            found += 1
            yield node
        elif node.has_error:
            pending.extend(reversed(node.children))


def _parser() -> Callable[[bytes], Any]:
    import tree_sitter_bash
    from tree_sitter import Language, Parser

    parser = Parser(Language(tree_sitter_bash.language()))
    return parser.parse


def _run_on(root: Any) -> set[int]:
    """Ends of assignments that a newline parts from what the tree takes for their command."""
    cuts: set[int] = set()
    pending = [root]
    while pending:
        node = pending.pop()
        pending.extend(node.named_children)
        if node.type not in ("command", "variable_assignments"):
            continue
        children = node.named_children
        for left, right in pairwise(children):
            gap = node.text[left.end_byte - node.start_byte : right.start_byte - node.start_byte]
            if left.type == "variable_assignment" and b"\n" in gap.replace(b"\\\n", b""):
                cuts.add(left.end_byte)
    return cuts

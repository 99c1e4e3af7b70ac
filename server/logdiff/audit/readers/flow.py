"""Control flow of a script: branches that can be told are taken, of the others every one is read."""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING, Any

from logdiff.audit.readers.branches import Branch, merge, plain
from logdiff.audit.readers.expansion import UNKNOWN

if TYPE_CHECKING:
    from logdiff.audit.readers.shell import Script

MAX_UNROLL = 64


def on_if(script: Script, node: Any) -> None:
    """if, elif, else."""
    branches: list[tuple[str, bool | None, list[Any]]] = []
    test: list[Any] = []
    body: list[Any] = []
    in_body = False
    for child in node.children:
        if child.type in ("if", ";", "fi"):
            continue
        if child.type == "then":
            in_body = True
        elif child.type in ("elif_clause", "else_clause"):
            branches.append((*_judged(script, test), body))
            test, body = [], []
            words = [c for c in child.children if c.type not in ("elif", "else", ";")]
            if child.type == "else_clause":
                branches.append(("else", True, words))
                test = []
                break
            cut = next((i for i, c in enumerate(words) if c.type == "then"), len(words))
            test, body = words[:cut], words[cut + 1 :]
        elif in_body:
            body.append(child)
        else:
            test.append(child)
    if test:
        branches.append((*_judged(script, test), body))
    _branches(script, branches)


def _judged(script: Script, test: list[Any]) -> tuple[str, bool | None]:
    tests = [t for t in test if t.is_named]
    text = " ".join(" ".join(t.text.decode("utf-8", "replace").split()) for t in tests)[:80]
    return text, (script.tests.truth(tests[0]) if len(tests) == 1 else None)


def _branches(script: Script, branches: list[tuple[str, bool | None, list[Any]]]) -> None:
    """Walk the branch that is taken; where that can't be told, every one, and set their variables apart."""
    open_: list[tuple[str, list[Any]]] = []
    closed = False
    for text, truth, body in branches:
        if truth is False:
            continue
        if truth is True and not open_:
            for child in body:
                script.statement(child)
            return
        open_.append((text, body))
        if truth is True:
            closed = True
            break
    if not open_:
        return
    before = _state(script)
    after: list[tuple[str, Branch]] = []
    earlier: list[str] = []
    for text, body in open_:
        _restore(script, before)
        words = f"not ({' or '.join(earlier)})" if text == "else" else text
        if text != "else":
            earlier.append(text)
        script.conditions = (*script.conditions, words)
        for child in body:
            script.statement(child)
        script.conditions = script.conditions[:-1]
        after.append((words, _state(script)))
    if not closed:
        after.append((f"not ({' or '.join(earlier)})", before))
    _restore(script, merge(script.variables, after))


def _state(script: Script) -> Branch:
    return Branch(dict(script.variables.values), dict(script.exported))


def _restore(script: Script, state: Branch) -> None:
    script.variables.values = dict(state.values)
    script.exported = dict(state.exported)


def on_case(script: Script, node: Any) -> None:
    """case: patterns as bash matches them."""
    subject_node = node.child_by_field_name("value")
    subject = script.expander.text(subject_node) if subject_node is not None else ""
    known = not UNKNOWN.search(subject)
    branches: list[tuple[str, bool | None, list[Any]]] = []
    for item in node.named_children:
        if item.type != "case_item":
            continue
        patterns = item.children_by_field_name("value")
        names = [p.text.decode("utf-8", "replace").strip("'\"") for p in patterns]
        body = [c for c in item.named_children if c not in patterns]
        truth = any(fnmatch.fnmatchcase(subject, n) for n in names) if known else (True if "*" in names else None)
        words = subject_node.text.decode("utf-8", "replace") if subject_node is not None else ""
        branches.append((f"{words} is {'|'.join(names)}", truth, body))
        if truth and known:
            break
    _branches(script, branches)


def on_list(script: Script, node: Any) -> None:
    """`a && b` and `a || b`; a command before && is taken to succeed."""
    operators = [c.type for c in node.children if not c.is_named]
    named = node.named_children
    script.statement(named[0])
    for operator, child in zip(operators, named[1:], strict=False):
        truth = script.tests.truth(named[0])
        runs = truth if operator == "&&" else (None if truth is None else not truth)
        text = " ".join(named[0].text.decode("utf-8", "replace").split())[:80]
        is_test = named[0].type in ("test_command", "negated_command")
        if runs is False:
            continue
        if runs or (operator == "&&" and not is_test):
            script.statement(child)
        else:
            _branches(script, [(text if operator == "&&" else f"not ({text})", None, [child])])


def on_for(script: Script, node: Any) -> None:
    """A loop over words; unrolled where they are known and few."""
    name = (node.child_by_field_name("variable") or node).text.decode("utf-8", "replace")
    body = node.child_by_field_name("body")
    values = [w.text for w in script.fields(node.children_by_field_name("value"))]
    if len(values) <= MAX_UNROLL and not any(UNKNOWN.search(v) for v in values):
        for value in values:
            script.assign(name, value, line_of(node))
            if body is not None:
                script.block(body)
        return
    script.variables.values[name] = script.variables.unknown(f"loop over {name} on line {line_of(node)}")
    _loop(script, node, body)


def on_loop(script: Script, node: Any) -> None:
    """while, until and C-style loops: read once, what they change is unknown afterwards."""
    condition = node.child_by_field_name("condition")
    if condition is not None and script.tests.truth(condition) is (node.children[0].type == "until"):
        return
    _loop(script, node, node.child_by_field_name("body"))


def _loop(script: Script, node: Any, body: Any) -> None:
    if body is None:
        return
    before = _state(script)
    script.conditions = (*script.conditions, f"loop on line {line_of(node)}")
    script.block(body)
    script.conditions = script.conditions[:-1]
    for name, value in script.variables.values.items():
        if plain(before.values.get(name)) != plain(value):
            script.variables.values[name] = script.variables.unknown(
                f"{name} changes in the loop on line {line_of(node)}"
            )


def line_of(node: Any) -> int:
    """The line that a node starts on."""
    found: int = node.start_point[0] + 1
    return found

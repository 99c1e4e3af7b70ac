"""Shell tests (`[ ... ]`, `[[ ... ]]`, `(( ... ))`) as far as they can be told without running anything."""

from __future__ import annotations

import fnmatch
import re
from typing import Any

from logdiff.audit.readers.arithmetic import integer
from logdiff.audit.readers.expansion import UNKNOWN, Expander


class Tests:
    """Judges test nodes over the variables of one script."""

    def __init__(self, expander: Expander) -> None:
        self.expander = expander
        self.variables = expander.variables

    def truth(self, node: Any) -> bool | None:
        """Whether a test holds; None where it can't be told."""
        kind = node.type
        if kind == "command":
            name = str(node.text.decode("utf-8", "replace")).strip()
            if name in ("true", "false", ":"):
                return name != "false"
            words = [w.text for c in node.named_children for w in self.expander.words(c)]
            return self._test_words(words[1:]) if words[:1] == ["test"] else None
        text = node.text.decode("utf-8", "replace")
        if kind == "compound_statement" and text.startswith("((") and text.endswith("))"):
            found_text = integer(text[2:-2], self.variables)
            return None if found_text is None else found_text != "0"
        if kind in ("test_command", "parenthesized_expression", "command_name"):
            inner = list(node.named_children)
            return self.truth(inner[0]) if len(inner) == 1 else None
        if kind in ("negated_command", "unary_expression"):
            operator = node.children[0].text.decode()
            operand = node.named_children[-1]
            if operator == "!" or kind == "negated_command":
                found = self.truth(operand)
                return None if found is None else not found
            return self._test_words([operator, self.expander.text(operand)])
        if kind == "binary_expression":
            operator = (node.child_by_field_name("operator") or node.children[1]).text.decode()
            left, right = node.named_children[0], node.named_children[-1]
            if operator in ("&&", "||"):
                both = (self.truth(left), self.truth(right))
                decided = operator == "||"
                return decided if decided in both else (None if None in both else not decided)
            if operator in ("<", ">", "<=", ">="):
                return None
            pattern = right.text.decode("utf-8", "replace") if right.type in ("extglob_pattern", "regex") else None
            values = [self.expander.text(left), operator, pattern or self.expander.text(right)]
            return self._test_words(values)
        return None

    def _test_words(self, words: list[str]) -> bool | None:
        if any(UNKNOWN.search(w) for w in words):
            return None
        if len(words) == 2 and words[0] in ("-z", "-n"):
            return (words[1] == "") is (words[0] == "-z")
        if len(words) != 3:
            return None
        left, operator, right = words
        if operator in ("=", "=="):
            return fnmatch.fnmatchcase(left, right) if re.search(r"[*?]", right) else left == right
        if operator == "!=":
            return not fnmatch.fnmatchcase(left, right) if re.search(r"[*?]", right) else left != right
        numbers = {"-eq": "==", "-ne": "!=", "-lt": "<", "-le": "<=", "-gt": ">", "-ge": ">="}
        if operator in numbers:
            found = integer(f"{left} {numbers[operator]} {right}", self.variables)
            return None if found is None else found != "0"
        return None

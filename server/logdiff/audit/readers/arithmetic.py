"""Bash arithmetic over known integers."""

from __future__ import annotations

import ast
import re

from logdiff.audit.readers.expansion import Variables
from logdiff.audit.values import parse_expression


def integer(expression: str, variables: Variables) -> str | None:
    """Bash arithmetic over known integers: + - * / % and comparisons; None where it can't be told."""

    def value(match: re.Match[str]) -> str:
        found = variables.get(match[1] or match[2])
        if found is None or not re.fullmatch(r"-?\d{1,18}", found.strip()):
            raise ValueError(match[0])
        return f"({found.strip()})"

    try:
        text = re.sub(r"\$\{(\w+)\}|\$?([A-Za-z_]\w*)", value, expression)
        return str(_calculate(parse_expression(text).body))
    except (ValueError, SyntaxError, ZeroDivisionError, RecursionError, OverflowError, MemoryError):
        return None


def _calculate(node: ast.AST) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd, ast.Not)):
        inner = _calculate(node.operand)
        return {ast.USub: -inner, ast.UAdd: inner, ast.Not: int(not inner)}[type(node.op)]
    if isinstance(node, ast.BinOp):
        left, right = _calculate(node.left), _calculate(node.right)
        if isinstance(node.op, (ast.Div, ast.Mod)):
            quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
            return quotient if isinstance(node.op, ast.Div) else left - quotient * right
        if isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Sub):
            return left - right
        if isinstance(node.op, ast.Mult):
            return left * right
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        left, right = _calculate(node.left), _calculate(node.comparators[0])
        answers: dict[type, bool] = {
            ast.Eq: left == right, ast.NotEq: left != right, ast.Lt: left < right, ast.LtE: left <= right,
            ast.Gt: left > right, ast.GtE: left >= right,
        }  # fmt: skip
        return int(answers[type(node.ops[0])])
    raise ValueError(ast.dump(node))

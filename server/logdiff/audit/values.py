"""Text to plain values without evaluating anything: scalars, Hydra's lists and dictionaries, Python literals."""

from __future__ import annotations

import ast
import json
import re
import warnings
from typing import Any

MAX_TEXT = 200_000
MAX_ITEMS = 20_000
_NUMBER = re.compile(r"^[-+]?(\d[\d_]*(\.\d*)?|\.\d+)([eE][-+]?\d+)?$")
_WORDS = {
    "true": True, "false": False, "null": None, "none": None, "inf": float("inf"), "-inf": float("-inf"),
    "nan": float("nan"),
}  # fmt: skip


def scalar(text: str) -> Any:
    """true, false, null, a number, or the text itself (quotes taken off)."""
    text = text.strip()
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _NUMBER.match(text) and len(text) < 40:
        digits = text.replace("_", "")
        return float(digits) if re.search(r"[.eE]", digits) else int(digits)
    return text


def hydra(text: str) -> Any:
    """A value of a Hydra override: scalar, quoted text, `[a,b]`, `{k:v}`, nested.

    Raises:
        ValueError: brackets or quotes that don't close, or a document that is too large.
    """
    if len(text) > MAX_TEXT:
        raise ValueError(f"value of {len(text)} characters")
    stripped = text.strip()
    if stripped[:1] not in ("[", "{"):
        return scalar(stripped)
    value, end = _nested(stripped, 0, 0)
    if stripped[end:].strip():
        raise ValueError(f"text after the closing bracket: {stripped[end:][:40]!r}")
    return value


def _nested(text: str, at: int, depth: int) -> tuple[Any, int]:
    if depth > 40:
        raise ValueError("nested too deeply")
    at = _skip(text, at)
    if at >= len(text):
        raise ValueError("value ends early")
    if text[at] == "[":
        items: list[Any] = []
        at = _skip(text, at + 1)
        while text[at : at + 1] != "]":
            value, at = _nested(text, at, depth + 1)
            items.append(value)
            at = _comma(text, at, "]")
        return items, at + 1
    if text[at] == "{":
        pairs: dict[str, Any] = {}
        at = _skip(text, at + 1)
        while text[at : at + 1] != "}":
            key, at = _token(text, at, ":,}]")
            at = _skip(text, at)
            if text[at : at + 1] != ":":
                raise ValueError(f"key {key!r} has no value")
            pairs[str(key)], at = _nested(text, at + 1, depth + 1)
            at = _comma(text, at, "}")
        return pairs, at + 1
    return _token(text, at, ",]}")


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _comma(text: str, at: int, close: str) -> int:
    at = _skip(text, at)
    if text[at : at + 1] == ",":
        return _skip(text, at + 1)
    if text[at : at + 1] != close:
        raise ValueError(f"expected , or {close} at character {at}")
    return at


def _token(text: str, at: int, stops: str) -> tuple[Any, int]:
    if text[at : at + 1] in ("'", '"'):
        end = text.find(text[at], at + 1)
        if end < 0:
            raise ValueError("quote does not close")
        return text[at + 1 : end], end + 1
    end = at
    while end < len(text) and text[end] not in stops:
        end += 1
    if end >= len(text) and stops:
        raise ValueError("bracket does not close")
    return scalar(text[at:end]), end


def json_or_hydra(text: str) -> Any:
    """A JSON object or list where it is one, else as `hydra`."""
    if text.strip()[:1] in ("{", "["):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            pass
    if re.match(r"^\s*\([\s\d,.+-]*\)\s*$", text):
        return literal(text)
    return hydra(text)


def parse_expression(text: str) -> ast.Expression:
    """A Python expression as a tree, without Python's own warnings about the text."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text.strip(), mode="eval")


def literal(text: str) -> Any:
    """A Python literal as logs print it; `<Enum.NAME: 1>` and calls become text.

    Raises:
        ValueError: it is no literal, or too large.
    """
    if len(text) > MAX_TEXT:
        raise ValueError(f"value of {len(text)} characters")
    text = re.sub(r"<(\w+)\.(\w+): [^<>]*>", r"'\2'", text)
    try:
        tree = parse_expression(text)
    except (SyntaxError, RecursionError, MemoryError, ValueError) as error:
        raise ValueError(f"no Python literal: {error}") from None
    return _plain(tree.body, text.strip(), 0)


def _plain(node: ast.AST, text: str, depth: int) -> Any:
    if depth > 40:
        raise ValueError("nested too deeply")
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, (str, int, float, bool, type(None))) else str(node.value)
    if isinstance(node, ast.Dict):
        return {
            str(_plain(k, text, depth + 1)): _plain(v, text, depth + 1)
            for k, v in zip(node.keys, node.values, strict=True)
            if k is not None
        }
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        return [_plain(item, text, depth + 1) for item in node.elts]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _plain(node.operand, text, depth + 1)
        return -inner if isinstance(inner, (int, float)) else str(inner)
    if isinstance(node, ast.Call):
        fields = {k.arg: _plain(k.value, text, depth + 1) for k in node.keywords if k.arg}
        return fields or (ast.get_source_segment(text, node) or "")
    return ast.get_source_segment(text, node) or ""


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted keys of nested dictionaries; lists stay whole.

    Raises:
        ValueError: more than `MAX_ITEMS` entries (a document made to explode).
    """
    flat: dict[str, Any] = {}
    pending: list[tuple[str, Any, int]] = [(prefix, value, 0)]
    while pending:
        name, item, depth = pending.pop()
        if isinstance(item, dict) and (item or depth == 0) and depth < 40:
            pending.extend((f"{name}.{k}" if name else str(k), v, depth + 1) for k, v in reversed(item.items()))
        else:
            flat[name] = item
        if len(flat) + len(pending) > MAX_ITEMS:
            raise ValueError(f"more than {MAX_ITEMS} entries")
    return flat


def same(left: Any, right: Any) -> bool:
    """Equality as configuration means it: 1 == 1.0 == "1", True == "true" == "True", order in lists counts."""
    return bool(comparable(left) == comparable(right))


def comparable(value: Any) -> Any:
    """The form in which two values are compared."""
    if isinstance(value, str):
        text = value.strip().removeprefix("torch.")
        parsed = scalar(text)
        return parsed.lower() if isinstance(parsed, str) else comparable(parsed)
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, (int, float)):
        try:
            return float(value)
        except OverflowError:
            return str(value)
    if isinstance(value, (list, tuple)):
        return [comparable(item) for item in value]
    if isinstance(value, dict):
        return {str(k): comparable(v) for k, v in value.items()}
    return value

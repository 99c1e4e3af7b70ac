"""Logs: what an engine printed of its own configuration. Values are parsed as literals, never evaluated."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from logdiff.audit.readers.collect import Collector
from logdiff.audit.values import flatten, literal, scalar

_MAX_BLOCK_LINES = 20_000
_PREFIX = re.compile(r"^(?:\x1b\[[0-9;]*m)*(?:\([\w ]*pid=[^)]*\)\s*)?(?:\x1b\[[0-9;]*m)*")
_NON_DEFAULT = re.compile(r"non-default args:\s*(\{.*\})")
_ENGINE = re.compile(r"Initializing an? (?:V\d )?LLM engine \(v([^)]*)\) with config:\s*(.*)$")
_SERVER = re.compile(r"vLLM API server version (\S+)")
_ARGUMENT = re.compile(r"^\s*(?:\[[^\]]*\]:?\s*)?([A-Za-z_]\w*) \.{2,} (.*)$")
_BACKEND = re.compile(r"Using (?:AttentionBackendEnum\.)?([A-Z][A-Za-z0-9_]*(?: Attention)?)(?: attention)? backend\b")
_MARKERS = (
    (re.compile(r"FA3 will not be enabled"), "fa3_enabled", False),
    (re.compile(r"FA3 will be enabled"), "fa3_enabled", True),
    (
        re.compile(r"attention_backend .*(?:is ignored|reset|not supported).*None", re.I),
        "attention_backend_reset",
        True,
    ),
)
_HINTS = ("non-default args", "LLM engine", "API server version", " ..", "{'", " backend", "FA3", "attention_backend")
"""A line without any of these is passed over at once: logs have millions of lines."""
_CALLED = re.compile(r"\w+Config\((.*)\)", re.S)
_SPECULATIVE = {"num_spec_tokens": "num_speculative_tokens"}
_ENGINE_KEYS = {"max_seq_len": "max_model_len", "chunked_prefill_enabled": "enable_chunked_prefill"}

SIGN = re.compile(
    r"non-default args: \{|Initializing an? (?:V\d )?LLM engine|vLLM API server version|^\s*\S.* \.{4,} |"
    r"\{'actor_rollout_ref':|FA3 will (?:not )?be enabled",
    re.MULTILINE,
)
"""What tells that a text is a log with configuration in it."""


def read_log(lines: Iterator[tuple[int, str]], shown: str, collector: Collector) -> bool:
    """Settings of a log; False where it holds no line of configuration that is known."""
    found = False
    seen: set[str] = set()
    arguments: dict[str, int] = {}
    for number, whole in lines:
        if not any(hint in whole for hint in _HINTS):
            continue
        line = _PREFIX.sub("", whole)
        where = f"{shown}:{number}"
        if match := _NON_DEFAULT.search(line):
            found = _options(match[1], where, shown, collector, seen) or found
        elif match := _ENGINE.search(line):
            found = True
            collector.package("vllm", match[1], where, "log", "rollout")
            _engine(match[2], where, collector, seen)
        elif match := _SERVER.search(line):
            collector.package("vllm", match[1], where, "log", "rollout")
            found = True
        elif match := _ARGUMENT.match(line):
            if match[1] not in arguments:
                arguments[match[1]] = number
                collector.option("megatron", match[1], _argument(match[2]), where, "log", side="train")
        elif "{'actor_rollout_ref':" in line or (line.startswith("{'") and "pid=" in whole[:60]):
            found = _resolved(line, lines, where, shown, collector) or found
        elif match := _BACKEND.search(line):
            collector.option("vllm", "resolved_attention_backend", match[1], where, "log")
            found = True
        else:
            for pattern, key, value in _MARKERS:
                if pattern.search(line):
                    collector.option("vllm", key, value, where, "log")
                    found = True
    if len(arguments) >= 3:
        collector.launch("megatron", ("train",), shown)
        found = True
    return found


def _options(text: str, where: str, shown: str, collector: Collector, seen: set[str]) -> bool:
    """vLLM's `non-default args: {...}`; what is not in there has its default."""
    if text in seen:
        return True
    seen.add(text)
    try:
        data = literal(text)
    except ValueError as error:
        collector.unread(where, f"non-default args: {error}")
        return False
    collector.launch("vllm", ("rollout",), where)
    for name, value in data.items() if isinstance(data, dict) else ():
        collector.option("vllm", str(name), value, where, "log")
    return True


def _engine(text: str, where: str, collector: Collector, seen: set[str]) -> None:
    """The engine line: `key=value, key=value` with nested brackets."""
    if text in seen:
        return
    seen.add(text)
    for part in _split(text):
        name, equals, value = part.strip().partition("=")
        if not equals or not re.fullmatch(r"\w+", name):
            continue
        if called := _CALLED.fullmatch(value):
            for inner in _split(called[1]):
                key, given, text = inner.strip().partition("=")
                if given and name == "speculative_config":
                    part = scalar(text.strip("'\""))
                    collector.option("vllm", f"{name}.{_SPECULATIVE.get(key, key)}", part, where, "log")
            continue
        try:
            parsed: Any = literal(value) if value[:1] in "{['\"" else scalar(value.removeprefix("torch."))
        except ValueError:
            collector.unread(where, f"{name}={value[:60]} is not understood")
            continue
        collector.option("vllm", _ENGINE_KEYS.get(name, name), parsed, where, "log", shown=name)


def _split(text: str) -> Iterator[str]:
    depth, start, quote = 0, 0, ""
    for at, mark in enumerate(text):
        if quote:
            quote = "" if mark == quote else quote
        elif mark in "'\"":
            quote = mark
        elif mark in "([{":
            depth += 1
        elif mark in ")]}":
            depth -= 1
        elif mark == "," and depth == 0:
            yield text[start:at]
            start = at + 1
    yield text[start:]


def _argument(text: str) -> Any:
    text = text.strip()
    if text[:1] in "[({" or text[:1] in "'\"":
        try:
            return literal(text)
        except ValueError:
            return text
    return scalar(text.removeprefix("torch."))


def _resolved(first: str, lines: Iterator[tuple[int, str]], where: str, shown: str, collector: Collector) -> bool:
    """verl's printed configuration: a Python dictionary over many lines."""
    start = first.index("{'")
    parts = [first[start:]]
    depth = _depth(parts[0])
    while depth > 0 and len(parts) < _MAX_BLOCK_LINES:
        entry = next(lines, None)
        if entry is None:
            break
        line = _PREFIX.sub("", entry[1])
        parts.append(line)
        depth += _depth(line)
    if depth > 0:
        collector.unread(where, "the printed configuration does not end")
        return False
    text = "\n".join(parts)
    if "'actor_rollout_ref'" not in text:
        return False
    text = text[: text.rindex("}") + 1]
    try:
        flat = flatten(literal(text))
    except ValueError as error:
        collector.unread(where, f"printed configuration: {error}")
        return False
    collector.launch("verl", ("rollout", "train"), where)
    for name, value in flat.items():
        collector.option("verl", name, value, where, "log")
    return True


def _depth(line: str) -> int:
    bare = re.sub(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", "", line)
    return sum(bare.count(mark) for mark in "{[(") - sum(bare.count(mark) for mark in "}])")

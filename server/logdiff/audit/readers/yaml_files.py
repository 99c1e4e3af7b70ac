"""YAML and JSON documents: resolved verl configurations, override lists, runtime environments, engine options, runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import yaml

from logdiff.audit.data import LOADER
from logdiff.audit.keys import catalogue
from logdiff.audit.readers.collect import Collector
from logdiff.audit.settings import Setting, Unknown
from logdiff.audit.values import MAX_ITEMS, flatten, hydra, scalar

_MAX_DEPTH = 60
_BOOLS = {"yes": True, "on": True, "no": False, "off": False}


def parse_yaml(text: str) -> Any:
    """A document as plain data, repeated keys and aliases included, within a budget.

    Raises:
        ValueError: no valid YAML, or one that unfolds to more than `MAX_ITEMS` entries.
    """
    root = _compose(text)
    budget = [MAX_ITEMS]
    return None if root is None else _plain(root, budget, 0)


def _compose(text: str) -> Any:
    try:
        return yaml.compose(text, Loader=LOADER)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        words = " ".join(str(error).split())
        raise ValueError(f"no valid YAML: {words[:200]}") from None


def _plain(node: Any, budget: list[int], depth: int) -> Any:
    budget[0] -= 1
    if budget[0] < 0:
        raise ValueError(f"the document unfolds to more than {MAX_ITEMS} entries")
    if depth > _MAX_DEPTH:
        raise ValueError(f"nested more than {_MAX_DEPTH} deep")
    if isinstance(node, yaml.MappingNode):
        return {str(k.value): _plain(v, budget, depth + 1) for k, v in node.value}
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item, budget, depth + 1) for item in node.value]
    return _scalar(node)


def _scalar(node: Any) -> Any:
    text = str(node.value)
    if node.style in ("'", '"', "|", ">"):
        return text
    if node.tag.endswith(":bool") and text.lower() in _BOOLS:
        return _BOOLS[text.lower()]
    if text in ("", "~"):
        return None
    if "${" in text:
        return Unknown(f"interpolation {text}")
    return scalar(text)


def entries(text: str) -> tuple[list[tuple[str, Any, int]], list[tuple[str, int, int]]]:
    """(dotted key, value, line) of a mapping's leaves, and (key, line, line) of keys that stand twice.

    Raises:
        ValueError: no valid YAML, no mapping, or too much of it.
    """
    root = _compose(text)
    if not isinstance(root, yaml.MappingNode):
        raise ValueError("no mapping of keys to values")
    leaves: list[tuple[str, Any, int]] = []
    twice: list[tuple[str, int, int]] = []
    budget = [MAX_ITEMS]
    for name, node, line in _leaves(root, "", budget, 0, twice):
        leaves.append((name, _plain(node, budget, 0), line))
    return leaves, twice


def _leaves(
    node: Any, prefix: str, budget: list[int], depth: int, twice: list[tuple[str, int, int]]
) -> Iterator[tuple[str, Any, int]]:
    seen: dict[str, int] = {}
    for key, value in node.value:
        budget[0] -= 1
        if budget[0] < 0:
            raise ValueError(f"the document unfolds to more than {MAX_ITEMS} entries")
        name = f"{prefix}{key.value}"
        line = key.start_mark.line + 1
        if str(key.value) in seen:
            twice.append((name, seen[str(key.value)], line))
        seen[str(key.value)] = line
        if isinstance(value, yaml.MappingNode) and value.value and depth < _MAX_DEPTH:
            yield from _leaves(value, f"{name}.", budget, depth + 1, twice)
        else:
            yield name, value, line


def read_yaml(text: str, shown: str, collector: Collector) -> bool:
    """Settings of a YAML document whose kind is known by its keys; False, with the reason told, where none is."""
    try:
        if text.lstrip().startswith("- "):
            return _overrides(parse_yaml(text), shown, collector)
        leaves, twice = entries(text)
    except ValueError as error:
        collector.unread(shown, str(error))
        return False
    for name, first, second in twice:
        if not name.startswith("env_vars.") or True:
            collector.unread(f"{shown}:{second}", f"{name} stands twice (first on line {first}); the later one counts")
    kind = _kind(leaves)
    if kind is None:
        return False
    _READERS[kind](leaves, text, shown, collector)
    return True


def _kind(leaves: list[tuple[str, Any, int]]) -> str | None:
    names = [name for name, _, _ in leaves]
    tops = {name.split(".", 1)[0] for name in names}
    if any(name == "format" and value == "logdiff-run/1" for name, value, _ in leaves):
        return "run"
    if tops & {"actor_rollout_ref"} or {"trainer", "algorithm"} <= tops:
        return "verl"
    if "env_vars" in tops or "runtime_env" in tops:
        return "runtime"
    spelled = {name.rsplit(".", 1)[-1].replace("-", "_") for name in names}
    table = catalogue()
    vllm = sum(table.find("vllm", n) is not None for n in spelled)
    megatron = sum(table.find("megatron", n) is not None for n in spelled)
    if (
        "model" in tops
        or "model_tag" in tops
        or spelled & {"max_model_len", "gpu_memory_utilization", "served_model_name"}
    ):
        return "vllm"
    if megatron >= 2 and megatron >= vllm:
        return "megatron"
    if vllm >= 2:
        return "vllm"
    return None


def _verl(leaves: list[tuple[str, Any, int]], text: str, shown: str, collector: Collector) -> None:
    collector.launch("verl", ("rollout", "train"), shown)
    for name, value, line in leaves:
        collector.option("verl", name, value, f"{shown}:{line}", "file")


def _runtime(leaves: list[tuple[str, Any, int]], text: str, shown: str, collector: Collector) -> None:
    for name, value, line in leaves:
        head, _, rest = name.rpartition("env_vars.")
        if rest and (not head or head.endswith(".")):
            collector.env(rest, value if isinstance(value, Unknown) else str(value), f"{shown}:{line}")


def _vllm(leaves: list[tuple[str, Any, int]], text: str, shown: str, collector: Collector) -> None:
    collector.launch("vllm", ("rollout",), shown)
    for name, value, line in leaves:
        collector.option("vllm", name.replace("-", "_"), value, f"{shown}:{line}", "file", shown=name)


def _megatron(leaves: list[tuple[str, Any, int]], text: str, shown: str, collector: Collector) -> None:
    collector.launch("megatron", ("train",), shown)
    for name, value, line in leaves:
        tail = name.rsplit(".", 1)[-1].replace("-", "_")
        collector.option("megatron", tail, value, f"{shown}:{line}", "file", shown=name)


def _overrides(data: Any, shown: str, collector: Collector) -> bool:
    if not isinstance(data, list) or not all(isinstance(item, str) and "=" in item for item in data):
        collector.unread(shown, "a list, but not one of Hydra overrides")
        return False
    collector.launch("verl", ("rollout", "train"), shown)
    for number, item in enumerate(data, 1):
        key, _, value = item.lstrip("+~").partition("=")
        try:
            collector.option("verl", key, hydra(value), f"{shown}:{number}", "override", adds=item[:1] == "+")
        except ValueError as error:
            collector.unread(f"{shown}:{number}", f"{key}: {error}")
    return True


def _run(leaves: list[tuple[str, Any, int]], text: str, shown: str, collector: Collector) -> None:
    """A run file: engines' arguments and environment of each side, sampling of the rollout."""
    at = {name: line for name, _, line in leaves}
    flat = {name: value for name, value, _ in leaves}
    for side in ("rollout", "train"):
        engine = flat.get(f"{side}.engine")
        framework = "vllm" if str(engine).startswith("vllm") else "transformers"
        collector.launch(framework, (side,), shown, complete=framework != "transformers")
        _, config = side, {n: v for n, v in flat.items() if n.startswith(f"{side}.")}
        for name, value in config.items():
            place = f"{shown}:{at[name]}"
            if name.startswith(f"{side}.env."):
                collector.env(name.removeprefix(f"{side}.env."), str(value), place, side=side)
            elif name.startswith(f"{side}.args."):
                raw = name.removeprefix(f"{side}.args.")
                collector.option(framework, raw, value, place, "file", side=side, shown=name)
        dtype = flat.get(f"{side}.dtype", flat.get("dtype", "bfloat16"))
        collector.option("run", "dtype", dtype, shown, "file", side=side)
    for name, value, line in leaves:
        if name.startswith("sampling."):
            collector.option("run", name, value, f"{shown}:{line}", "file", side="rollout")


_READERS: dict[str, Any] = {"run": _run, "verl": _verl, "runtime": _runtime, "vllm": _vllm, "megatron": _megatron}

_GENERATION = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def read_json(text: str, shown: str, collector: Collector) -> bool:
    """Settings of a JSON document whose kind is known by its keys; False where none is."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        collector.unread(shown, f"no valid JSON: {error}")
        return False
    if not isinstance(data, dict):
        collector.unread(shown, f"JSON of a {type(data).__name__}, not an object")
        return False
    try:
        return _json_object(data, shown, collector)
    except ValueError as error:
        collector.unread(shown, str(error))
        return False


def _json_object(data: dict[str, Any], shown: str, collector: Collector) -> bool:
    from logdiff.audit.readers.facts import environment, fingerprint

    kind = data.get("format")
    if kind == "logdiff-env/1":
        environment(data, shown, collector)
    elif kind == "logdiff-fingerprint/1":
        fingerprint(data, shown, collector, collector.side)
    elif isinstance(data.get("env_vars"), dict):
        for name, value in data["env_vars"].items():
            collector.env(str(name), str(value), shown)
    elif "actor_rollout_ref" in data:
        collector.launch("verl", ("rollout", "train"), shown)
        for name, value in flatten(data).items():
            collector.option("verl", name, value, shown, "file")
    elif "model_type" in data or "architectures" in data:
        for name, value in flatten(data).items():
            collector.option("hf", name, value, shown, "file")
        collector.evidence.settings.append(Setting("both", "model.folder", shown, "config.json", shown, "file"))
    elif "transformers_version" in data or any(key in data for key in (*_GENERATION, "eos_token_id")):
        for name in _GENERATION:
            if name in data:
                collector.option(
                    "run", f"generation_config.{name}", data[name], shown, "file", side="rollout", shown=name
                )
    else:
        return False
    return True

"""Facts of a live interpreter, of a case's sides, of package lists and of Dockerfiles."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from logdiff.audit.readers.collect import Collector
from logdiff.audit.readers.text import read_text, refused
from logdiff.audit.settings import Unknown
from logdiff.audit.values import flatten

_PIN = re.compile(r"^\s*([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?\s*==\s*([A-Za-z0-9][\w.+!-]*)\s*(?:;.*|#.*|\\)?$")
_AT = re.compile(r"^\s*(?:-e\s+)?([A-Za-z0-9][A-Za-z0-9._-]*)\s*@\s*(\S+)")
_EDITABLE = re.compile(r"^\s*-e\s+(\S+)#egg=([A-Za-z0-9._-]+)")


def environment(
    data: dict[str, Any], shown: str, collector: Collector, origin: str = "live", side: str = "both"
) -> None:
    """A `logdiff-env/1`: packages, variables, determinism switches."""
    for name, version in (data.get("packages") or {}).items():
        collector.package(str(name), str(version), shown, origin, side)
    for name, value in (data.get("env") or {}).items():
        if value != "***":
            collector.env(str(name), str(value), shown, side=side, origin=origin)
    torch = data.get("torch")
    if isinstance(torch, dict):
        if isinstance(torch.get("version"), str):
            collector.package("torch", torch["version"], shown, origin, side)
        if isinstance(torch.get("deterministic_algorithms"), bool):
            collector.option(
                "run", "deterministic_algorithms", torch["deterministic_algorithms"], shown, origin, side=side
            )
    for name, facts in (data.get("distributions") or {}).items():
        for key, value in facts.items():
            collector.option("run", f"distribution.{name}.{key}", value, shown, origin, side=side)
    collector.launch("environment", (side,) if side != "both" else ("rollout", "train"), shown)


def fingerprint(data: dict[str, Any], shown: str, collector: Collector, side: str) -> None:
    """A `logdiff-fingerprint/1` of one side: what really ran there."""
    side = side or "both"
    environment({k: data.get(k) for k in ("packages", "env", "torch")}, shown, collector, "live", side)
    engine = (data.get("engine") or {}).get("name") or ""
    form = "vllm" if str(engine).startswith("vllm") else "transformers"
    collector.launch(form, (side,) if side != "both" else ("rollout", "train"), shown, complete=False)
    for block in ("config", "effective"):
        values = data.get(block)
        if isinstance(values, dict):
            for name, value in flatten(values).items():
                if value is not None:
                    spelled = form if block == "config" else "run"
                    collector.option(spelled, name, value, shown, "live", side=side)
    model = data.get("model")
    if isinstance(model, dict):
        for name, value in flatten(model).items():
            collector.option("hf", name, value, shown, "live", side=side)
    if data.get("quantization"):
        collector.option("run", "quantization", str(data["quantization"]), shown, "live", side=side)


def case_folder(folder: Path, shown: str, collector: Collector) -> None:
    """The fingerprints and the header of a case."""
    found = False
    for side in ("rollout", "train"):
        path = folder / "sides" / side / "fingerprint.json"
        name = f"{shown}/sides/{side}/fingerprint.json"
        if not path.exists():
            collector.unread(name, "the case has no fingerprint of this side")
            continue
        if refused(path, collector, name):
            continue
        text = read_text(path, collector, name)
        try:
            data = json.loads(text) if text is not None else None
        except (ValueError, RecursionError) as error:
            collector.unread(name, f"no valid JSON: {error}")
            continue
        if isinstance(data, dict):
            fingerprint(data, name, collector, side)
            found = True
    meta = folder / "meta.json"
    if meta.is_file() and (text := read_text(meta, collector, f"{shown}/meta.json")) is not None:
        _meta(text, f"{shown}/meta.json", collector)
        found = True
    if not found:
        collector.unread(shown, "a case without fingerprints and header: nothing to audit")


_META = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "logprobs_mode", "block_size")


def _meta(text: str, shown: str, collector: Collector) -> None:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        collector.unread(shown, f"no valid JSON: {error}")
        return
    if not isinstance(data, dict):
        return
    inner = data.get("meta")
    data = inner if isinstance(inner, dict) else data
    for name in _META:
        if data.get(name) is not None:
            collector.option("run", name, data[name], shown, "file", side="rollout")
    for side in ("rollout", "train"):
        block = data.get(side)
        config = block.get("config") if isinstance(block, dict) else None
        for name, value in flatten(config).items() if isinstance(config, dict) else ():
            collector.option("run", name, value, shown, "file", side=side)


def packages(text: str, shown: str, collector: Collector) -> bool:
    """`pip freeze`, a requirements file or a constraints file; False where too little of it is one."""
    found = other = 0
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        if not bare or bare.startswith("#"):
            continue
        where = f"{shown}:{number}"
        if match := _PIN.match(line):
            collector.package(match[1], match[2], where)
            found += 1
        elif match := _EDITABLE.match(line):
            collector.package(match[2], _branch(match[1]), where)
            found += 1
        elif match := _AT.match(line):
            collector.package(match[1], _branch(match[2]), where)
            found += 1
        elif re.match(r"^\s*(-{1,2}[a-z]|[A-Za-z0-9][\w.-]*\s*(\[[\w,.-]+\])?\s*([<>~!=].*)?$)", line):
            found += 1
        else:
            other += 1
    return found > other


def _branch(url: str) -> str:
    """The version that an address names: a tag or branch at its end, or a wheel's name."""
    wheel = re.search(r"/[A-Za-z0-9_.]+-(\d[\w.+]*)-[^/]*\.whl", url)
    if wheel:
        return wheel[1]
    at = re.search(r"@([\w./-]+?)(?:#.*)?$", url.split("://", 1)[-1])
    if at:
        return at[1].rsplit("/", 1)[-1].removeprefix("v")
    return url


_DOCKER = re.compile(r"^\s*(ENV|ARG)\s+(.*)$", re.IGNORECASE | re.S)
_PAIR = re.compile(r"(\w+)=(\"(?:[^\"\\]|\\.)*\"|'[^']*'|\S*)")


def dockerfile(text: str, shown: str, collector: Collector) -> bool:
    """ENV and ARG of a Dockerfile, and the versions that its pip lines pin; other lines are not followed."""
    known: dict[str, str] = {}
    found = False
    for number, line in _joined(text):
        match = _DOCKER.match(line)
        if match is None:
            if re.match(r"^\s*RUN\b.*\bpip3?\s+install\b", line, re.I | re.S):
                for pin in re.finditer(r"([A-Za-z][\w.-]*)==([\w.+]+)", line):
                    collector.package(pin[1], pin[2], f"{shown}:{number}")
            found = found or bool(re.match(r"^\s*(FROM|RUN)\s", line, re.I))
            continue
        pairs = _PAIR.findall(match[2]) if "=" in match[2] else [tuple(match[2].split(None, 1))]
        for pair in pairs:
            if len(pair) != 2:
                if match[1].upper() == "ENV":
                    collector.unread(f"{shown}:{number}", f"{match[1]} {match[2].strip()[:60]} has no value here")
                continue
            name, raw = pair
            value = re.sub(r"\$\{?(\w+)\}?", lambda m: known.get(m[1], m[0]), raw.strip("\"'"))
            known[name] = value
            if match[1].upper() == "ENV":
                unknown = re.search(r"\$\{?\w+", value)
                where = f"{shown}:{number}"
                collector.env(
                    name, Unknown(f"{unknown[0]} is not set here") if unknown else value, where, origin="file"
                )
                found = True
    return found


def _joined(text: str) -> list[tuple[int, str]]:
    """Lines with their continuations."""
    joined: list[tuple[int, str]] = []
    start = 0
    parts: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not parts:
            start = number
        if line.rstrip().endswith("\\"):
            parts.append(line.rstrip()[:-1])
            continue
        joined.append((start, " ".join([*parts, line])))
        parts = []
    if parts:
        joined.append((start, " ".join(parts)))
    return joined

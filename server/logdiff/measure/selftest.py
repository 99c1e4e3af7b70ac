"""Two self-tests of kernels (`logdiff-selftest/1`) against each other: what differs between two hosts, in sentences."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from logdiff.errors import InputError

FORMAT = "logdiff-selftest/1"

_SHOWN = 12
"""Differences of one part that are written out; the rest is counted."""


class _Law(BaseModel):
    model_config = ConfigDict(strict=True)
    kernel: str
    law: str
    ok: bool
    detail: str


class _Section(BaseModel):
    model_config = ConfigDict(strict=True)
    name: str
    matters: str
    fingerprint: str
    facts: dict[str, dict[str, Any]]


class _Report(BaseModel):
    """What a report has to have; the CPU library's have no sections."""

    model_config = ConfigDict(strict=True)
    provider: str
    laws: list[_Law]
    failed: int
    sections: list[_Section] = Field(default_factory=list)


def read_selftest(path: str | os.PathLike[str]) -> dict[str, Any]:
    """A saved report.

    Raises:
        InputError: the file can't be read, is something else, or counts other failures than it lists.
    """
    try:
        found = json.loads(Path(path).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"a self-test's report can't be read: {error}", value=str(path), hint=_MAKE) from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise InputError(f"this file is no {FORMAT}", value=str(path), hint=_MAKE)
    try:
        report = _Report.model_validate(found)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise InputError(f"a damaged {FORMAT}: {where}: {first['msg'].lower()}", value=str(path), hint=_MAKE) from error
    failed = sum(not law.ok for law in report.laws)
    if failed != report.failed:
        raise InputError(
            f"a damaged {FORMAT}: failed says {report.failed}, the laws {failed}", value=str(path), hint=_MAKE
        )
    return found


_MAKE = "logdiff kernels selftest --json > FILE on the other host"


def compare_selftests(here: dict[str, Any], there: dict[str, Any]) -> dict[str, Any]:
    """What differs between two reports.

    Returns:
        `same`: nothing does that both have tried; `differences`: sentences; `remarks`: sentences on what could not be
        compared, or makes no difference by itself.
    """
    differences = [*_sides(here, there), *_laws(here, there)]
    remarks = list(_remarks(here, there))
    ours, theirs = ({part["name"]: part for part in side.get("sections", [])} for side in (here, there))
    remarks += [f"{name}: only here" for name in ours if name not in theirs]
    remarks += [f"{name}: only there" for name in theirs if name not in ours]
    for name, part in ours.items():
        other = theirs.get(name)
        if other is None or part["facts"] == other["facts"]:
            continue
        said = list(_facts(part["facts"], other["facts"]))
        alone = len(part["facts"].keys() ^ other["facts"].keys())
        if said:
            more = [f"{len(said) - _SHOWN} more of {part['name']}"] if len(said) > _SHOWN else []
            differences += [*said[:_SHOWN], *more, f"what {part['name']} means: {part['matters']}"]
        if alone:
            remarks.append(f"{part['name']}: {alone} tables or probes were made on one of the two only")
    return {"same": not differences, "differences": differences, "remarks": remarks}


def _sides(here: dict[str, Any], there: dict[str, Any]) -> Iterator[str]:
    """What has to be equal before two sides can be called aligned."""
    words = {
        "provider": "provider",
        "arch": "architecture",
        "contract": "numeric contract",
        "binary": "compiled kernels",
    }
    for key, word in words.items():
        if key in here and key in there and here[key] != there[key]:
            yield f"{word}: {_short(here[key])} here, {_short(there[key])} there"
    if here.get("exact_exp") != there.get("exact_exp"):
        ways: dict[Any, str] = {True: "the contract's", False: "the chip's"}
        yield (
            f"exp and ln: {ways.get(here.get('exact_exp'), 'unknown')} here, "
            f"{ways.get(there.get('exact_exp'), 'unknown')} there: build both with the same LOGDIFF_EXACT_EXP"
        )


def _remarks(here: dict[str, Any], there: dict[str, Any]) -> Iterator[str]:
    if here.get("chip") != there.get("chip"):
        yield f"chip: {here.get('chip')} here, {there.get('chip')} there"
    if here.get("scope") != there.get("scope"):
        yield f"scope: {here.get('scope')} here, {there.get('scope')} there: only what both have tried is compared"


def _laws(here: dict[str, Any], there: dict[str, Any]) -> Iterator[str]:
    """Laws that hold on one side alone."""
    theirs = {(law["kernel"], law["law"]): law for law in there["laws"]}
    for law in here["laws"]:
        other = theirs.get((law["kernel"], law["law"]))
        if other is None or other["ok"] == law["ok"]:
            continue
        sides = ("holds here, fails there", other) if law["ok"] else ("fails here, holds there", law)
        yield f"{law['kernel']}: {law['law']}: {sides[0]}: {sides[1]['detail']}"


def _facts(here: dict[str, Any], there: dict[str, Any]) -> Iterator[str]:
    for name in here:
        if name in there and here[name] != there[name]:
            yield from _fact(name, here[name], there[name])


def _fact(name: str, here: dict[str, Any], there: dict[str, Any]) -> Iterator[str]:
    """Facts of one check. A table's own measures go into the sentence on its bits."""
    if _is_table(here) and _is_table(there):
        if here["values"] != there["values"] or len(here["parts"]) != len(there["parts"]):
            return  # of another scope
        if here["sha256"] != there["sha256"]:
            measures = [_scalar(key, here[key], there[key]) for key in here if _measured(key, here, there)]
            yield "; ".join([f"{name}: results differ {_ranges(here, there)}", *measures])
        return
    for key in here:
        if key not in there or here[key] == there[key]:
            continue
        if isinstance(here[key], dict) and isinstance(there[key], dict):
            yield from _fact(f"{name}: {key}", here[key], there[key])
        elif _is_hash(here[key]) and _is_hash(there[key]):
            yield f"{name}: {'sums' if key == 'sha256' else key.replace('_', ' ')} differ"
        else:
            yield f"{name}: {_scalar(key, here[key], there[key])}"


def _measured(key: str, here: dict[str, Any], there: dict[str, Any]) -> bool:
    return key not in ("sha256", "parts", "values") and key in there and here[key] != there[key]


def _scalar(key: str, here: Any, there: Any) -> str:
    return f"{key.replace('_', ' ')}: {_value(here)} here, {_value(there)} there"


def _value(x: Any) -> str:
    if isinstance(x, bool):
        return "yes" if x else "no"
    if isinstance(x, list):
        return ", ".join(map(str, x)) or "none"
    return str(x)


def _ranges(here: dict[str, Any], there: dict[str, Any]) -> str:
    """Which parts of a table differ; of a table of all 16-bit values, for which bits of the input."""
    parts = len(here["parts"])
    where = [i for i, (x, y) in enumerate(zip(here["parts"], there["parts"], strict=True)) if x != y]
    if here["values"] != 1 << 16 or len(where) > 4:
        return f"in {len(where)} of {parts} parts of the table"
    step = (1 << 16) // parts
    return "for inputs " + ", ".join(f"0x{i * step:04x} to 0x{(i + 1) * step - 1:04x}" for i in where)


def _is_table(x: dict[str, Any]) -> bool:
    return isinstance(x.get("parts"), list) and "sha256" in x and "values" in x


def _is_hash(x: Any) -> bool:
    return isinstance(x, str) and len(x) == 64 and all(c in "0123456789abcdef" for c in x)


def _short(x: Any) -> str:
    return f"{x[:12]}..." if _is_hash(x) else str(x)

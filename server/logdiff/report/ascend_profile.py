"""Ascend profiles in a report: what ran on the device on each side, and how it differs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from logdiff.report.files import read_section
from logdiff.report.wording import visible

DIFFERENCES = 100
TYPES = 60


@dataclass(slots=True)
class ProfileSection:
    """What the page shows of `results/dispatch-profile.json`; `verdict` "" where one side alone was profiled."""

    summary: str
    verdict: str
    names: list[str]
    differences: list[dict[str, str]] = field(default_factory=list)
    types: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    more: int = 0


def read_profile_section(case: Path, missing: list[str]) -> ProfileSection | None:
    """The section of a case folder; None where no profile was read. A broken file is told in `missing`."""
    return read_section(case, "dispatch-profile", "logdiff-dispatch/1", missing, _section)


def _section(data: dict[str, Any]) -> ProfileSection:
    profile = data["profile"]
    sides = profile["sides"]
    words = [
        f"{side['side']}: {side['tasks']:,} operator tasks, {side['time_ns'] / 1e6:,.3f} ms on the device, "
        f"{len(side['captures'])} capture(s)"
        for side in sides
    ]
    verdict = str(profile.get("verdict", ""))
    if verdict:
        words.append(f"{verdict}: {profile['why']}")
    differences = [_difference(row) for row in profile.get("differences", [])[:DIFFERENCES]]
    names = [str(side["side"]) for side in sides]
    return ProfileSection(
        ". ".join(words) + ".",
        verdict,
        names,
        differences,
        [_type(row, names) for row in profile["op_types"][:TYPES]],
        [note for side in sides for note in _notes(side)],
        max(0, int(profile.get("difference_count", 0)) - len(differences)),
    )


def _difference(row: dict[str, Any]) -> dict[str, str]:
    examples = "; ".join(str(shape) for shape in row["examples"][:2])
    rest = row["shapes"] - len(row["examples"][:2])
    return {
        "kind": str(row["kind"]),
        "statement": visible(str(row["statement"]), 400),
        "examples": visible(examples + (f" and {rest} more" if rest > 0 else ""), 200),
        "share": f"{float(row['share']):.1%}",
    }


def _type(row: dict[str, Any], names: list[str]) -> dict[str, Any]:
    cells = []
    callers: dict[str, None] = {}
    for name in names:
        entry = row[name]
        cells.append("–" if entry is None else f"{entry['count']:,} × {entry['shapes']} shapes, {entry['share']:.1%}")
        for caller in (entry or {}).get("callers", []):
            callers[f"{caller['torch_op']}" + (f" in {caller['module']}" if caller["module"] else "")] = None
    return {
        "op_type": visible(str(row["op_type"]), 80),
        "cells": cells,
        "callers": visible(", ".join(list(callers)[:3]), 200),
    }


def _notes(side: dict[str, Any]) -> list[str]:
    odd = [str(capture["label"]) for capture in side["captures"] if capture["odd"]]
    notes = [f"{side['side']}: other kernels than on most captures ran in {', '.join(odd[:20])}"] if odd else []
    notes += [f"{side['side']}, {c['label']}: {note}" for c in side["captures"] for note in c["notes"]]
    return [visible(note, 300) for note in (*notes, *(f"{side['side']}: left out: {x}" for x in side["left_out"]))][:50]

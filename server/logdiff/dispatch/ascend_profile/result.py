"""The part of `logdiff-dispatch/1` that comes from profiles."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from logdiff.dispatch.ascend_profile.compare import OpType, by_type, compare
from logdiff.dispatch.ascend_profile.read import read_side
from logdiff.dispatch.ascend_profile.records import Capture, Side, Tally, Work
from logdiff.errors import InputError

SIDES = ("rollout", "train")
_CALLERS = 5


def profile_result(paths: Sequence[str | Path], *, limit: int = 200) -> dict[str, Any]:
    """What ran on the device, by the profiles of one side or of two.

    Args:
        paths: the rollout side's profile, then the train side's: files or folders.
        limit: most operator types, kinds of work and differences to list; `left_out` counts the others.

    Returns:
        `{"format": "logdiff-dispatch/1", "source": "ascend-profile", "profile": {...}}` with `sides`, `op_types`,
        `work`, `torch_ops` and, for two sides, what `compare` gives. Times are ns.

    Raises:
        InputError: none or more than two paths, or a profile that can't be read.
        EvidenceError: a profile without operators.
    """
    if not 1 <= len(paths) <= len(SIDES):
        raise InputError(
            "one or two profiles are compared", value=len(paths), hint="--profile ROLLOUT and, if any, --profile TRAIN"
        )
    sides = [read_side(Path(path), name) for path, name in zip(paths, SIDES, strict=False)]
    left_out: dict[str, int] = {}
    types = _types(sides)
    profile: dict[str, Any] = {"sides": [_side(side) for side in sides]}
    if len(sides) == len(SIDES):
        found = compare(*sides)
        left_out["differences"] = max(0, len(found["differences"]) - limit)
        profile |= {**found, "differences": found["differences"][:limit], "difference_count": len(found["differences"])}
    profile["op_types"] = types[:limit]
    profile["work"] = [row for side in sides for row in _work(side)[:limit]]
    profile["torch_ops"] = [row for side in sides for row in _torch_ops(side)[:limit]]
    left_out["op_types"] = max(0, len(types) - limit)
    left_out["work"] = sum(max(0, len(_kinds(side)) - limit) for side in sides)
    profile["left_out"] = {name: number for name, number in left_out.items() if number}
    return {"format": "logdiff-dispatch/1", "source": "ascend-profile", "profile": profile}


def _side(side: Side) -> dict[str, Any]:
    digests = {id(capture): _digest(capture) for capture in side.captures}
    common = Counter(digests.values()).most_common(1)[0][0] if side.captures else ""
    several = len(set(digests.values())) > 1
    others: Counter[str] = Counter()
    for capture in side.captures:
        others.update(capture.others)
    return {
        "side": side.name,
        "path": side.path,
        "tasks": sum(capture.tasks for capture in side.captures),
        "time_ns": sum(tally.time_ns for _, tally in side.work()),
        "recorded": [name for name, there in side.recorded().items() if there],
        "others": dict(others.most_common(20)),
        "captures": [
            {
                "label": capture.label,
                "rank": capture.rank,
                "devices": sorted(capture.devices),
                "files": capture.files,
                "tasks": capture.tasks,
                "digest": digests[id(capture)],
                "odd": several and digests[id(capture)] != common,
                "facts": capture.facts,
                "notes": capture.notes,
            }
            for capture in side.captures
        ],
        "left_out": side.left_out[:50],
    }


def _digest(capture: Capture) -> str:
    """A hash over the kinds of work of one rank, however often each ran."""
    lines = sorted("\0".join("" if value is None else value for value in work) for work in capture.work)
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogatepass")).hexdigest()


def _types(sides: Sequence[Side]) -> list[dict[str, Any]]:
    """Operator types, the longest first."""
    found = [by_type(side) for side in sides]
    totals = [sum(entry.time_ns for entry in types.values()) or 1 for types in found]
    rows = []
    for kind, op_type in sorted({key for types in found for key in types}):
        row: dict[str, Any] = {"kind": kind, "op_type": op_type}
        for side, types, total in zip(sides, found, totals, strict=True):
            entry = types.get((kind, op_type))
            row[side.name] = None if entry is None else _entry(entry, total)
        rows.append(row)
    longest = {id(row): max(row[s.name]["share"] if row[s.name] else 0.0 for s in sides) for row in rows}
    return sorted(rows, key=lambda row: (-longest[id(row)], row["op_type"]))


def _entry(entry: OpType, total: int) -> dict[str, Any]:
    return {
        "count": entry.count,
        "time_ns": entry.time_ns,
        "share": round(entry.time_ns / total, 6),
        "shapes": len(entry.shapes),
        "variants": sum(len(variants) for variants in entry.shapes.values()),
        "callers": _callers(entry.callers),
    }


def _callers(callers: Counter[tuple[str | None, str | None]]) -> list[dict[str, Any]]:
    return [
        {"torch_op": op, "module": module, "count": count}
        for (op, module), count in callers.most_common(_CALLERS)
        if op is not None
    ]


def _kinds(side: Side) -> dict[Work, Tally]:
    """Kinds of work over all captures of a side."""
    merged: dict[Work, Tally] = {}
    for work, tally in side.work():
        into = merged.setdefault(work, Tally())
        into.count += tally.count
        into.time_ns += tally.time_ns
        into.most_ns = max(into.most_ns, tally.most_ns)
        into.least_ns = tally.least_ns if into.least_ns is None else min(into.least_ns, tally.least_ns or 0)
        into.streams |= tally.streams
        into.first_ns = min((t for t in (into.first_ns, tally.first_ns) if t is not None), default=None)
        for caller, count in tally.callers.items():
            into.callers[caller] = into.callers.get(caller, 0) + count
    return merged


def _work(side: Side) -> list[dict[str, Any]]:
    """Kinds of work of a side, the longest first."""
    merged = sorted(_kinds(side).items(), key=lambda item: (-item[1].time_ns, item[0].op_type))
    return [
        {
            "side": side.name,
            **{name: value for name, value in work._asdict().items() if value is not None},
            "count": tally.count,
            "time_ns": tally.time_ns,
            "least_ns": tally.least_ns,
            "most_ns": tally.most_ns,
            "first_ns": tally.first_ns,
            "streams": sorted(tally.streams),
            "callers": _callers(Counter(tally.callers)),
        }
        for work, tally in merged
    ]


def _torch_ops(side: Side) -> list[dict[str, Any]]:
    """Torch operators of `operator_details.csv`, the longest on the device first."""
    sums: dict[tuple[str, str], list[int]] = {}
    for capture in side.captures:
        for key, values in capture.torch_ops.items():
            into = sums.setdefault(key, [0, 0, 0])
            for place, value in enumerate(values):
                into[place] += value
    rows = [
        {
            "side": side.name,
            "name": name,
            "input_shapes": shapes,
            "count": n,
            "host_self_ns": host,
            "device_self_ns": device,
        }
        for (name, shapes), (n, host, device) in sums.items()
    ]
    return sorted(rows, key=lambda row: (-row["device_self_ns"], row["name"], row["input_shapes"]))

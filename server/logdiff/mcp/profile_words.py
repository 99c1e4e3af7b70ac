"""Words, verdict, facts and next steps of a result of Ascend profiles: pure functions of `logdiff-dispatch/1`."""

from __future__ import annotations

from collections import Counter
from typing import Any

from logdiff.mcp.results import Facts, NextStep
from logdiff.mcp.summaries import clip

SOURCE = "ascend-profile"
DIFFERENCES = 12
TYPES = 10
NOTES = 3


def verdict(data: Facts) -> str:
    """`same`, `different` or `undetermined` of two sides; `one-side`."""
    return str(data["profile"].get("verdict", "one-side"))


def summary(data: Facts) -> str:
    """What two profiles show of each other, or what one side's device did."""
    profile = data["profile"]
    if "verdict" in profile:
        words = [f"{profile['verdict']}: {clip(profile['why'], 300)}."]
        kinds = Counter(difference["kind"] for difference in profile["differences"])
        if kinds:
            words.append(f"Differences: {', '.join(f'{n} {kind}' for kind, n in kinds.most_common(8))}.")
        return " ".join(words)
    side = profile["sides"][0]
    longest = ", ".join(clip(row["op_type"], 40) for row in profile["op_types"][:3])
    return f"{side['side']}: {side['tasks']} device tasks in {len(side['captures'])} captures; longest: {longest}."


def facts(data: Facts, detail: str) -> Facts:
    """Sides, differences and operator types, shortened unless `detail` is "full"."""
    profile = data["profile"]
    if detail == "full":
        return {"source": data["source"], "profile": profile}
    found: Facts = {"source": data["source"], "sides": [_side(side) for side in profile["sides"]]}
    if "verdict" in profile:
        shown = profile["differences"][:DIFFERENCES]
        found["differences"] = [{"kind": d["kind"], "what": clip(d["statement"], 220)} for d in shown]
        found["more_differences"] = profile["difference_count"] - len(shown)
        found["not_compared"] = {k: clip(v, 80) for k, v in list(profile["not_compared"].items())[:8]}
    found["op_types"] = [_type(row) for row in profile["op_types"][:TYPES]]
    return found


def _side(side: dict[str, Any]) -> Facts:
    captures = side["captures"]
    return {
        "side": side["side"],
        "path": clip(side["path"], 120),
        "tasks": side["tasks"],
        "captures": len(captures),
        "odd": [clip(capture["label"], 40) for capture in captures if capture["odd"]][:8],
        "notes": [clip(note, 120) for capture in captures for note in capture["notes"]][:NOTES],
    }


def _type(row: dict[str, Any]) -> Facts:
    shares = {side: row[side]["share"] for side in ("rollout", "train") if row.get(side)}
    return {"op_type": clip(row["op_type"], 50), "share": shares}


def steps(data: Facts, case: str) -> list[NextStep]:
    """What to do next; the same for every case."""
    if verdict(data) not in ("different", "same"):
        return []
    return [
        NextStep(
            tool="probe_run",
            arguments={"ops": ["all"], "relations": ["I", "P"]},
            why="a kernel's name does not say its bits: probes measure what each implementation computes",
            outcomes=["bit-equal providers", "providers or shapes that differ, with the smallest one"],
        )
    ]

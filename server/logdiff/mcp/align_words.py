"""Words, verdicts and next steps of the align tools: pure functions over the commands' results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from logdiff.mcp.results import Facts, NextStep
from logdiff.mcp.summaries import clip

MAX_NAMED = 8


def plan_summary(data: Facts) -> str:
    """What the plan would do, and the first thing that it can't."""
    text = f"Plan {data['id']}: {len(data['ops'])} operators on {' and '.join(data['sides'])}."
    missing = data.get("not_covered") or []
    if missing:
        first = missing[0]
        where = f"{first.get('side')}: {clip(first.get('module'), 120)}: {clip(first.get('why'), 300)}"
        return f"{text} {len(missing)} parts can't be aligned, so it can't be applied; the first is {where}."
    return f"{text} Everything asked for is covered, as far as it can be told before the model is loaded."


def plan_steps(data: Facts) -> list[NextStep]:
    """Apply it, or plan less."""
    if data.get("not_covered"):
        return []
    return [
        NextStep(
            tool="align_apply",
            arguments={"plan_id": data["id"]},
            why="writes the overlay that switches engines on",
            outcomes=["applied: start engines with its env.sh", "refused: something changed since the plan, named"],
        )
    ]


def plan_facts(data: Facts, relative: Callable[[str], str]) -> Facts:
    """The plan, operators in one list per side."""
    operators: dict[str, dict[str, Any]] = {}
    for row in data.get("operators", []):
        operators.setdefault(row["side"], {})[row["op"]] = row["cost"]
    return {
        "id": data["id"],
        "cost_by_operator": operators,
        "cost": data.get("cost"),
        "not_covered": [{k: clip(v, 200) for k, v in item.items()} for item in data["not_covered"][:MAX_NAMED]],
        "unchecked": [{k: clip(v, 200) for k, v in item.items()} for item in data.get("unchecked", [])],
        "overlay": relative(str(data["overlay"])),
    }


def state_verdict(data: Facts) -> str:
    """aligned, native, not-native or unproven."""
    if data.get("overlay"):
        return "aligned"
    return {True: "native", False: "not-native"}.get(data.get("native"), "unproven")  # type: ignore[arg-type]


def state_summary(data: Facts) -> str:
    """What is on, or how native was proved."""
    verdict = state_verdict(data)
    problems = data.get("problems") or []
    more = f" Problems: {'; '.join(clip(p, 200) for p in problems[:3])}." if problems else ""
    if verdict == "aligned":
        return f"The overlay is on: engines started with {data['overlay']}/env.sh run aligned operators.{more}"
    proof = data.get("proof") or {}
    by = [f"dispatch of {side} {_same(entry)}" for side, entry in (proof.get("dispatch") or {}).items()]
    by += [f"bits of {side} {_same(entry)}" for side, entry in (proof.get("bits") or {}).items()]
    text = {
        "native": "Engines are native.",
        "not-native": "The overlay is gone, yet the engines are not as they were before.",
        "unproven": "The overlay is gone; that the engines are as before could not be proven.",
    }[verdict]
    return f"{text}{' ' + ', '.join(by) + '.' if by else ''}{more}"


def _same(entry: Facts) -> str:
    return {True: "as before", False: "changed"}.get(entry.get("same"), "undecided")  # type: ignore[arg-type]


def state_steps(data: Facts, tool: str) -> list[NextStep]:
    """What to call after apply; nothing after a revert."""
    if tool != "align_apply":
        return []
    return [
        NextStep(
            tool="align_revert",
            arguments={},
            why="takes the overlay back when the work with aligned engines is done",
            outcomes=["native, proven", "not native or unproven, with what is not as before"],
        )
    ]


def state_facts(data: Facts, relative: Callable[[str], str]) -> Facts:
    """The state, operators by side."""
    active: dict[str, list[str]] = {}
    for row in data.get("active", []):
        active.setdefault(row["side"], []).append(row["op"])
    proof = data.get("proof") or {}
    dispatch, bits = proof.get("dispatch") or {}, proof.get("bits") or {}
    return {
        "active": active,
        "native": data.get("native"),
        "overlay": relative(str(data["overlay"])) if data.get("overlay") else None,
        "env": data.get("env"),
        "proof": {
            "dispatch": {side: {k: e.get(k) for k in ("same", "native")} for side, e in dispatch.items()},
            "bits": {side: {"same": e.get("same"), "detail": clip(e.get("detail"), 200)} for side, e in bits.items()},
            "undetermined": [clip(words, 300) for words in proof.get("undetermined") or []],
        },
        "problems": [clip(problem, 300) for problem in data.get("problems", [])],
    }

"""Words, verdict, facts and next steps of a dispatch result: pure functions of `logdiff-dispatch/1`."""

from __future__ import annotations

from collections import Counter
from typing import Any

from logdiff.mcp.results import Facts, NextStep
from logdiff.mcp.summaries import clip

FINDINGS = 10
TOGGLES = 8
ROWS = 16
NAMED = 3


def verdict(data: Facts) -> str:
    """`findings`, `differ` (the sides run other code, nothing is wrong), `same`, or `one-side`."""
    if data["findings"]:
        return "findings"
    if not data["tables"]:
        return "one-side"
    kinds = {row["kind"] for rows in data["tables"].values() for row in rows}
    return "differ" if kinds - {"same"} else "same"


def summary(data: Facts) -> str:
    """What matters most, in two sentences."""
    words = []
    if data["findings"]:
        first = data["findings"][0]
        more = len(data["findings"]) - 1
        words.append(f"{first['kind']} on {first['side']}: {clip(first['what'], 100)}: {clip(first['detail'], 300)}")
        words.append(f"{more} more findings." if more else "No other finding.")
    else:
        words.append("Every function of the engines is as installed, and every switch that was tried had an effect.")
    for pair, rows in list(data["tables"].items())[:1]:
        kinds = Counter(row["kind"] for row in rows)
        words.append(f"Boundaries of {pair}: {', '.join(f'{n} {kind}' for kind, n in kinds.most_common())}.")
    return " ".join(words)


def facts(data: Facts, detail: str) -> Facts:
    """Findings, the table of one pair of phases and the switches, shortened unless `detail` is "full"."""
    if detail == "full":
        return {key: value for key, value in data.items() if key != "format"}
    rows: list[Facts] = []
    for found in list(data["tables"].values())[:1]:
        rows += [_row(row) for row in found if row["kind"] != "same"][:ROWS]
    return {
        "engines": {side: facts["engine"] for side, facts in data["sides"].items()},
        "attention": {side: _attention(facts) for side, facts in data["sides"].items()},
        "findings": [
            {k: clip(f.get(k) or "", 220) for k in ("kind", "side", "what", "detail", "by")}
            for f in data["findings"][:FINDINGS]
        ],
        "more_findings": max(0, len(data["findings"]) - FINDINGS),
        "table": rows,
        "toggles": [_proof(proof) for proof in data["toggles"][:TOGGLES]],
        "digest": data["digest"][:16],
    }  # fmt: skip


def _proof(proof: dict[str, Any]) -> Facts:
    told = {key: proof[key] for key in ("toggle", "changed", "result")}
    return {**told, "why": clip(proof["statement"], 400)}


def _attention(facts: Facts) -> str:
    found = (facts.get("resolved") or {}).get("attention")
    return clip(", ".join(found) if isinstance(found, dict) else found, 120)


def _row(row: dict[str, Any]) -> Facts:
    return {
        "boundary": clip(row["boundary"], 50),
        "difference": row["kind"],
        "rollout": _ops(row["rollout"]),
        "train": _ops(row["train"]),
    }


def _ops(cell: dict[str, Any] | None) -> str:
    ops = [op.removesuffix(".default") for op in (cell or {}).get("ops", [])]
    return clip(", ".join(ops[:NAMED]) + (f" +{len(ops) - NAMED}" if len(ops) > NAMED else ""), 80) or "-"


def steps(data: Facts, case: str) -> list[NextStep]:
    """What to do next."""
    found = []
    differing = [row["boundary"] for rows in data["tables"].values() for row in rows if row["kind"] == "provider"]
    if differing:
        found.append(
            NextStep(
                tool="probe_run",
                arguments={"ops": ["all"], "relations": ["P"]},
                why="measures how far the two sides' implementations of an operator are apart on equal inputs",
                outcomes=["bit-equal providers", "providers that differ, with the smallest shape"],
            )
        )
    if case and data["tables"]:
        found.append(
            NextStep(
                tool="report_render",
                arguments={"case": case},
                why="one HTML file with the table of both sides as a picture",
                outcomes=["path of report.html for a person to open"],
            )
        )
    return found

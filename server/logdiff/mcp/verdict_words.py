"""Words and facts of diagnoses and localisations: pure functions of `logdiff-verdict/1` and `logdiff-localize/1`."""

from __future__ import annotations

from typing import Any

from logdiff.mcp import summaries
from logdiff.mcp.results import Facts
from logdiff.mcp.summaries import clip, number

CANDIDATES = 4
EVIDENCE = 4
EXCLUDED = 6
BUDGET = 8
EXPERIMENTS = 2
CHECKS = 6
ROWS = 10
_GROWTH = ("pair", "bits_differ", "relative")


def summary(data: Facts) -> str:
    """The answer in two or three sentences."""
    found = data["verdict"]
    cause = f", cause {found['cause']}" if found.get("cause") else ""
    side = f" on {found['side']}" if found.get("side") in ("rollout", "train", "both") else ""
    where = f" at {clip(found['component'], 80)}" if found.get("component") else ""
    text = f"Verdict {found['class']}{side}{cause}{where} (confidence {number(found.get('confidence'))}): "
    text += clip(found.get("statement") or "", 240).rstrip(".") + "."
    measure = data.get("measure") or {}
    if measure.get("tokens"):
        text += (
            f" {measure.get('mismatched_tokens')} of {measure['tokens']} tokens differ in their bits, "
            f"mean |d| {number(measure.get('mean_abs'))}, max {number(measure.get('max_abs'))} nats."
        )
    return text


def verdict(data: Facts) -> Facts:
    """The verdict, long texts shortened."""
    found = dict(data["verdict"])
    found["component"] = clip(found["component"], 80) if found.get("component") else None
    found["statement"] = clip(found.get("statement") or "", 240)
    return found


def fields(data: Facts, detail: str) -> Facts:
    """The fields of `logdiff-verdict/1`, shortened unless `detail` is "full"; what is beyond them stands in `facts`."""
    own = ("candidates", "measure", "floor", "evidence", "excluded", "budget", "next_experiments")
    extra = {k: v for k, v in data.items() if k not in (*own, "format", "case", "verdict")}
    if detail == "full":
        return {
            **{name: data.get(name) or ({} if name in ("measure", "floor") else []) for name in own},
            "facts": extra,
        }
    short = summaries.measure_facts({"measure": data.get("measure"), "floor": data.get("floor")}, "summary")
    return {
        "candidates": [_candidate(c) for c in data.get("candidates") or []][:CANDIDATES],
        "measure": short["measure"],
        "floor": {k: v for k, v in short["floor"].items() if k in ("mean_abs", "p99", "max_abs", "mismatched_tokens")},
        "evidence": [_evidence(e) for e in data.get("evidence") or []][:EVIDENCE],
        "excluded": [{"cause": clip(e.get("cause"), 60), "by": clip(e.get("by"), 80)}
                     for e in data.get("excluded") or []][:EXCLUDED],
        "budget": [{k: _round(v) for k, v in b.items()} for b in data.get("budget") or []][:BUDGET],
        "next_experiments": [{"what": clip(n.get("what"), 160), "command": clip(n.get("command"), 140),
                              "splits": list(n.get("splits") or [])[:4]}
                             for n in data.get("next_experiments") or []][:EXPERIMENTS],
        "facts": _extra(data),
    }  # fmt: skip


def _candidate(data: Facts) -> Facts:
    claims = [clip(claim, 100) for claim in list(data.get("evidence") or [])[:1]]
    return {
        "cause": data.get("cause"),
        "class": data.get("class"),
        "score": _round(data.get("score")),
        "evidence": claims,
    }


def _evidence(data: Facts) -> Facts:
    return {
        "claim": clip(data.get("claim"), 140), "value": _short(data.get("value")),
        "threshold": _short(data.get("threshold")), "source": clip(data.get("source"), 50),
        "repeat": clip(data.get("repeat"), 100),
    }  # fmt: skip


def _extra(data: Facts) -> Facts:
    """What was changed to prove it, and what was left out."""
    toggles = [t for t in data.get("toggles") or [] if isinstance(t, dict)]
    skipped = [s for s in data.get("skipped") or [] if isinstance(s, dict)]
    operators = data.get("operators") if isinstance(data.get("operators"), dict) else {}
    found: Facts = {
        "changed": [
            {"side": t.get("side"), "without": clip(t.get("removed"), 80), "share_gone": _round(t.get("share"))}
            for t in toggles[:4]
        ],
        "left_out": [f"{clip(s.get('what'), 60)}: {clip(s.get('why'), 100)}" for s in skipped[:3]],
    }
    if operators:
        off = [clip(name, 50) for name in list(operators.get("off") or [])[:4]]
        found["operators"] = {"judged": operators.get("judged"), "off": off}
    return {key: value for key, value in found.items() if value}


def localize_verdict(data: Facts) -> str:
    """`operators-off`, `inputs-off`, `rounding`, `equal` or `nothing-judged`."""
    if _dicts(data, "off"):
        return "operators-off"
    if _dicts(data, "inputs"):
        return "inputs-off"
    if not data.get("judged"):
        return "nothing-judged"
    return "rounding" if data.get("first_divergence") else "equal"


def localize_summary(data: Facts, found: str) -> str:
    """Where it begins, and what that is."""
    judged, off = data.get("judged"), _dicts(data, "off")
    first = data.get("first_divergence")
    where = f" The sides part at {clip(first.get('boundary'), 80)}." if isinstance(first, dict) else ""
    named = f"{clip(off[0].get('side'), 20)} {clip(off[0].get('boundary'), 60)}" if off else ""
    text = {
        "operators-off": f"{len(off)} of {judged} operators are far from their fp64 reference on their own inputs, "
        f"first {named}.",
        "inputs-off": "Every operator judged is right, but what the model was fed is not.",
        "rounding": f"All {judged} operators judged are within rounding on their own inputs.",
        "equal": f"All {judged} operators judged are right, and no boundary differs.",
        "nothing-judged": "No operator could be judged.",
    }[found]
    return text + where


def localize_facts(data: Facts, detail: str) -> Facts:
    """Operators and inputs that are off, coverage, and the first rows of the growth curve."""
    if detail == "full":
        return {key: value for key, value in data.items() if key not in ("format", "case")}
    off = _dicts(data, "off")
    return {
        "judged": data.get("judged"),
        "off": [
            {
                **{key: clip(c.get(key), 60) for key in ("side", "phase", "boundary", "operator")},
                "ratio": _round(c.get("ratio")),
                "why": clip(c.get("why"), 160) if c.get("why") else None,
            }
            for c in off[:CHECKS]
        ],
        "more_off": max(0, len(off) - CHECKS),
        "inputs_off": [
            {k: clip(i.get(k), 120) for k in ("side", "phase", "what", "detail")}
            for i in _dicts(data, "inputs")[:CHECKS]
        ],
        "coverage": {
            clip(name, 40): {"mapped": c.get("mapped"), "judged": c.get("judged"), "unmapped": len(c["unmapped"] or [])}
            for name, c in (data.get("coverage") or {}).items()
        },
        "divergence": [
            {"boundary": clip(d.get("boundary"), 60), **{k: _round(d.get(k)) for k in _GROWTH}}
            for d in _dicts(data, "divergence")
            if (d.get("bits_differ") or 0) > 0
        ][:ROWS],
    }


def _dicts(data: Facts, key: str) -> list[Facts]:
    return [entry for entry in data.get(key) or [] if isinstance(entry, dict)]


def _short(value: Any) -> Any:
    return clip(value, 80) if isinstance(value, (str, list, dict)) else _round(value)


def _round(value: Any) -> Any:
    if isinstance(value, str):
        return clip(value, 80)
    return float(f"{value:.4g}") if isinstance(value, float) else value
